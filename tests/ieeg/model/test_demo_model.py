"""The models in the box: their size, their cards, their names, and the command that takes one when none is named."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from mvpa_ts.ieeg import Detector, MVPFormer, simulate_recording
from mvpa_ts.ieeg.commands.detect import command_line
from mvpa_ts.ieeg.commands.main import check_model
from mvpa_ts.ieeg.model.pretrained import folder_of, pretrained_config

SCRIPT = Path(__file__).parents[3] / "experiments" / "shipped" / "demo_model.py"
NAMES = ("demo", "demo-base")


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_has_a_card(name):
    folder = folder_of(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2 * 2**20
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "not a medical device" in card
    assert f"experiments/shipped/demo_model.py --model {name}" in card


@pytest.mark.skipif(not SCRIPT.is_file(), reason="not a checkout")
@pytest.mark.parametrize("name", NAMES)
def test_the_card_states_the_settings_of_the_script(name):
    text, card = SCRIPT.read_text(encoding="utf-8"), (folder_of(name) / "README.md").read_text(encoding="utf-8")
    (seed,) = re.findall(r"^SEED = (\d+)$", text, re.MULTILINE)
    (steps,) = re.findall(r"^STEPS, .* = (\d+),", text, re.MULTILINE)
    assert f"seed {seed}" in card
    assert f"{steps} steps" in card


@pytest.mark.parametrize("name", NAMES)
def test_its_name_is_reserved(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    model = MVPFormer.from_pretrained(name)
    assert model.config == pretrained_config(name)
    assert (model.config.amplitude, model.config.num_classes) == ("bands", 2)
    (tmp_path / name).rmdir()
    check_model(name)


def test_commands_take_them_when_none_is_named():
    assert command_line().parse_args(["patient.edf", "-o", "results"]).model == "demo"
    config = Path(folder_of("demo")).parents[2] / "configs" / "finetune-patient.yaml"
    assert yaml.safe_load(config.read_text(encoding="utf-8"))["model"]["base"] == "demo-base"


def unseen(name, seed):
    """Probabilities and labels of the segments of a simulated subject that trained no model."""
    recording = simulate_recording("unseen", seed=seed, num_channels=6, duration=400.0, num_seizures=1)
    detector = Detector(name, rules="none", channels="all")
    segments = detector.segments(recording)
    return detector.detect_segments(segments).probabilities, segments.labels()


def test_the_base_tells_a_simulated_seizure_of_an_unseen_subject():
    probabilities, ictal = unseen("demo-base", 1)
    assert np.median(probabilities[ictal]) > 0.5 > np.median(probabilities[~ictal])


@pytest.mark.parametrize("subjects", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_the_detector_ranks_seizures_of_unseen_subjects_high_and_is_quiet_between(subjects):
    """Its threshold makes alarms rare, so it misses weak seizures that it ranks high."""
    results = [unseen("demo", seed) for seed in range(1, subjects + 1)]
    assert np.mean([roc_auc_score(ictal, probabilities) for probabilities, ictal in results]) > 0.9
    assert sum(probabilities[ictal].max() > 0.5 for probabilities, ictal in results) >= subjects // 2
    assert np.mean(np.concatenate([probabilities[~ictal] > 0.5 for probabilities, ictal in results])) < 0.005
