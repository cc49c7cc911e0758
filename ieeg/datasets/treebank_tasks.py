"""The four decoding tasks of Brain TreeBank, three published protocols, and two ways to split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.datasets.nejedly import pad_symmetrically
from mvpa_ts.ieeg.datasets.treebank import SFREQ, check_columns
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.preprocessing.signal import PreprocessedSignal
from mvpa_ts.ieeg.recordings.recording import Recording, Signal

TASKS = ("volume", "pitch", "onset", "speech")
PROTOCOLS = ("popt", "brainbert", "neuroprobe")
Task = Literal["volume", "pitch", "onset", "speech"]
Protocol = Literal["popt", "brainbert", "neuroprobe"]
_BLOCK_SECONDS = 120.0


@dataclass(frozen=True)
class Examples:
    """Labelled windows of a trial.

    Attributes
    ----------
    starts : ndarray of int, shape (n,)
        First samples at 2048 Hz, rising.
    samples : int
        Length of a window at 2048 Hz.
    labels : ndarray of bool, shape (n,)
    """

    starts: NDArray[np.int64]
    samples: int
    labels: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, indices: NDArray[np.intp]) -> Examples:
        """Pick some of the windows."""
        return Examples(self.starts[indices], self.samples, self.labels[indices])


def treebank_examples(
    words: pd.DataFrame,
    nonverbal: pd.DataFrame | None,
    task: Task,
    protocol: Protocol = "popt",
    *,
    num_samples: int | None = None,
    balance: bool = True,
    seed: int = 0,
) -> Examples:
    """Make the windows and labels of a task.

    ==========  =============================================  ==========================================
    task        positive                                       negative
    ==========  =============================================  ==========================================
    volume      words of high ``rms``                          words of low ``rms``
    pitch       words of high ``pitch``                        words of low ``pitch``
    onset       words that begin a sentence (``is_onset``)     windows without speech
    speech      words                                          windows without speech
    ==========  =============================================  ==========================================

    High and low are the top and the bottom quarter in "popt" and "neuroprobe"; in "brainbert" they are values more than
    one standard deviation above or below the mean. Windows are 5 s long, centred on the onset of the word or on the
    middle of the window without speech. In "neuroprobe" they are 1 s long and begin at the onset.

    Parameters
    ----------
    words : DataFrame
        ``est_idx`` and the columns of the task; see `read_words`, or the published word tables.
    nonverbal : DataFrame or None
        ``est_idx`` and ``est_end_idx`` of windows without speech; needed for onset and speech.
    task : {"volume", "pitch", "onset", "speech"}
    protocol : {"popt", "brainbert", "neuroprobe"}
    num_samples : int, optional
        Length of the recording; windows that reach past its ends are left out.
    balance : bool
        Draw from the more frequent class as many windows as the other class has.
    seed : int, default 0
        Of that draw.

    Raises
    ------
    ValueError
        Task or protocol is unknown, a column is missing, or a class is empty.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {TASKS}, got {task!r}")
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {PROTOCOLS}, got {protocol!r}")
    if task in ("volume", "pitch"):
        feature = {"volume": "rms", "pitch": "pitch"}[task]
        check_columns(words, (feature, "est_idx"), "words")
        words = words.dropna(subset=[feature])
        values = words[feature].to_numpy(float)
        if not len(values):
            raise ValueError(f"words must hold a value of {feature}, got none")
        if protocol == "brainbert":
            low, high = values.mean() - values.std(), values.mean() + values.std()
        else:
            low, high = np.quantile(values, [0.25, 0.75])
        onsets = words["est_idx"].to_numpy(float)
        positive, negative = onsets[values > high], onsets[values < low]
    else:
        check_columns(words, ("est_idx", *(["is_onset"] if task == "onset" else [])), "words")
        if nonverbal is None:
            raise ValueError(f"task {task} needs nonverbal, the table of windows without speech, got None")
        check_columns(nonverbal, ("est_idx", "est_end_idx"), "nonverbal")
        chosen = words[words["is_onset"].astype(float) > 0] if task == "onset" else words
        positive = chosen["est_idx"].to_numpy(float)
        if protocol == "neuroprobe":
            negative = nonverbal["est_idx"].to_numpy(float)
        else:
            negative = nonverbal[["est_idx", "est_end_idx"]].to_numpy(float).mean(1)
    length = round((1.0 if protocol == "neuroprobe" else SEGMENT_SECONDS) * SFREQ)
    centre = 0 if protocol == "neuroprobe" else length // 2
    groups = []
    for times in (positive, negative):
        starts = np.rint(times).astype(np.int64) - centre
        inside = starts >= 0
        if num_samples is not None:
            inside &= starts + length <= num_samples
        groups.append(np.sort(starts[inside]))
    if not len(groups[0]) or not len(groups[1]):
        raise ValueError(f"task {task} needs both classes, got {len(groups[0])} positive and {len(groups[1])} negative")
    if balance:
        rng, size = np.random.default_rng(seed), min(len(groups[0]), len(groups[1]))
        groups = [np.sort(rng.choice(group, size, replace=False)) for group in groups]
    starts = np.concatenate(groups)
    labels = np.arange(len(starts)) < len(groups[0])
    order = np.argsort(starts, kind="stable")
    return Examples(starts[order], length, labels[order])


