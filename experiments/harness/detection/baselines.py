"""The library's baselines in studies: fitted to training recordings, then a score for each segment of any recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from mvpa_ts.ieeg import Recording, Segments
from mvpa_ts.ieeg.detection.baselines import Brainmaze, LineLength, brainmaze_installed, fit_baselines
from mvpa_ts.ieeg.detection.features import TrainingFeatures, blocks, line_lengths, mean_length, segment_features

PUBLISHED = "brainmaze-eeg-models"
Floats = npt.NDArray[np.float64]
Score = Callable[[Recording], tuple[Floats, Floats]]
"""From a recording to a score in (0, 1) of each segment, and where the segments begin (s)."""


def line_length(training: Sequence[Recording]) -> Score:
    """Line length in µV, which learns nothing."""
    level = LineLength().level
    return lambda recording: (read(recording)[1] / (read(recording)[1] + level), read(recording)[3])


def regression(training: Sequence[Recording], *, own_level: bool = False) -> Score:
    """The library's regression; with `own_level` on features less their median over the recording.

    A running detector does not know that median. It makes the rule stronger where subjects differ in amplitude.
    """

    def features(recording: Recording) -> Floats:
        values = read(recording)[0]
        return values - np.nanmedian(values, axis=0) if own_level else values

    lengths, ictal = (np.concatenate([read(recording)[column] for recording in training]) for column in (1, 2))
    stretches = np.repeat(np.arange(len(training)), [len(read(recording)[1]) for recording in training])
    columns = (np.concatenate([*map(features, training)]), lengths, ictal, stretches)
    scored = ~np.isnan(lengths)
    _, fitted = fit_baselines(TrainingFeatures(*(column[scored] for column in columns)))
    return lambda recording: (fitted.of_features(features(recording)), read(recording)[3])


@cache
def read(recording: Recording) -> tuple[Floats, Floats, npt.NDArray[np.bool_], Floats]:
    """Features [n, 18], line length [n], label [n] and start [n] of the segments; kept, as all baselines read them."""
    segments = Segments(recording)
    features, lengths = zip(
        *((segment_features(*block), mean_length(line_lengths(block[0]), block[1])) for block in blocks(segments)),
        strict=True,
    )
    return np.concatenate(features), np.concatenate(lengths), segments.labels(), segments.starts


@cache
def _published(recording: Recording) -> tuple[Floats, Floats]:
    """Kept, for its minutes."""
    segments = Segments(recording)
    return np.concatenate([*Brainmaze().probabilities(segments)]), segments.starts


BASELINES: dict[str, Callable[[Sequence[Recording]], Score]] = {
    "line length": line_length,
    "logistic regression": regression,
    "logistic regression, own level": partial(regression, own_level=True),
    PUBLISHED: lambda training: _published,
}
"""By name, from the training recordings; nothing about them depends on a seed."""
INSTALLED = [name for name in BASELINES if name != PUBLISHED or brainmaze_installed()]
"""Those that can be run here."""


def short_name(name: str) -> str:
    """What command lines and columns call a baseline."""
    return name.replace(", ", "-").replace(" ", "-")
