"""The board: scores that can be counted by hand, the same bytes twice, and detectors that are added."""

import re
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mvpa_ts.ieeg import Recording, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.baselines import BaselineDetector, LineLength
from mvpa_ts.ieeg.model.seen_subjects import recording_hash, save_training_subjects, subject_hash
from mvpa_ts.ieeg.scoring.board import ADDED, Added, add_detector, board, detectors_at_hand
from mvpa_ts.ieeg.simulation.writing import write_edf


def seconds_of(onset, offset):
    """A detector that says 1 from onset to offset, whatever the recording."""
    return lambda recording, starts: ((starts + 5 > onset) & (starts < offset)).astype(float)


def detector(name, score):
    return BaselineDetector(Added(name, score), channels="all")


LATE = {"late": detector("late", seconds_of(110, 140))}


def recordings():
    first = simulate_recording("S01", num_channels=2, duration=600.0, num_seizures=0)
    first = first.with_seizures([(100.0, 130.0)])
    second = simulate_recording("S02", num_channels=2, duration=600.0, num_seizures=0)
    return [first, second.with_seizures([]), second.with_seizures(None), first.pick(["A1"])]


def test_scores_as_counted_by_hand():
    result = board(recordings(), LATE | {"never": detector("never", seconds_of(0, 0))})
    late, never = (result.rows.set_index("detector").loc[name] for name in ("late", "never"))
    # One seizure, found; in the second recording the same event is false: 1 in 1200 s.
    assert (late["seizures"], late["found"], late["false events a day"]) == (1, 1, 72.0)
    assert late["event F1"] == pytest.approx(2 / 3, abs=1e-4)
    # Seconds: 20 of 30 found; 60 were detected, 40 of them wrongly.
    assert (late["second sensitivity"], late["second precision"]) == (
        pytest.approx(2 / 3, abs=1e-4),
        pytest.approx(1 / 3, abs=1e-4),
    )
    assert late["AUROC"] == pytest.approx((4 * (226 + 0.5 * 8) + 2 * 0.5 * 226) / (6 * 234), abs=1e-4)
    assert (never["found"], never["event F1"], never["AUROC"]) == (0, 0.0, 0.5)
    assert [*result.rows["detector"]] == ["late", "never"]
    assert result.left_out == {
        "S02_session0 (recording 3)": "says nothing of seizures",
        "S01_session0 (recording 4)": "holds the same signal as S01_session0 (recording 1)",
    }


def test_a_detector_that_never_stops_leads_no_board():
    often = detector("often", lambda recording, starts: np.isin(starts, (110, 300, 450, 590)).astype(float))
    result = board(recordings()[:1], {"always": detector("always", seconds_of(0, 600)), "often": often})
    assert result.rows[["detector", "event F1"]].values.tolist() == [["often", 0.4], ["always", 0.6667]]
    assert result.rows["quiet time alarmed"].tolist() == [round(15 / 570, 4), 1.0]


def test_a_detector_may_change_the_starts_that_it_is_given():
    def in_samples(recording, starts):
        starts *= recording.sfreq
        return ((starts + 5 * recording.sfreq > 100 * recording.sfreq) & (starts < 130 * recording.sfreq)).astype(float)

    detectors = {"first": detector("first", in_samples), "second": detector("second", seconds_of(100, 130))}
    rows = board(recordings()[:2], detectors).rows
    pd.testing.assert_series_equal(rows.iloc[0, 1:], rows.iloc[1, 1:], check_names=False)
    assert rows["found"].tolist() == [1, 1]


def test_a_stretch_that_is_marked_bad_is_no_time_in_which_an_event_could_be_false():
    night = simulate_recording("S02", num_channels=2, duration=600.0, num_seizures=0).with_seizures([])
    night.bad_spans = ((300.0, 600.0),)
    (row,) = board([night], LATE).rows.to_dict("records")
    assert (row["false events a day"], row["hours"]) == (288.0, round(300 / 3600, 3))
    night = night.with_seizures([(120.0, 150.0), (400.0, 430.0)])
    (row,) = board([night], LATE).rows.to_dict("records")
    assert (row["seizures"], row["found"], row["seizures skipped"]) == (2, 1, 1)


