"""Baselines: their formulas, what they learn, their files, and the way of a detector; what they refuse."""

import json
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from support.reading import refuses

from mvpa_ts.ieeg import Recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.baselines import (
    BaselineDetector,
    LineLength,
    fit_baselines,
    load_baseline,
    warn_of_other_channels,
)
from mvpa_ts.ieeg.detection.features import TrainingFeatures
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.simulation.writing import write_edf

RATE = 512


def recording(seed, onset=None, channels=4, seconds=62.0, gain=1.0, subject=None):
    """Noise that is six times as strong for 20 s in one channel in two, from the onset on."""
    x = np.random.default_rng(seed).normal(0, 10 * gain, (channels, int(seconds * RATE)))
    seizures = []
    if onset is not None:
        x[::2, onset * RATE : (onset + 20) * RATE] *= 6
        seizures = [(float(onset), onset + 20.0)]
    names = [f"A{number}" for number in range(1, channels + 1)]
    return Recording.from_array(
        x, float(RATE), names, "µV", name=f"R{seed}", preprocessed=True, seizures=seizures, subject=subject
    )


def fitted(*recordings):
    return fit_baselines(TrainingFeatures.of([Segments(item) for item in recordings]))


def scores(baseline, recording, first=0):
    return np.concatenate([*baseline.probabilities(Segments(recording), first)])


def test_line_length_is_the_mean_step_of_channels_with_a_signal():
    x = np.zeros((2, 10 * RATE))
    x[0] = np.tile([0.0, 8.0], 5 * RATE)  # the other channel is flat
    flat = Recording.from_array(x, float(RATE), ["A1", "A2"], "µV", preprocessed=True)
    np.testing.assert_allclose(scores(LineLength(), flat), 8.0 / 18.0, rtol=1e-6)
    np.testing.assert_allclose(scores(LineLength(quiet=4.0), flat), 0.5, rtol=1e-6)
    assert np.isnan(
        scores(LineLength(), Recording.from_array(np.zeros((1, 5 * RATE)), float(RATE), ["A1"], "µV"))
    ).all()


def test_line_length_is_not_scaled_by_the_file():
    """A recording that is all seizure stands out as much as a seizure in a quiet one."""
    loud, quiet = recording(0, gain=6.0), recording(1)
    assert scores(LineLength(), loud).min() > scores(LineLength(), quiet).max()


def test_a_background_that_is_positive_throughout_is_named():
    loud = recording(0, gain=6.0)
    said = r"R0: 100% of the segments are positive\. Unless the file is nearly all seizure, .* by more than 10 µV"
    with pytest.warns(UserWarning, match=said):
        BaselineDetector("line-length").detect(loud.with_seizures(None))
    with pytest.warns(UserWarning, match=r"R0: 100% of the segments outside of its seizures are positive"):
        BaselineDetector("line-length").detect(loud.with_seizures([(0.0, 12.0)]))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*are positive")
        BaselineDetector(LineLength(quiet=70.0)).detect(loud)
        BaselineDetector("line-length").detect(loud.with_seizures([(0.0, loud.duration)]))


def test_regression_learns_a_focus_and_takes_other_channels():
    line_length, regression = fitted(recording(0, 20), recording(1, 30, channels=6))
    held_out = Segments(recording(2, 25, channels=8))
    positive = np.concatenate([*regression.probabilities(held_out)]) > 0.5
    assert (positive == held_out.labels()).all()
    # White noise of 10 µV has a mean step of 20/√π.
    assert line_length.quiet == pytest.approx(20 / np.sqrt(np.pi), rel=0.02)


def test_scores_go_on_from_any_segment():
    _, regression = fitted(recording(0, 20))
    for baseline in (LineLength(), regression):
        np.testing.assert_array_equal(scores(baseline, recording(3), 5), scores(baseline, recording(3))[5:])


@pytest.mark.parametrize(("onset", "seconds", "missing"), [(None, 62, "in a seizure"), (0, 20, "without a seizure")])
def test_one_class_is_named(onset, seconds, missing):
    with pytest.raises(ValueError, match=f"no training segment with a signal is {missing}: add"):
        fitted(recording(0, onset, seconds=seconds))


def test_other_channels_of_the_same_subject_are_named():
    first, second = (recording(number, subject="P1") for number in (0, 1))
    prefixed = second.replaced(channel_names=[f"EEG {name}-Ref" for name in second.channel_names])
    same = [Segments(first), Segments(prefixed)]
    other = Segments(recording(2, channels=6, subject="P1"))
    warn_of_other_channels(same)
    with pytest.warns(UserWarning, match="channels differ between recordings of one subject, such as R2 and R0"):
        warn_of_other_channels([*same, other])


def test_files_come_back_and_damaged_ones_are_named(tmp_path):
    for number, baseline in enumerate(fitted(recording(0, 20))):
        baseline.save(tmp_path / f"{number}.json")
        assert load_baseline(tmp_path / f"{number}.json") == baseline
    fields = json.loads((tmp_path / "1.json").read_text())
    for change, message in [
        ({"weights": [1.0]}, "weights must hold 18 finite numbers"),
        ({"more": 1}, "no regression of this library"),
        ({"baseline": "forest"}, "must be one of line-length, regression, classes, got 'forest'"),
        ({"scale": [0.0] * 18}, "scale positive"),
    ]:
        (tmp_path / "changed.json").write_text(json.dumps(fields | change))
        refuses(load_baseline, message, tmp_path / "changed.json")
    two = {"baseline": "classes", "names": ["a", "b"], "center": [0] * 18, "scale": [1] * 18, "bias": [0, 1]}
    for change in ({"weights": [[1] * 18]}, {"scale": [0] * 18}, {"bias": [1]}, {"weights": [[1] * 18, [1] * 17]}):
        (tmp_path / "classes.json").write_text(json.dumps(two | {"weights": [[1] * 18] * 2} | change))
        refuses(load_baseline, r"classes\.json is no classes of this library", tmp_path / "classes.json")
    refuses(load_baseline, "there is no file", tmp_path / "missing.json", kind=FileNotFoundError)
    refuses(LineLength, "quiet must be a positive line length", quiet=-1.0)


