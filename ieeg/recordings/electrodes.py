"""Electrode positions from the ``electrodes.tsv`` beside a recording."""

from __future__ import annotations

import math
import os
import warnings
from contextlib import suppress
from pathlib import Path

from mvpa_ts.ieeg.recordings.bids import read_tsv
from mvpa_ts.ieeg.recordings.channels import plain_name


def electrode_positions(path: str | os.PathLike[str]) -> dict[str, tuple[float, float, float]]:
    """Positions by channel name, in the file's unit; empty where there is no such file.

    For ``sub-1_task-x_ieeg.edf`` this is ``sub-1_task-x_electrodes.tsv``, or, as BIDS leaves out the task, the only
    ``sub-1_*electrodes.tsv`` in the folder. Contacts without numbers are left out. A table that cannot be read gives a
    warning and no positions.

    Parameters
    ----------
    path : path
        The recording's file.
    """
    path = Path(path)
    stem = path.name.partition(".")[0]
    for suffix in ("_ieeg", "_eeg"):
        stem = stem.removesuffix(suffix)
    table = path.parent / f"{stem}_electrodes.tsv"
    if not table.is_file():
        subject = stem.partition("_")[0]
        found = sorted(path.parent.glob(f"{subject}_*electrodes.tsv")) if stem.startswith("sub-") else []
        if len(found) != 1:
            return {}
        table = found[0]
    try:
        rows = read_tsv(table, ("name", "x", "y", "z"))
    except (ValueError, OSError) as error:
        # They only place the channels in a figure: no recording is left unread for them.
        warnings.warn(f"no positions of electrodes: {error}", stacklevel=2)
        return {}
    positions = {}
    for row in rows:
        with suppress(ValueError):
            place = float(row["x"]), float(row["y"]), float(row["z"])
            if all(map(math.isfinite, place)):  # "NaN" is what MATLAB writes for n/a
                positions[plain_name(row["name"])] = place
    return positions
