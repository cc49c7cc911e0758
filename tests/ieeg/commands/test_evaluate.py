"""`mvpformer evaluate` and `mvpformer plot` on what `detect` wrote."""

import dataclasses
import math
import re
import shutil
import warnings
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from support.made_up_recordings import run, seeded
from support.reading import refuses

from mvpa_ts.ieeg import Detector, Preprocessing, Recording, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.detection import Skipped, read_detection
from mvpa_ts.ieeg.detection.networks import save_networks
from mvpa_ts.ieeg.detection.saved import REFERENCE
from mvpa_ts.ieeg.recordings.events_table import read_seizures, write_events
from mvpa_ts.ieeg.scoring.results import SubjectResult, read_result
from mvpa_ts.ieeg.scoring.scores import score_events
from mvpa_ts.ieeg.scoring.words import in_words
from mvpa_ts.ieeg.simulation.writing import write_edf


@pytest.fixture(scope="module")
def model():
    return seeded(num_classes=2, context=4)


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """Two annotated subjects, one with two recordings, and a recording that says nothing of seizures."""
    root = tmp_path_factory.mktemp("results")
    detector = Detector(model, threshold=0.5, rules="none")
    made = {}
    for subject, session, seizures in (("S01", 0, 1), ("S01", 1, 1), ("S02", 0, 1), ("S03", 0, 0)):
        recording = simulate_recording(subject, session=session, num_channels=2, duration=180.0, num_seizures=seizures)
        if not seizures:
            recording = recording.with_seizures(None)
        segments = detector.segments(recording)
        detection = detector.detect_segments(segments)
        detection.save(root / recording.name)
        made[recording.name] = detection, recording
    return root, made


@pytest.fixture(autouse=True)
def no_statistics(request, monkeypatch):
    """No intervals and figures, which take most of the time, in tests of what evaluate reads and says."""
    full = "test_tables_of_a_cohort", "test_one_patient_gets_a_sentence_and_no_statistics_over_subjects"
    if request.node.name not in full:
        monkeypatch.setattr("mvpa_ts.ieeg.scoring.cohort.bootstrap_interval", lambda *_, **__: (math.nan, math.nan))
        monkeypatch.setattr("mvpa_ts.ieeg.scoring.plots.save_cohort_plots", lambda *_: [])


def test_nothing_compared_is_an_error(results, tmp_path, capsys):
    _, made = results
    detection, _ = next(iter(made.values()))
    nothing = {"probabilities": np.full_like(detection.probabilities, np.nan), "events": []}
    skipped = (Skipped(0.0, detection.duration, "no channel with a signal"),)
    dataclasses.replace(detection, skipped=skipped, **nothing).save(tmp_path / "found" / "S01")
    assert run("evaluate", tmp_path / "found", "-o", tmp_path / "scores", "--unannotated", "seizure-free") == 1
    assert "nothing was compared: all segments were skipped" in capsys.readouterr().err
    assert not (tmp_path / "scores").exists()


def test_copies_of_a_recording_are_named(results, tmp_path):
    root, made = results
    arguments = ["-o", str(tmp_path / "scores"), "--unannotated", "seizure-free"]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*copies")
        assert main(["evaluate", str(root), *arguments]) == 0
    detection, _ = made["S01_session0"]
    # The rounding of another format, which pads the last segment.
    rounding = np.append(np.random.default_rng(0).normal(0, 1e-5, len(detection.probabilities) - 1), -1.0)
    shutil.copytree(root, tmp_path / "found")
    copy = dataclasses.replace(detection, probabilities=detection.probabilities * (1 + rounding))
    copy.save(tmp_path / "found" / "again")
    with pytest.warns(UserWarning, match="S01_session0 and S01_session0 have the same probabilities: if they are"):
        main(["evaluate", str(tmp_path / "found"), *arguments])


def test_what_a_folder_lacks_is_named(results):
    root, _ = results
    refuses(read_detection, r"holds no run\.json", root, kind=FileNotFoundError)
    refuses(read_result, r"has no reference_events\.tsv", root / "S03_session0", kind=FileNotFoundError)


