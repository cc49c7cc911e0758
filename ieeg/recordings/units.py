"""Units: what a file states, what MNE makes of it, and what the caller says of the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.recordings.recording import known_unit, microvolts

if TYPE_CHECKING:
    import mne

# What BrainVision writes for temperature, conductance, breathing, and force.
NO_VOLTAGE = ("C", "°C", "µS", "uS", "S", "ARU", "N")


def stated_units(raw: mne.io.BaseRaw) -> dict[str, str] | None:
    """Units as an EDF, GDF or BrainVision header states them, by channel; other formats are always in volts."""
    # MNE converts to volts and keeps what the header said only here.
    if units := getattr(raw, "_orig_units", None):
        return dict(units)
    # Of GDF, MNE keeps no more than what it multiplies by: 1 is for units that it does not know.
    factors = _factors(raw)
    return {channel: {1e-6: "µV", 1e-3: "mV"}.get(factor, "") for channel, factor in factors.items()} or None


def with_units_of_table(units: Mapping[str, str], table: Mapping[str, str], where: str) -> dict[str, str]:
    """Units by channel as the file states them or, where it states none, a table; where both do, the file decides.

    A warning says `where`, in which table, the two differ.
    """
    merged, differ = dict(units), []
    for channel, unit in table.items():
        scale, of_file = known_unit(unit), known_unit(units.get(channel, ""))
        if scale is not None and of_file is None:
            merged[channel] = unit
        elif scale is not None and scale != of_file:
            differ.append(f"{channel} in {unit} ({units[channel]} in the file)")
    if differ:
        warn(f"{where} states other units than the file, which is believed: {listed(differ)}")
    return merged


def types_by_units(raw: mne.io.BaseRaw, units: Sequence[str]) -> dict[str, str]:
    """Make EEG of BrainVision channels whose unit MNE does not read; returns those left, with a unit of no voltage.

    Where no channel has a known unit, all count as EEG whose unit may be one, and reading them asks for the unit.
    """
    channels = zip(raw.ch_names, raw.get_channel_types(), units, strict=False)
    odd = {name: unit for name, kind, unit in channels if kind == "misc" and unit not in NO_VOLTAGE}
    voltage = [name for name, unit in odd.items() if known_unit(unit) is not None]
    if not voltage and "eeg" not in raw.get_channel_types():
        voltage = [*odd]
    raw.set_channel_types(dict.fromkeys(voltage, "eeg"), on_unit_change="ignore", verbose="error")
    return {name: unit for name, unit in odd.items() if name not in voltage}


def microvolt_scales(
    raw: mne.io.BaseRaw, kept: Sequence[int], unit: str | None, units: dict[str, str] | None, name: str
) -> NDArray[np.float64]:
    """Microvolts in one of the numbers of each channel that is kept, as MNE gives them, [C].

    `units` are those that the file states, by channel; None takes what MNE knows, and unknown ones for volts. `unit` is
    that of the others; errors begin with the `name` of the recording.
    """
    # MNE's own unit is volts, the model's µV.
    scale = np.full(len(raw.ch_names), 1e6)
    stated = units or {}
    # A Raw in memory may have been rescaled since it was read: only the caller knows its unit.
    if units is None and not raw.preload:
        stated = stated_units(raw) or {}
        _check_joined(raw, [raw.ch_names[i] for i in kept], name)
    factors, unknown, unit_scales = _factors(raw), [], {}
    for i in kept:
        channel = raw.ch_names[i]
        if (of_file := known_unit(stated.get(channel, ""))) is None:
            unknown.append(channel)
            scale[i] = 1e6 if unit is None else microvolts(unit)
        else:
            unit_scales[channel] = of_file
            scale[i] = of_file / factors[channel] if channel in factors else 1e6
    said = sorted({stated.get(channel, "") for channel in unknown})
    if other_units := [text for text in said if unit is not None and text not in ("", "n/a")]:
        warn(f"{name}: channels in {other_units} are read as {unit}, as unit (--unit) says")
    if unknown and unit is None and units is not None:
        raise ValueError(
            f"{name}: unknown unit {said} of channels {listed(unknown)}: name it, --unit µV in a command or "
            "unit='µV' in Python; or leave them out (--channels) if they are no voltage"
        )
    # A unit from the caller is for files that state none. Where it contradicts the file, one is wrong by 1000.
    if unit is not None and not unknown and (other := [c for c in unit_scales if unit_scales[c] != microvolts(unit)]):
        raise ValueError(
            f"{name}: got unit={unit!r}, but the file states {stated[other[0]]} for {listed(other)}: "
            "leave unit out (--unit in a command); it is for channels without a known unit"
        )
    return scale


def _check_joined(raw: mne.io.BaseRaw, channels: Sequence[str], name: str) -> None:
    import mne

    files = [*dict.fromkeys(str(file) for file in raw.filenames if file)]
    made: dict[str, set[float]] = {channel: set() for channel in channels}
    for file in files if len(files) > 1 else ():
        alone = mne.io.read_raw(file, preload=False, verbose="error")
        factors, stated = _factors(alone), stated_units(alone) or {}
        for channel in channels:
            if (scale := known_unit(stated.get(channel, ""))) is not None and channel in factors:
                made[channel].add(scale / factors[channel])
    if wrong := [channel for channel, scales in made.items() if len(scales) > 1]:
        raise ValueError(
            f"{name}: the files that were joined state units of {listed(wrong)} of which MNE takes some, such "
            f"as nV, for volts: take {listed(map(os.path.basename, files), 3)} one by one"
        )


def _factors(raw: mne.io.BaseRaw) -> dict[str, float]:
    """By what MNE makes volts of each channel of a lazily read EDF, BDF, GDF or BrainVision file; else empty."""
    # MNE knows "uV", "µV" and "mV" by exactly these letters and takes all else for volts, "nV" and "UV" too.
    if raw.preload:
        return {}
    if type(raw).__name__ == "RawBrainVision":
        return {channel["ch_name"]: channel["range"] for channel in raw.info["chs"]}
    of_files: list[dict[str, float]] = []
    for extras, picks in zip(raw._raw_extras, raw._read_picks, strict=True):
        is_edf = isinstance(extras, dict) and extras.get("subtype") in ("edf", "bdf", "GDF")
        of_files.append(dict(zip(raw.ch_names, extras["units"][picks].tolist(), strict=True)) if is_edf else {})
    # Of joined files only what all of them agree on: MNE states the units of the first, and makes volts of each.
    return {name: factor for name, factor in of_files[0].items() if all(file.get(name) == factor for file in of_files)}
