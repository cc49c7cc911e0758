"""Units: what a file states, what MNE makes of it, and what the caller says of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.ieeg.recordings.recording import microvolts

if TYPE_CHECKING:
    import mne


def stated_units(raw: mne.io.BaseRaw) -> dict[str, str] | None:
    """Units as an EDF, GDF or BrainVision header states them, by channel; other formats are always in volts."""
    # MNE converts to volts and keeps what the header said only here.
    if units := getattr(raw, "_orig_units", None):
        return dict(units)
    # Of GDF, MNE keeps no more than what it multiplies by: 1 is for units that it does not know.
    factors = _factors(raw)
    return {channel: {1e-6: "µV", 1e-3: "mV"}.get(factor, "") for channel, factor in factors.items()} or None


def microvolt_scales(
    raw: mne.io.BaseRaw, kept: Sequence[int], unit: str | None, units: dict[str, str] | None, name: str
) -> NDArray[np.float64]:
    """Microvolts in one of each channel's numbers as MNE gives them, [C].

    Parameters
    ----------
    kept : sequence of int
        The channels that count.
    unit : str or None
        Of the channels whose unit the file does not state.
    units : dict of str, or None
        Units as the file states them, by channel; None takes what MNE knows, and unknown ones for volts.
    name : str
        Of the recording, for the errors.
    """
    # MNE's own unit is volts, the model's µV.
    scale = np.full(len(raw.ch_names), 1e6)
    stated = units or {}
    # A Raw in memory may have been rescaled since it was read: only the caller knows its unit.
    if units is None and not raw.preload:
        stated = stated_units(raw) or {}
    factors = _factors(raw)
    unknown, unit_scales = [], {}
    for i in kept:
        channel = raw.ch_names[i]
        try:
            unit_scales[channel] = microvolts(stated.get(channel, ""))
        except ValueError:
            unknown.append(channel)
            scale[i] = 1e6 if unit is None else microvolts(unit)
        else:
            scale[i] = unit_scales[channel] / factors[channel] if channel in factors else 1e6
    if unknown and unit is None and units is not None:
        said = sorted({units.get(channel, "") for channel in unknown})
        raise ValueError(
            f"{name}: unknown unit {said} of channels {unknown[:5]}: name it, --unit µV in a command or "
            "unit='µV' in Python"
        )
    # A unit from the caller is for files that state none. Where it contradicts the file, one of the two is wrong by
    # 1000.
    if unit is not None and not unknown and (other := [c for c in unit_scales if unit_scales[c] != microvolts(unit)]):
        raise ValueError(
            f"{name}: got unit={unit!r}, but the file states {stated[other[0]]} for {other[:5]}: "
            "leave unit out (--unit in a command); it is for channels without a known unit"
        )
    return scale


def _factors(raw: mne.io.BaseRaw) -> dict[str, float]:
    """What MNE multiplies each channel of a lazily read EDF, BDF or GDF file by to make volts of it; else empty.

    MNE knows "uV", "µV" and "mV" by exactly these letters and takes all else for volts, "nV" and "UV" too.
    """
    if raw.preload:
        return {}
    of_files: list[dict[str, float]] = []
    for extras, picks in zip(raw._raw_extras, raw._read_picks, strict=True):
        is_edf = isinstance(extras, dict) and extras.get("subtype") in ("edf", "bdf", "GDF")
        of_files.append(dict(zip(raw.ch_names, extras["units"][picks].tolist(), strict=True)) if is_edf else {})
    # Of joined files only what all of them agree on: MNE states the units of the first, and makes volts of each.
    return {name: factor for name, factor in of_files[0].items() if all(file.get(name) == factor for file in of_files)}
