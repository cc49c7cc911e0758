"""What the text of an annotation means: a seizure, its start or end, or that there is none."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from mvpa_ts.checks import listed
from mvpa_ts.ieeg.recordings.guards import warn_left_out

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
# What is told of days and hours ago; not of minutes, as a nurse marks what she saw. A warning may quote the groups.
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
# "on", "off" and "over" mark a time only where no word follows ("sz over", not "seizure over left temporal").
START = re.compile(
    r"(?:^|[^a-z])(?:(?:starts?|started|onset|begins?|began|beginning|beginn|d[ée]but|in[ií]cio|inizio|начал\w*)(?:[^a-z]|$)"
    r"|on(?![a-z]|[ _-]+[a-z]))|anfalls?(?:beginn|start)(?:[^a-z]|$)",
    re.IGNORECASE,
)
END = re.compile(
    r"(?:^|[^a-z])(?:(?:ends?|ended|offset|stops?|stopped|finish(?:es|ed)?|ceases?|ceased|cessation|termination"
    r"|terminat(?:ed|es)|t[ée]rmino|ende|einde|vorbei|fin|fine crisi|fim|final de|arr[êe]t|кон(?:ец|ца))(?:[^a-z]|$)"
    r"|(?:off|over)(?![a-z]|[ _-]+[a-z]))|anfalls?ende(?:[^a-z]|$)",
    re.IGNORECASE,
)

# Where the start of a seizure was seen: in the EEG (1) or in what the patient does (2), often half a minute later.
VIEW = re.compile(r"\b(?:(s?i?eeg|electr)|(clin|behav|semiolog))", re.IGNORECASE)
# Numbers of seizures: the end of another one does not end this one.
NUMBER = re.compile(rf"\b{_NAMED}\w*[ _-]*(?:no\.?|nr\.?|#)?[ _-]*(\d+)\b", re.IGNORECASE)
# A seizure that has begun spreads.
GOES_ON = re.compile(r"generali[sz]|spread|propagat|evol|continu|ongoing", re.IGNORECASE)
# With no other word beside it, an end is as a rule that of the seizure.
_ALONE = re.compile(r"(?:(?:s?i?eeg|clin|electr)[a-z]*[ _-]+)?\w+", re.IGNORECASE)

WORDS_NOT_TAKEN = "these words are not taken for seizures"
NAME_WORDS = (
    "name them with --seizure-words in a command (in finetune --data.seizure_words), or seizure_words=[...] in Python"
)
# Words that may well mean a seizure but are not taken for one: a fit, an absence and an event are much else too.
_DOUBTFUL = re.compile(
    r"\w*(?:krampf|convuls|konvuls|tonic|tonisch|clon|klon|attack|absence|absenz|paroxysm|spasm|epilep|ictus|seiz"
    r"|anfall|i[ck]tal|[fb]{1,2}tc|gtc|seisur|siezur|(?:grand|petit)[ _-]?mal)\w*"
    r"|\bsz(?:start|begin|onset|on|end|stop|off)\w*"
    r"|\b(?:fits?|spells?|events?|episodes?|fias|fas|fiac|faos|sps|cps|auras?|jerks?|ue[oe]|eeo|t?tcs|\w?\w?szr?|anf|\w*button)\b"
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
    text = plain(text)
    # Words of the user win: a ward's own abbreviation may look like one of ours that means no seizure.
    for word in words:
        if re.search(rf"(?<!\w){re.escape(plain(word))}(?!\w)", text, re.IGNORECASE) and word.strip():
            return True
    return bool(_SEIZURE.search(text)) and not _NOT_SEIZURE.search(text)


@lru_cache(2**16)  # tables of a day repeat their words, and each is asked for several times
def plain(text: str) -> str:
    """A text with plain letters, dashes and single spaces: word processors and other systems write many kinds."""
    letters = [letter for letter in unicodedata.normalize("NFKC", text) if unicodedata.category(letter) != "Cf"]
    dashed = ("-" if unicodedata.category(letter) == "Pd" else letter for letter in letters)
    # "SzOnset" and "EEGOnset" are two words.
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", " ", "".join(dashed))
    return " ".join(spaced.replace("’", "'").split())


def is_background(text: str) -> bool:
    """Whether an annotation says of its stretch that it holds no seizure.

    Examples
    --------
    >>> [is_background(text) for text in ("bckg", "seizure-free", "No seizures", "background slowing", "sz")]
    [True, True, True, False, False]
    """
    # The whole text, because "background slowing" is a finding and says nothing of seizures.
    return bool(_BACKGROUND.fullmatch(plain(text)))


def warn_of_words(texts: Sequence[str], name: str, words: Sequence[str], advice: str) -> None:
    """List words that may mean a seizure and are not taken for one, and say what to do."""
    texts = [*dict.fromkeys(map(plain, texts))]
    understood = [is_seizure(text, words) or is_background(text) for text in texts]
    others = [text for text, clear in zip(texts, understood, strict=True) if not clear]
    unclear = [text for text in others if not _NOT_SEIZURE.search(text)]
    speaks = any(understood)
    # Only the words, never a whole text, which may hold a person's name.
    doubted = [
        match[0].strip(" _-.:;,")
        for text in unclear
        for pattern in ([_DOUBTFUL] if speaks and not _ALONE.fullmatch(text) else [_DOUBTFUL, START, END])
        for match in pattern.finditer(text)
    ]
    denied = [text for text in others if _NOT_SEIZURE.search(text)]
    doubted += [match[0] for text in denied for match in _DOUBTED.finditer(text)]
    doubted += [" … ".join(filter(None, match.groups())) for text in denied for match in _TOLD.finditer(text)]
    # "No clinical seizure, EEG seizure" denies one of two.
    left = [_NOT_SEIZURE.sub(";", text) for text in denied if not is_background(text)]
    doubted += [match[0].strip(" _-.:;,()") for text in left for match in _SEIZURE.finditer(text)]
    # "lights off" and "eyes over" say nothing of seizures.
    if doubtful := [*dict.fromkeys(word for word in doubted if word.lower() not in ("on", "off", "over"))]:
        warn_left_out(f"{name}: {WORDS_NOT_TAKEN}: {listed(doubtful, 8)}. If they mean some, {advice}")
