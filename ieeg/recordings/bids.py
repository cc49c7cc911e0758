"""Tables of a BIDS data set beside a recording: its channels, its subject, the positions of its electrodes."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.recordings.channels import natural_key, plain_name
from mvpa_ts.ieeg.recordings.guards import check_once, read_text, warn_left_out

if TYPE_CHECKING:
    import mne

Row = dict[str, str]

# What BIDS calls a type and MNE calls it; another type is no brain signal that we know of.
_TYPES = {"TRIG": "stim", "VEOG": "eog", "HEOG": "eog"} | {
    kind: kind.lower() for kind in ("SEEG", "ECOG", "DBS", "EEG", "ECG", "EMG", "EOG", "RESP")
}
_NO_BRAIN = {"ADC", "AUDIO", "DAC", "EYEGAZE", "GSR", "MISC", "OTHER", "PD", "PPG", "PUPIL", "REF", "SYSCLOCK", "TEMP"}

# Letters that stand for the prime of electrodes on the left.
_PRIMES = dict.fromkeys(map(ord, "’´`′"), "'")


def read_table(
    path: Path, columns: Sequence[str], spell: Callable[[Sequence[str]], list[str]]
) -> tuple[list[str], list[tuple[int, dict[Any, Any]]]]:
    """Names of a table's columns as `spell` writes them, and its rows with their line; cells too many are under None.

    A ValueError names the file where one of `columns` is missing. BIDS wants UTF-8; see `read_text` for others.
    """
    text = read_text(path)
    # Quotation marks are letters, as for mne-bids: a single one would else swallow the rows that follow. A table whose
    # first name stands in some, as R writes it, has them around all texts.
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if text.startswith('"') else csv.QUOTE_NONE
    rows = csv.DictReader(io.StringIO(text, newline=None), delimiter="\t", quoting=quoting)
    try:
        header = spell([name.strip() for name in rows.fieldnames or ()])
        check_once(path, header)
        if missing := [column for column in columns if column not in header]:
            raise ValueError(
                f"{path} has no column {missing[0]!r}; its columns are {', '.join(header) or 'none'} (put tabs between)"
            )
        rows.fieldnames = header
        return header, [(rows.line_num, row) for row in rows]
    except csv.Error as error:
        raise ValueError(f"{path} is not a text table with tabs between its columns ({error})") from None


def read_tsv(path: Path, columns: Sequence[str]) -> list[Row]:
    """Rows of a BIDS table that has at least these columns."""
    # Excel users write "Status", and a bad channel would count as good.
    header, rows = read_table(path, columns, lambda names: [name.lower() for name in names])
    return [{key: (row[key] or "").strip("\0 ") for key in header} for _, row in rows]


def _number(cell: str | None) -> float:
    """The number in a cell; NaN where there is none, which MATLAB writes for n/a too."""
    try:
        return float(cell or "nan")
    except ValueError:
        return math.nan


def read_channel_table(path: Path) -> list[Row]:
    """Rows of a channels.tsv; a name that appears twice gets the numbers that MNE gives to such channels."""
    table = read_tsv(path, ("name", "type"))
    # MNE numbers channels of one name, and the table must follow it to be matched.
    often = Counter(row["name"] for row in table)
    states = {row.get("status", "") for row in table} - {""}
    if odd := sorted(state for state in states if state.lower() not in ("good", "bad", "n/a")):
        warn(
            f"{path}: a status must be good, bad or n/a, got {listed(map(repr, odd))}: such a channel is "
            "read, unless the file itself calls it bad"
        )
    if odd := sorted(kind for kind in {row["type"] for row in table} if kind.upper() not in _NO_BRAIN | _TYPES.keys()):
        warn_left_out(
            f"{path}: a type must be SEEG, ECOG, DBS, EEG or another one of BIDS, got {listed(map(repr, odd))}: "
            "such a channel is left out"
        )
    counts: Counter[str] = Counter()
    for row in table:
        name = row["name"]
        if often[name] > 1:
            row["name"] = f"{name}-{counts[name]}"
            counts[name] += 1
    return table


def rows_of_channels(names: Sequence[str], table: Sequence[Row], where: str) -> dict[str, Row]:
    """The row of each channel, by its name in the file; warnings say `where` the rows are from.

    Rows are matched by name, in any order: first by the whole name, then without prefix and reference ("EEG A1-Ref" and
    "A1"), then whatever the case, zeros before a number, and the kind of a prime ("A'1" and "a’01"). If no name
    matches, and there are as many rows as channels, rows are matched by order, with a warning.

    Examples
    --------
    >>> table = [{"name": name, "type": "SEEG"} for name in ("A1", "A10", "A2")]
    >>> rows = rows_of_channels(["EEG A1-Ref", "EEG A2-Ref", "EEG A10-Ref"], table, "channels.tsv")
    >>> [row["name"] for row in rows.values()]
    ['A1', 'A2', 'A10']
    """
    # Whole names first: "EEG A1-Ref" and "A1-Ref" may both be there and are different channels then.
    matched = _same(names, table, str)
    for key in (plain_name, lambda name: str(natural_key(name.translate(_PRIMES)))):
        used = {row["name"] for row in matched.values()}
        unmatched = [name for name in names if name not in matched]
        matched |= _same(unmatched, [row for row in table if row["name"] not in used], key)
    if not matched and len(names) == len(table):
        warn(
            f"{where} names none of the file's channels, such as {names[0]!r}; its rows are taken in the file's order, "
            f"{names[0]!r} as {table[0]['name']!r} and so on"
        )
        return dict(zip(names, table, strict=True))
    # A table of another montage is common after an export. Its rows are used where they match, and the rest is named.
    used = {row["name"] for row in matched.values()}
    unused = [row["name"] for row in table if row["name"] not in used]
    unknown = [name for name in names if name not in matched]
    if unused or unknown:
        warn(
            f"{where} and the file do not name the same channels: only the table has {unused}, only the file has "
            f"{unknown}; channels of the file alone are read without what the table says"
        )
    return matched


def apply_rows(raw: mne.io.BaseRaw, rows: Mapping[str, Row]) -> None:
    """Give channels, whose names are still the file's, the name, type and state of their rows."""
    states = {name: row.get("status", "").lower() for name, row in rows.items()}
    # The table overrules the file; a state that is n/a leaves what the file says.
    bad = {name for name in raw.info["bads"] if states.get(name) != "good"} | {n for n in states if states[n] == "bad"}
    raw.info["bads"] = [name for name in raw.ch_names if name in bad]
    row_of = {name: row for name, row in rows.items() if name in raw.ch_names}
    types = {name: _TYPES.get(row["type"].upper(), "misc") for name, row in row_of.items()}
    raw.set_channel_types(types, on_unit_change="ignore", verbose="error")
    raw.rename_channels({name: row["name"] for name, row in row_of.items()}, verbose="error")


