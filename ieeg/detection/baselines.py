"""Simple detectors that stand beside the network: line length, logistic regression, a published model.

All read the same segments as the network: resampled, filtered and referenced by `Preprocessing`. Their settings are
fixed here and nothing about them is random, so that two runs and two tables have the same baseline.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mvpa_ts.checks import check_numbers, warn
from mvpa_ts.files import read_config, write_json
from mvpa_ts.ieeg.constants import BRAINMAZE, CLASSES, LINE_LENGTH, REGRESSION, SEGMENT_SECONDS, readable
from mvpa_ts.ieeg.detection.detection import Detection
from mvpa_ts.ieeg.detection.detector import Detector
from mvpa_ts.ieeg.detection.features import (
    NUM_FEATURES,
    TrainingFeatures,
    blocks,
    line_lengths,
    mean_length,
    segment_features,
)
from mvpa_ts.ieeg.detection.rules import RULES
from mvpa_ts.ieeg.events import Floats, Integers, merge_events, segment_labels
from mvpa_ts.ieeg.preprocessing.segments import BLOCK_SEGMENTS, Segments
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing, changed_preprocessing
from mvpa_ts.ieeg.recordings.channels import plain_names
from mvpa_ts.ieeg.recordings.recording import Recording

# Line length (µV a sample at 512 Hz) at which line length alone says 0.5, where no quiet recording of the patient is at
# hand: between the 5 µV before and the 20 µV in seizures of human ECoG.
USUAL_LINE_LENGTH = 10.0
# The same as a multiple of the patient's quiet median.
QUIET_FACTOR = 2.0
# Inverse strength of the penalty, on features in robust standard deviations of the quiet segments: strong, because few
# examples must not spoil it.
PENALTY_C = 0.1
# Robust standard deviations beyond which a feature is cut, so that one artefact decides nothing.
CUT = 10.0


class Baseline(ABC):
    """A detector without a network: probabilities of segments, and settings that make it again."""

    kind: ClassVar[str]

    @abstractmethod
    def probabilities(self, segments: Segments, first: int = 0) -> Iterator[Floats]:
        """Probability of seizure of the segments from `first` on, block by block; NaN without a valid channel."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.kind

    def settings(self) -> dict[str, Any]:
        """Everything that its probabilities depend on, as JSON values."""
        return {"baseline": self.kind, **asdict(self)}  # type: ignore[call-overload]

    def save(self, path: str | Path) -> None:
        """Write the settings as JSON, which `load_baseline` reads."""
        write_json(path, self.settings())


@dataclass(frozen=True)
class LineLength(Baseline):
    """Mean of ``|x[i + 1] − x[i]|`` over samples and channels with a signal, in µV (Esteller 2001).

    The probability is L / (L + L₀), which ranks segments as line length does. L₀ is `USUAL_LINE_LENGTH`, or with
    `quiet` twice the patient's own.

    Parameters
    ----------
    quiet : float, optional
        Median line length of the patient's quiet segments (µV).

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> segments = Segments(simulate_recording("S01", num_channels=4, duration=60.0))
    >>> next(LineLength().probabilities(segments)).shape
    (12,)
    """

    kind = LINE_LENGTH
    quiet: float | None = None

    def __post_init__(self) -> None:
        if self.quiet is not None and not (math.isfinite(self.quiet) and self.quiet > 0):
            raise ValueError(f"quiet must be a positive line length in µV, got {self.quiet!r}")

    @property
    def name(self) -> str:
        """See `Baseline.name`."""
        return self.kind if self.quiet is None else f"{self.kind}, scaled by quiet"

    @property
    def level(self) -> float:
        """L₀ (µV)."""
        return USUAL_LINE_LENGTH if self.quiet is None else QUIET_FACTOR * self.quiet

    def probabilities(self, segments: Segments, first: int = 0) -> Iterator[Floats]:
        """See `Baseline.probabilities`."""
        for signal, valid in blocks(segments, first):
            lengths = mean_length(line_lengths(signal), valid)
            yield lengths / (lengths + self.level)