def test_tables_of_a_cohort(results, tmp_path, capsys, fails):
    root, made = results
    fails("--unannotated seizure-free", "evaluate", root, "-o", tmp_path / "scores")
    assert run("evaluate", root, "-o", tmp_path / "scores", "--unannotated", "seizure-free", "--mode", "paper") == 0
    assert "4 recordings of 3 subjects; event scores in mode paper" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "scores" / "subjects.csv").set_index("subject")
    assert table["recordings"].to_dict() == {"S01": 2, "S02": 1, "S03": 1}
    detection, recording = made["S02_session0"]
    expected = score_events(recording.seizures, detection.events, 180.0, "paper")
    assert table.loc["S02", "event_sensitivity"] == expected.sensitivity
    assert table.loc["S02", "false_positives_per_hour"] == pytest.approx(expected.false_positives_per_hour)
    assert (tmp_path / "scores" / "cohort.md").read_text().count("| S0") == 3
    assert len(list((tmp_path / "scores").glob("*.png"))) == 4  # not of rates, for which 12 minutes are too short


def test_disconnected_time_is_stated_and_not_scored(model, tmp_path):
    """From NaN in the samples to the table: 60 of 180 s have no probability."""
    samples = np.random.default_rng(0).normal(0, 50, (2, 180 * 512))
    samples[:, 60 * 512 : 120 * 512] = np.nan
    recording = Recording.from_array(
        samples, 512.0, ["A1", "A2"], "µV", name="gap", subject="gap", seizures=[(70.0, 90.0), (115.0, 125.0)]
    )
    detector = Detector(model, Preprocessing(band=None, notch=None, reference=None), threshold=0.0, rules="none")
    segments = detector.segments(recording)
    detector.detect_segments(segments).save(tmp_path / "out" / "gap")
    assert run("evaluate", tmp_path / "out", "-o", tmp_path / "scores") == 0
    row = pd.read_csv(tmp_path / "scores" / "subjects.csv").iloc[0]
    assert [row["hours_scored"], row["hours_skipped"]] == pytest.approx([120 / 3600, 60 / 3600])
    assert (row["seizures"], row["seizures_skipped"]) == (2, 1)
    # Every scored segment is positive, and one of 24 is seizure.
    assert [row["segment_specificity"], row["segment_precision"]] == pytest.approx([0.0, 1 / 24])
    assert "hours_skipped" in (tmp_path / "scores" / "groups.csv").read_text()
    page = (tmp_path / "scores" / "cohort.md").read_text()
    assert "1 annotated seizure lies where nothing was scored and counts as missed, unless an event beside" in page


def test_reference_from_elsewhere(results, tmp_path, fails):
    root, made = results
    words = ["evaluate", root, "-o", tmp_path / "scores", "--reference"]
    for name in made:
        write_events(tmp_path / "truth" / f"{name}_events.tsv", [(30.0, 60.0)], 180.0)
    assert run(*words, tmp_path / "truth") == 0
    assert pd.read_csv(tmp_path / "scores" / "subjects.csv")["seizures"].tolist() == [2, 1, 1]
    (tmp_path / "truth" / "S02_session0_events.tsv").unlink()
    error = fails("if the recording holds no seizure, pass --unannotated seizure-free", *words, tmp_path / "truth")
    assert "no reference for S02_session0: add the missing file S02_session0_events.tsv or S02_session0.tsv" in error
    file = tmp_path / "truth" / "S03_session0_events.tsv"
    fails(f"--reference must be a folder with the tables of all recordings, got {file}", *words, file)
    write_events(tmp_path / "samples" / "S02_session0_events.tsv", [(51200.0, 61440.0)], 180.0)
    words[1] = root / "S02_session0"
    fails("The column is likely in milliseconds or samples: convert it to seconds", *words, tmp_path / "samples")
    write_events(tmp_path / "late" / "S02_session0_events.tsv", [(200000.0, 200060.0)], 180.0)
    with pytest.warns(UserWarning, match=r"S02_session0_events\.tsv: seizures outside .* lasts 180 s, .* at 200000 s"):
        assert main([*map(str, words), str(tmp_path / "late")]) == 0