def test_a_detector_that_fails_is_listed_and_costs_no_other():
    def broken(recording, starts):
        raise RuntimeError("no licence")

    result = board(recordings()[:1], {"broken": detector("broken", broken), **LATE})
    assert result.failures == {"broken: S01_session0": "no licence"}
    assert [*result.rows["found"]] == [1, 0]
    assert [*result.rows["failed on"]] == [0, 1]
    assert [*result.rows["hours"]] == [round(600 / 3600, 3), 0.0]
    rates = result.rows["false events a day"]
    assert rates[0] == 0.0
    assert np.isnan(rates[1])  # it gave no alarm, and was never asked
    short = board(recordings()[:1], {"short": detector("short", lambda recording, starts: [0.5])})
    assert "must give 120 probabilities between 0 and 1" in short.failures["short: S01_session0"]
    with (
        pytest.warns(match="^S02_session0: no annotation"),
        pytest.raises(ValueError, match="got 1 detector and 0 such"),
    ):
        board(recordings()[2:3], LATE)


def test_recordings_that_trained_a_detector_are_named(tmp_path):
    first, second = recordings()[:2]
    third = simulate_recording("S02", seed=5, num_channels=2, duration=60.0, num_seizures=0).with_seizures([])
    third.name = "S02_session1"
    LineLength(quiet=9.0).save(tmp_path / "line-length.json")
    save_training_subjects(tmp_path, [subject_hash("S02")], [recording_hash(second)])
    detectors = {"taught": BaselineDetector(tmp_path / "line-length.json"), "other": BaselineDetector("line-length")}
    result = board([first, second, third], detectors)
    assert result.rows.set_index("detector")["trained on"].to_dict() == {"taught": 1, "other": 0}
    said = (
        "was trained on S02_session0, whose scores do not show how good it is, and on other recordings of "
        "the subjects of S02_session1"
    )
    assert result.trained == {"taught": said}
    result.save(tmp_path)
    assert f"taught {said}" in (tmp_path / "board.html").read_text(encoding="utf-8")


def test_a_file_of_a_baseline_is_a_detector(tmp_path):
    LineLength(3.0).save(tmp_path / "line-length.json")
    name = str(tmp_path / "line-length.json")
    assert detectors_at_hand([name])[name].baseline.quiet == 3.0
    assert [*detectors_at_hand(["line-length"])] == [*detectors_at_hand()]


def test_the_command_gives_the_same_bytes_twice(tmp_path, capsys, fails):
    recording = simulate_recording("S01", num_channels=4, duration=120.0, num_seizures=1)
    write_edf(recording, tmp_path / "bids" / "sub-01" / "ieeg" / "sub-01_task-x_ieeg.edf")
    (tmp_path / "mine.py").write_text(
        "from mvpa_ts.ieeg.scoring.board import add_detector\n"
        "add_detector('mine', lambda recording, starts: (starts < 20).astype(float))\n",
        encoding="utf-8",
    )
    folders = [str(tmp_path / "bids"), str(tmp_path / "bids" / "sub-01")]  # one holds the other: no file counts twice
    for output, named in (("one", folders[:1]), ("two", folders)):
        words = ["board", *named, "--add", str(tmp_path / "mine.py"), "-o", str(tmp_path / output)]
        assert main(words) == 0
    said = capsys.readouterr().out
    assert "events less than 90 s apart are one" in said
    assert "False events a day are counted from 2 minutes." in said
    for name in ("board.csv", "board.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    table = (tmp_path / "one" / "board.csv").read_text(encoding="utf-8")
    assert all(name in table for name in ("mine", "demo", "line-length"))
    assert "is used as in BIDS" in (tmp_path / "one" / "board.html").read_text(encoding="utf-8")
    assert not ADDED
    (tmp_path / "bids" / "night.trc").touch()
    fails("all are read but 1 of a kind that is not read, such as night.trc", *words)
    fails("--add: there is no file nowhere.py", "board", tmp_path / "bids", "--add", "nowhere.py", "-o", "x")
    (tmp_path / "empty.py").touch()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "broken.py").write_text("import brainmaze_of_mine\n", encoding="utf-8")
    board = ["board", str(tmp_path / "bids"), "-o"]
    for words, message in (
        ([*board, str(tmp_path / "x"), "--add", str(tmp_path / "empty.py")], "empty.py adds no detector: call add_det"),
        ([*board, str(tmp_path / "x"), "--add", str(tmp_path / "broken.py")], "fails, ModuleNotFoundError: No module"),
        ([*board, str(tmp_path / "x"), "--add", str(tmp_path / "mine.txt")], "--add must name Python files, which end"),
        ([*board, str(tmp_path / "mine.txt")], "mine.txt is a file: name a folder"),
    ):
        fails(message, *words)


