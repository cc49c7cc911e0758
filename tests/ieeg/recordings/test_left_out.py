"""What was left out is listed at the end of detect, evaluate and finetune, and in run.json."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.edf_files import signals_of

from mvpa_ts.ieeg import Segments
from mvpa_ts.ieeg.commands.finetune import _list_left_out
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.recordings.left_out import listing, not_read, read_left_out, write_left_out
from mvpa_ts.ieeg.recordings.reading import read_recording

edfio = pytest.importorskip("edfio")


def study(folder: Path) -> Path:
    """A recording with an EKG and an odd row, one that is damaged, and one of another program."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(0, 5, (3, 15360)), axis=1)
    edfio.Edf(signals_of(["A1", "A2", "EKG1"], x - x.mean(1, keepdims=True), 256.0)).write(folder / "night.edf")
    (folder / "night_events.tsv").write_text("onset\tduration\ttrial_type\n5\t-1\tnote\n10\t5\tsz\n")
    (folder / "broken.edf").write_text("nothing")
    (folder / "other.trc").touch()
    return folder


def training_data(folder: Path) -> SimpleNamespace:
    with warnings.catch_warnings(action="ignore"):
        segments = Segments(read_recording(folder / "night.edf"))
    training = SimpleNamespace(segments=[segments])
    return SimpleNamespace(given_paths=[folder], training=training, validation=None)


def test_detect_and_evaluate_list_it(tmp_path, capsys):
    results = tmp_path / "results"
    with pytest.warns(UserWarning, match="left out|not read"):
        assert main(["detect", str(study(tmp_path / "in")), "--model", "line-length", "-o", str(results)]) == 1
    said = capsys.readouterr().err.split("left out:\n")[1].splitlines()
    assert said[0] == "  other.trc: of a kind that is not read"
    assert "broken.edf is not an EDF file" in said[1]
    assert said[2].startswith("  night: channel EKG1 (")
    assert "night_events.tsv: rows that are no seizure and state no time are left out, line 2" in said[3]
    run = json.loads((results / "night" / "run.json").read_text())
    assert run["files_left_out"] == ["other.trc", "broken.edf"]
    assert [*run["channels"]["dropped"]] == ["EKG1"]
    assert "line 2" in run["recording"]["left_out"][0]
    assert [row[:2] for row in read_left_out(results)] == [
        ("other.trc", ""), ("broken.edf", ""), ("night", "channel EKG1"), ("night", "")]  # fmt: skip
    assert main(["evaluate", str(results), "-o", str(tmp_path / "scores")]) == 0
    assert capsys.readouterr().out.split("left out:\n")[1].splitlines() == said[:4]
    # What a later run leaves out stands beside it, and a recording that is scored again has its rows once.
    (tmp_path / "in" / "night.edf").rename(tmp_path / "later.edf")
    for again in range(2):
        assert main(["detect", str(tmp_path / "later.edf"), "--model", "line-length", "-o", str(results)]) == 0
        assert [row[0] for row in read_left_out(results)] == ["night", "night", "later"], again
    # A loop over subjects writes into one folder, and the last one must not hide what the first ones lack.
    assert main(["evaluate", str(results), "-o", str(tmp_path / "scores"), "--unannotated", "seizure-free"]) == 0
    left_out = capsys.readouterr().out.split("left out:\n")[1].splitlines()
    assert f"  other.trc, broken.edf: left out by the run that wrote {results}/night" in left_out


