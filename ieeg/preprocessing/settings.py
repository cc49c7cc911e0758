"""Settings of preprocessing, and what a recording's hum suggests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np

from mvpa_ts.ieeg.constants import SAMPLING_RATE
from mvpa_ts.ieeg.preprocessing.bad_samples import BRIDGE_SECONDS, bad_samples, bridge, flat_run
from mvpa_ts.ieeg.recordings.recording import Recording

LINE_FREQUENCIES = (50.0, 60.0)


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """What is done to a recording, in this order: resampling, band-pass and notch, reference.

    The reference comes last because channels of unfiltered recordings have offsets of millivolts: their median would be
    one single channel.

    Parameters
    ----------
    sfreq : float
        Rate of the result, Hz.
    band : (low, high) or None
        Hz; Butterworth of 4th order, forward and backward.
    notch : "auto", float or None
        Line frequency, removed with its harmonics. "auto" looks for 50 and 60 Hz in the recording.
    reference : "median", "bipolar" or None
        Median over the recording's channels, or differences of neighbouring contacts.
    max_bad_share : float
        A segment (5 s) of a channel is masked if more than this share of its samples is NaN, flat or zero. Fewer such
        samples are bridged.

    Raises
    ------
    ValueError
        A value is out of range.

    Examples
    --------
    >>> Preprocessing(notch=50.0).to_dict()
    {'sfreq': 512.0, 'band': [0.5, 120.0], 'notch': 50.0, 'reference': 'median', 'max_bad_share': 0.1}
    """

    sfreq: float = float(SAMPLING_RATE)
    band: tuple[float, float] | None = (0.5, 120.0)
    notch: float | Literal["auto"] | None = "auto"
    reference: Literal["median", "bipolar"] | None = "median"
    max_bad_share: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sfreq) and self.sfreq > 0):
            raise ValueError(f"sfreq must be a positive number of Hz, got {self.sfreq}")
        if self.band is not None:
            try:
                low, high = (float(edge) for edge in self.band)
            except (TypeError, ValueError):  # not two, or no numbers
                low = high = math.nan
            if not 0 <= low < high < self.sfreq / 2:
                raise ValueError(
                    f"band must be (low, high) in Hz with 0 ≤ low < high < {self.sfreq / 2:g}, half of sfreq, got "
                    f"{self.band}"
                )
            object.__setattr__(self, "band", (low, high))
        if isinstance(self.notch, (str, bool)):  # True would be 1 Hz
            if self.notch != "auto":
                raise ValueError(f'notch must be "auto", Hz or None, got {self.notch!r}')
        elif self.notch is not None and not (isinstance(self.notch, Real) and 0 < self.notch < self.sfreq / 2):
            raise ValueError(
                f"notch must be one number between 0 and {self.sfreq / 2:g} Hz, its harmonics go too, got {self.notch}"
            )
        if self.reference not in ("median", "bipolar", None):
            raise ValueError(f'reference must be "median", "bipolar" or None, got {self.reference!r}')
        if not 0 <= self.max_bad_share < 1:
            raise ValueError(f"max_bad_share must lie in [0, 1), got {self.max_bad_share}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self) | {"band": None if self.band is None else [*self.band]}

    def resolve(self, recording: Recording) -> Preprocessing:
        """The same with `notch` measured where it is "auto"."""
        return self if self.notch != "auto" else dataclasses.replace(self, notch=line_frequency(recording))


def default_preprocessing(recording: Recording) -> Preprocessing:
    """Everything for a raw recording, only the rate for one that is filtered and referenced already, as in SWEC.

    With fewer than four channels there is no median reference: it would mostly subtract a channel from itself.
    """
    if recording.preprocessed:
        # A second filter would change what the data set's numbers were computed on.
        return Preprocessing(band=None, notch=None, reference=None)
    return Preprocessing(reference="median" if len(recording.channel_names) >= 4 else None)


def warn_of_low_rate(recording: Recording, preprocessing: Preprocessing) -> None:
    """Warn where the rate of a recording is too low for the band, or its header states filters inside the band."""
    if preprocessing.band is None:
        return
    low, high = preprocessing.band
    highest, lowest = recording.sfreq / 2, recording.metadata.get("highpass", 0.0)
    lowpass = recording.metadata.get("lowpass", highest)
    # Amplifiers take away slower waves than 3 Hz as a rule; of a higher high-pass the model misses theta.
    if lowpass < min(high, highest) or lowest > 3.0:
        recording.warn(
            f"recordings that were filtered to {lowest:g} to {lowpass:g} Hz, as their headers say of some channels or "
            f"all, lack a part of the band of preprocessing, {low:g} to {high:g} Hz: a model that learned from the "
            "whole band may be wrong more often here. Compare it with seizures that you know, or finetune it on these",
        )
    if highest < high:
        # Without a name, so that it is said once for all recordings of a rate.
        recording.warn(
            f"a recording at {recording.sfreq:g} Hz holds nothing above {highest:g} Hz, and the band of preprocessing "
            f"is {low:g} to {high:g} Hz: a model that learned from the whole band may be wrong more often here. "
            "Compare it with seizures that you know, or finetune it on recordings of this rate",
        )


def changed_preprocessing(default: Preprocessing, changes: Preprocessing | Mapping[str, Any] | None) -> Preprocessing:
    """The default with some fields changed; a `Preprocessing` takes its place.

    Examples
    --------
    >>> changed_preprocessing(Preprocessing(), {"notch": 50.0}).notch
    50.0
    """
    if isinstance(changes, Preprocessing):
        return changes
    changes = {} if changes is None else changes
    names = [field.name for field in dataclasses.fields(Preprocessing)]
    if unknown := sorted(set(changes) - {*names}):
        raise ValueError(f"preprocessing has no field {', '.join(unknown)}; its fields are {', '.join(names)}")
    try:
        return dataclasses.replace(default, **changes)
    except TypeError as error:
        raise ValueError(f"preprocessing {dict(changes)} is not readable: {error}") from error


def line_frequency(recording: Recording) -> float | None:
    """50 or 60 Hz where the recording's header says so or its spectrum shows it, else None.

    The spectrum is that of 20 s from the middle: power within 1 Hz of the line against the median power 3 to 8 Hz
    beside it, median over channels.
    """
    # The header knows better than 20 s of signal, in which the hum may be weak.
    stated = recording.metadata.get("line_frequency")
    if stated in LINE_FREQUENCIES:
        return float(stated)
    if recording.sfreq <= 2 * (LINE_FREQUENCIES[0] + 3):
        return None  # the rate is too low to hold a line and what lies beside it
    from scipy.signal import welch

    middle, half = recording.num_samples // 2, int(10 * recording.sfreq)
    x = recording.read(max(middle - half, 0), min(middle + half, recording.num_samples)).astype(np.float64)
    if (bad := bad_samples(x, flat_run(recording.sfreq))) is not None:
        bridge(x, bad, int(BRIDGE_SECONDS * recording.sfreq))
    frequencies, power = welch(x - x.mean(1, keepdims=True), recording.sfreq, nperseg=min(x.shape[1], half // 5))
    ratios = {}
    for line in LINE_FREQUENCIES:
        away = np.abs(frequencies - line)
        beside = (away >= 3) & (away <= 8)
        if frequencies[-1] > line + 3 and beside.any() and (away <= 1).any():
            # Against its neighbours, because the spectrum falls and a fixed bar would depend on the amplifier.
            floor = np.maximum(np.median(power[:, beside], axis=1), 1e-12)
            ratios[line] = float(np.median(power[:, away <= 1].max(1) / floor))
    best = max(ratios, key=ratios.__getitem__, default=None)
    # A notch is set from 6 dB over what is beside the line, in the median over channels.
    return best if best is not None and ratios[best] >= 4.0 else None
