"""Files of a detection that were damaged or changed: each is named, none is scored."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.made_up_recordings import SMALL, recording, seeded
from support.reading import refuses

from mvpa_ts.ieeg import Detector, MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.detection.detection import Skipped, read_detection
from mvpa_ts.ieeg.detection.report import SEEN, comparison_rows, facts
from mvpa_ts.ieeg.detection.saved import PROBABILITIES, RUN, read_run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "x"
    detection = Detector(seeded(**SMALL), channels="all", threshold=0.3).detect(recording("S1", 1, segments=12))
    detection.save(folder)
    return detection, folder


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "out" / "x")
    return tmp_path / "out" / "x"


def test_what_is_read_is_what_was_saved(saved, folder):
    detection, _ = saved
    read = read_detection(folder)
    np.testing.assert_allclose(read.probabilities, detection.probabilities, atol=1e-6)
    for name in ("events", "duration", "channel_names", "rules", "threshold", "provenance", "reference", "skipped"):
        assert getattr(read, name) == getattr(detection, name), name
    assert repr(read) == repr(detection)
    assert len(repr(read)) < 120
    np.testing.assert_allclose(read.confidences, detection.confidences, atol=1e-6)
    assert read.plot().axes[0].get_ylabel() == "seizure probability"
    read.save(folder.parent / "again")  # without the signal the report has the probabilities alone
    assert (folder.parent / "again" / "report.html").read_text().count("data:image/png") == 1


def test_a_long_event_up_to_the_end_is_read_as_it_was_saved(saved, tmp_path):
    """Rounded to milliseconds it ends after the recording, which is no sign of another unit."""
    starts = np.append(np.arange(0.0, 900.0, 5.0), 900.30078125 - 5)
    changes = {"starts": starts, "probabilities": np.full(181, 0.9), "duration": 900.30078125, "skipped": ()}
    long = replace(saved[0], **changes, events=[(0.0, 900.30078125)], reference=[(100.0, 900.30078125)])
    long.save(tmp_path)
    with pytest.warns(UserWarning, match=r"reference_events\.tsv: a seizure lasts 800.301 s") as said:
        read = read_detection(tmp_path)
    np.testing.assert_allclose([read.events[0], *read.reference], [long.events[0], *long.reference], atol=1e-3)
    assert len(said) == 1  # nothing is said of what the detector itself found


def test_the_report_compares_on_the_segments_that_all_scored():
    scores = {"ours": np.array([0.1, 0.9, np.nan, np.nan]), "line-length": np.array([0.6, 0.7, 0.9, 0.9])}
    rows = [("ours", "1", "1 of 1", "1.000"), ("line-length", "2", "1 of 1", "1.000")]
    assert comparison_rows(scores, {}, np.array([False, True, True, False])) == rows


def test_the_report_says_in_words_what_run_json_states(saved, tmp_path):
    """Each reason once, however many stretches have it; no dictionaries."""
    skipped = tuple(Skipped(5.0 * i, 5.0 * i + 2.0, "a gap") for i in range(44))
    replace(saved[0], skipped=skipped).save(tmp_path)
    run = read_run(tmp_path)
    said = facts(run)
    assert said["Skipped"].startswith("88 s with a gap (0–2 s, ")
    assert said["Skipped"].endswith(" and 39 more)")
    page = (tmp_path / "report.html").read_text()
    assert page.count("a gap") == 1
    assert not any("{" in words or "None" in words for words in said.values())


def test_the_report_lists_stated_seizures_and_whether_they_were_detected(saved, tmp_path):
    detection = replace(saved[0], events=((10.0, 30.0),), reference=((25.0, 45.0), (50.0, 55.0)))
    detection.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Seizures that the recording states" in page
    assert "<td>25.0</td><td>20.0</td><td>yes</td>" in page
    assert "<td>50.0</td><td>5.0</td><td>no</td>" in page
    replace(detection, reference=None).save(tmp_path)
    assert "that the recording states" not in (tmp_path / "report.html").read_text()


TABLES = {
    "no row": lambda rows: rows[:1],
    "a row less": lambda rows: rows[:-1],
    "a row twice": lambda rows: [*rows, rows[-1]],
    "an onset of years": lambda rows: [*rows[:-1], rows[-1].replace("55.000", "4294967295", 1)],
    "another order": lambda rows: [rows[0], rows[2], rows[1], *rows[3:]],
    "a probability of 7": lambda rows: [*rows[:-1], _cell(rows[-1], 2, "7")],
    "no number": lambda rows: [*rows[:-1], _cell(rows[-1], 2, "high")],
    "left out here, scored there": lambda rows: [*rows[:-1], _cell(rows[-1], 2, "n/a")],
    "a row cut short": lambda rows: [*rows[:-1], "55.0"],
    "another header": lambda rows: ["a\tb", *rows[1:]],
}


def _cell(row: str, column: int, value: str) -> str:
    cells = row.split("\t")
    return "\t".join([*cells[:column], value, *cells[column + 1 :]])


@pytest.mark.parametrize("change", TABLES.values(), ids=TABLES.keys())
def test_a_table_that_contradicts_run_json_is_refused(folder, change, fails):
    table = folder / PROBABILITIES
    table.write_text("\n".join(change(table.read_text().splitlines())) + "\n")
    refuses(read_detection, rf"{PROBABILITIES} (contradicts {RUN}|cannot be read)", folder)
    fails(PROBABILITIES, "evaluate", folder.parent, "-o", folder.parent / "scores")


def changed(run: dict, key: str, value: object) -> dict:
    *parts, last = key.split(".")
    place = run
    for part in parts:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return run


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("recording", None, "recording must be an object"),
        ("recording.duration", None, "has no recording.duration"),
        ("recording.duration", "long", "recording.duration must be int or float, got 'long'"),
        ("recording.duration", -3.0, "recording.duration must be positive"),
        ("recording.duration", 1e9, "its rows end at 60.000 s"),
        ("rules.more", 3, "fields that are unknown here: more"),
        ("rules.threshold", None, "has no rules.threshold"),
        ("rules.max_duration", "some", "must be seconds or 'none'"),
        ("segments", 4294967295, "has 12 rows"),
        ("segments", True, "segments must be int"),
        ("skipped", [{"onset": 0}], "skipped must list onset, offset and reason"),
        ("channels.used", {}, "channels.used must be list"),
        ("model.weights", 3, "model.weights must be str or null"),
    ],
)
def test_a_run_json_that_is_not_one_is_refused(folder, key, value, message):
    run = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps(changed(run, key, value)))
    refuses(read_detection, message, folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\x00"])
def test_a_run_json_without_fields_is_refused(folder, text):
    (folder / RUN).write_text(text)
    refuses(read_detection, RUN, folder)


def test_keys_of_a_later_version_do_no_harm(folder):
    run = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps(run | {"later": 1, "model": run["model"] | {"colour": "red"}}))
    assert read_detection(folder).duration == 60.0


def test_the_report_says_first_that_the_model_knew_the_recording(tmp_path):
    made = recording("S1", 1, segments=6)
    detection = Detector(MVPFormer(mvpformer_tiny(num_classes=2, context=4))).detect(made)
    for known in (True, False, None):
        provenance = replace(detection.provenance, subject_in_training=known)
        replace(detection, provenance=provenance).save(tmp_path)
        page = (tmp_path / "report.html").read_text()
        assert (SEEN in page) == (known is True)
        assert not known or page.index(SEEN) < page.index("<h2>")


def test_the_folder_above_a_detection_names_it(tmp_path):
    (tmp_path / "S101").mkdir()
    (tmp_path / "S101" / "run.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"not the folder of a complete detection; did you mean .*S101\?"):
        read_run(tmp_path)


def test_a_file_is_no_folder_for_results(saved, tmp_path):
    (tmp_path / "x.edf").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"folder must be a folder, .*x\.edf is a file; save_events writes the events"):
        saved[0].save(tmp_path / "x.edf")
    assert (tmp_path / "x.edf").read_bytes() == b"mine"


def test_a_wrong_rule_costs_no_earlier_result(saved, folder):
    with pytest.raises(ValueError, match=r"online must be an OnlineRule, such as OnlineRule\(k=1, n=2\), got \(1, 2\)"):
        saved[0].save(folder, online=(1, 2))
    assert read_run(folder)["online"]["n"] == 2