def test_brainmaze_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brainmaze_eeg_models", None)
    monkeypatch.setattr("mvpa_ts.ieeg.detection.baselines.brainmaze_installed", lambda: False)
    with pytest.raises(ModuleNotFoundError, match="pip install brainmaze-eeg-models"):
        BaselineDetector("brainmaze")


def test_brainmaze_goes_the_way_of_a_detector(monkeypatch):
    """A made-up package in its place says 0.9 in every half second of the first 10 s."""

    def traces(signal, sfreq, model, **options):
        seconds = np.arange(0.0, len(signal) / sfreq, 0.5)
        return seconds, np.where(seconds < 10, 0.9, 0.1)

    published = SimpleNamespace(predict_channel_seizure_probability=traces)
    monkeypatch.setitem(sys.modules, "brainmaze_eeg_models", SimpleNamespace(seizure=published))
    monkeypatch.setitem(sys.modules, "brainmaze_eeg_models.seizure", published)
    monkeypatch.setattr("mvpa_ts.ieeg.detection.baselines.brainmaze_installed", lambda: True)
    assert BaselineDetector("brainmaze", rules="none").detect(recording(0)).events == [(0.0, 10.0)]


class TestCommand:
    def detect(self, tmp_path, *model):
        file = tmp_path / "night.edf"
        if not file.exists():
            write_edf(recording(5, 20), file)
        return main(["detect", str(file), "--model", *model, "--rules", "none", "-o", str(tmp_path / "results")])

    def test_line_length_and_regression_write_the_same_files_as_a_model(self, tmp_path):
        line_length, regression = fitted(recording(0, 20), recording(1, 30))
        line_length.save(tmp_path / "line-length.json")
        regression.save(tmp_path / "regression.json")
        for model in (["line-length"], ["line-length", "line-length.json"], ["regression", "regression.json"]):
            model = [str(tmp_path / word) if word.endswith(".json") else word for word in model]
            assert self.detect(tmp_path, *model) == 0
            results = tmp_path / "results" / "night"
            assert json.loads((results / "run.json").read_text())["model"]["model"]["baseline"] == model[0]
            assert f"the baseline {model[0]}, no network" in (results / "report.html").read_text()
            (results / "probabilities.store").unlink()
        assert "20.000" in (results / "events.tsv").read_text()

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (["regression"], "regression needs a file of finetune"),
            (["regression", "nowhere.json"], "there is no file nowhere.json of a baseline"),
            (["brainmaze"], "pip install brainmaze-eeg-models"),
        ],
    )
    def test_what_is_missing_is_named(self, tmp_path, capsys, monkeypatch, model, message):
        monkeypatch.setattr("mvpa_ts.ieeg.detection.baselines.brainmaze_installed", lambda: False)
        assert self.detect(tmp_path, *model) == 1
        assert message in capsys.readouterr().err

    def test_the_other_settings_of_a_store_are_refused(self, tmp_path, capsys):
        assert self.detect(tmp_path, "line-length") == 0
        LineLength(quiet=3.0).save(tmp_path / "other.json")
        assert self.detect(tmp_path, str(tmp_path / "other.json")) == 1
        assert "begun with other settings (model, weights)" in capsys.readouterr().err
        assert self.detect(tmp_path, "regression", str(tmp_path / "other.json")) == 1
        assert "other.json holds line-length" in capsys.readouterr().err

    def test_evaluate_compares_the_detector_with_line_length(self, tmp_path, capsys, fails):
        write_edf(recording(5, 20), tmp_path / "night.edf")
        assert main(["detect", str(tmp_path / "night.edf"), "-o", str(tmp_path / "results")]) == 0
        evaluate = ["evaluate", str(tmp_path / "results"), "-o", str(tmp_path / "scores")]
        assert main(evaluate) == 0
        said = capsys.readouterr().out
        assert (
            "13 segments, 4 of them in 1 seizure: AUROC (AUPRC; segments found, and false ones) of the detector "
            in said
        )
        assert ", line-length 1.000 (1.000; " in said
        assert "Too little to trust" in said
        assert "s without a seizure." in said
        report = (tmp_path / "results" / "night" / "report.html").read_text()
        assert "<td>line-length</td><td>" in report
        assert "<td>1.000</td></tr>" in report.split("<td>line-length</td>")[1][:120]
        table = tmp_path / "results" / "night" / "baselines.tsv"
        whole = table.read_text()
        for text, message in [
            (whole.replace("\n5.000\t", "\n5.000\tmuch"), "cannot be read"),
            (whole[: whole.index("\n5.000\t") + 1], "it has 1 rows, not 13"),
        ]:
            table.write_text(text)
            fails(message, *evaluate)
        # Detections of other versions have no such table.
        table.unlink()
        assert main(evaluate) == 0

    def test_a_stream_takes_none(self, fails):
        fails("which a stream does not take", "stream", "--name", "amplifier", "--model", "line-length")