def test_references_of_one_name_lie_where_the_detections_lie(results, tmp_path, capsys, fails):
    for patient, seizures in (("p1", [(30.0, 60.0)]), ("p2", [(20.0, 40.0), (100.0, 120.0)])):
        shutil.copytree(results[0] / "S02_session0", tmp_path / "out" / patient / "night")
        write_events(tmp_path / "truth" / patient / "night_events.tsv", seizures, 180.0)
    options = ["-o", tmp_path / "scores", "--reference", tmp_path / "truth"]
    with pytest.warns(UserWarning, match=r"p1/night and .*p2/night count as two recordings of one subject, 'S02'"):
        assert main(["evaluate", *map(str, [tmp_path / "out", *options])]) == 0
    assert pd.read_csv(tmp_path / "scores" / "subjects.csv")["seizures"].tolist() == [3]
    told = "3 seizures are annotated; in the scores of events seizures less than 90 s apart count as one"
    assert told in capsys.readouterr().out
    fails("night has several references", "evaluate", tmp_path / "out" / "p1", *options)
    (tmp_path / "truth" / "p2" / "night_events.tsv").unlink()
    first = tmp_path / "truth" / "p1" / "night_events.tsv"
    told = f"{first} does not say whose seizures it states"
    fails(told, "evaluate", tmp_path / "out", *options, "--unannotated", "seizure-free")
    (tmp_path / "out" / "p2" / "night").rename(tmp_path / "out" / "night")  # no subfolder is no patient, either
    fails(told, "evaluate", tmp_path / "out", *options)
    fails("night_events.tsv is a file: name a folder", "evaluate", tmp_path / "out", "-o", first)


def test_a_reference_in_a_folder_of_another_name_is_told(results, tmp_path):
    shutil.copytree(results[0] / "S02_session0", tmp_path / "out" / "p1" / "night")
    options = [str(option) for option in ("-o", tmp_path / "scores", "--reference", tmp_path / "truth")]
    file = tmp_path / "truth" / "p2" / "night_events.tsv"
    write_events(file, [(30.0, 60.0)], 180.0)
    with pytest.warns(UserWarning, match=r"out/p1/night is scored by .*truth/p2/night_events.tsv, whose folder has"):
        assert main(["evaluate", str(tmp_path / "out"), *options]) == 0
    for place in ("p1/night_events.tsv", "night_events.tsv", "night/events.tsv", "seizures/p1/night.tsv"):
        (tmp_path / "truth" / place).parent.mkdir(exist_ok=True, parents=True)
        file = file.rename(tmp_path / "truth" / place)
        with warnings.catch_warnings(action="error", category=UserWarning):
            assert main(["evaluate", str(tmp_path / "out"), *options]) == 0


def test_brackets_in_a_name_are_letters(results, tmp_path, fails):
    """In a pattern "night[3]" is "night3", whose seizures are another recording's."""
    shutil.copytree(results[0] / "S02_session0", tmp_path / "out" / "night[3]")
    write_events(tmp_path / "truth" / "night3_events.tsv", [(30.0, 60.0)], 180.0)
    options = [tmp_path / "out", "-o", tmp_path / "scores", "--reference", tmp_path / "truth"]
    fails("no reference for night[3]: add the missing file night[3]_events.tsv", "evaluate", *options)
    write_events(tmp_path / "truth" / "night[3]_events.tsv", [(20.0, 40.0), (140.0, 150.0)], 180.0)
    assert run("evaluate", *options) == 0
    assert pd.read_csv(tmp_path / "scores" / "subjects.csv")["seizures"].tolist() == [2]


def test_what_was_detected_is_no_reference(results, tmp_path, fails):
    """The results lie below the folder of the references, which has none for this recording."""
    shutil.copytree(results[0] / "S02_session0", tmp_path / "study" / "results" / "night")
    (tmp_path / "study" / "results" / "night" / "reference_events.tsv").unlink()
    options = [tmp_path / "study" / "results", "-o", tmp_path / "scores", "--reference", tmp_path / "study"]
    fails("holds no reference for night: add the missing file night_events.tsv", "evaluate", *options)
    write_events(tmp_path / "study" / "night_events.tsv", [(20.0, 40.0), (150.0, 170.0)], 180.0)
    assert run("evaluate", *options) == 0
    assert pd.read_csv(tmp_path / "scores" / "subjects.csv")["seizures"].tolist() == [2]


