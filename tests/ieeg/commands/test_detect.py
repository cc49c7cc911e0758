"""`mvpformer detect` on files: what it writes, kills and resumes, privacy, errors, the real recordings."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import edfio
import numpy as np
import pandas as pd
import pytest
from support.edf_files import signals_of
from support.made_up_recordings import run

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny, simulate_recording
from mvpa_ts.ieeg.commands.detect import _outputs, command_line
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.constants import RESEARCH_USE
from mvpa_ts.ieeg.detection.baselines import LineLength
from mvpa_ts.ieeg.detection.rules import RULES
from mvpa_ts.ieeg.detection.saved import BASELINES, EVENTS, ONSETS, PROBABILITIES, REFERENCE, REPORT, RUN
from mvpa_ts.ieeg.recordings.bids import electrode_positions
from mvpa_ts.ieeg.recordings.events_table import COLUMNS, read_seizures
from mvpa_ts.ieeg.recordings.finding import find_recordings
from mvpa_ts.ieeg.simulation.writing import write_edf, write_swec

REAL = Path(os.environ.get("MVPA_TS_DATA", "nowhere")) / "ieeg"


def simulated(path, duration=63.0, subject="S01", num_channels=4):
    """A recording that lies in an EDF file; of half a minute or more it has a seizure."""
    seizures = int(duration >= 30)
    recording = simulate_recording(subject, num_channels=num_channels, duration=duration, num_seizures=seizures)
    write_edf(recording, path)
    return recording


def test_folder_is_scored_whole(tmp_path, detect, capsys):
    recording = simulated(tmp_path / "in" / "sub" / "a.edf")
    simulated(tmp_path / "in" / "b.edf", duration=31.0, subject="S02")
    assert run(*detect(tmp_path / "in"), "--threshold", 0.4) == 0
    captured = capsys.readouterr()
    assert RESEARCH_USE in captured.err
    assert "100%" in captured.err  # the progress bar
    assert captured.out.count(" in ") == 2

    folder = tmp_path / "out" / "sub" / "a"
    assert {path.name for path in folder.iterdir()} == {
        *(EVENTS, PROBABILITIES, REFERENCE, REPORT, RUN, BASELINES, ONSETS),
        "probabilities.store",
    }
    table = pd.read_csv(folder / PROBABILITIES, sep="\t")
    assert len(table) == 13
    assert table["onset"].tolist()[-2:] == [55.0, 58.0]
    assert table["probability"].between(0, 1).all()
    assert (table["positive"] == (table["probability"] > 0.4)).all()
    assert tuple(pd.read_csv(folder / EVENTS, sep="\t").columns) == COLUMNS
    assert pd.read_csv(folder / REFERENCE, sep="\t")["recordingDuration"].tolist() == [63.0]
    reference = read_seizures(folder / REFERENCE, 63.0)
    np.testing.assert_allclose(reference, recording.seizures, atol=2e-3)

    about = json.loads((folder / RUN).read_text())
    assert about["notice"] == RESEARCH_USE
    assert len(about["model"]["weights"]) == 64
    assert about["preprocessing"]["band"] == [0.5, 120.0]
    assert about["versions"]["mvpa-ts"]
    assert about["skipped"] == []
    page = (folder / REPORT).read_text()
    assert page.count("data:image/png;base64,") >= 3
    assert RESEARCH_USE in page
    assert "http" not in page.replace("data:image", "")


def test_swec_and_bids_in_one_folder(tmp_path, detect):
    write_swec(simulate_recording("ID19", num_channels=3, duration=40.0, num_seizures=1), tmp_path / "in")
    bids = tmp_path / "in" / "bids"
    simulated(bids / "sub-01" / "ieeg" / "sub-01_task-rest_ieeg.edf", duration=21.0)
    (bids / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')
    (bids / "sub-01" / "ieeg" / "sub-01_task-rest_channels.tsv").write_text(
        "name\ttype\tunits\tstatus\nA1\tSEEG\tuV\tgood\nA2\tSEEG\tuV\tbad\nA3\tSEEG\tuV\tgood\nA4\tSEEG\tuV\tgood\n"
    )
    (bids / "sub-01" / "ieeg" / "sub-01_space-ACPC_electrodes.tsv").write_text(
        "name\tx\ty\tz\nA1\t0\t1\t2\nA3\t1\t1\t2\nA4\t2\t1\tn/a\n"
    )
    assert run(*detect(tmp_path / "in")) == 0
    swec = json.loads((tmp_path / "out" / "ID19" / RUN).read_text())
    assert swec["recording"]["subject"] == "ID19"
    assert swec["preprocessing"] == {**swec["preprocessing"], "band": None, "notch": None, "reference": None}
    folder = tmp_path / "out" / "bids" / "sub-01" / "ieeg" / "sub-01_task-rest_ieeg"
    about = json.loads((folder / RUN).read_text())
    assert about["recording"]["subject"] == "sub-01"
    assert about["channels"]["used"] == ["A1", "A3", "A4"]
    assert about["channels"]["dropped"] == {"A2": "marked bad"}
    positions = electrode_positions(bids / "sub-01" / "ieeg" / "sub-01_task-rest_ieeg.edf")
    assert positions == {"A1": (0.0, 1.0, 2.0), "A3": (1.0, 1.0, 2.0)}


def test_subjects_of_bids_one_by_one_have_the_folders_of_the_whole(tmp_path, monkeypatch):
    for subject in ("sub-01", "sub-02"):
        simulated(tmp_path / "bids" / subject / "ieeg" / f"{subject}_ieeg.edf", duration=10.0)
    (tmp_path / "bids" / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.9.0"}')
    monkeypatch.chdir(tmp_path / "bids" / "sub-02")
    whole = _outputs({tmp_path / "bids": find_recordings(tmp_path / "bids")}, Path("out"))
    for path in (tmp_path / "bids" / "sub-02", Path("."), Path("ieeg"), Path("../sub-02/ieeg")):
        (single,) = _outputs({path: find_recordings(path)}, Path("out"))
        assert single[1] == whole[1][1] == Path("out/sub-02/ieeg/sub-02_ieeg")


def test_a_model_that_was_trained_again_is_loaded_again(tmp_path):
    lengths = 1.0, 400.0
    simulated(tmp_path / "night.edf")
    for number, quiet in enumerate(lengths):
        LineLength(quiet).save(tmp_path / "line-length.json")
        out = tmp_path / str(number)
        assert run("detect", tmp_path / "night.edf", "--model", tmp_path / "line-length.json", "-o", out) == 0
    tables = [pd.read_csv(tmp_path / name / "night" / PROBABILITIES, sep="\t")["probability"] for name in "01"]
    # Both are length / (length + level), so their odds differ as the levels do.
    odds = [values / (1 - values) for values in tables]
    np.testing.assert_allclose(odds[0] / odds[1], lengths[1] / lengths[0], rtol=1e-2)


def test_an_odd_table_of_electrodes_keeps_nothing_from_being_scored(tmp_path, detect, capsys):
    for name in ("sub-01_task-rest_ieeg.edf", "sub-02_task-rest_ieeg.edf"):
        simulated(tmp_path / "in" / name, duration=21.0)
    (tmp_path / "in" / "sub-01_electrodes.tsv").write_text("label\tx\ty\tz\nA1\t0\t1\t2\n")
    with pytest.warns(UserWarning, match=r"no positions of electrodes: .*sub-01_electrodes\.tsv has no column 'name'"):
        assert main([str(word) for word in detect(tmp_path / "in")]) == 0
    assert len(list((tmp_path / "out").rglob(RUN))) == 2
    (tmp_path / "in" / "sub-02_electrodes.tsv").write_text("name\tx\ty\tz\nA1\t0\t1\t2\n")
    assert run(*detect(tmp_path / "in")) == 0
    listed = capsys.readouterr().err.partition("left out:\n")[2]
    assert "  sub-01_task-rest_ieeg: no positions of electrodes: " in listed
    assert "  sub-02_task-rest_ieeg: channels are not drawn at their positions, for some have none: A2" in listed


def test_a_recording_of_a_kind_that_is_not_read_is_no_success(tmp_path, detect, fails):
    simulated(tmp_path / "in" / "good.edf", duration=11.0)
    (tmp_path / "in" / "night.TRC").touch()
    fails("1 of a kind that is not read, such as night.TRC", *detect(tmp_path / "in"))
    assert (tmp_path / "out" / "good" / RUN).is_file()


def test_preprocessing_changes_each_recordings_default(tmp_path, detect):
    write_swec(simulate_recording("ID19", num_channels=3, duration=11.0, num_seizures=0), tmp_path / "in")
    simulated(tmp_path / "in" / "raw.edf", duration=11.0)
    assert run(*detect(tmp_path / "in"), "--preprocessing", '{"max_bad_share": 0.3}') == 0
    swec, raw = (json.loads((tmp_path / "out" / n / RUN).read_text())["preprocessing"] for n in ("ID19", "raw"))
    assert (swec["max_bad_share"], swec["band"], swec["reference"]) == (0.3, None, None)
    assert (raw["max_bad_share"], raw["band"], raw["reference"]) == (0.3, [0.5, 120.0], "median")


@pytest.fixture
def two_open_seizures(tmp_path):
    """Two files, each with a seizure whose end is not marked, which is warned of."""
    signals = signals_of("ABCD", np.random.default_rng(0).normal(0, 50, (4, 11 * 512)))
    files = [tmp_path / "x.edf", tmp_path / "y.edf"]
    for file in files:
        edfio.Edf(signals, annotations=[edfio.EdfAnnotation(3.0, None, "SZ")]).write(file)
    return files


def check_lines(error: str) -> None:
    for name in ("x", "y"):
        line = f"mvpformer: {name}: seizures without an end are taken to last: 8 s from 3 s on"
        assert error.splitlines().count(line) == 1
    assert "UserWarning" not in error


def test_warnings_are_one_line(tmp_path, two_open_seizures, model_folder, capsys, monkeypatch):
    options = ["detect", *two_open_seizures, "--model", model_folder, "-o", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["mvpformer", *map(str, options)])
    with warnings.catch_warnings(action="default"):
        assert main() == 0
    check_lines(capsys.readouterr().err)


@pytest.mark.slow
def test_warnings_of_other_processes_are_one_line(tmp_path, two_open_seizures, model_folder):
    code = "import sys; from mvpa_ts.ieeg.commands.main import main\nif __name__ == '__main__': sys.exit(main())"
    options = ["detect", *two_open_seizures, "--model", model_folder, "-o", tmp_path / "out", "--jobs", "2"]
    result = subprocess.run([sys.executable, "-P", "-c", code, *options], capture_output=True, text=True, check=True)
    check_lines(result.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--channels", "Z9"], "Z9"),
        (["--channels", "A1,,A2"], "--channels must be names with commas between them, such as A1,A2, got 'A1,,A2'"),
        (["--channels", ""], "--channels must be names with commas between them"),
        (["--preprocessing", "[1, 2]"], "--preprocessing must be JSON"),
        (["--preprocessing", '{"sfreq": 256}'], "preprocessing.sfreq must be 512 Hz"),
        (["--preprocessing", '{"band": [0.5]}'], "band must be (low, high) in Hz with 0 ≤ low < high < 256, half of"),
        (["--device", "gpu"], "device must be one of cpu"),
    ],
)
def test_wrong_options_are_named(tmp_path, detect, fails, options, message):
    simulated(tmp_path / "x.edf", duration=11.0)
    fails(message, *detect(tmp_path / "x.edf"), *options)


def test_channels_go_by_their_short_names_and_options_by_either_dash(tmp_path, detect):
    labels = [f"EEG A{number}-Ref" for number in range(1, 5)]
    edfio.Edf(signals_of(labels, np.random.default_rng(0).normal(0, 50, (4, 11 * 512)))).write(tmp_path / "x.edf")
    options = ["--channels", "A3, A1", "--batch-size", "2", "--seizure_words=fit", "--online", "1/2"]
    assert run(*detect(tmp_path / "x.edf"), *options) == 0
    about = json.loads((tmp_path / "out" / "x" / RUN).read_text())
    assert about["channels"]["used"] == ["EEG A1-Ref", "EEG A3-Ref"]
    assert set(about["channels"]["dropped"].values()) == {"not selected: not in the list of channels"}


def test_short_recording_and_headless_model(tmp_path, detect, fails):
    simulated(tmp_path / "short.edf", duration=4.0)
    fails("shorter than one segment of 5 s", *detect(tmp_path / "short.edf"))
    MVPFormer(mvpformer_tiny()).save_pretrained(tmp_path / "headless")
    fails("finetune it", "detect", tmp_path / "short.edf", "-o", tmp_path / "o", "--model", tmp_path / "headless")


# One of the two by default: each takes a quarter of a minute.
@pytest.mark.parametrize(
    ("name", "channels", "segments"),
    [("sample_ecog", 76, 5), pytest.param("sample_seeg", 88, 4, marks=pytest.mark.slow)],
)
@pytest.mark.skipif(not REAL.is_dir(), reason="MVPA_TS_DATA/ieeg is not there: no real recording")
def test_real_recordings_go_through_whole(tmp_path, model_folder, name, channels, segments):
    options = ["--model", model_folder, "--channels", "all", "--threshold", "0.3"]
    assert run("detect", REAL / f"{name}.edf", "-o", tmp_path, *options) == 0
    about = json.loads((tmp_path / name / RUN).read_text())
    assert len(about["channels"]["used"]) == channels
    assert about["segments"] == segments
    assert about["skipped"] == []
    assert all(reason for reason in about["channels"]["dropped"].values())
    assert any("EKG" in channel for channel in about["channels"]["dropped"])
    table = pd.read_csv(tmp_path / name / PROBABILITIES, sep="\t")
    assert table["onset"].iloc[-1] + 5 == pytest.approx(about["recording"]["duration"], abs=2e-3)
    assert (tmp_path / name / REPORT).stat().st_size > 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--unit", "microvolt"], "--unit must be µV (or uV), mV, V or nV, got 'microvolt'"),
        (["--threshold", "3"], "--threshold must be between 0 and 1, got 3.0"),
        (["--online", "3of2"], "--online: "),
        (["--preprocessing", "{"], "--preprocessing must be JSON"),
    ],
)
@pytest.mark.parametrize("command", [["detect", "nowhere.edf", "-o", "out"], ["stream", "--name", "nowhere"]])
def test_wrong_options_are_named_before_anything_is_looked_for(fails, command, options, message):
    fails(message, *command, *options, "--model", "nomodel")


def test_choices_of_rules_are_those_there_are():
    (action,) = (action for action in command_line()._actions if action.dest == "rules")
    assert [*action.choices] == [*RULES]
    with pytest.raises(SystemExit):
        run("detect", "nowhere.edf", "-o", "out", "--rules", "paperr")


def test_a_file_of_another_kind_is_named_before_a_model_is_looked_for(tmp_path, fails):
    notes = tmp_path / "notes.txt"
    notes.write_text("x")
    fails("notes.txt: unknown kind of file, known are .edf", "detect", notes, "-o", "out", "--model", "nomodel")


def test_detected_events_do_not_become_the_reference(tmp_path, model_folder, fails):
    simulated(tmp_path / "x.edf", duration=11.0)
    (tmp_path / "a.edf").write_bytes((tmp_path / "x.edf").read_bytes())
    table, said = tmp_path / "x_events.tsv", "holds the true seizures of x.edf: name another"
    for name in ("x.edf", "a.edf"):
        fails(said, "detect", tmp_path / name, "-o", table, "--model", model_folder)
        assert not table.exists()


def test_results_of_two_detectors_are_not_mixed_without_a_word(tmp_path, model_folder, capsys):
    for name in ("a", "b"):
        simulated(tmp_path / f"{name}.edf", duration=31.0)
    results, scores = tmp_path / "results", str(tmp_path / "scores")
    assert run("detect", tmp_path / "a.edf", "-o", results, "--model", "line-length") == 0
    events = (results / "a" / EVENTS).read_text()
    assert run("detect", tmp_path / "b.edf", "-o", results / "a" / EVENTS, "--model", "line-length") == 1
    assert "lies in the folder of another result" in capsys.readouterr().err
    assert (results / "a" / EVENTS).read_text() == events
    said = "results.a and .*results.b differ in model"
    with pytest.warns(UserWarning, match=said):
        main(["detect", str(tmp_path / "b.edf"), "-o", str(results), "--model", str(model_folder)])
    with pytest.warns(UserWarning, match=said):
        main(["evaluate", str(results), "-o", scores])
    (results / "b" / "probabilities.store").unlink()
    for more, differs in (([], ""), (["--rules", "paper"], "rules or threshold")):
        with warnings.catch_warnings(record=True, action="always") as caught:
            main(["detect", str(tmp_path / "b.edf"), "-o", str(results), "--model", "line-length", *more])
        said = [str(warning.message) for warning in caught if "differ in " in str(warning.message)]
        assert [differs in text for text in said] == [True] * bool(more)


def test_a_recording_that_was_written_after_its_probabilities_is_named(tmp_path):
    file = tmp_path / "night.edf"
    simulated(file, duration=25.0)
    words = ["detect", str(file), "-o", str(tmp_path / "results"), "--model", "line-length"]
    with warnings.catch_warnings(action="error"):
        for _ in range(2):
            assert main(words) == 0
    later = (tmp_path / "results" / "night" / "probabilities.store").stat().st_mtime + 60.0
    os.utime(file, (later, later))
    with pytest.warns(UserWarning, match=r"was written or copied after .*probabilities\.store"):
        assert main(words) == 0
