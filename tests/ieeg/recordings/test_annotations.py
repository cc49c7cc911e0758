"""Seizures out of annotations and events.tsv."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.reading import refused, refuses, warned

from mvpa_ts.ieeg import Recording, read_recording, simulate_recording
from mvpa_ts.ieeg.recordings.annotations import seizures_from_events, stated_seizures
from mvpa_ts.ieeg.recordings.bids import read_tsv
from mvpa_ts.ieeg.recordings.events_table import check_times, read_events, read_seizures
from mvpa_ts.ieeg.recordings.noise import add_noise
from mvpa_ts.ieeg.recordings.seizure_words import is_background, is_seizure
from mvpa_ts.ieeg.recordings.subjects import read_subjects
from mvpa_ts.ieeg.simulation.writing import write_edf


@pytest.fixture
def table(tmp_path):
    """Writes x_events.tsv: rows below a heading."""

    def write(*rows: str, heading: str = "onset\tduration\ttrial_type") -> Path:
        path: Path = tmp_path / "x_events.tsv"
        path.write_text("\n".join([heading, *rows]) + "\n")
        return path

    return write


@pytest.fixture
def quiet_file(tmp_path):
    """Writes x.edf: two channels without a seizure, unless some are stated."""

    def write(duration: float, seizures: list[tuple[float, float]] | None = (), sfreq: float = 512.0) -> Path:
        quiet = simulate_recording("S01", num_channels=2, duration=duration, num_seizures=0, sfreq=sfreq)
        return write_edf(quiet.with_seizures(seizures), tmp_path / "x.edf")

    return write


@pytest.mark.parametrize(
    "text",
    ["sz", "SZ", "eeg sz start", "Seizure", "seizure onset", "sz_foc_ia_nm", "SZ-1", "Seizure over left temporal",
     "seizure - medication given", "seizure 3 off", "seizure no 3", "seizure=1", "fnsz", "gnsz", "TCSZ", "CPSZ start",
     # Beside words that would deny another one.
     "absence seizure", "focal seizure, no LOC", "no movement during seizure", "seizure with artifact", "SzOnset",
     "seizureOnset", "EEGSeizure", "seizure, patient not confirmed awake", "typical seizure",
     # In German, French or Spanish.
     "Anfall", "Anfallsbeginn", "2 Anfälle", "Anfall links temporal", "Krise", "crise", "début de crise", "Crises",
     "crisis", "inicio de crisis", "iktal", "Anfa\u0308lle"],
)  # fmt: skip
def test_a_seizure(text):
    assert is_seizure(text)


def test_words_of_the_callers_own(table):
    assert not is_seizure("Event 7")
    assert is_seizure("event 7 left", words=["Event 7"])
    assert not is_seizure("event 71", words=["event 7"])
    assert not is_seizure("anything", words=[" "])
    path = table("10\t20\tgroße Attacke", "50\t5\tother")
    with pytest.warns(UserWarning, match=r"x_events\.tsv: these words .*: Attacke\. If they mean some, write sz in"):
        assert read_seizures(path, 100.0) == []
    assert read_seizures(path, 100.0, words=["attacke"]) == [(10.0, 30.0)]


@pytest.mark.parametrize(
    "text",
    ["", "bckg", "interictal", "post-ictal", "postictal slowing", "preictal", "no seizure", "szymon", "test annotation",
     "after seizure", "pre sz", "seizure free", "no clear seizure", "Anti-seizure medication given",
     "anti seizure drug", "antiseizure", "seizure prediction horizon", "sz_prediction", "seizure medication",
     "detected seizure", "Detected sz", "detected focal seizure",
     "non-ictal", "no ictal activity", "post - ictal", "post\u2013ictal", "pre\u00a0ictal", "no\u00a0seizure",
     "no evidence of seizure", "no clinical or electrographic seizure", "wasn't a seizure", "nonepileptic seizure",
     "pseudo-seizure", "seizures: none", "seizure: no", "sz=0", "previous seizure", "history of seizures",
     "sz meds", "seizure risk", "seizure onset zone", "Seizure precautions", "seizure forecast 0.3", "nesz",
     # Denied or doubted.
     "no definite electrographic seizure seen", "no obvious focal seizure", "not clearly a seizure", "denies seizures",
     "did not have a seizure", "absence of seizures", "no se observan crisis", "Ictal: no", "seizure (artifact)",
     "seizure, not confirmed", "Sz FP", "seizure video saved",
     # In German, French or Spanish.
     "kein Anfall", "ohne Anfall", "anfallsfrei", "nach dem Anfall", "postiktal", "interiktale Spikes", "pas de crise",
     "après crise", "sin crisis", "Anfallsmedikation", "Krisenteam", "ictal onset zone"],
)  # fmt: skip
def test_no_seizure(text):
    assert not is_seizure(text)


@pytest.mark.parametrize(
    "text",
    ["patient had seizure yesterday", "Yesterday: 2 seizures", "seizures last week", "seizure 3 days ago",
     "seizure three hours ago", "history of focal onset seizures", "hx of seizures", "Anfall gestern",
     "Anfall vor 2 Tagen", "seizures in the past", "seizure prior to admission"],
)  # fmt: skip
def test_what_is_told_of_the_past_is_no_seizure_and_is_said(text):
    assert not is_seizure(text)
    with pytest.warns(UserWarning, match="these words are not taken for seizures: .*(seizure|Anfall)"):
        assert stated_seizures([(5.0, 10.0, text)], 100.0) is None


def test_what_is_compared_with_the_past_is_a_seizure_and_names_are_not_quoted():
    texts = [
        "Seizure, like yesterday",
        "same as last night: seizure",
        "seizure 2 min ago",
        "seizure prior to medication",
    ]
    assert all(map(is_seizure, [*texts, "Anfall wie gestern", "Seizure. Slept badly last night"]))
    with pytest.warns(UserWarning, match="are not taken for seizures: seizure … yesterday. If"):
        stated_seizures([(5.0, 10.0, "seizure of Ada Lovelace yesterday")], 100.0)


@pytest.mark.parametrize("text", ["bckg", "Background", "seizure-free", "sz free", "no seizures", "No clear seizure"])
def test_background(text):
    assert is_background(text)
    assert not is_seizure(text)


@pytest.mark.parametrize("text", ["", "sz", "background slowing", "interictal", "artefact", "no seizure medication"])
def test_no_background(text):
    assert not is_background(text)


@pytest.mark.filterwarnings("error")
def test_markers_with_and_without_durations():
    events = [(80, 12.5, "seizure"), (5, 0, "eeg sz start"), (7, 0, "spike"), (30, 0, "sz end"), (90, 0, "artefact")]
    assert seizures_from_events(events, 100.0) == [(5.0, 30.0), (80.0, 92.5)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(100, 0, "Seizure over left temporal"), (160, 0, "sz end")], [(100.0, 160.0)]),
        ([(100, 0, "seizure on the left"), (160, 0, "Seizure over.")], [(100.0, 160.0)]),
        ([(100, 0, "seizure off medication"), (160, 0, "seizure off")], [(100.0, 160.0)]),
        ([(100, 0, "sz on"), (160, 0, "sz_off")], [(100.0, 160.0)]),
        ([(100, 0, "SZ 2 on"), (160, 0, "SZ off 2")], [(100.0, 160.0)]),
        ([(100, 0, "seizure"), (160, 0, "seizure over, patient answers")], [(100.0, 160.0)]),
        ([(100, 0, "seizure"), (160, 0, "seizure stopped on the left")], [(100.0, 160.0)]),
        ([(100, 0, "sz began"), (160, 0, "sz finished")], [(100.0, 160.0)]),
        ([(100, 0, "seizure"), (160, 0, "cessation of seizure")], [(100.0, 160.0)]),
        ([(100, 1, "sz start"), (160, 1, "sz end")], [(100.0, 160.0)]),
        ([(100, 0, "sz start"), (160, 1, "sz end")], [(100.0, 160.0)]),
        ([(100, 1, "sz start"), (160, 0, "sz end")], [(100.0, 160.0)]),
        ([(100, 60, "seizure onset"), (160, 0, "seizure offset")], [(100.0, 160.0)]),
        ([(100, 60, "seizure onset left")], [(100.0, 160.0)]),
        ([(100, 60, "sz start"), (200, 40, "sz start"), (230, 1, "sz end")], [(100.0, 160.0), (200.0, 230.0)]),
        ([(100, 60, "sz start"), (120, 0, "artefact"), (300, 20, "seizure")], [(100.0, 160.0), (300.0, 320.0)]),
        ([(100, 60, "Seizure over left temporal")], [(100.0, 160.0)]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_texts_decide_what_starts_and_ends(events, expected):
    assert seizures_from_events(events, 1000.0) == expected
    assert seizures_from_events(events, 1000.0, open_seconds=None) == expected


NO_START, NO_END = "ends of seizures without a start are left out: at {} s", "without an end .* from {} s on"


@pytest.mark.parametrize(
    ("events", "said", "expected"),
    [
        # A seizure with a duration stays what it says; an end far behind it belongs to another.
        (
            [(100, 60, "sz start"), (300, 60, "seizure"), (400, 0, "sz end")],
            NO_START.format(400),
            [(100, 160), (300, 360)],
        ),
        ([(20, 30, "seizure"), (160, 0, "sz end")], NO_START.format(160), [(20, 50)]),
        ([(20, 30, "seizure"), (160, 1, "sz end")], NO_START.format(160), [(20, 50)]),
        # What goes on minutes later is another seizure.
        (
            [(10, 0, "sz start"), (700, 0, "generalized seizure"), (760, 0, "sz end")],
            NO_END.format(10),
            [(10, 70), (700, 760)],
        ),
        # The end of another seizure ends none.
        ([(10, 0, "sz 1 onset"), (250, 0, "sz 2 end")], NO_END.format(10), [(10, 70)]),
        ([(10, 0, "sz 1 onset"), (250, 0, "sz 2 end")], NO_START.format(250), [(10, 70)]),
    ],
)
def test_a_start_and_an_end_that_do_not_belong_together(events, said, expected):
    with pytest.warns(UserWarning, match=said):
        assert seizures_from_events(events, 1000.0) == expected


@pytest.mark.parametrize(
    ("events", "duration", "expected"),
    [
        ([(10, 0, "sz start")], 1000.0, [(10.0, 70.0)]),
        ([(10, 0, "sz start")], 21.5, [(10.0, 21.5)]),
        ([(10, 0, "sz onset"), (40, 0, "sz onset"), (55, 0, "sz offset")], 1000.0, [(10.0, 40.0), (40.0, 55.0)]),
    ],
)
def test_an_onset_without_end(events, duration, expected):
    with pytest.warns(UserWarning, match="without an end are taken to last: .* from 10 s on"):
        assert seizures_from_events(events, duration) == expected
    with pytest.warns(UserWarning, match="without an end are left out"):
        kept = seizures_from_events(events, duration, open_seconds=None)
    assert kept == [span for span in expected if span[1] == 55.0]


def test_many_onsets_without_end_are_said_at_once(recwarn):
    assert len(seizures_from_events([(100.0 * number, 0, "sz") for number in range(90)], 9000.0)) == 90
    assert seizures_from_events([(100.0 * number, 0, "sz") for number in range(90)], 9000.0, None) == []
    assert seizures_from_events([(100.0 * number, 0, "sz end") for number in range(90)], 9000.0) == []
    assert len(recwarn) == 3


@pytest.mark.parametrize("kind", ["seizure", "sz start"])
@pytest.mark.parametrize("length", [0, 40])
def test_a_seizure_outside_of_the_recording_is_named(kind, length):
    events = [(9000, length, kind), (20, 30, "seizure"), (350, 40, "seizure")]
    with pytest.warns(UserWarning, match="^night: seizures outside .* lasts 360 s, are left out: at 9000 s") as shown:
        assert seizures_from_events(events, 360.0, name="night") == [(20.0, 50.0), (350.0, 390.0)]
    assert [str(warning.message) for warning in shown][:-1] == [
        "night: the seizure at 350 s ends after the recording, and counts up to its last sample"
    ]
    with pytest.warns(UserWarning, match="are left out: at -50 s"):
        assert seizures_from_events([(-50, 40, "seizure")], 360.0) == []


@pytest.mark.parametrize("heading", ["onset,duration,trial_type\n1,2,sz\n", "start\tstop\n1\t2\n", ""])
def test_a_table_without_a_column_of_onsets(tmp_path, heading):
    (tmp_path / "x_events.tsv").write_text(heading)
    names = heading.partition("\n")[0].replace("\t", ", ") or "none"
    with pytest.raises(ValueError, match=rf"no column 'onset'; its columns are {names} \(put tabs between\)"):
        read_events(tmp_path / "x_events.tsv")


def test_only_seizures_need_numbers(table):
    rows = ["n/a\t5\tartefact", "soon\t5\tartefact", "3\tlong\tartefact", "7\tn/a\tspike", "10\t20\tsz", "4"]
    path = table(*rows)
    with pytest.warns(UserWarning, match=r"x_events\.tsv: rows that are no seizure .* are left out, line 2, 3, 4$"):
        assert read_events(path) == [(7.0, 0.0, "spike"), (10.0, 20.0, "sz"), (4.0, 0.0, "")]
    assert read_seizures(path, 100.0) == [(10.0, 30.0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("n/a\t20\tsz", "an onset in seconds is needed, got n/a"),
        ("nan\t20\tsz", "an onset in seconds is needed, got n/a"),
        ("\t20\tsz", "an onset in seconds is needed, got n/a"),
        ("inf\t20\tsz", "onset must be a number of seconds or n/a"),
        ("one\t20\tsz", "onset must be a number of seconds or n/a"),
        ("10\tlong\tsz", "duration must be a number of seconds or n/a"),
        ("10,5\t20\tsz", "onset must be a number of seconds or n/a, got 10,5: write ten and a half seconds as 10.5"),
    ],
)
def test_a_seizure_without_numbers_is_named(table, row, message):
    path = table("1\t2\tspike", row)
    refuses(read_events, re.escape(f"{path}, line 3, a seizure: {message}"), path)


def test_an_offset_before_its_onset_is_named(table):
    with pytest.raises(ValueError, match="line 2, a seizure: its offset lies before its onset"):
        read_events(table("100\t60\tsz", heading="onset\toffset\ttrial_type"))
    path = table("100\t60\t3\tsz", heading="onset\tduration\toffset\ttrial_type")  # an offset of samples, say
    assert read_seizures(path, 600.0) == [(100.0, 160.0)]


def test_columns_that_contradict_each_other_are_named(table):
    path = table("100\t60\tsz\tseizure", "300\t60\tbckg\tseizure", heading="onset\tduration\teventType\ttrial_type")
    with pytest.warns(UserWarning, match="seizures that another column calls free of seizures count, line 3$"):
        assert read_seizures(path, 600.0) == [(100.0, 160.0), (300.0, 360.0)]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_table_in_another_encoding_is_read(tmp_path, encoding, recwarn):
    table = tmp_path / "x_events.tsv"
    text = "onset\tduration\ttrial_type\n10\t20\tAnfälle\n30\t20\tcrise généralisée\n"
    table.write_bytes(text.encode(encoding))
    assert read_seizures(table, 100.0) == [(10.0, 30.0), (30.0, 50.0)]
    # UTF-16 says what it is; all else that is not UTF-8 is a guess.
    guess = f"{table} is not UTF-8 and is read as Windows-1252: save it as UTF-8 if it is neither"
    assert [str(warning.message) for warning in recwarn] == [guess] * (encoding == "latin-1")
    assert [text for _, _, text in read_events(table)] == ["Anfälle", "crise généralisée"]


@pytest.mark.parametrize("heading", ["Onset\tDuration\tTrial_Type", "onset \t duration\tEVENTTYPE"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_names_of_columns_and_ends_of_lines_of_other_programs(tmp_path, heading, line_end):
    table = tmp_path / "x_events.tsv"
    table.write_bytes(line_end.join([heading, "10\t20\tsz", "50\t5\tsz", ""]).encode())
    assert read_seizures(table, 100.0) == [(10.0, 30.0), (50.0, 55.0)]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("onset\tduration\teventType", ["100\t60\tsz"]),
        ("onset\tduration\ttrial_type", ["100\t0\teeg sz start", "160\t0\teeg sz end"]),
        ("onset\tduration\ttrial_type", ["100\t0\tseizure start", "160\t0\tseizure end"]),
        ("onset\tduration\ttrial_type", ["100\t60\tFocal seizure"]),
        ("onset\tduration\ttrial_type", ["100\t60\tictal"]),
        ("onset\tduration\ttrial_type\tvalue", ["100\t60\tn/a\tseizure", "300\t60\tstimulus\t3"]),
        ("onset\teventType", ["100\tsz start", "160\tsz end"]),
        ("onset\toffset\teventType", ["20\t90\tbckg", "100\t160\tfnsz"]),
        ("\tonset\tduration\ttrial_type", ["1\t100\t60\tsz"]),
        ('"onset"\t"duration"\t"value"', ['20\t9\t"bckg"', '100\t60\t"sz"']),
    ],
    ids=["szcore", "eeg sz", "durations", "focal", "ictal", "value", "no duration", "offset", "index of pandas", "R"],
)
@pytest.mark.filterwarnings("error")
def test_ways_to_state_one_seizure(table, header, rows):
    assert read_seizures(table(*rows, heading=header), 600.0) == [(100.0, 160.0)]


@pytest.mark.parametrize("length", ["0", "n/a"])
@pytest.mark.parametrize("index", ["", "108\t"])
def test_a_seizure_without_duration_in_a_table(table, length, index):
    """Nor does the index of pandas, a column without a name, say where it ends."""
    path = table(f"{index}100\t{length}\tsz", heading=f"{index and chr(9)}onset\tduration\ttrial_type")
    with pytest.warns(UserWarning, match=r"x_events\.tsv: seizures without an end .* from 100 s on"):
        assert read_seizures(path, 600.0) == [(100.0, 160.0)]
    with pytest.warns(UserWarning, match="are taken to last: 20 s from 100 s on"):
        assert read_seizures(path, 120.0) == [(100.0, 120.0)]


@pytest.mark.parametrize("row", ["0\t600\tseizure-free", "n/a\tn/a\tbckg", "\t\tbckg", "n/a\t600\tseizure-free"])
def test_a_seizure_free_stretch_is_no_seizure(table, row):
    assert read_seizures(table(row), 600.0) == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [((), None), (("lights off",), None), (("lights off", "bckg"), []), (("bckg", "sz"), [(10.0, 15.0)])],
)
def test_no_seizure_and_nothing_said_are_told_apart(texts, expected):
    events = [(10.0, 5.0, text) for text in texts]
    assert stated_seizures(events, 60.0) == expected
    recording = Recording.from_array(np.ones((1, 6000)), 100.0, ["A1"], "mV", seizures=stated_seizures(events, 60.0))
    for part in (recording, recording.pick(["A1"]), recording.crop(0.0, 30.0), add_noise(recording, 20.0)):
        assert part.annotated == (expected is not None)


def test_the_table_beside_a_file_comes_before_its_annotations(quiet_file, table):
    assert not read_recording(quiet_file(20.0, None)).annotated
    path = quiet_file(20.0)
    assert read_recording(path).annotated
    table("2\t5\tsz")
    assert read_recording(path).seizures == ((2.0, 7.0),)
    table("2\t5\tlights off")
    assert read_recording(path).annotated
    table("2\t5\tseizure", heading="onset\tduration\tlabel")
    assert warned(path, "needs a column eventType or .* it has onset, duration, label").seizures == ()


def test_a_quotation_mark_is_a_letter(table):
    """As mne-bids reads it: a cell with a single mark swallows no row."""
    path = table('5\t1\t"', "20\t10\tsz", '50\t10\tsz "left', '80\t10\t"sz"')
    reference = pytest.importorskip("mne_bids.tsv_handler")._from_tsv(path)
    events = read_events(path)
    assert [event[2] for event in events] == reference["trial_type"] == ['"', "sz", 'sz "left', '"sz"']
    assert read_seizures(path, 100.0) == [(20.0, 30.0), (50.0, 60.0), (80.0, 90.0)]
    path = table('"A\tx_events.tsv\t"A', "B\t.\tB", heading="name\tfile\tsubject")
    assert [row["name"] for row in read_tsv(path, ("name",))] == [*read_subjects(path).values()] == ['"A', "B"]


@pytest.mark.parametrize("points", [[(100, 0.0)], [(112, 0.0)], [(92, 0.0), (104, 0.0)], [(139.5, 0.0)]])
def test_a_point_in_an_interval_or_just_before_it_marks_the_same_seizure(points):
    """Clinical signs, say; a guess of 60 s would make false seizure of what follows the stated end."""
    events = [(onset, length, "seizure") for onset, length in [*points, (100, 40.0), (300, 20.0)]]
    with pytest.warns(UserWarning, match="overlap count as one"):
        assert seizures_from_events(events, 600.0) == [(min(100, points[0][0]), 140.0), (300.0, 320.0)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(100, "sz start"), (110, "sz start"), (150, "sz end"), (160, "sz end")], [(100, 160)]),
        ([(100, "sz onset"), (100, "sz onset"), (150, "sz offset"), (150, "sz offset")], [(100, 150)]),
        ([(10, "sz start"), (10, "sz start"), (20, "sz end")], [(10, 20)]),
        (
            [
                (100, "sz start"),
                (110, "sz start"),
                (150, "sz end"),
                (160, "sz end"),
                (300, "sz start"),
                (320, "sz end"),
            ],
            [(100, 160), (300, 320)],
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_two_marks_of_one_seizure_end_with_the_last(events, expected):
    assert seizures_from_events([(onset, 0, text) for onset, text in events], 1000.0) == expected


@pytest.mark.parametrize("name", ["end", "stop", "offset", "End", "end_time", "Stop_Time", " offset "])
@pytest.mark.parametrize("duration", ["", "n/a\t"])
def test_a_column_of_ends(table, name, duration):
    heading = "onset\t" + ("duration\t" if duration else "")
    path = table(f"100\t{duration}160\tsz", heading=f"{heading}{name}\ttrial_type")
    assert read_seizures(path, 600.0) == [(100.0, 160.0)]


@pytest.mark.parametrize(
    ("texts", "words"),
    [(["FBTCS"], "FBTCS"), (["EEG onset", "EEG offset"], "onset, offset"), (["Krampf"], "Krampf"),
     (["onset", "offset"], "onset, offset"), (["napad padaczkowy"], "napad"), (["Nöbet 1"], "Nöbet"),
     (["приступ"], "приступ"), (["発作"], "発作"), (["epileptische aanval"], "epileptische, aanval"), (["TCS"], "TCS"),
     (["Seizurestart", "Seizureend"], "Seizurestart, Seizureend"), (["szstart"], "szstart"),
     (["aura", "UEO"], "aura, UEO"), (["Grand Mal"], "Grand Mal"), (["siezure"], "siezure"), (["נ התקף"], "התקף"),
     (["Jane Roe Absence"], "Absence"), (["sz", "GTCS 2"], "GTCS"), (["sz", "End"], "End"), (["ESz"], "ESz"),
     (["sz", "EEG offset"], "offset"), (["iktales Muster"], "iktales"), (["push button"], "button"),
     (["напад"], "напад"), (["Pushbutton"], "Pushbutton")],
)  # fmt: skip
def test_words_that_are_not_understood_are_listed(texts, words):
    with pytest.warns(UserWarning, match=rf"^night: .*not taken for seizures: {words}\. .*--seizure-words"):
        stated_seizures([(5.0 * i, 1.0, text) for i, text in enumerate(texts)], 100.0, name="night")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("text", "open_seconds"), [("sz end", 60.0), ("sz start", None), ("seizure", None)])
def test_a_seizure_whose_place_is_not_known_does_not_make_a_recording_quiet(text, open_seconds):
    assert stated_seizures([(30.0, 0.0, text)], 100.0, open_seconds) is None
    assert stated_seizures([(130.0, 9.0, text)], 100.0) is None  # of another clock, it may be anywhere
    assert stated_seizures([(5.0, 9.0, "sz"), (30.0, 0.0, text)], 100.0, open_seconds) == [(5.0, 14.0)]


@pytest.mark.parametrize(
    "text", ["Jane Roe", "Kataoka", "eyes closed", "lights off", "no seizure medication", "interictal"]
)
@pytest.mark.filterwarnings("error")
def test_other_words_are_not_listed(text):
    assert stated_seizures([(5.0, 1.0, text)], 100.0) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "38000\t20\tsz",
            "onset 38000, and the recording lasts 300 s. The column is likely in milliseconds or samples",
        ),
        ("100000\t20\tsz", "onset 100000, .* likely in milliseconds or samples"),
        ("38\t10240\tsz", "duration 10240, .* likely in milliseconds or samples"),
        ("290000\t20000\tsz", "likely in milliseconds"),
        ("38000000\t20000000\tsz", "onset 38000000, .* likely in microseconds"),
        ("1577880038\t20\tsz", "onset 1577880038, .* likely in seconds since 1970"),
    ],
)
def test_times_that_are_no_seconds_are_refused(quiet_file, table, row, message):
    path, _ = quiet_file(300.0), table(row)
    refused(path, rf"x_events\.tsv: a seizure has the .*{message}")


@pytest.mark.parametrize("onset", ["300", "300.4"])
def test_a_seizure_at_the_very_end_is_outside_and_in_seconds(quiet_file, table, onset):
    """Clocks differ, and times are rounded: 300.4 s of 300 s are no milliseconds."""
    path, _ = quiet_file(300.0), table("100\t20\tsz", f"{onset}\t5\tsz")
    with pytest.warns(UserWarning, match=rf"seizures outside of the recording.* are left out: at {onset} s"):
        assert read_recording(path).seizures == ((100.0, 120.0),)


@pytest.mark.parametrize(("rate", "differs"), [(256.0, False), (512.0, True)])
def test_a_sample_that_contradicts_its_onset_is_said(quiet_file, table, rate, differs, recwarn):
    """The table is of 256 Hz: at 512 Hz its sample 25600 is at 50 s."""
    path = quiet_file(300.0, sfreq=rate)
    table("1\t0\tn/a\tnote", "100\t20\t25600\tsz", heading="onset\tduration\tsample\ttrial_type")
    assert read_recording(path).seizures == ((100.0, 120.0),)
    words = [str(each.message) for each in recwarn if "sample" in str(each.message)]
    assert len(words) == differs
    assert not differs or "sample 25600 is at 50 s of the recording's 512 Hz, and its onset is stated" in words[0]


@pytest.mark.parametrize(
    ("rows", "missing"),
    [("10\t10\tsz\n40\t10\tsz", None), ("10\t10\tsz", "40"), ("0\t60\tbckg", "10, 40"), ("0\t60\teyes closed", None)],
)
def test_a_table_that_lacks_seizures_of_the_file_is_said(quiet_file, table, rows, missing, recwarn):
    path = quiet_file(60.0, [(12.0, 18.0), (40.0, 50.0)])
    table(rows)
    read_recording(path)
    words = [str(each.message) for each in recwarn if "is believed, and lacks" in str(each.message)]
    missing = missing and missing.replace("10", "12")
    assert [text.rpartition("at ")[2] for text in words] == ([] if missing is None else [f"{missing} s"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [("0\t20\tbckg", True), ("0\t60\tbckg", False), ("0\tn/a\tbckg", False), ("0\t20\tbckg\n20\t5\tsz", False)],
)
def test_a_part_that_is_free_of_seizures_says_little_of_the_whole(table, rows, said, recwarn):
    path = table(rows)
    assert stated_seizures(read_events(path), 60.0) == read_seizures(path, 60.0)
    assert sum("20 of 60 s are marked as free of seizures" in str(each.message) for each in recwarn) == 2 * said


def test_a_seizure_where_there_should_be_none_is_said():
    with pytest.warns(UserWarning, match="seizures lie in a stretch .* free of them, and count: at 50 s"):
        assert stated_seizures([(0, 60, "no seizures"), (50, 5, "sz"), (60, 5, "sz")], 100.0) == [(50, 55), (60, 65)]


def test_codes_that_mean_seizures_by_their_json_file_are_said(tmp_path, quiet_file, table):
    path = quiet_file(60.0, None)
    table("10\t5\t1", "30\t5\t2")
    levels = {"1": "electrographic seizure", "2": "no seizure", "3": "seizure"}
    (tmp_path / "x_events.json").write_text(json.dumps({"trial_type": {"Levels": levels}, "onset": "s"}))
    assert not warned(path, r"are not taken for seizures: 1, which \S+x_events\.json says are some").annotated
    assert read_recording(path, seizure_words=["1"]).seizures == ((10.0, 15.0),)
    (tmp_path / "x_events.json").write_text('{"onset": {"Units": "ms"}, "duration": {"Units": "seconds"}}')
    assert not warned(path, r"x_events\.json states onset in 'ms', and .* taken for seconds, as in BIDS").annotated
    for odd in ("[1]", "{", '{"trial_type": 1, "value": {"Levels": ["1"]}}'):
        (tmp_path / "x_events.json").write_text(odd)
        assert not read_recording(path).annotated


def test_times_around_the_recording(tmp_path):
    check_times([(200000, 60, "sz")], 180.0, 512.0, tmp_path, ())  # of a longer recording; left out with a warning
    with pytest.warns(UserWarning, match="at -10 s begins before the recording"):
        assert stated_seizures([(-10, 30, "sz")], 300.0) == [(-10, 20)]
    with pytest.warns(UserWarning, match="at -10 s begins before the recording"):
        assert stated_seizures([(-10, 0, "sz start"), (20, 0, "sz end")], 300.0) == [(-10, 20)]
    with pytest.warns(UserWarning, match="at 290 s ends after the recording"):
        assert stated_seizures([(290, 0, "sz start"), (320, 0, "sz end")], 300.0) == [(290, 320)]
    with pytest.warns(UserWarning, match="longer than 10 minutes"):
        check_times([(12500, 48000, "sz")], 86400.0, 512.0, tmp_path, ())
    with pytest.warns(UserWarning, match=r"no seizure lasts more than 0\.8 s: are .* in seconds, not minutes"):
        check_times([(2.5, 0.6, "sz"), (9, 0.8, "sz")], 900.0, 512.0, tmp_path, ())
    with warnings.catch_warnings(action="error"):
        check_times([(290, 40, "sz"), (10, 1, "sz"), (0, 3600, "bckg")], 300.0, 512.0, tmp_path, ())


def test_a_negative_duration(table):
    assert read_events(table("5\t-1\tnote", "20\t10\tsz")) == [(20.0, 10.0, "sz")]
    with pytest.raises(ValueError, match=r"x_events\.tsv, line 2, a seizure: a duration must not be negative, got -1"):
        read_events(table("5\t-1\tsz", "20\t10\tsz"))


def test_rows_of_one_seizure_count_once(table):
    """As in SzCORE, which scores the union of its reference events."""
    path = table("10\t5\tsz", "10\t5\tsz", "30\t9\tsz", "35\t9\tsz", "44\t2\tsz")
    with pytest.warns(UserWarning, match=r"x_events\.tsv: seizures that overlap count as one: at 10, 35 s"):
        assert read_seizures(path, 100.0) == [(10.0, 15.0), (30.0, 44.0), (44.0, 46.0)]


@pytest.mark.parametrize("reader", [read_events, lambda table: read_tsv(table, ("onset",))])
def test_two_columns_of_one_name_are_refused(table, reader):
    path = table("10\t5\tseizure\trest", heading="onset\tduration\ttrial_type\ttrial_type")
    refuses(reader, r"x_events\.tsv has the column 'trial_type' more than once: rename one", path)


def test_words_that_doubt_a_seizure():
    doubts = ["seizure ruled out", "seizure was excluded", "seizure?", "rule out seizure", "questionable sz"]
    assert not any(map(is_seizure, ["Anfall?", "?sz", "fraglicher Anfall", "maybe a seizure", "seizure detector"]))
    assert not any(map(is_seizure, doubts))
    assert all(map(is_seizure, ("seizure, awareness excluded", "sz out of sleep")))
    with pytest.warns(UserWarning, match=r"are not taken for seizures: seizure\?, questionable sz\. If they mean some"):
        assert stated_seizures([(10.0 * row, 5.0, text) for row, text in enumerate(doubts)], 100.0) is None
    with pytest.warns(UserWarning, match="taken for seizures: questionable sz"):
        assert stated_seizures([(9.0, 5.0, "seizure?"), (1.0, 1.0, doubts[-1])], 60.0, words=["seizure?"])


@pytest.mark.parametrize("cells", ["10\tsz", "10\t\t5\tsz"])
def test_a_row_whose_cells_are_shifted(table, cells):
    refuses(read_events, "line 2: a seizure stands in none of the columns of texts", table(cells))


def test_a_duration_that_contradicts_the_end(table):
    path = table("10\t5\t15\tsz", "20\t5\t40\tsz", heading="onset\tduration\toffset\ttrial_type")
    with pytest.warns(UserWarning, match="duration and offset contradict each other .* line 3"):
        assert read_events(path) == [(10.0, 5.0, "sz"), (20.0, 5.0, "sz")]


@pytest.mark.parametrize("cell", ["A2", "EEG A2-Ref,EKG", '["A2"]', "A1, A2", "all", "n/a", "EKG"])
def test_a_stretch_that_is_bad_in_one_channel_is_missing_there_alone(cell, quiet_file, table, recwarn):
    path = quiet_file(10.0)
    table(f"2\t1\tBAD_pop\t{cell}", "8\t1\tsz\tn/a", heading="onset\tduration\ttrial_type\tchannel")
    single, whole = "A2" in cell and "A1" not in cell, cell in ("A1, A2", "all", "n/a")
    read = read_recording(path)
    assert read.bad_spans == (((2.0, 3.0),) if whole else ())
    missing = np.zeros((2, 5120), bool)
    missing[1, 1024:1536] = single
    np.testing.assert_array_equal(np.isnan(read.read(0, 5120)), missing)
    np.testing.assert_array_equal(np.isnan(read.read(1500, 1600, ["A2"])), missing[1:, 1500:1600])
    assert any("missing there alone: A2" in str(each.message) for each in recwarn) == single


@pytest.mark.parametrize(("length", "said"), [("10.000", 0), ("10.9", 0), ("n/a", 0), ("3600", 1), ("4.0", 1)])
def test_a_table_of_a_recording_of_another_length_is_said(length, said, quiet_file, table, recwarn):
    path = quiet_file(10.0)
    rows = f"2\t1\tsz\t{length}", f"5\t1\tsz\t{length}"
    rows = table(*rows, heading="onset\tduration\teventType\trecordingDuration")
    assert read_recording(path).seizures == ((2.0, 3.0), (5.0, 6.0))
    read_seizures(rows, 10.0)
    texts = [str(each.message) for each in recwarn]
    assert sum("(recordingDuration), and this one lasts 10 s" in text for text in texts) == 2 * said


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("probable seizure", "probable seizure"),
        ("suspect sz", "suspect sz"),
        ("not sure if seizure", "not sure if seizure"),
        ("no clinical seizure, EEG seizure", "seizure"),
        ("unlikely", None),
        ("no clinical seizure, no EEG seizure", None),
    ],
)
def test_what_is_doubted_or_denied_in_part_is_listed(text, word, recwarn):
    assert stated_seizures([(2.0, 3.0, text)], 10.0) in (None, [])
    assert [f"for seizures: {word}. If" in str(each.message) for each in recwarn] == [True] * (word is not None)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        # A nurse's mark, and that of a reader: one seizure, to its end or, without one, by the usual guess.
        ([(10, "seizure"), (14, "seizure onset"), (50, "seizure end")], [(10, 50)]),
        ([(10, "seizure"), (14, "seizure onset")], [(10, 74)]),
        # Short seizures that are all marked alike, and two marks that are further apart, are several.
        ([(10, "seizure"), (14, "seizure"), (50, "seizure end")], [(10, 14), (14, 50)]),
        ([(10, "seizure"), (30, "seizure onset"), (50, "seizure end")], [(10, 30), (30, 50)]),
        ([(10, "clin sz"), (30, "clin sz"), (50, "sz end")], [(10, 30), (30, 50)]),
        # But not where the EEG shows it before the patient does.
        ([(10, "EEG sz onset"), (30, "clinical sz onset"), (50, "sz end")], [(10, 50)]),
        ([(10, "electrographic seizure"), (30, "behavioural seizure")], [(10, 90)]),
        ([(10, "EEG sz onset"), (90, "clinical sz onset"), (99, "sz end")], [(10, 70), (90, 99)]),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_mark_shortly_before_that_of_the_onset_is_of_the_same_seizure(marks, expected):
    assert seizures_from_events([(onset, 0.0, text) for onset, text in marks], 300.0) == expected


@pytest.mark.parametrize(
    ("start", "end"),
    [("SzOnset", "SzOffset"), ("crisis inicio", "Final de la crisis"), ("début crise", "arrêt crise"),
     ("início crise", "fim da crise"), ("Anfall", "Anfall vorbei"), ("sz", "sz terminates"), ("sz 1 onset", "sz 1 end"),
     ("EEG sz onset LT1", "EEG sz end RT4"), ("Anfallsbeginn", "Anfallsende"), ("Anfall Beginn", "Ende Anfall"),
     ("début de crise", "fin de crise"), ("Inicio de crisis", "fin de crisis"), ("Krise", "Ende der Krise")],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_a_start_and_its_end_are_one_seizure(start, end):
    assert stated_seizures([(100.0, 0.0, start), (140.0, 0.0, end)], 400.0) == [(100.0, 140.0)]
    spread = [(100.0, 0.0, start), (115.0, 0.0, "sz generalization"), (140.0, 0.0, end)]
    assert stated_seizures(spread, 400.0) == [(100.0, 140.0)]


def test_a_point_with_an_end_beside_it_lasts_until_then(table):
    path = table("100\t0\t140\tseizure", "200\t0\t3\tseizure", heading="onset\tduration\tend\ttrial_type")
    with pytest.warns(UserWarning, match="without an end .* from 200 s on"):
        assert read_seizures(path, 600.0) == [(100.0, 140.0), (200.0, 260.0)]