@dataclass(frozen=True)
class Regression(Baseline):
    """Penalised logistic regression on log band power and line length, over channels: median and upper spread.

    A feature is the median over channels, or the 90th percentile less the median: a focus is seen, and neither the
    number of channels nor one loose contact matters. Features are measured from the median of the quiet training
    segments, in robust standard deviations.

    Parameters
    ----------
    center, scale, weights : sequence of float
        One for each of the 2·(8 + 1) features.
    bias : float
    """

    kind = REGRESSION
    center: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    def __post_init__(self) -> None:
        for name in ("center", "scale", "weights"):
            values = np.asarray(getattr(self, name), dtype=np.float64).tolist()
            check_numbers(values, NUM_FEATURES, name)
            object.__setattr__(self, name, tuple(values))
        if not math.isfinite(self.bias) or min(self.scale) <= 0:
            raise ValueError("bias must be finite and scale positive")

    def probabilities(self, segments: Segments, first: int = 0) -> Iterator[Floats]:
        """See `Baseline.probabilities`."""
        for block in blocks(segments, first):
            yield self.of_features(segment_features(*block))

    def of_features(self, features: Floats) -> Floats:
        """Probability [n] from the features [n, 18] of `segment_features`."""
        logits = _standard(features, self.center, self.scale) @ np.array(self.weights) + self.bias
        return 1.0 / (1.0 + np.exp(-np.clip(logits, -500.0, 500.0)))


@dataclass(frozen=True)
class ClassRegression(Baseline):
    """The regression of K classes of one's own, such as awake and asleep: multinomial, and all weigh the same.

    As `Regression`, but weights have the shape (K, 18) and the bias (K,). `preprocessing` holds the changes of the
    default with which it was trained.
    """

    kind = CLASSES
    names: Sequence[str]
    center: Sequence[float]
    scale: Sequence[float]
    weights: Sequence[Sequence[float]]
    bias: Sequence[float]
    preprocessing: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        changed_preprocessing(Preprocessing(), self.preprocessing)
        for row in (self.center, self.scale, *self.weights):
            check_numbers([*row], NUM_FEATURES, "center, scale and each row of weights")
        check_numbers([*self.bias], len(self.names), "bias")
        if not all(isinstance(name, str) for name in self.names):
            raise ValueError(f"names must be text, got {self.names!r}")
        if len(self.weights) != len(self.names) or min(self.scale) <= 0:
            raise ValueError("weights must have a row for each of names, and scale must be positive")

    @classmethod
    def fit(cls, names: Sequence[str], features: Floats, labels: Integers) -> ClassRegression:
        """Fit it to segments [n, 18] of all classes; labels below 0 are none."""
        scored = (labels >= 0) & ~np.isnan(features).any(1)
        if missing := [name for number, name in enumerate(names) if number not in labels[scored]]:
            raise ValueError(f"no segment with a signal is of class {missing[0]!r}: add a recording that has some")
        center, scale, weights, bias = _fitted(features[scored], labels[scored], features[scored])
        if len(weights) == 1:  # of two classes sklearn has the odds of the second
            weights, bias = np.vstack([0 * weights, weights]), np.append(0.0, bias)
        return cls([*names], *(values.tolist() for values in (center, scale, weights, bias)))

    def probabilities(self, segments: Segments, first: int = 0) -> Iterator[Floats]:
        """Probability of each class [n, K], block by block; NaN without a valid channel."""
        from scipy.special import softmax

        for block in blocks(segments, first):
            features = _standard(segment_features(*block), self.center, self.scale)
            yield softmax(features @ np.transpose(self.weights) + np.array(self.bias), axis=1)


@dataclass(frozen=True)
class Brainmaze(Baseline):
    """The published model of brainmaze-eeg-models (Sladky 2022), mean over channels and each segment.

    Nothing of it is trained here. It reads the recording as it is, without our filters. A segment of which the model
    says nothing has 0.

    Raises
    ------
    ModuleNotFoundError
        The package is not installed.
    """

    kind = BRAINMAZE

    def __post_init__(self) -> None:
        if not brainmaze_installed():
            raise ModuleNotFoundError(
                "the baseline brainmaze needs the package brainmaze-eeg-models, which is not installed: pip install "
                "brainmaze-eeg-models"
            )

    def probabilities(self, segments: Segments, first: int = 0) -> Iterator[Floats]:
        """See `Baseline.probabilities`."""
        recording = segments.recording
        # After a bipolar montage the model's channels are none of the recording.
        names = [name for name in recording.channel_names if name in {*segments.channel_names}]
        scores = brainmaze_probabilities(recording, names or recording.channel_names, segments.starts)
        for block in range(first, segments.num_segments, BLOCK_SEGMENTS):
            yield scores[block : block + BLOCK_SEGMENTS]


