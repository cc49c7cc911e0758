"""Seizures from annotations and events.tsv, and events.tsv written: which texts mean a seizure, and where one ends."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mvpa_ts.checks import listed, warn
from mvpa_ts.files import write_text
from mvpa_ts.ieeg.events import POINT_SECONDS
from mvpa_ts.ieeg.recordings.bids import read_table
from mvpa_ts.ieeg.recordings.guards import read_text, warn_left_out
from mvpa_ts.ieeg.recordings.recording import Interval, joined_spans

Event = tuple[float, float, str]  # onset and duration in seconds, text
# With the channels that are meant, none for all, the length of the recording in seconds, and the sample of the onset.
Row = tuple[Event, list[str], float | None, float | None]

# Length given to a seizure whose end is not marked: about what a focal seizure lasts.
OPEN_SECONDS = 60.0
# Few seizures are shorter (ACNS 2021): "seizure" that "seizure onset" follows so soon marks the same one.
SHORTEST_SECONDS = 10.0
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
# As an onset, this is a date of after 2001: no recording lasts so long.
_A_DATE = 1e9

# English, German (Anfall, Anfälle, Anfallsbeginn, Krise, iktal), French (crise) and Spanish (crisis); of the Temple
# University's types all but nesz, which is a seizure that is not epileptic.
_SEIZURE = re.compile(
    r"(?:^|[^a-z])(?:sz|szs|(?:fn|gn|sp|cp|ab|tn|cn|tc|at|my)sz|seizures?|ictal|crisis|crises?|krisen?|kriz|iktal|anf[aä]ll(?:e|s?(?:beginn|start|ende))?)"
    r"(?:[^a-z]|$)",
    re.IGNORECASE,
)
# As above, where it stands beside another word: "kris" is of crisis, Krise and Krisen.
_NAMED = r"(?:sz|seizure|i[ck]tal|anf[aä]ll|kris|cris)"
# What may stand between "no" and it.
_KINDS = r"(?:(?:an?|any|definite|clear|obvious|apparent|certain|electro\w+|clinical|focal|typical|further)[ _-]+)"
# What is told of days and hours ago; not of minutes, as a nurse may mark a seizure that she saw begin. A warning may
# quote what is in groups.
_PAST = (
    r"(?<!like )(?<!as )(?<!than )(?<!to )(?<!wie )\b(yesterday|(?:vor)?gestern|ayer|last (?:night|week|month|year)"
    r"|letzte[nr]? (?:nacht|woche|monat|jahr)|in the past|\w+ (?:h|hrs?|hours?|d|days?|weeks?|months?|years?|yrs?) ago"
    r"|prior to (?:admission|arrival|recording|hospital)|vor \w+ (?:stunden?|tage?n?|wochen?|monate?n?|jahre?n?))\b"
)
_TOLD = re.compile(
    rf"\b({_NAMED}\w*)\b[^;.:,]{{0,60}},?[ (]{{0,3}}{_PAST}|{_PAST}[^;.]{{0,60}}?\b({_NAMED}\w*)"
    rf"|\b(history|h/o|hx)[ _-]+(?:of[ _-]+)?(?:\w+[ _-]+){{0,3}}({_NAMED}\w*)",
    re.IGNORECASE,
)
# What a reviewer doubts, or a machine says, is not taken for a seizure.
_DOUBTED = re.compile(
    r"\b(?:possibl[ey]|poss\.?|probabl[ey]|likely|questionable|suspect(?:ed)?|maybe|unsure|not[ _-]sure[ _-]if"
    r"|m[öo]gliche[rs]?|wahrscheinliche[rs]?|fragliche[rs]?|verdacht[ _-]auf|v\. ?a\."
    rf"|posible)[ _-]+(?:\w+[ _-]+)?{_NAMED}\w*|\?[ )]*{_NAMED}\w*|\b{_NAMED}\w*[ (]{{0,2}}\?"
    rf"|\b{_NAMED}s?[ _-](?:detect\w*|button|like|mimic\w*|fp\b|video|clip)"
    rf"|\b{_NAMED}s?[ ,_-]*\(?(?:art[ei]fact|(?:not[ _-]|un)confirmed)\w*"
    rf"|\bnot[ _-]\w+ly[ _-](?:an?[ _-])?{_NAMED}\w*",
    re.IGNORECASE,
)
_NOT_SEIZURE = re.compile(
    rf"{_DOUBTED.pattern}|{_TOLD.pattern}|(?:inter|post|pre|peri|pr[äa])[ _-]*i[ck]tal"
    r"|\b(?:keine?|ohne|nach|vor|pas[ _-]de|sans|apr[èe]s|avant|sin|despu[ée]s[ _-]de|no|non|not|never|without|\w+n't"
    r"|rule[ _-]out|r/o|den(?:y|ies|ied)|absence[ _-]of|no[ _-]se[ _-]\w+|(?:not|n't)[ _-]ha(?:ve|d|ving)|after|before"
    r"|since|post|pre|last|previous|prior|test|false|history[ _-]of|h/o"
    r"|(?:no|without)[ _-](?:evidence|signs?|history)[ _-]of|no[ _-]\w+[ _-](?:or|and)|not[ _-]an?)[ _-]+"
    rf"(?:\w+[ _-]+)?{_KINDS}{{0,2}}{_NAMED}|anfallsfrei|bckg|(?:sz|seizure)[ _-]?free|free[ _-]of[ _-]{_NAMED}"
    # Attacks that are no epilepsy, as the Temple University's nesz.
    r"|(?:anti|non[ _-]?epileptic|psychogenic|dissociative|pseudo)[ _-]*(?:sz|seizure)"
    r"|(?:sz|seizure)s?(?:[ _-]+(?:is|was|were))?[ _:-]+(?:ruled[ _-]out|excluded|unlikely|absent|none|nil"
    # "Seizure no 3" is a number, and "seizure 0" may be.
    r"|not[ _-]seen|no(?!\.?[ _-]?\w))|(?:sz|seizures?|i[ck]tal)[ ]?[:=][ ]?(?:0|no|none|false)\b|\b0 (?:sz|seizure)"
    # A detector's own, as of `Detection.to_annotations`: taken for the truth, it would be scored against itself.
    r"|\bdetected[ _-](?:\w+[ _-])?(?:sz|seizure)"
    # Words that come with seizures but mean something else. One separator only: "seizure - medication given" is one.
    r"|(?:sz|seizure)s?[ _-](?:medic|meds?\b|drug|treatment|prophyla|predict|forecast|horizon|risk|probab|likelihood"
    r"|threshold|onset[ _-]zone|precaution|protocol|control|history|diary|log\b)"
    r"|\bictal[ _-]onset[ _-](?:zone|area|channel|contact)",
    re.IGNORECASE,
)
_BACKGROUND = re.compile(
    r"bckg|background|(?:sz|seizure)[ _-]?free|(?:(?:no|0)[ _-](?:\w+[ _-])?|free[ _-]of[ _-])(?:sz|seizures?)",
    re.IGNORECASE,
)
# "on", "off" and "over" are also prepositions: they mark a time only where no word follows ("sz over", not "seizure
# over left temporal").
_START = re.compile(
    r"(?:^|[^a-z])(?:(?:starts?|started|onset|begins?|began|beginning|beginn|d[ée]but|in[ií]cio|inizio|начал\w*)(?:[^a-z]|$)"
    r"|on(?![a-z]|[ _-]+[a-z]))|anfalls?(?:beginn|start)(?:[^a-z]|$)",
    re.IGNORECASE,
)
_END = re.compile(
    r"(?:^|[^a-z])(?:(?:ends?|ended|offset|stops?|stopped|finish(?:es|ed)?|ceases?|ceased|cessation|termination"
    r"|terminat(?:ed|es)|t[ée]rmino|ende|einde|vorbei|fin|fine crisi|fim|final de|arr[êe]t|кон(?:ец|ца))(?:[^a-z]|$)"
    r"|(?:off|over)(?![a-z]|[ _-]+[a-z]))|anfalls?ende(?:[^a-z]|$)",
    re.IGNORECASE,
)

# Where the start of a seizure was seen: in the EEG (1) or in what the patient does (2), often half a minute later.
_VIEW = re.compile(r"\b(?:(s?i?eeg|electr)|(clin|behav|semiolog))", re.IGNORECASE)
# Numbers of seizures: the end of another one does not end this one.
_NUMBER = re.compile(rf"\b{_NAMED}\w*[ _-]*(?:no\.?|nr\.?|#)?[ _-]*(\d+)\b", re.IGNORECASE)
# A seizure that has begun spreads.
_GOES_ON = re.compile(r"generali[sz]|spread|propagat|evol|continu|ongoing", re.IGNORECASE)
# With no other word beside it, an end is as a rule that of the seizure.
_ALONE = re.compile(r"(?:(?:s?i?eeg|clin|electr)[a-z]*[ _-]+)?\w+", re.IGNORECASE)

WORDS_NOT_TAKEN = "these words are not taken for seizures"
_NAME_WORDS = (
    "name them with --seizure-words in a command (in finetune --data.seizure_words), or seizure_words=[...] in Python"
)
# Words that may well mean a seizure but are not taken for one: a fit, an absence and an event are much else too.
_DOUBTFUL = re.compile(
    r"\w*(?:krampf|convuls|konvuls|tonic|tonisch|clon|klon|attack|absence|absenz|paroxysm|spasm|epilep|ictus|seiz"
    r"|anfall|i[ck]tal|[fb]{1,2}tc|gtc|seisur|siezur|(?:grand|petit)[ _-]?mal)\w*"
    r"|\bsz(?:start|begin|onset|on|end|stop|off)\w*"
    r"|\b(?:fits?|spells?|events?|episodes?|fias|fas|fiac|faos|sps|cps|auras?|jerks?|ue[oe]|eeo|t?tcs|\w?\w?szr?|anf|button)\b"
    # Danish and Swedish, Dutch, Polish, Czech, Turkish, Finnish, Hungarian, Russian, Chinese, Japanese, Korean, Greek,
    # Hebrew, Arabic, Ukrainian, Persian, Hindi, Thai, Vietnamese, Malay, Lithuanian, Latvian; then others
    r"|\w*(?:anfald|aanval|napad|z[áa]chvat|n[öo]bet|kohtau|roham|приступ|припад|судорог|发作|癫痫|発作|발작|경련"
    r"|κρ[ίι]σ|התקף|نوبة|напад|криз|تشنج|दौर|ชัก|động kinh|kejang|priepuol|l[ēe]km)\w*"
    r"|\b(?:insult|toeval|crisi|attaques?|ataques?|atak)\b",
    re.IGNORECASE,
)


def is_seizure(text: str, words: Sequence[str] = ()) -> bool:
    """Whether an annotation speaks of a seizure; SzCORE's types "sz", "sz_foc_ia", … do.

    Parameters
    ----------
    words : sequence of str
        Further words that mean a seizure, whatever else stands beside them; upper and lower case are the same.

    Examples
    --------
    >>> [is_seizure(text) for text in ("eeg sz start", "sz_foc_ia", "Seizure", "interictal", "bckg", "szechuan")]
    [True, True, True, False, False, False]
    >>> [is_seizure(text) for text in ("Anfall", "Anfallsende", "fin de crise", "kein Anfall")]
    [True, True, True, False]
    >>> is_seizure("detected seizure")  # as `Detection.to_annotations` calls its own: no reference
    False
    >>> is_seizure("Event 7 start", words=["event 7"])
    True
    """
    text = _plain(text)
    # Words of the user win: a ward's own abbreviation may look like one of ours that means no seizure.
    for word in words:
        if re.search(rf"(?<!\w){re.escape(_plain(word))}(?!\w)", text, re.IGNORECASE) and word.strip():
            return True
    return bool(_SEIZURE.search(text)) and not _NOT_SEIZURE.search(text)


def _plain(text: str) -> str:
    """A text with plain letters, dashes and single spaces: word processors and other systems write many kinds."""
    letters = [letter for letter in unicodedata.normalize("NFKC", text) if unicodedata.category(letter) != "Cf"]
    dashed = ("-" if unicodedata.category(letter) == "Pd" else letter for letter in letters)
    # "SzOnset" and "EEGOnset" are two words.
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", " ", "".join(dashed))
    return " ".join(apart.replace("’", "'").split())


def is_background(text: str) -> bool:
    """Whether an annotation says of its stretch that it holds no seizure.

    Examples
    --------
    >>> [is_background(text) for text in ("bckg", "seizure-free", "No seizures", "background slowing", "sz")]
    [True, True, True, False, False]
    """
    # The whole text, because "background slowing" is a finding and says nothing of seizures.
    return bool(_BACKGROUND.fullmatch(_plain(text)))


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
    without an end lasts `open_seconds`, but not beyond the next start or the recording's end, and a warning says so. An
    end without a start, and a seizure outside of the recording, are left out with a warning.

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
    spans: list[Interval] = []
    open_at: float | None = None
    open_length = 0.0  # as the open start's own duration says, should no end follow
    open_text = ""
    # Starts that another start followed at once, that other start, and whether it is another mark of the same: a second
    # end may belong to them.
    waiting: list[tuple[float, float, bool]] = []
    # Annotations of several systems in one file are often not in order, and an export may write each mark twice.
    stated = [
        (float(onset), float(length) if POINT_SECONDS < length < math.inf else 0.0, _plain(text))
        for onset, length, text in events
        if is_seizure(text, words)
    ]
    seizure_events = sorted([*{event for event in stated if event[1] == 0}, *(e for e in stated if e[1] != 0)])
    if early := [onset for onset, length, _ in seizure_events if onset < 0 < onset + length]:
        warn(f"{name}: the seizure at {early[0]:g} s begins before the recording and counts from its first sample on")
    if late := [onset for onset, length, _ in seizure_events if onset < duration < onset + length - 1.0]:
        warn(f"{name}: the seizure at {late[0]:g} s ends after the recording, and counts up to its last sample")

    def close(start: float | None, length: float, until: float) -> None:
        if start is None:
            return
        if length > 0 or start >= duration:
            spans.append((start, start + length))
            return
        if open_seconds is None:
            warn_left_out(f"{name}: the seizure at {start:g} s has no end and is left out")
            return
        # A guess is better than none, since leaving the seizure out would count its detection as false. The warning
        # says so.
        end = min(start + open_seconds, until)
        warn(f"{name}: the seizure at {start:g} s has no end; it is taken to last {end - start:g} s")
        spans.append((start, end))

    def close_waiting() -> None:
        for start, until, again in reversed(waiting):
            if again and spans and spans[-1][0] == until:
                spans[-1] = (start, spans[-1][1])
            else:
                close(start, 0.0, until)
        waiting.clear()

    for onset, length, text in seizure_events:
        starts = bool(_START.search(text))
        ends = bool(_END.search(text)) and not starts
        goes_on = open_at is not None and onset - open_at <= OPEN_SECONDS and _GOES_ON.search(text)
        if goes_on and length == open_length == 0 and not (starts or ends):
            continue
        numbers = {match[1] for match in map(_NUMBER.search, (open_text, text)) if match}
        if ends and open_at is not None and len(numbers) > 1:
            close(open_at, open_length, onset)
            open_at = None
        if open_at is None and not ends:
            close_waiting()
        if ends:
            if open_at is not None:
                spans.append((open_at, onset))
            elif waiting:
                spans[-1] = (waiting.pop()[0], onset)
            else:
                warn_left_out(f"{name}: the end of a seizure at {onset:g} s has no start and is left out")
            open_at, open_text = None, ""
        elif length > 0 and not starts:
            if open_length > 0:
                close(open_at, open_length, onset)
                open_at, open_length = None, 0.0
            spans.append((onset, onset + length))
        else:
            if open_at is not None and open_length == 0 and onset - open_at <= OPEN_SECONDS:
                soon = starts and not _START.search(open_text) and onset - open_at < SHORTEST_SECONDS
                views = {match.lastindex for match in map(_VIEW.search, (open_text, text)) if match}
                waiting.append((open_at, onset, soon or len(views) > 1))
            else:
                close(open_at, open_length, onset)
            open_at, open_length, open_text = onset, length, text
    close(open_at, open_length, duration)
    close_waiting()
    # Annotations of a longer recording, of which the file is a part, are common.
    inside = sorted((onset, offset) for onset, offset in spans if onset < duration and offset >= 0)
    if outside := sorted({*spans} - {*inside}):
        times = f"at {listed([f'{onset:g}' for onset, _ in outside])} s"
        warn_left_out(f"{name}: seizures outside of the recording, which lasts {duration:g} s, are left out: {times}")
    return joined_spans(inside, name)


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
    named = {_plain(label).lower(): label for label in classes}
    points = outside = longer = 0
    for onset, length, text in events:
        words = _plain(text).lower()
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


def read_spans(
    table: Path, classes: Sequence[str], name: str, duration: float, sfreq: float, *, cut_short: bool = False
) -> dict[str, list[Interval]]:
    """Intervals (s) of each class in a table, whose times are checked unless the recording was cut short."""
    spans = class_spans(read_events(table, classes), classes, name, duration)
    if not cut_short:
        marks = [(on, off - on, label) for label, of in spans.items() for on, off in of]
        check_times(marks, duration, sfreq, table, classes, "class")
    return spans


def stated_seizures(
    events: Sequence[Event],
    duration: float,
    open_seconds: float | None = OPEN_SECONDS,
    name: str = "recording",
    *,
    words: Sequence[str] = (),
) -> list[Interval] | None:
    """As `seizures_from_events`, but None if no event says where a seizure is, or that there is none ("bckg").

    Examples
    --------
    >>> stated_seizures([(0, 0, "lights off")], 100), stated_seizures([(0, 100, "bckg")], 100)
    (None, [])
    """
    _warn_of_words([text for _, _, text in events], name, words)
    # Nothing said is not the same as no seizure: such a recording must not count as seizure-free.
    if not any(is_seizure(text, words) or is_background(text) for _, _, text in events):
        return None
    seizures = seizures_from_events(events, duration, open_seconds, name, words=words)
    _warn_of_background(events, seizures, duration, name)
    # An end without a start, a start that is left out, or times of another clock say that there is one somewhere.
    lost = not seizures and any(is_seizure(text, words) for _, _, text in events)
    return None if lost else seizures


def _warn_of_background(events: Sequence[Event], seizures: Sequence[Interval], duration: float, name: str) -> None:
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


def _warn_of_words(texts: Sequence[str], name: str, words: Sequence[str], advice: str = _NAME_WORDS) -> None:
    """List words that may mean a seizure and are not taken for one, and say what to do."""
    texts = [_plain(text) for text in texts]
    understood = [is_seizure(text, words) or is_background(text) for text in texts]
    others = [text for text, clear in zip(texts, understood, strict=True) if not clear]
    unclear = [text for text in others if not _NOT_SEIZURE.search(text)]
    # Only the words, never a whole text, which may hold a person's name.
    seen = [
        match[0].strip(" _-.:;,")
        for text in unclear
        for pattern in ([_DOUBTFUL] if any(understood) and not _ALONE.fullmatch(text) else [_DOUBTFUL, _START, _END])
        for match in pattern.finditer(text)
    ]
    denied = [text for text in others if _NOT_SEIZURE.search(text)]
    seen += [match[0] for text in denied for match in _DOUBTED.finditer(text)]
    seen += [" … ".join(filter(None, match.groups())) for text in denied for match in _TOLD.finditer(text)]
    # "No clinical seizure, EEG seizure" denies one of two.
    left = [_NOT_SEIZURE.sub(";", text) for text in denied if not is_background(text)]
    seen += [match[0].strip(" _-.:;,()") for text in left for match in _SEIZURE.finditer(text)]
    # "lights off" and "eyes over" say nothing of seizures.
    if doubtful := [*dict.fromkeys(word for word in seen if word.lower() not in ("on", "off", "over"))]:
        warn_left_out(f"{name}: {WORDS_NOT_TAKEN}: {listed(doubtful, 8)}. If they mean some, {advice}")


def warn_of_codes(levels: Path, texts: Sequence[str], name: str, words: Sequence[str]) -> None:
    """Warn of codes in a table, such as 1, that its JSON file calls seizures, and of times in other units."""
    columns: dict[str, Any] = {}
    with suppress(ValueError, TypeError, RecursionError):
        columns = dict(json.loads(read_text(levels)))
    described = {key: of for key, of in columns.items() if isinstance(of, dict)}
    for key in ("onset", "duration"):
        unit = str(described.get(key, {}).get("Units", "s")).strip()
        if unit.lower() not in ("s", "sec", "secs", "second", "seconds", "n/a", ""):
            warn(f"{levels} states {key} in {unit!r:.20}, and it is taken for seconds, as in BIDS: convert the column")
    codes = [
        code
        for meanings in (column.get("Levels") for column in described.values())
        for code, meaning in (meanings.items() if isinstance(meanings, dict) else ())
        if code in texts and is_seizure(str(meaning)) and not is_seizure(code, words)
    ]
    if codes:
        warn_left_out(
            f"{name}: {WORDS_NOT_TAKEN}: {', '.join(codes)}, which {levels.name} says are some. If they mean some, "
            f"{_NAME_WORDS}"
        )


def warn_of_other_seizures(
    own: Sequence[Event], seizures: Sequence[Interval], duration: float, table: Path, words: Sequence[str]
) -> None:
    """Warn of seizures by a file's own annotations that its table, which is believed, does not have."""
    with warnings.catch_warnings(action="ignore"):
        others = stated_seizures(own, duration, name=table.name, words=words) or []
    if lost := [f"{on:g}" for on, off in others if not any(on < offset and off > onset for onset, offset in seizures)]:
        said = f"lacks seizures that the annotations in the file state: at {listed(lost)} s"
        warn_left_out(f"{table} is believed, and {said}")