# How else a table may state a seizure: tests/ieeg/recordings/test_annotations.py.
WAYS = {
    "markers": "onset\tduration\ttrial_type\n60\t0\teeg sz start\n100\t0\teeg sz end\n",
    "value": "onset\tduration\tvalue\n60\t40\tseizure\n",
    "open": "onset\tduration\ttrial_type\n60\t0\tseizure\n",
}


def test_a_reference_says_to_evaluate_what_it_says_to_detect(model, tmp_path):
    """The table beside the recording is its reference, whether detect copies it or evaluate reads it."""
    model.save_pretrained(tmp_path / "model")
    for name, table in WAYS.items():
        file = tmp_path / "in" / f"{name}.edf"
        write_edf(simulate_recording(name, num_channels=2, duration=180.0, num_seizures=0), file)
        file.with_name(f"{name}_events.tsv").write_text(table)
    assert run("detect", tmp_path / "in", "-o", tmp_path / "out", "--model", tmp_path / "model") == 0
    tables = []
    for output, more in (("copied", []), ("read", ["--reference", tmp_path / "in"])):
        assert run("evaluate", tmp_path / "out", "-o", tmp_path / output, *more) == 0
        tables.append(pd.read_csv(tmp_path / output / "subjects.csv"))
    assert tables[0]["subject"].tolist() == sorted(WAYS)
    assert tables[0]["seizures"].tolist() == [1] * len(WAYS)
    pd.testing.assert_frame_equal(*tables)
    # All but "open", which lasts 60 s, state the seizure from 60 to 100 s: 8 of 36 segments.
    for name in WAYS:
        with warnings.catch_warnings(action="ignore"):  # of the seizure without an end
            labels = read_result(tmp_path / "out" / name, tmp_path / "in" / f"{name}_events.tsv").labels
        assert labels.sum() == (12 if name == "open" else 8)


def test_annotations_corrected_between_two_runs(model, tmp_path, fails):
    """The second run leaves nothing of the first run's reference, and only a whole run can be evaluated."""
    model.save_pretrained(tmp_path / "model")
    file, table = tmp_path / "x.edf", tmp_path / "x_events.tsv"
    recording = simulate_recording("S01", num_channels=2, duration=90.0, num_seizures=0)
    write_edf(recording.with_seizures(None), file)
    options = ["detect", file, "-o", tmp_path / "out", "--model", tmp_path / "model"]
    reference = tmp_path / "out" / "x" / REFERENCE
    for kind, onset in (("sz", 10), ("sz", 20), ("bckg", 0), ("lights off", 0)):
        table.write_text(f"onset\tduration\teventType\n{onset}\t50\t{kind}\n")
        assert run(*options) == 0
        stated = read_seizures(reference, 90.0) if reference.exists() else None
        assert stated == {"sz": [(onset, onset + 50.0)], "bckg": []}.get(kind)
        assert run("evaluate", tmp_path / "out", "-o", tmp_path / f"{onset} {kind}") == int(kind == "lights off")
    fails(f"{tmp_path / 'out' / 'x'} has no {REFERENCE}", "evaluate", tmp_path / "out", "-o", tmp_path / "scores")


def test_a_run_that_fails_while_writing_is_not_complete(model, tmp_path, monkeypatch):
    detector, recording = Detector(model), simulate_recording("S01", num_channels=2, duration=30.0, num_seizures=0)
    detection = detector.detect(recording)
    detection.save(tmp_path)

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("mvpa_ts.ieeg.detection.detection.write_json", full)
    refuses(detection.save, "disk full", tmp_path, kind=OSError)
    refuses(read_detection, "not the folder of a complete detection", tmp_path, kind=FileNotFoundError)