def brainmaze_installed() -> bool:
    """Whether brainmaze-eeg-models can be imported."""
    return find_spec("brainmaze_eeg_models") is not None


def brainmaze_probabilities(recording: Recording, channels: Sequence[str], starts: Floats) -> Floats:
    """Probability of the published model in the 5 s from each start, mean over channels."""
    from brainmaze_eeg_models.seizure import predict_channel_seizure_probability

    signal = recording.read(0, recording.num_samples).astype(float)
    rows = [recording.channel_names.index(name) for name in channels]
    # The model reads windows of 300 s; of a shorter recording the whole is one window.
    short = {"window_s": np.floor(2 * recording.duration) / 2, "step_s": 0.5, "discard_edges_s": 0.0}
    options = {} if recording.duration >= 300 else short
    traces = [predict_channel_seizure_probability(x, recording.sfreq, model="modelA", **options) for x in signal[rows]]
    # At 0 s no channel has a value.
    seconds, trace = traces[0][0][1:], np.nanmean([values[1:] for _, values in traces], axis=0)
    means = [np.nanmean(trace[(seconds >= start) & (seconds < start + SEGMENT_SECONDS)]) for start in starts]
    return np.nan_to_num(np.array(means))


def fit_baselines(training: TrainingFeatures) -> tuple[LineLength, Regression]:
    """Line length scaled by the quiet training segments, and the regression of the training segments.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> segments = Segments(simulate_recording("S01", num_channels=4, duration=120.0, num_seizures=1))
    >>> [baseline.name for baseline in fit_baselines(TrainingFeatures.of([segments]))]
    ['line-length, scaled by quiet', 'regression']
    """
    features, label = training.features, training.ictal
    center, scale, weights, bias = _fitted(features, label, features[~label])
    regression = Regression(tuple(center), tuple(scale), tuple(weights[0]), float(bias[0]))
    return LineLength(max(float(np.median(training.lengths[~label])), 1e-6)), regression