def warn_of_other_rate(rows: Mapping[str, Row], rate_of: Mapping[str, float], where: str) -> None:
    """Warn of channels of which the table states another rate than the file, by the file's names."""
    differ = []
    for name, row in rows.items():
        stated = _number(row.get("sampling_frequency"))
        if abs(stated - rate_of[name]) > 1e-3 * rate_of[name]:
            differ.append(f"{row['name']} at {stated:g} Hz ({rate_of[name]:g} Hz in the file)")
    if differ:
        warn(
            f"{where} states another sampling_frequency than the file, which is believed: {listed(differ)}. If the "
            "file is wrong, so are all its times"
        )


def _same(names: Sequence[str], table: Sequence[Row], key: Callable[[str], str]) -> dict[str, Row]:
    """Rows by the file's name where `key` makes one name of the file and one of the table the same."""
    of_file, of_table = Counter(map(key, names)), Counter(key(row["name"]) for row in table)
    rows = {key(row["name"]): row for row in table}
    # A key that is there twice on either side matches nothing: a guess could swap two electrodes.
    return {name: rows[key(name)] for name in names if of_file[key(name)] == 1 == of_table[key(name)]}


def beside(path: Path, suffix: str) -> Path:
    """The table of this kind beside a recording, whether it is there or not: s1_events.tsv for s1.edf."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name  # a folder of SWEC
    table = path.parent / f"{stem.removesuffix('_ieeg').removesuffix('_eeg')}_{suffix}"
    # The parts of a split recording share their tables.
    if (
        "_split-" in stem
        and not table.is_file()
        and (shared := table.with_name(re.sub(r"_split-\d+", "", table.name))).is_file()
    ):
        return shared
    if not table.name.isascii() and not table.exists() and path.parent.is_dir():
        # A Mac writes an ü in a file's name as two letters, and other programs as one.
        name = unicodedata.normalize("NFC", table.name)
        return next((file for file in path.parent.iterdir() if unicodedata.normalize("NFC", file.name) == name), table)
    return table


def sidecar(path: Path, bids: Any, suffix: str) -> Path | None:
    """The table ("channels.tsv") that speaks of a recording, beside it or inherited in BIDS; else None."""
    return next(_sidecars(path, bids, suffix), None)


def read_json(path: Path, bids: Any, suffix: str) -> tuple[str, dict[str, Any]]:
    """What the JSON files of a recording say together, and where: of two that state a key the nearer one counts."""
    files = [*_sidecars(path, bids, suffix)]
    stated: dict[str, Any] = {}
    for file in reversed(files):
        try:
            stated |= dict(json.loads(read_text(file)))
        except (ValueError, TypeError, RecursionError):
            warn_left_out(f"{file} holds no object of JSON and is not used")
    return listed([*dict.fromkeys(map(str, files))]), stated


def _sidecars(path: Path, bids: Any, suffix: str) -> Iterator[Path]:
    """The files of this kind that speak of a recording, the nearest first."""
    if (table := beside(path, suffix)).is_file():
        yield table
    if bids is None or bids.datatype is None:
        return
    # The inheritance principle: no entity of a table's name may be missing from, or differ in, that of the recording.
    entities = {*path.name.split("_")[:-1]}
    for folder in path.parents:
        names = [file.name.removesuffix(f"_{suffix}").split("_") for file in folder.glob(f"*-*_{suffix}")]
        if fitting := sorted((name for name in names if entities.issuperset(name)), key=len):
            yield folder / f"{'_'.join(fitting[-1])}_{suffix}"
        if folder == Path(bids.root):
            break


def bids_path(path: Path) -> Any:
    """The file as a BIDSPath when it lies in a BIDS data set or has a BIDS name and channels.tsv, else None."""
    # Without this a file called sub-something in any folder would make mne-bids look for tables that are not there.
    if not path.name.startswith("sub-"):
        return None
    import mne_bids

    root = bids_root(path) if path.parent.name in ("ieeg", "eeg") else None
    if root is None:
        # A part of a data set that was copied without its description: the names still say who it is.
        subject, *entities = path.name.partition(".")[0].split("_")
        in_bids = entities[-1:] in (["ieeg"], ["eeg"]) and all("-" in entity for entity in entities[:-1])
        if not (in_bids or beside(path, "channels.tsv").is_file()) or not subject.removeprefix("sub-").isalnum():
            return None
        root = next((folder.parent for folder in path.parents if folder.name == subject), path.parent)
        if not (in_bids and path.parent.name in ("ieeg", "eeg")):
            return mne_bids.BIDSPath(subject=subject.removeprefix("sub-"), root=root, check=False)
    return mne_bids.get_bids_path_from_fname(path, check=False).update(root=root)


def bids_root(path: Path) -> Path | None:
    """The BIDS data set that a folder is, or that a file or folder lies in; None if there is none."""
    return next((folder for folder in (path, *path.parents) if (folder / "dataset_description.json").is_file()), None)


def stated_filters(table: Path, sfreq: float) -> dict[str, float]:
    """Narrowest filters of brain channels by a channels.tsv, as MNE calls them; none where it states none (Hz)."""
    rows = [row for row in read_tsv(table, ("type",)) if row["type"].upper() in ("SEEG", "ECOG", "DBS", "EEG")]
    highpass = [value for row in rows if 0 < (value := _number(row.get("low_cutoff"))) < math.inf]
    lowpass = [value for row in rows if 0 < (value := _number(row.get("high_cutoff"))) < 0.49 * sfreq]
    return {key: pick(of) for key, pick, of in (("highpass", max, highpass), ("lowpass", min, lowpass)) if of}


def _rows_if_readable(table: Path, columns: Sequence[str], what: str) -> list[Row]:
    """As `read_tsv`; no row, and a warning that begins with `what`, for a table that no score needs and is damaged."""
    try:
        return read_tsv(table, columns)
    except (ValueError, OSError) as error:
        warn_left_out(f"{what}: {error}")
        return []


def read_participant(root: Path, subject: str) -> dict[str, Any]:
    """Age, sex and handedness of a BIDS subject from participants.tsv."""
    table = root / "participants.tsv"
    if not table.is_file():
        return {}
    # Some leave out the "sub-" that BIDS asks for.
    rows = _rows_if_readable(table, ("participant_id",), what := "age, sex and handedness are not read")
    rows = [row for row in rows if f"sub-{row['participant_id'].removeprefix('sub-')}" == subject]
    if any(row != rows[0] for row in rows):
        warn_left_out(f"{what}: {table} has several rows of {subject}, which differ: leave the right one")
        return {}
    row = rows[0] if rows else {}
    participant: dict[str, Any] = {key: row[key] for key in ("sex", "hand") if row.get(key) not in (None, "", "n/a")}
    if 0 <= (age := _number(row.get("age"))) <= 120:
        participant["age"] = age
    for key, words in (("sex", {"M": "male", "F": "female"}), ("hand", {"R": "right", "L": "left"})):
        if key in participant:
            participant[key] = words.get(participant[key][0].upper(), participant[key])
    return participant


def read_start_and_line(path: Path, bids: Any, sfreq: float, duration: float) -> dict[str, Any]:
    """Start and line frequency of a BIDS recording, from scans.tsv and its JSON file.

    A warning says where the JSON file has another `sfreq` (Hz) or `duration` (s) than the recording.
    """
    facts: dict[str, Any] = {}
    description, stated = read_json(path, bids, f"{path.parent.name}.json")
    if (frequency := str(stated.get("PowerLineFrequency")).removesuffix(".0")) in ("50", "60"):
        facts["line_frequency"] = float(frequency)
    if (kind := str(stated.get("RecordingType", "")).lower()) in ("discontinuous", "epoched"):
        warn(
            f"{description} calls the recording {kind}, and {path.name} is read as one stretch: what lay between "
            "its parts is not seen, and times after a gap are too early"
        )
    for key, own in (("SamplingFrequency", sfreq), ("RecordingDuration", duration)):
        value = stated.get(key)
        if isinstance(value, int | float) and value > 0 and abs(value - own) > 1e-3 * own + (own == duration):
            warn(
                f"{description} states a {key} of {value:g}, and {path.name} has {own:g}, which is taken: was the "
                "file cut or resampled? Then the times of its events may be those of another file"
            )
    starts: dict[str, Path] = {}
    for table in path.parent.parent.glob("*_scans.tsv"):
        for row in _rows_if_readable(table, ("filename",), "the start is not read"):
            # A BrainVision recording may be listed by any of its three files.
            same = PureWindowsPath(row["filename"]).stem.lower() == path.stem.lower()
            if same and row.get("acq_time", "n/a") not in ("", "n/a"):
                try:
                    start = datetime.fromisoformat(row["acq_time"])
                    # A date alone would be midnight.
                    if ":" not in row["acq_time"]:
                        raise ValueError
                except ValueError:
                    warn_left_out(f"{table}: the acq_time of {path.name} is no date with a time and is not used")
                    continue
                # Without a zone it is the ward's clock, which this computer's zone must not shift. MNE calls it UTC.
                start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
                starts[start.isoformat()] = table
    if len(starts) == 1:
        facts["start"] = next(iter(starts))
    elif starts:
        where = " and ".join(dict.fromkeys(map(str, starts.values())))
        warn_left_out(f"{where}: {path.name} has several rows whose acq_time differ, of which none is used")
    return facts


def electrode_positions(path: str | Path) -> dict[str, tuple[float, float, float]]:
    """Positions by channel name beside a recording's file, in the table's unit; empty where there is no such table.

    For ``sub-1_task-x_ieeg.edf`` this is ``sub-1_task-x_electrodes.tsv``, or, as BIDS leaves out the task, the only
    ``sub-1_*electrodes.tsv`` in the folder. Contacts without numbers are left out. If the table cannot be read,
    there is a warning and no position.
    """
    path = Path(path)
    table = beside(path, "electrodes.tsv")
    if not table.is_file():
        subject = path.name.partition("_")[0]
        tables = sorted(path.parent.glob(f"{subject}_*electrodes.tsv")) if subject.startswith("sub-") else []
        if len(tables) > 1:
            names = ", ".join(file.name for file in tables)
            warn_left_out(f"no positions of electrodes: {path.name} has several tables of them, {names}")
        if len(tables) != 1:
            return {}
        table = tables[0]
    rows = _rows_if_readable(table, ("name", "x", "y", "z"), "no positions of electrodes")
    positions: dict[str, tuple[float, float, float]] = {}
    twice = []
    for row in rows:
        position, name = (_number(row["x"]), _number(row["y"]), _number(row["z"])), plain_name(row["name"])
        if all(map(math.isfinite, position)) and positions.setdefault(name, position) != position:
            twice.append(name)
    if twice:
        warn_left_out(f"no positions of {listed(twice)}: {table} has several of them, which differ")
    return {name: position for name, position in positions.items() if name not in twice}