def test_what_was_kept_with_a_doubt_is_not_called_left_out(tmp_path, capsys):
    """Overlapping seizures count, and a signal whose unit or rate may be wrong; the report warns of all."""
    folder, results = study(tmp_path / "in"), tmp_path / "results"
    x = 1000 * np.cumsum(np.random.default_rng(0).normal(0, 5, (3, 15360)), axis=1)
    edfio.Edf(signals_of(["A1", "A2", "EKG1"], x - x.mean(1, keepdims=True), 128.0)).write(folder / "night.edf")
    (folder / "night_events.tsv").write_text("onset\tduration\ttrial_type\n5\t-1\tnote\n10\t5\tsz\n12\t9\tsz\n")
    night = [str(folder / "night.edf"), "--model", "line-length", "-o"]
    with warnings.catch_warnings(action="ignore"):
        main(["detect", *night, str(results)])
        said = capsys.readouterr().err
        main(["detect", *night, str(tmp_path / "noisy"), "--noise", "30"])
        assert "overlap count as one" in capsys.readouterr().err.split("kept, with a doubt:\n")[1]
        main(["evaluate", str(results), "-o", str(tmp_path / "scores")])
    doubted = ("overlap count as one", "is the unit right?", "at 128 Hz holds nothing above 64", "% of the segments")
    for text in (said, capsys.readouterr().out):
        out, kept = text.partition("left out:\n")[2].split("kept, with a doubt:\n")
        assert [word in out for word in ("EKG1", "line 2", *doubted)] == [True, True, *[False] * 4]
        assert [word in kept for word in ("EKG1", "line 2", *doubted)] == [False, False, *[True] * 4]
    assert {row[1] for row in read_left_out(results)} == {"channel EKG1", "", "kept, with a doubt"}
    run = json.loads((results / "night" / "run.json").read_text())["recording"]
    assert ["line 2" in text for text in run["left_out"]] == [True]
    assert [sum(word in note for note in run["notes"]) for word in ("line 2", *doubted)] == [0, 1, 1, 1, 1]
    report = (results / "night" / "report.html").read_text()
    assert [word in report for word in doubted] == [True] * 4


def test_links_to_recordings_that_are_there_are_listed(tmp_path, capsys):
    folder = study(tmp_path / "in")
    for name in ("broken.edf", "other.trc"):
        (folder / name).unlink()
    (folder / "again.edf").symlink_to(folder / "night.edf")
    with pytest.warns(UserWarning, match=r"links to recordings that are there already are left out: again.edf \(night"):
        assert main(["detect", str(folder), "--model", "line-length", "-o", str(tmp_path / "results")]) == 0
    assert "  again.edf: a link to night.edf, which is read once\n" in capsys.readouterr().err
    run = json.loads((tmp_path / "results" / "night" / "run.json").read_text())
    assert run["files_left_out"] == ["again.edf"]
    words = ["evaluate", str(tmp_path / "results"), "-o", str(tmp_path / "scores"), "--unannotated", "seizure-free"]
    assert main(words) == 0
    assert "  again.edf: a link to night.edf, which is read once\n" in capsys.readouterr().out
    _list_left_out(training_data(folder), tmp_path)
    assert "  again.edf: a link to night.edf, which is read once\n" in capsys.readouterr().err


def test_results_of_an_earlier_run_are_named(tmp_path, capsys):
    folder, results = study(tmp_path / "in"), tmp_path / "results"
    with warnings.catch_warnings(action="ignore"):
        main(["detect", str(folder), "--model", "line-length", "-o", str(results)])
        (folder / "night.edf").write_text("nothing")
        (folder / "day.edf").write_text("nothing")  # more than one, so that the run goes on
        assert main(["detect", str(folder), "--model", "line-length", "-o", str(results)]) == 1
    with pytest.warns(UserWarning, match="failed on night: .* holds the results of an earlier run"):
        main(["evaluate", str(results), "-o", str(tmp_path / "scores")])


