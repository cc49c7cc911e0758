"""Seizures, marked classes and bad stretches from the annotations of a recording."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from mvpa_ts.checks import listed, warn
from mvpa_ts.ieeg.events import POINT_SECONDS
from mvpa_ts.ieeg.recordings import seizure_words
from mvpa_ts.ieeg.recordings.guards import warn_left_out
from mvpa_ts.ieeg.recordings.recording import Interval, joined_spans
from mvpa_ts.ieeg.recordings.seizure_words import NAME_WORDS, is_background, is_seizure, plain, warn_of_words

Event = tuple[float, float, str]  # onset and duration in seconds, text

# Marks of EEGLAB and MNE where recordings were joined, or a part was cut out; as in BrainVision, with a kind before it.
BOUNDARY = re.compile(r"(?:.*/)?(?:(?:edge|bad) )?boundary", re.IGNORECASE)
# Length given to a seizure whose end is not marked: about what a focal seizure lasts.
OPEN_SECONDS = 60.0
# Few seizures are shorter (ACNS 2021): "seizure" that "seizure onset" follows so soon marks the same one.
SHORTEST_SECONDS = 10.0


def seizures_from_events(
    events: Sequence[Event],
    duration: float,
    open_seconds: float | None = OPEN_SECONDS,
    name: str = "recording",
    *,
    words: Sequence[str] = (),
) -> list[Interval]:
    """Seizure intervals from events.

    An event whose text says end ("sz end") closes the last open start, whatever its duration. Two starts within a
    minute that two ends follow are two marks of one seizure, from the first start to the last end; so are "seizure" and
    "seizure onset" within 10 s, and a start in the EEG and one in the patient within a minute. An event with a duration
    is an interval, unless its text says start and the next event is an end. All other events are starts. A start
    without an end marks the interval that it lies in, or up to 10 s before. Others last `open_seconds`, but not beyond
    the next start or the recording's end, and a warning says so. An end without a start, and a seizure outside of the
    recording, are left out with a warning.

    Parameters
    ----------
    events : sequence of (onset, duration, text)
        Seconds; texts that mean no seizure are ignored.
    duration : float
        Of the recording, s.
    open_seconds : float or None
        None leaves open seizures out.
    name : str
        Of the recording, for the warnings. They state times, not texts, which may hold names of persons.
    words : sequence of str
        As for `is_seizure`.

    Examples
    --------
    >>> seizures_from_events([(5, 0, "sz start"), (30, 0, "sz end"), (80, 12.5, "seizure")], 100)
    [(5.0, 30.0), (80.0, 92.5)]
    """
    # Annotations of several systems in one file are often not in order, and an export may write each mark twice.
    stated = [
        (float(onset), float(length) if POINT_SECONDS < length < math.inf else 0.0, plain(text))
        for onset, length, text in events
        if is_seizure(text, words)
    ]
    marks = sorted([*{event for event in stated if event[1] == 0}, *(event for event in stated if event[1] != 0)])
    marked = _Marked(duration, open_seconds)
    spans = marked.intervals(marks)
    if lasts := [f"{length:g} s from {onset:g} s on" for onset, length in sorted(marked.guessed.items())]:
        warn(f"{name}: seizures without an end are taken to last: {listed(lasts)}")
    for what, onsets in marked.left_out.items():
        warn_left_out(f"{name}: {what} are left out: at {listed([f'{onset:g}' for onset in sorted(onsets)])} s")
    # Annotations of a longer recording, of which the file is a part, are common.
    inside = sorted((onset, offset) for onset, offset in spans if onset < duration and offset >= 0)
    if early := [onset for onset, offset in inside if onset < 0 < offset]:
        warn(f"{name}: the seizure at {early[0]:g} s begins before the recording and counts from its first sample on")
    if late := [onset for onset, offset in inside if duration < offset - 1.0]:
        warn(f"{name}: the seizure at {late[0]:g} s ends after the recording, and counts up to its last sample")
    if outside := sorted({*spans} - {*inside}):
        times = f"at {listed([f'{onset:g}' for onset, _ in outside])} s"
        warn_left_out(f"{name}: seizures outside of the recording, which lasts {duration:g} s, are left out: {times}")
    return joined_spans(inside, name)


class _Marked:
    """Seizures as far as their marks, read in order of time, tell of them."""

    def __init__(self, duration: float, open_seconds: float | None) -> None:
        self.duration, self.open_seconds = duration, open_seconds
        self.spans: list[Interval] = []
        self.stated: list[Interval] = []  # those with a duration
        self.guessed: dict[float, float] = {}  # how long those without an end are taken to last
        self.left_out: dict[str, list[float]] = {}  # onsets of marks that say too little
        self.begun: Event | None = None  # a start without an end yet; its duration counts should none follow
        # Starts that another one followed at once, that one, and whether it marks the same: a second end may be theirs.
        self.waiting: list[tuple[float, float, bool]] = []

    def intervals(self, marks: Sequence[Event]) -> list[Interval]:
        """The seizures of all marks."""
        self.stated = [(onset, onset + length) for onset, length, _ in marks if length > 0]
        for onset, length, text in marks:
            starts = bool(seizure_words.START.search(text))
            ends = bool(seizure_words.END.search(text)) and not starts
            spreads = length == 0 and self._point_before(onset) and seizure_words.GOES_ON.search(text)
            if spreads and not (starts or ends):
                continue
            if ends and self._is_another(text):
                self._close(onset)
            if self.begun is None and not ends:
                self._close_waiting()
            if ends:
                self._end(onset)
            elif length > 0 and not starts:
                if self.begun is not None and self.begun[1] > 0:
                    self._close(onset)
                self.spans.append((onset, onset + length))
            else:
                self._begin(onset, length, text, starts)
        self._close(self.duration)
        self._close_waiting()
        return self.spans

    def _point_before(self, onset: float) -> Event | None:
        """The start without an end, if it has no duration and is a minute old at most."""
        begun = self.begun
        return begun if begun is not None and begun[1] == 0 and onset - begun[0] <= OPEN_SECONDS else None

    def _is_another(self, text: str) -> bool:
        """Whether an end names another number than the seizure that has begun."""
        texts = (text,) if self.begun is None else (self.begun[2], text)
        return len({match[1] for match in map(seizure_words.NUMBER.search, texts) if match}) > 1

    def _begin(self, onset: float, length: float, text: str, starts: bool) -> None:
        if (point := self._point_before(onset)) is None:
            self._close(onset)
        else:
            first, _, said = point
            soon = starts and not seizure_words.START.search(said) and onset - first < SHORTEST_SECONDS
            views = {match.lastindex for match in map(seizure_words.VIEW.search, (said, text)) if match}
            self.waiting.append((first, onset, soon or len(views) > 1))
        self.begun = onset, length, text

    def _end(self, onset: float) -> None:
        if self.begun is not None:
            self.spans.append((self.begun[0], onset))
        elif self.waiting:
            self.spans[-1] = (self.waiting.pop()[0], onset)
        else:
            self.left_out.setdefault("ends of seizures without a start", []).append(onset)
        self.begun = None

    def _close(self, until: float) -> None:
        """Let the seizure that has begun end as its duration says, or at the latest where something else begins."""
        if self.begun is not None:
            onset, length, _ = self.begun
            if length > 0:
                self.spans.append((onset, onset + length))
            else:
                self._guess(onset, until)
        self.begun = None

    def _close_waiting(self) -> None:
        for start, until, again in reversed(self.waiting):
            if again and self.spans and self.spans[-1][0] == until:
                self.spans[-1] = (start, self.spans[-1][1])
            else:
                self._guess(start, until)
        self.waiting.clear()

    def _guess(self, start: float, until: float) -> None:
        # A point in an interval, or shortly before it, is another mark of that seizure.
        ends = [offset for onset, offset in self.stated if onset - SHORTEST_SECONDS <= start < offset]
        if start >= self.duration or ends:  # left out with those that lie outside
            self.spans.append((start, max(ends, default=start)))
        elif self.open_seconds is None:
            self.left_out.setdefault("seizures without an end", []).append(start)
        else:
            # A guess is better than none: without the seizure, its detection would count as false.
            end = min(start + self.open_seconds, until)
            self.guessed[start] = end - start
            self.spans.append((start, end))


def bad_spans(events: Sequence[Event]) -> list[Interval]:
    """Stretches that events mark as bad, as MNE does: their text, or its end after "/", begins with "bad".

    Examples
    --------
    >>> bad_spans([(5.0, 2.0, "BAD_movement"), (9.0, 1.0, "Comment/bad"), (20.0, 3.0, "badge"), (30.0, 0.0, "BAD_")])
    [(5.0, 7.0), (9.0, 10.0)]
    """
    marked = re.compile(r"(?:.*/)?\s*bad(?:[^a-z]|$)", re.IGNORECASE)
    return [(onset, onset + length) for onset, length, text in events if length > 0 and marked.match(text)]


def class_spans(
    events: Sequence[Event], classes: Sequence[str], name: str, duration: float = math.inf
) -> dict[str, list[Interval]]:
    """Intervals (s) of each class: of events whose text, or its end after "/" as in BrainVision, is the name.

    Upper and lower case are the same. Warnings count marks without a duration, beyond that of the recording, and with a
    text that holds more than the name.
    """
    spans: dict[str, list[Interval]] = {label: [] for label in classes}
    named = {plain(label).lower(): label for label in classes}
    points = outside = longer = 0
    for onset, length, text in events:
        words = plain(text).lower()
        label = named.get(words, named.get(words.rpartition("/")[2]))
        longer += label is None and any(re.search(rf"\b{re.escape(known)}\b", words) for known in named)
        if label is not None and POINT_SECONDS < length < math.inf:
            spans[label].append((onset, onset + length))
            outside += onset >= duration or onset + length <= 0
        points += label is not None and not POINT_SECONDS < length < math.inf
    for count, fault in (
        (points, "without a duration"),
        (outside, f"outside of the recording of {duration:g} s"),
        (longer, "with more in their text than the name"),
    ):
        if count:
            warn_left_out(f"{name}: marks of classes {fault} label nothing, and are left out: {count}")
    return spans


def stated_seizures(
    events: Sequence[Event],
    duration: float,
    open_seconds: float | None = OPEN_SECONDS,
    name: str = "recording",
    *,
    words: Sequence[str] = (),
    table: Path | None = None,
) -> list[Interval] | None:
    """As `seizures_from_events`, but None if no event says where a seizure is, or that there is none ("bckg").

    Of words that may mean a seizure a warning says where they stand: in a `table`, which can be corrected, or a file.

    Examples
    --------
    >>> stated_seizures([(0, 0, "lights off")], 100), stated_seizures([(0, 100, "bckg")], 100)
    (None, [])
    """
    where, advice = (name, NAME_WORDS) if table is None else (str(table), "write sz in the table")
    warn_of_words([text for _, _, text in events], where, words, advice)
    # Nothing said is not the same as no seizure: such a recording must not count as seizure-free.
    if not any(is_seizure(text, words) or is_background(text) for _, _, text in events):
        return None
    seizures = seizures_from_events(events, duration, open_seconds, name, words=words)
    warn_of_background(events, seizures, duration, name)
    # An end without a start, a start that is left out, or times of another clock say that there is one somewhere.
    lost = not seizures and any(is_seizure(text, words) for _, _, text in events)
    return None if lost else seizures


def warn_of_background(events: Sequence[Event], seizures: Sequence[Interval], duration: float, name: str) -> None:
    """Warn where a stretch that is marked as free of seizures holds one, or is a part of a recording without any."""
    quiet = [(onset, length) for onset, length, text in events if is_background(text)]
    inside = [f"{on:g}" for on, off in seizures if any(onset < off and onset + length > on for onset, length in quiet)]
    if inside:
        warn(f"{name}: seizures lie in a stretch that is marked as free of them, and count: at {listed(inside)} s")
    covered = sum(min(onset + length, duration) - max(onset, 0.0) for onset, length in quiet)
    # A mark without a length is of the whole.
    if quiet and not seizures and all(length for _, length in quiet) and covered < 0.9 * duration - 1.0:
        warn(
            f"{name}: {covered:g} of {duration:g} s are marked as free of seizures, and no seizure is marked: all of "
            "it counts as free of them"
        )