def check_times(
    events: Sequence[Event],
    duration: float,
    sfreq: float | None,
    path: Path,
    words: Sequence[str],
    kind: str = "seizure",
) -> None:
    """Raise a ValueError where a table's seizures fit the recording only if their times are no seconds.

    The kind "class" stands for spans of classes, which may be long. A rate that is not known is None.
    """
    seizures = [(onset, length) for onset, length, text in events if is_seizure(text, words)]
    units = {"milliseconds": 1000.0} | ({} if sfreq is None else {"samples": sfreq})
    # Times are rounded, and clocks differ: a second beyond the end is no other unit.
    outside = [onset for onset, _ in seizures if onset > duration + 1]
    # A seizure may reach beyond the end of a recording that was cut, but not by hours.
    long = [
        length
        for onset, length in seizures
        if length > duration + 1 or (kind == "seizure" and length > LONG_SECONDS and onset + length > duration)
    ]
    for column, wrong in (("onset", outside), ("duration", long)):
        likely = [unit for unit, scale in units.items() if wrong and max(wrong) / scale <= duration]
        if not likely and column == "onset" and min(wrong, default=0.0) >= _A_DATE:
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
        warn(
            f"{path}: no seizure lasts longer than {max(lengths):g} s: are onset and duration in seconds, not minutes?"
        )