def test_a_reference_that_states_nothing(results, tmp_path, fails):
    root, made = results
    (tmp_path / "truth").mkdir()
    for name in made:
        (tmp_path / "truth" / f"{name}.tsv").write_text("onset\tduration\teventType\n0\t180\tbckg\n")
    options = ["evaluate", root, "-o", tmp_path / "scores", "--reference", tmp_path / "truth"]
    assert run(*options) == 0
    assert pd.read_csv(tmp_path / "scores" / "subjects.csv")["seizures"].tolist() == [0, 0, 0]
    table = tmp_path / "truth" / "S02_session0.tsv"
    for text in ("onset\tduration\teventType\n3\t9\tmovement\n", "onset\tduration\n3\t9\n"):
        table.write_text(text)
        fails(f"{table} has no row that says seizure or bckg", *options)
        with pytest.warns(UserWarning, match="it is taken as seizure-free"):
            assert main([*map(str, options), "--unannotated", "seizure-free"]) == 0
    table.write_text("onset\tduration\teventType\n0\t180\tseizure-free\n")
    assert run(*options) == 0
    table.rename(table.with_name("s02_Session0.tsv"))
    with pytest.warns(UserWarning, match="belong to no recording here, and are not read: .*s02_Session0.tsv$"):
        assert main([*map(str, options), "--unannotated", "seizure-free"]) == 0
    table.write_text("onset\tduration\teventType\n0\t180\tbckg\n")
    (tmp_path / "truth" / "participants.tsv").touch()
    with pytest.warns(UserWarning, match="belong to no recording here, and are not read: .*s02_Session0.tsv$"):
        assert main([*map(str, options)]) == 0


def test_a_detection_that_was_interrupted_is_named(results, tmp_path):
    root, _ = results
    shutil.copytree(root, tmp_path / "results")
    lost = tmp_path / "results" / "S02_session0"
    for file in lost.iterdir():
        file.unlink()
    (lost / "probabilities.store").touch()
    with pytest.warns(UserWarning, match=rf"detections that were interrupted, and are not scored: {lost}\. Run"):
        main(["evaluate", str(tmp_path / "results"), "-o", str(tmp_path / "scores"), "--unannotated", "seizure-free"])


def test_a_folder_without_detections(tmp_path, fails):
    fails("holds no complete detection", "evaluate", tmp_path, "-o", tmp_path / "scores")
    fails(f"there is no folder {tmp_path / 'nothere'}", "evaluate", tmp_path / "nothere", "-o", tmp_path / "scores")
    write_edf(simulate_recording("S1", num_channels=2, duration=6.0, num_seizures=0), tmp_path / "in" / "a.edf")
    fails(f"first run `mvpformer detect {tmp_path / 'in'} -o results`", "evaluate", tmp_path / "in", "-o", "scores")


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "nowhere", "-o", "scores", "--mode", "papr"],
        ["plot", "spectrum", "nowhere", "-o", "x.png"],
        ["plot", "attention", "nowhere", "-o", "x.png", "--term", "space"],
    ],
)
def test_choices_are_named(arguments, capsys):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert "invalid choice" in capsys.readouterr().err


def test_one_patient_gets_a_sentence_and_no_statistics_over_subjects(results, tmp_path, capsys):
    root, made = results
    folder = tmp_path / "found" / "S02"
    detection, recording = made["S02_session0"]
    probabilities = np.array(
        [float(any(on < s + 5 and off > s for on, off in recording.seizures)) for s in detection.starts]
    )
    provenance = dataclasses.replace(detection.provenance, subject_in_training=True)
    dataclasses.replace(
        detection, probabilities=probabilities, events=[*recording.seizures], provenance=provenance
    ).save(folder)
    assert run("evaluate", tmp_path / "found", "-o", tmp_path / "scores") == 0
    out = capsys.readouterr().out
    assert out.startswith("Found 1 of 1 seizure, 0 false detections in 3 minutes, median delay ")
    assert "Detections cover" not in out[: out.index("\n")]
    seconds = round(sum(offset - onset for onset, offset in recording.seizures))
    assert re.search(rf"Detections cover ({seconds - 1}|{seconds}|{seconds + 1}) of \1 s of seizures\. A", out)
    known = "The model was trained on recordings of 1 of 1 subject (S02)"
    page = (tmp_path / "scores" / "cohort.md").read_text()
    for text in (out, page):
        assert known in text
        assert "Less than an hour is too short for a rate" in text
        assert "Fewer than 3 subjects are too few" in text
        assert "false_positives_per_day" not in text
        assert "mean_kappa" not in text
    assert "## Regression" not in page
    assert {path.name for path in (tmp_path / "scores").glob("*.png")} == {"kappa.png", "convergence.png"}
    table = pd.read_csv(tmp_path / "scores" / "subjects.csv")
    assert table["in_training"].tolist() == ["yes"]
    assert table["false_positives_per_day"].tolist() == [0.0]  # the files are complete
    assert len(pd.read_csv(tmp_path / "scores" / "regression.csv")) == 8
    result = read_result(root / "S02_session0")
    assert SubjectResult("S02", [result]).in_training == "unknown"
    taught = SubjectResult("S02", [dataclasses.replace(result, in_training=seen) for seen in (True, False)])
    assert taught.in_training == "some files"
    for others, answer, sentence in (
        (True, "other files", "trained on other recordings of 1 of 1 subject (S02)"),
        (None, "not this file", "was not trained on the recordings of 1 of 1 subject (S02). If they are of"),
        (False, "no", None),
    ):
        subject = SubjectResult("S02", [dataclasses.replace(result, in_training=False, others_in_training=others)])
        assert subject.in_training == answer
        said = [words for words in in_words([subject]) if "trained" in words]
        assert len(said) == (sentence is not None)
        assert sentence is None or sentence in said[0]


