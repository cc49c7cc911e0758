"""events.tsv of BIDS and SzCORE, read and written: which rows are seizures, and whether their times can be right."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mvpa_ts.checks import listed, warn
from mvpa_ts.files import write_text
from mvpa_ts.ieeg.events import POINT_SECONDS, Intervals
from mvpa_ts.ieeg.recordings.annotations import Event, class_spans, stated_seizures
from mvpa_ts.ieeg.recordings.bids import read_table
from mvpa_ts.ieeg.recordings.guards import warn_left_out
from mvpa_ts.ieeg.recordings.recording import Interval
from mvpa_ts.ieeg.recordings.seizure_words import NAME_WORDS, WORDS_NOT_TAKEN, is_background, is_seizure

# With the channels that are meant, none for all, the length of the recording in seconds, the sample of the onset, and
# when the recording began.
Row = tuple[Event, list[str], float | None, float | None, str]

# Columns of a SzCORE ``events.tsv``, in the standard's order.
COLUMNS = ("onset", "duration", "eventType", "confidence", "channels", "dateTime", "recordingDuration")
# Columns of an events.tsv that may say what an event is, the first one first.
TEXT_COLUMNS = ("eventType", "trial_type", "event_type", "type", "value")
# Columns that may state when an event ends, where its duration is not stated.
END_COLUMNS = ("offset", "end", "stop", "end_time", "endtime", "offset_time", "stop_time", "onset_end")
# Columns of events.tsv that may say in which channels it is: of BIDS, and of SzCORE.
CHANNEL_COLUMNS = ("channel", "channels")
# A longer seizure is rare, and a duration in samples or milliseconds is nearly always longer.
LONG_SECONDS = 600.0
# If all seizures of a table are shorter, it may be in minutes.
SHORT_SECONDS = 3.0


def read_seizures(
    path: Path,
    duration: float,
    words: Sequence[str] = (),
    sfreq: float | None = None,
    kind: str = "seizure",
    start: str = "n/a",
) -> list[Interval]:
    """Seizure intervals of a BIDS or SzCORE events.tsv of a recording of `duration` seconds; rate and start if known.

    See `read_events` and `seizures_from_events`, which also read the table beside a recording; `kind` as `check_times`.
    """
    rows = read_rows(path, words)
    events = [event for event, *_ in rows]
    check_times(events, duration, sfreq, path, words, kind)
    warn_of_contradictions(rows, duration, sfreq, path, start)
    return stated_seizures(events, duration, name=path.name, words=words, table=path) or []


def read_spans(
    table: Path, classes: Sequence[str], name: str, duration: float, sfreq: float, *, cut_short: bool = False
) -> dict[str, list[Interval]]:
    """Intervals (s) of each class in a table, whose times are checked unless the recording was cut short."""
    spans = class_spans(read_events(table, classes), classes, name, duration)
    if not cut_short:
        marks = [(on, off - on, label) for label, times in spans.items() for on, off in times]
        check_times(marks, duration, sfreq, table, classes, "class")
    return spans


def read_events(path: Path, words: Sequence[str] = ()) -> list[Event]:
    """Events of a BIDS or SzCORE events.tsv: onset, duration and the text of eventType, trial_type, type or value.

    A duration of n/a is 0, unless a column offset, end or stop states when the event ends. Rows that are no seizure
    and have no readable onset or duration are left out. Quotation marks are letters like others, as in BIDS.
    """
    return [event for event, *_ in read_rows(path, words)]


def read_rows(path: Path, words: Sequence[str] = ()) -> list[Row]:
    """As `read_events`, each event with what its row says of channels and of the recording; see `Row`."""
    names, rows = read_table(path, ("onset",), _as_in_bids)
    columns = [name for name in TEXT_COLUMNS if name in names]
    if not columns:
        warn(f"{path} says nothing of seizures: needs a column {' or '.join(TEXT_COLUMNS)}, it has {', '.join(names)}")
    # A name that is there: that of no column is the empty one, which pandas gives to its index.
    end = next((name for name in END_COLUMNS if name in names), END_COLUMNS[0])
    events, unread, differ, opposed = [], [], [], []
    for line, row in rows:
        # A table may have several columns of texts, and the seizure may stand in any of them.
        texts = [row[column] for column in columns if (row[column] or "n/a") != "n/a"]
        text = next((text for text in texts if is_seizure(text, words)), texts[0] if texts else "")
        if is_seizure(text, words) and any(map(is_background, texts)):
            opposed.append(line)
        _check_cells(row, text, f"{path}, line {line}", words)
        try:
            onset, length = _seconds(row, "onset"), _seconds(row, "duration")
            if onset is None and is_background(text):
                onset = 0.0  # it is of the whole recording
            if onset is None:
                raise ValueError("an onset in seconds is needed, got n/a")
            if length is None and (offset := _seconds(row, end)) is not None:
                length = offset - onset
                if length < 0:
                    raise ValueError(f"its {end} lies before its onset")
            if length == 0:  # of a point with an end beside it, the end is meant
                with suppress(ValueError):
                    length = max(0.0, (_seconds(row, end) or onset) - onset)
            if length is not None and length < 0:
                raise ValueError(f"a duration must not be negative, got {length:g}")
        except ValueError as error:
            # An unreadable row that is no seizure changes no score. One that is a seizure must not vanish.
            if is_seizure(text, words):
                kind = "a seizure" if is_seizure(text) else "of which the text counts"
                raise ValueError(f"{path}, line {line}, {kind}: {error}") from None
            unread.append(line)
            continue
        with suppress(ValueError):
            offset = _seconds(row, end)
            if length and offset is not None and abs(onset + length - offset) > 1.0 and is_seizure(text, words):
                differ.append(line)
        # BIDS has one name, or several with commas or as JSON; SzCORE writes "all".
        cells = re.split(r"[,;]", " ".join(row.get(column) or "" for column in CHANNEL_COLUMNS).strip(" []"))
        channels = [name for cell in cells if (name := cell.strip(" \"'")).lower() not in ("", "n/a", "all")]
        stated = sample = None
        with suppress(ValueError):
            stated = _seconds(row, COLUMNS[-1])
        with suppress(ValueError):
            sample = _seconds(row, "sample")
        events.append(((onset, length or 0.0, text), channels, stated, sample, row.get(COLUMNS[-2]) or ""))
    for numbers, said, tell in (
        (unread, "rows that are no seizure and state no time are left out", warn_left_out),
        (opposed, "seizures that another column calls free of seizures count", warn),
        (differ, f"seizures whose duration and {end} contradict each other last as long as their duration says", warn),
    ):
        if numbers:
            tell(f"{path}: {said}, line {listed([*map(str, numbers)])}")
    return events


def _check_cells(row: dict[Any, Any], text: str, where: str, words: Sequence[str]) -> None:
    shifted = None in row or None in row.values()
    cells = [*row.pop(None, ()), *(cell for cell in row.values() if cell)]
    if shifted and not is_seizure(text, words) and any(is_seizure(cell, words) for cell in cells):
        raise ValueError(
            f"{where}: a seizure stands in none of the columns of texts, as the row has more or fewer cells than the "
            "table columns: put one tab between cells, and n/a into empty ones"
        )


def _as_in_bids(names: Sequence[str]) -> list[str]:
    """Names of columns, those that BIDS has as BIDS spells them: Excel users write "Onset"."""
    known = ("onset", "duration", *TEXT_COLUMNS, *END_COLUMNS, *CHANNEL_COLUMNS, *COLUMNS[-2:], "sample")
    spelled = {name.lower(): name for name in known}
    meant = [spelled.get(name.lower(), name) for name in names]
    # Two columns that differ in their spelling only stay what they are.
    return [new if meant.count(new) == 1 else name for name, new in zip(names, meant, strict=True)]


def _seconds(row: dict[str, str], name: str) -> float | None:
    """A number of a row, None where it is n/a or there is no such column."""
    text = (row.get(name) or "n/a").strip()
    if text.lower() in ("n/a", "nan", ""):
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        # Other texts may hold a person's name.
        got = "" if re.search(r"[^\W\d_]", text) else f", got {text}: write ten and a half seconds as 10.5"
        raise ValueError(f"{name} must be a number of seconds or n/a{got}")
    return number


def check_times(
    events: Sequence[Event],
    duration: float,
    sfreq: float | None,
    path: Path,
    words: Sequence[str],
    kind: str = "seizure",
) -> None:
    """Raise a ValueError where a table's seizures fit the recording only if their times are no seconds.

    Another kind than "seizure", a "class" or a "detection", may be long. A rate that is not known is None.
    """
    seizures = [(onset, length) for onset, length, text in events if is_seizure(text, words)]
    units = {"milliseconds": 1000.0} | ({} if sfreq is None else {"samples": sfreq})
    # Times are rounded, and clocks differ: a second beyond the end is no other unit.
    outside = [onset for onset, _ in seizures if onset > duration + 1]
    # A seizure may reach beyond the end of a recording that was cut, but not by hours.
    long = [
        length
        for onset, length in seizures
        if length > duration + 1 or (kind == "seizure" and length > LONG_SECONDS and onset + length > duration + 1)
    ]
    for column, wrong in (("onset", outside), ("duration", long)):
        likely = [unit for unit, scale in units.items() if wrong and max(wrong) / scale <= duration]
        # As an onset, this is a date of after 2001: no recording lasts so long.
        if not likely and column == "onset" and min(wrong, default=0.0) >= 1e9:
            likely.append("seconds since 1970")
        # Eleven days are a table of another recording, not of microseconds.
        if not likely and wrong and min(wrong) >= 1e6 >= max(wrong) / duration:
            likely.append("microseconds")
        if likely:
            raise ValueError(
                f"{path}: a {kind} has the {column} {wrong[0]:.12g}, and the recording lasts {duration:g} s. The "
                f"column is likely in {' or '.join(likely)}: convert it to seconds. If the table is of a longer "
                "recording, keep only the rows of this one, in its own time"
            )
    lengths = [length for _, length in seizures if length > POINT_SECONDS and kind == "seizure"]
    if lengths and max(lengths) > LONG_SECONDS:
        warn(f"{path}: a seizure lasts {max(lengths):g} s, longer than 10 minutes: is the column duration in seconds?")
    elif lengths and max(lengths) < SHORT_SECONDS:
        warn(f"{path}: no seizure lasts more than {max(lengths):g} s: are onset and duration in seconds, not minutes?")


def warn_of_contradictions(rows: Sequence[Row], duration: float, sfreq: float | None, path: Path, start: str) -> None:
    """Warn of a table that is of a recording of another length, rate (None) or start ("" where it is not known)."""
    for (onset, *_), *_, begun in rows:
        with suppress(ValueError):  # one of them is no date
            stated, own = (datetime.fromisoformat(text).replace(tzinfo=None) for text in (begun, start))
            late = (stated - own).total_seconds()
            # BIDS hides dates by one before 1925. Some programs write when the event began.
            hidden = min(stated, own).year < 1925 or ":" not in begun
            if not hidden and min(abs(late), abs(late - onset)) > 1.0:
                warn(
                    f"{path} is of a recording that began at {begun} (dateTime), and this one at {own}: if no date "
                    "was changed on purpose, the times of its seizures may be those of another file"
                )
                break
    for (onset, *_), _, _, sample, _ in rows:
        if sfreq is not None and sample is not None and abs(sample / sfreq - onset) > 1.0:
            warn(
                f"{path}: sample {sample:.12g} is at {sample / sfreq:g} s of the recording's {sfreq:g} Hz, and its "
                f"onset is stated as {onset:g} s, which is taken: was the file resampled or cut? Then the times of its "
                "seizures may be those of another file"
            )
            break
    for length in dict.fromkeys(length for _, _, length, *_ in rows if length):
        if abs(length - duration) > 1.0 + 1e-3 * duration:
            warn(
                f"{path} is of a recording of {length:g} s (recordingDuration), and this one lasts {duration:g} s: was "
                "it cut? Then the times of its seizures may be those of another file"
            )


def warn_of_codes(
    levels: str, columns: Mapping[str, Any], texts: Sequence[str], name: str, words: Sequence[str]
) -> None:
    """Warn of codes in a table, such as 1, that its JSON files (`levels`) call seizures; of times in other units."""
    described = {key: description for key, description in columns.items() if isinstance(description, dict)}
    for key in ("onset", "duration"):
        unit = str(described.get(key, {}).get("Units", "s")).strip()
        if unit.lower() not in ("s", "sec", "secs", "second", "seconds", "n/a", ""):
            warn(f"{levels} states {key} in {unit!r:.20}, and it is taken for seconds, as in BIDS: convert the column")
    codes = [
        code
        for meanings in (column.get(key) for column in described.values() for key in ("Levels", "HED"))
        for code, meaning in (meanings.items() if isinstance(meanings, dict) else ())
        if code in texts and is_seizure(str(meaning)) and not is_seizure(code, words)
    ]
    if codes:
        warn_left_out(
            f"{name}: {WORDS_NOT_TAKEN}: {listed(codes)}, which {levels} says are some. If they mean some, {NAME_WORDS}"
        )


def warn_of_other_seizures(
    own: Sequence[Event], seizures: Sequence[Interval], duration: float, table: Path, words: Sequence[str]
) -> None:
    """Warn of seizures by a file's own annotations that its table, which is believed, does not have."""
    with warnings.catch_warnings(action="ignore"):
        others = stated_seizures(own, duration, name=table.name, words=words) or []
    if lost := [f"{on:g}" for on, off in others if not any(on < offset and off > onset for onset, offset in seizures)]:
        problem = f"lacks seizures that the annotations in the file state: at {listed(lost)} s"
        warn_left_out(f"{table} is believed, and {problem}")