def read_seizures(path: Path, duration: float, words: Sequence[str] = (), sfreq: float | None = None) -> list[Interval]:
    """Seizure intervals of a BIDS or SzCORE events.tsv of a recording of `duration` seconds, and its rate if known.

    See `read_events` and `seizures_from_events`, which also read the table beside a recording.
    """
    rows = read_rows(path, words)
    events = [event for event, *_ in rows]
    check_times(events, duration, sfreq, path, words)
    warn_of_contradictions(rows, duration, sfreq, path)
    _warn_of_words([text for _, _, text in events], str(path), words, "write sz in the table")
    seizures = seizures_from_events(events, duration, name=path.name, words=words)
    _warn_of_background(events, seizures, duration, path.name)
    return seizures


def read_events(path: Path, words: Sequence[str] = ()) -> list[Event]:
    """Events of a BIDS or SzCORE events.tsv: onset, duration and the text of eventType, trial_type, type or value.

    A duration of n/a is 0, unless a column offset, end or stop states when the event ends. Rows that are no seizure
    and have no readable onset or duration are left out. Quotation marks are letters like others, as in BIDS.
    """
    return [event for event, *_ in read_rows(path, words)]


def warn_of_contradictions(rows: Sequence[Row], duration: float, sfreq: float | None, path: Path) -> None:
    """Warn of a table that is of a recording of another length or rate (None where it is not known)."""
    for (onset, *_), _, _, sample in rows:
        if sfreq is not None and sample is not None and abs(sample / sfreq - onset) > 1.0:
            warn(
                f"{path}: sample {sample:.12g} is at {sample / sfreq:g} s of the recording's {sfreq:g} Hz, and its "
                f"onset is stated as {onset:g} s, which is taken: was the file resampled or cut? Then the times of its "
                "seizures may be those of another file"
            )
            break
    for length in dict.fromkeys(length for _, _, length, _ in rows if length):
        if abs(length - duration) > 1.0 + 1e-3 * duration:
            warn(
                f"{path} is of a recording of {length:g} s (recordingDuration), and this one lasts {duration:g} s: was "
                "it cut? Then the times of its seizures may be those of another file"
            )