@dataclass(frozen=True)
class ExampleSplit:
    """Indices of the examples of each part; windows in `removed` overlap another part and are in no part."""

    train: NDArray[np.intp]
    validation: NDArray[np.intp]
    test: NDArray[np.intp]
    removed: NDArray[np.intp]

    def check_classes(self, labels: NDArray[Any]) -> None:
        """Raise a ValueError if a part has no windows of one class: nothing could be fitted or scored on it."""
        for part in ("train", "validation", "test"):
            held = np.asarray(labels)[getattr(self, part)].astype(bool)
            for label in (0, 1):
                if not np.count_nonzero(held == label):
                    raise ValueError(
                        f"the split's {part} part must hold windows of both classes, got {len(held)} windows and none "
                        f"of class {label}: take another seed or split, or more windows"
                    )


def split_examples(
    examples: Examples, how: Literal["random", "blocked"] = "blocked", *, blocks: int = 10, seed: int = 0
) -> ExampleSplit:
    """Split examples: 80 % to train, 10 % to validate, 10 % to test.

    Parameters
    ----------
    examples : Examples
    how : {"random", "blocked"}
        "random" is the published way. It leaks, because test windows overlap training windows. "blocked" cuts the trial
        into `blocks` stretches with the same number of windows and gives whole stretches to a part. Training windows
        that overlap a validation or test window are removed, and validation windows that overlap a test window.
    blocks : int
        A multiple of ten.
    seed : int
        Decides which windows or stretches go to which part.

    Raises
    ------
    ValueError
        An option is out of its range, or a part has only one class, for example where a film is silent for long.
    """
    rng, count = np.random.default_rng(seed), len(examples)
    if count < 10:
        raise ValueError(f"a split needs at least 10 windows, got {count}")
    if how == "random":
        train, validation, test = np.split(rng.permutation(count), [round(0.8 * count), round(0.9 * count)])
        split = ExampleSplit(np.sort(train), np.sort(validation), np.sort(test), np.zeros(0, np.intp))
        split.check_classes(examples.labels)
        return split
    if how != "blocked":
        raise ValueError(f'how must be "random" or "blocked", got {how!r}')
    if blocks < 10 or blocks % 10 or blocks > count:
        raise ValueError(f"blocks must be a multiple of ten up to the number of windows ({count}), got {blocks}")
    stretches = np.array_split(np.argsort(examples.starts, kind="stable"), blocks)
    groups = np.split(rng.permutation(blocks), [blocks * 8 // 10, blocks * 9 // 10])
    train, validation, test = (np.sort(np.concatenate([stretches[i] for i in group])) for group in groups)
    outside_test = ~_overlaps(examples, validation, test)
    outside = ~_overlaps(examples, train, np.concatenate([validation, test]))
    removed = np.sort(np.concatenate([train[~outside], validation[~outside_test]]))
    split = ExampleSplit(train[outside], validation[outside_test], test, removed)
    split.check_classes(examples.labels)
    return split


def _overlaps(examples: Examples, these: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark those of `these` windows that share a sample with one of the `others`."""
    starts = np.sort(examples.starts[others])
    first = np.searchsorted(starts, examples.starts[these] - examples.samples, "right")
    last = np.searchsorted(starts, examples.starts[these] + examples.samples, "left")
    return last > first


def read_examples(
    recording: Recording, examples: Examples, preprocessing: Preprocessing | None = None
) -> Iterator[tuple[Signal, bool]]:
    """Yield the signal [C, 2560] at 512 Hz and the label of each window, by start; windows of 1 s are mirrored to 5 s.

    Parameters
    ----------
    recording : Recording
        From `read_treebank`.
    examples : Examples
    preprocessing : Preprocessing, optional
        Default: band-pass and automatic notch, and no new reference.
    """
    stream = PreprocessedSignal(recording, Preprocessing(reference=None) if preprocessing is None else preprocessing)
    rate = stream.preprocessing.sfreq
    size, length = round(SEGMENT_SECONDS * rate), round(examples.samples / SFREQ * rate)
    low = high = 0
    block = np.zeros((len(stream.channel_names), 0), np.float32)
    for index in np.argsort(examples.starts, kind="stable"):
        first = round(int(examples.starts[index]) / SFREQ * rate)
        if not low <= first <= first + length <= high:  # words are dense: a block holds many windows
            low, high = first, max(min(first + round(_BLOCK_SECONDS * rate), stream.num_samples), first + length)
            block, _ = stream.read(low, high)
        yield pad_symmetrically(block[:, first - low : first - low + length], size), bool(examples.labels[index])