class TestPlot:
    @pytest.fixture(scope="class")
    def file(self, tmp_path_factory):
        path = tmp_path_factory.mktemp("edf") / "S01.edf"
        write_edf(simulate_recording("S01", num_channels=3, duration=60.0, num_seizures=1), path)
        return path

    def test_every_kind(self, results, model, file, tmp_path, capsys):
        root, _ = results
        model.save_pretrained(tmp_path / "model")
        folder = root / "S01_session0"
        assert run("plot", "timeline", folder, "-o", tmp_path / "timeline.svg") == 0
        assert run("detect", file, "--model", "line-length", "-o", tmp_path / "results") == 0
        traces = ["--onset", 10, "--offset", 20, "--detection", tmp_path / "results" / "S01"]
        assert run("plot", "traces", file, "-o", tmp_path / "traces.png", *traces) == 0
        assert run("plot", "channels", file, "-o", tmp_path / "channels.PDF") == 0
        maps = ["--model", tmp_path / "model", "--before", tmp_path / "model", "--term", "time", "--windows", 1]
        assert run("plot", "attention", file, "-o", tmp_path / "map.png", *maps) == 0
        for layer in ("2", "-3"):
            assert run("plot", "attention", file, "-o", tmp_path / "x.png", *maps, "--layer", layer) == 1
            assert f"layer must be from 0 to 1, or from -2 to -1, got {layer}" in capsys.readouterr().err
        save_networks([model, deepcopy(model)], tmp_path / "networks")
        maps[1] = tmp_path / "networks"
        assert run("plot", "attention", file, "-o", tmp_path / "last.png", *maps, "--layer", "-2") == 0
        assert "holds 2 networks; the figure shows the first" in capsys.readouterr().out
        for name in ("timeline.svg", "traces.png", "channels.PDF", "map.png"):
            assert (tmp_path / name).stat().st_size > 5000

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["traces", "{file}", "-o", "x.txt"], "--output must end in .png, .pdf or .svg"),
            (["traces", "{file}", "-o", "x.png", "--onset", "100"], "the recording lasts 60.0 s"),
            (
                ["traces", "{file}", "-o", "x.png", "--onset", "9", "--offset", "5"],
                "--offset must be after --onset 9 s",
            ),
            (["traces", "{file}", "-o", "x.png", "--channels", "A99,B99"], "has no channel A99, B99; it has "),
            (["attention", "{file}", "-o", "x.png"], "attention needs a model: pass --model"),
            (
                ["attention", "{file}", "-o", "x.png", "--model", "m", "--windows", "0"],
                "--windows must be at least 1, got 0",
            ),
            (["timeline", "nowhere", "-o", "x.png"], "no file or folder nowhere"),
        ],
    )
    def test_errors(self, file, tmp_path, monkeypatch, fails, arguments, message):
        monkeypatch.chdir(tmp_path)
        fails(message, "plot", *(argument.format(file=file) for argument in arguments))