def read_rows(path: Path, words: Sequence[str] = ()) -> list[Row]:
    """As `read_events`, each event with what its row says of channels and of the recording; see `Row`."""
    names, rows = read_table(path, ("onset",), _as_in_bids)
    columns = [name for name in TEXT_COLUMNS if name in names]
    if not columns:
        warn(
            f"{path} says nothing of seizures: it needs a column {' or '.join(TEXT_COLUMNS)}, its columns are "
            f"{', '.join(names)}"
        )
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
        events.append(((onset, length or 0.0, text), channels, stated, sample))
    for numbers, said, tell in (
        (unread, "rows that are no seizure and state no time are left out", warn_left_out),
        (opposed, "seizures that another column calls free of seizures count", warn),
        (differ, f"seizures whose duration and {end} contradict each other last as long as their duration says", warn),
    ):
        if numbers:
            tell(f"{path}: {said}, line {listed([*map(str, numbers)])}")
    return events


def _check_cells(row: dict[Any, Any], text: str, where: str, words: Sequence[str]) -> None:
    """Raise a ValueError where a row has a cell too many or too few, so that its seizure stands in another column."""
    shifted = None in row or None in row.values()
    cells = [*row.pop(None, ()), *(cell for cell in row.values() if cell)]
    if shifted and not is_seizure(text, words) and any(is_seizure(cell, words) for cell in cells):
        raise ValueError(
            f"{where}: a seizure stands in none of the columns of texts, as the row has more or fewer cells than the "
            "table columns: put one tab between cells, and n/a into empty ones"
        )


def _as_in_bids(names: Sequence[str]) -> list[str]:
    """Names of columns, those that BIDS has as BIDS spells them: Excel users write "Onset"."""
    spelled = {
        name.lower(): name
        for name in ("onset", "duration", *TEXT_COLUMNS, *END_COLUMNS, *CHANNEL_COLUMNS, COLUMNS[-1], "sample")
    }
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


# BIDS hides a date by moving it before 1925; the standard's own reader wants a date and not "n/a".
_HIDDEN_DATE = "1900-01-01 00:00:00"


def write_events(
    path: str | os.PathLike[str],
    events: Sequence[tuple[float, float]],
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
    date = _HIDDEN_DATE if start is None else f"{start:%Y-%m-%d %H:%M:%S}"
    lines = ["\t".join(COLUMNS)]
    lines += [
        f"{onset:.3f}\t{length:.3f}\t{kind}\t{confidence}\tall\t{date}\t{duration:.3f}"
        for onset, length, kind, confidence in rows
    ]
    write_text(path, "\n".join(lines) + "\n")