def _fitted(features: Floats, labels: npt.NDArray[Any], level: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Center and scale of the features by some segments, and weights [K, 18] and bias of a regression on all."""
    from sklearn.linear_model import LogisticRegression

    center = np.median(level, axis=0)
    # A feature that never varies among few quiet segments would weigh without bound.
    scale = np.maximum(1.4826 * np.median(np.abs(level - center), axis=0), 0.05)
    fitted = LogisticRegression(C=PENALTY_C, class_weight="balanced", max_iter=1000)
    fitted.fit(_standard(features, center, scale), labels)
    return center, scale, fitted.coef_, fitted.intercept_


def warn_of_other_channels(items: Sequence[Segments]) -> None:
    """Warn where recordings of one subject have other channels: line length then compares other places."""
    first_of: dict[str, Segments] = {}
    different = []
    for segments in items:
        first = first_of.setdefault(segments.subject, segments)
        if plain_names(segments.channel_names) != plain_names(first.channel_names):
            different.append(f"{segments.recording.name} and {first.recording.name}")
    if different:
        warn(
            f"channels differ between recordings of one subject, such as {different[0]}: baselines take the mean or "
            "the median over those of each recording, so part of a difference may be the channels"
        )


def baselines_beside(model: str | Path) -> list[Baseline]:
    """Line length, and what finetune fitted and saved in the folder of a model."""
    files = [Path(model) / f"{kind}.json" for kind in (LINE_LENGTH, REGRESSION)]
    return [LineLength(), *(load_baseline(file) for file in files if file.is_file())]


def load_baseline(name: str | Path) -> Baseline:
    """A baseline by its name, or from a JSON file that `Baseline.save` or ``mvpformer finetune`` wrote.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, or it holds no baseline.
    ModuleNotFoundError
        The baseline is not installed.

    Examples
    --------
    >>> load_baseline("line-length")
    LineLength(quiet=None)
    """
    if name == LINE_LENGTH:
        return LineLength()
    if name == BRAINMAZE:
        return Brainmaze()
    if name == REGRESSION:
        raise ValueError("regression needs a file of finetune: --model regression runs/patient/model/regression.json")
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} of a baseline")
    fields = read_config(path)
    kinds: Mapping[Any, type[Baseline]] = {item.kind: item for item in (LineLength, Regression, ClassRegression)}
    kind = fields.pop("baseline", None)
    if str(kind) not in kinds:
        raise ValueError(f"baseline in {path} must be one of {', '.join(kinds)}, got {kind!r}")
    try:
        return kinds[kind](**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no {kind} of this library: {error}") from error


class BaselineDetector(Detector):
    """A `Detector` whose probabilities come from a baseline: same reader, channels, rules, store and report.

    Parameters
    ----------
    model : Baseline, str or path
        A baseline, or what `load_baseline` takes.
    preprocessing, threshold, rules, channels
        As for `Detector`.

    Examples
    --------
    >>> from mvpa_ts.ieeg import simulate_recording
    >>> detector = BaselineDetector("line-length", rules="none")
    >>> len(detector.detect(simulate_recording("S01", num_channels=4, duration=60.0)).probabilities)
    12
    """

    def _load(self, model: Any) -> float:
        self.networks = ()
        self.baseline = model if isinstance(model, Baseline) else load_baseline(model)
        self.model_name = self.baseline.name
        # Beside the file lies what tells on whom it was trained.
        self.classes = getattr(self.baseline, "names", ())
        if isinstance(self.baseline, ClassRegression):
            trained, default = self.baseline.preprocessing, Preprocessing()
            stated = trained if self.preprocessing is None else self.preprocessing
            if changed_preprocessing(default, stated) != changed_preprocessing(default, trained):
                raise ValueError(
                    f"{model} was trained with the preprocessing {json.dumps(trained)}: leave --preprocessing out, or "
                    "train it with another (finetune --classes --preprocessing)"
                )
            self.preprocessing = trained
        is_file = not isinstance(model, Baseline) and Path(model).is_file()
        self._folder = Path(model).parent if is_file else None
        return 0.5

    @property
    def context(self) -> int:
        """Segments of a window: the segment alone."""
        return 1

    def weights(self) -> str:
        text = json.dumps(self.baseline.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _sizes(self) -> dict[str, Any]:
        return self.baseline.settings()

    def _detection(self, segments: Segments, probabilities: Floats) -> Detection:
        if self.classes:
            # The probability of the likeliest class takes the place of that of a seizure.
            detection = super()._detection(segments, probabilities.max(1))
            decided = np.where(detection.scored, np.nan_to_num(probabilities).argmax(1), -1)
            starts = [detection.starts[decided == number].tolist() for number in range(len(self.classes))]
            merged = [merge_events((start, start + SEGMENT_SECONDS) for start in times) for times in starts]
            rows = sorted((span, name) for name, spans in zip(self.classes, merged, strict=True) for span in spans)
            columns = dict(zip(self.classes, np.where(detection.scored, probabilities.T, math.nan), strict=True))
            changes = {"events": [span for span, _ in rows], "names": [name for _, name in rows], "classes": columns}
            return replace(detection, **changes, rules=RULES["none"], reference=None)  # type: ignore[arg-type]
        detection = super()._detection(segments, probabilities)
        # What is marked as a seizure may be positive throughout.
        quiet = ~segment_labels(detection.starts, detection.reference or []) & detection.scored
        share = np.mean(detection.probabilities[quiet] > self.threshold) if quiet.any() else 0.0
        # No number of the file scales it, so that a strong background is one long seizure.
        if isinstance(self.baseline, LineLength) and share > 0.5:
            limit = self.baseline.level * self.threshold / (1.0 - self.threshold)
            level = "the level of the patient (--model line-length, with the file that finetune wrote) or "
            segments.recording.warn(
                f"{segments.recording.name}: {share:.0%} of the segments "
                f"{'outside of its seizures ' if detection.reference else ''}are positive. Unless the file is "
                f"nearly all seizure, its background is strong: channels change by more than "
                f"{readable(limit)} µV from sample to sample, which here counts as a seizure. Then take "
                f"{level if self.baseline.quiet is None else ''}a higher --threshold",
            )
        return replace(detection, provenance=replace(detection.provenance, notes=segments.recording.notes))

    def _scored(self, segments: Segments, first: int) -> Iterator[Floats]:
        return self.baseline.probabilities(segments, first)


def _standard(features: Floats, center: npt.ArrayLike, scale: npt.ArrayLike) -> Floats:
    return np.clip((features - np.asarray(center)) / np.asarray(scale), -CUT, CUT)