def test_the_example_of_the_page_runs(monkeypatch):
    def predict(signal, sfreq, model):
        return np.arange(0.0, len(signal) / sfreq, 0.5), np.full(int(len(signal) / sfreq * 2), 0.25)

    fake = types.ModuleType("brainmaze_eeg_models.seizure")
    fake.predict_channel_seizure_probability = predict
    monkeypatch.setitem(sys.modules, "brainmaze_eeg_models.seizure", fake)
    monkeypatch.setitem(sys.modules, "brainmaze_eeg_models", types.ModuleType("brainmaze_eeg_models"))
    page = (Path(__file__).parents[3] / "docs" / "lab.md").read_text(encoding="utf-8")
    example = re.search(r"brainmaze as the\nexample:\n\n((?:    .*\n|\n)+)", page)[1]
    lines = [line[4:] for line in example.splitlines()]
    assert len([line for line in lines if line]) <= 11
    exec("\n".join(lines), {})
    try:
        result = board(recordings()[:1], {"my brainmaze": ADDED["my brainmaze"]})
    finally:
        ADDED.clear()
    assert not result.failures
    with pytest.raises(ValueError, match="there is a detector 'demo' already"):
        add_detector("demo", predict)


def test_recordings_of_one_name_and_of_that_of_a_detector_are_all_listed(tmp_path, capsys):
    x = np.random.default_rng(0).normal(0, 50, (3, 2, 60 * 256))
    for folder, name, signal in zip(("p1", "p2", "p3"), ("night", "night", "demo"), x, strict=True):
        recording = Recording.from_array(signal, 256.0, ["A1", "A2"], "µV", seizures=[(10, 30)])
        write_edf(recording.with_seizures([(10, 30)] if name == "demo" else None), tmp_path / folder / f"{name}.edf")
    with pytest.warns(UserWarning, match="count as one subject"), pytest.warns(match="^night, night: no annotation"):
        assert main(["board", str(tmp_path), "-o", str(tmp_path / "board")]) == 0
    said = capsys.readouterr().out
    assert "night (recording 1): says nothing of seizures\nnight (recording 2): says nothing of seizures\n" in said

    def broken(recording, starts):
        raise RuntimeError("no licence")

    result = board([recordings()[1]] * 2, {"broken": detector("broken", broken)})
    assert [*result.failures] == ["broken: S02_session0 (recording 1)"]


def test_a_damaged_recording_is_listed_and_the_others_are_scored(tmp_path, capsys, fails):
    recording = simulate_recording("S01", num_channels=2, duration=60.0, num_seizures=1)
    write_edf(recording, tmp_path / "in" / "night.edf")
    cut = tmp_path / "in" / "cut.edf"
    cut.write_bytes((tmp_path / "in" / "night.edf").read_bytes()[:1000])
    words = ["board", str(tmp_path / "in"), "-o", str(tmp_path / "board")]
    assert main(words) == 1
    said = capsys.readouterr()
    assert f"{cut}: cannot be read: {cut} is truncated" in said.out
    assert f"1 of 2 recordings cannot be read: {cut}" in said.err
    assert "cut.edf" in (tmp_path / "board" / "board.html").read_text(encoding="utf-8")
    assert len((tmp_path / "board" / "board.csv").read_text(encoding="utf-8").splitlines()) == 3
    (tmp_path / "in" / "night.edf").unlink()
    fails("is truncated", *words)


def test_a_board_that_takes_the_place_of_one_of_the_same_time_says_so(tmp_path, monkeypatch):
    recording = simulate_recording("S01", num_channels=2, duration=60.0, num_seizures=1)
    write_edf(recording, tmp_path / "night.edf")
    (tmp_path / "other.py").write_text(
        "from pathlib import Path\nfrom mvpa_ts.ieeg.scoring.board import add_detector\n"
        f"def other(recording, starts):\n    Path({str(tmp_path / 'board.html')!r}).write_text('of another run')\n"
        "    return starts * 0\nadd_detector('other', other)\n"
    )
    words = ["board", str(tmp_path / "night.edf"), "-o", str(tmp_path)]
    with pytest.warns(UserWarning, match=r"another run wrote a board into .* since this one began"):
        assert main([*words, "--add", str(tmp_path / "other.py")]) == 0
    with warnings.catch_warnings(action="error"):
        assert main(words) == 0