def write_events(
    path: str | Path,
    events: Intervals,
    duration: float,
    *,
    confidences: Sequence[float] | None = None,
    event_type: str | Sequence[str] = "sz",
    background: bool = True,
    start: datetime | None = None,
) -> None:
    """Write events as the ``events.tsv`` of SzCORE, which is BIDS with five columns more.

    A recording without events gets one row of type ``bckg`` over its whole length, as the standard asks. The date is
    hidden by one before 1925, as in BIDS, unless `start` gives it.

    Parameters
    ----------
    events : sequence of (onset, offset)
        Seconds.
    duration : float
        Length of the recording (s).
    confidences : sequence of float, optional
        Between 0 and 1, one for each event.
    event_type : str or sequence of str, default "sz"
        HED-SCORE name of a seizure: "sz", "sz-foc", "sz-gen", …; or the class of each event.
    background : bool, default True
        Write the row ``bckg`` if there are no events. False if nobody looked for events: the table then has no row.
    start : datetime, optional
        Date and time at which the recording begins, for the column dateTime.
    """
    if confidences is not None and len(confidences) != len(events):
        raise ValueError(f"confidences must be {len(events)} numbers, one for each event, got {len(confidences)}")
    rows = []
    for index, (onset, offset) in enumerate(events):
        confidence = "n/a" if confidences is None else f"{confidences[index]:.4f}"
        kind = event_type if isinstance(event_type, str) else event_type[index]
        rows.append((onset, offset - onset, kind, confidence))
    if not events and background:
        rows.append((0.0, duration, "bckg", "n/a"))
    # A date of recording can identify a patient, so it is only written where it is asked for.
    # BIDS hides a date by moving it before 1925; the standard's own reader wants a date and not "n/a".
    date = "1900-01-01 00:00:00" if start is None else f"{start:%Y-%m-%d %H:%M:%S}"
    lines = ["\t".join(COLUMNS)]
    lines += [
        f"{onset:.3f}\t{length:.3f}\t{kind}\t{confidence}\tall\t{date}\t{duration:.3f}"
        for onset, length, kind, confidence in rows
    ]
    write_text(path, "\n".join(lines) + "\n")