def test_finetune_lists_it(tmp_path, capsys):
    folder = study(tmp_path / "in")
    _list_left_out(training_data(folder), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert [line[:10] for line in lines] == ["left out:", "  other.tr", "  night: c", f"  {folder}"[:10]]
    assert len(read_left_out(tmp_path)) == 3


def test_long_lists_and_nothing(tmp_path):
    rows = [(f"r{number}", "channel EKG", f"reason {number // 2}") for number in range(60)]
    lines = listing(rows, tmp_path / "left_out.tsv")
    assert lines[:2] == ["left out:", "  r0, r1: channel EKG (reason 0)"]
    assert lines[-1] == f"  and 10 more, all in {tmp_path / 'left_out.tsv'}"
    write_left_out(tmp_path, rows)
    assert read_left_out(tmp_path) == rows
    write_left_out(tmp_path, [])
    assert (read_left_out(tmp_path), listing([])) == ([], [])


def test_evaluate_names_words_that_were_not_understood(tmp_path, capsys):
    """Where they mean seizures, a recording that is taken as seizure-free makes true detections false."""
    x = np.cumsum(np.random.default_rng(0).normal(0, 5, 15360))
    signal = edfio.EdfSignal(x - x.mean(), 256, label="A1", physical_dimension="uV")
    edfio.Edf([signal], annotations=[edfio.EdfAnnotation(10, 20, "FBTCS")]).write(tmp_path / "night.edf")
    results, scores = str(tmp_path / "results"), str(tmp_path / "scores")
    with pytest.warns(UserWarning, match="FBTCS"):
        assert main(["detect", str(tmp_path / "night.edf"), "--model", "line-length", "-o", results]) == 0
    assert main(["evaluate", results, "-o", scores]) == 1
    assert "not taken for seizures: FBTCS. If they mean some, name them with --seizure-words" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="FBTCS.*taken as seizure-free"):
        assert main(["evaluate", results, "-o", scores, "--unannotated", "seizure-free"]) == 0


def test_files_of_one_name_are_told_apart(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "night.trc").touch()
    assert [row[0] for row in not_read([tmp_path])[0]] == ["a/night.trc", "b/night.trc"]


def test_evaluate_lists_what_it_left_out_of_references(tmp_path, capsys):
    folder, results, tables = study(tmp_path / "in"), tmp_path / "results", tmp_path / "tables"
    tables.mkdir()
    (tables / "night_events.tsv").write_text("onset\tduration\ttrial_type\n5\t-1\tnote\n20\t5\tsz\n30\t5\tFBTCS\n")
    (tables / "day_events.tsv").write_text("onset\tduration\ttrial_type\n20\t5\tsz\n")
    with warnings.catch_warnings(action="ignore"):
        main(["detect", str(folder / "night.edf"), "--model", "line-length", "-o", str(results)])
        assert main(["evaluate", str(results), "-o", str(tmp_path / "scores"), "--reference", str(tables)]) == 0
    listed = capsys.readouterr().out.split("left out:\n")[1].splitlines()
    night = tables / "night_events.tsv"
    assert f"  {night}: rows that are no seizure and state no time are left out, line 2" in listed
    words = "these words are not taken for seizures: FBTCS. If they mean some, write sz in the table"
    assert f"  {night}: {words}" in listed
    unread = f"  tables below --reference belong to no recording here, and are not read: {tables / 'day_events.tsv'}"
    assert unread in listed


def test_marks_of_classes_and_reviews_are_listed(tmp_path, capsys):
    folder, classes = study(tmp_path / "in"), tmp_path / "classes"
    table = "onset\tduration\ttrial_type\n0\t30\tawake\n30\t30\tasleep\n40\tn/a\tasleep\n"
    (folder / "night_events.tsv").write_text(table)
    night, said = str(folder / "night.edf"), "marks of classes without a duration label nothing, and are left out: 1"
    with warnings.catch_warnings(action="ignore"):
        assert main(["finetune", "--classes", "awake", "asleep", "--recordings", night, "--output", str(classes)]) == 0
        assert said in capsys.readouterr().err.split("left out:\n")[1]
        model = ["--model", str(classes / "classes.json")]
        assert main(["detect", night, *model, "-o", str(tmp_path / "results")]) == 0
        assert said in capsys.readouterr().err.split("left out:\n")[1]
        assert main(["detect", night, "-o", str(tmp_path / "demo")]) == 0
        review = str(tmp_path / "demo" / "night")
        (tmp_path / "demo" / "night" / "reviewed_events.tsv").write_text(
            "onset\tduration\teventType\trecordingDuration\n10\t5\tsz\t60\n"
        )
        assert main(["review", night, review, "--no-window"]) == 0
        capsys.readouterr()
        words = ["finetune", "--from-review", review, "--recordings", night, "--model", "demo"]
        assert main([*words, "--output", str(tmp_path / "again")]) == 0
    assert "  night: channel EKG1 (" in capsys.readouterr().err.split("left out:\n")[1]
    assert ("night", "channel EKG1") in [row[:2] for row in read_left_out(tmp_path / "again")]
