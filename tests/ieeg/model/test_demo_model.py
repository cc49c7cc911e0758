"""The detector in the box: its size, its card, its name, and the command that takes it when none is named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mvpa_ts.ieeg import Detector, MVPFormer, simulate_recording
from mvpa_ts.ieeg.commands.detect import command_line
from mvpa_ts.ieeg.model.pretrained import folder_of, pretrained_config

SCRIPT = Path(__file__).parents[3] / "experiments" / "demo_model.py"


def test_it_is_small_and_has_a_card():
    folder = folder_of("demo")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2 * 2**20
    card = (folder / "README.md").read_text(encoding="utf-8")
    for words in ("simulated subjects", "no recording of a person or an animal", "not a medical device"):
        assert words in card
    assert "experiments/demo_model.py" in card


@pytest.mark.skipif(not SCRIPT.is_file(), reason="not a checkout")
def test_the_card_states_the_settings_of_the_script():
    text, card = SCRIPT.read_text(encoding="utf-8"), (folder_of("demo") / "README.md").read_text(encoding="utf-8")
    (seed,) = re.findall(r"^SEED = (\d+)$", text, re.MULTILINE)
    (steps,) = re.findall(r"^STEPS, .* = (\d+),", text, re.MULTILINE)
    assert f"seed {seed}" in card
    assert f"{steps} steps" in card


def test_its_name_is_reserved(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    model = MVPFormer.from_pretrained("demo")
    assert model.config == pretrained_config("demo")
    assert (model.config.amplitude, model.config.num_classes) == ("bands", 2)
    assert command_line().parse_args(["patient.edf", "-o", "results"]).model == "demo"


def test_it_tells_a_simulated_seizure_of_an_unseen_subject():
    recording = simulate_recording("unseen", seed=1, num_channels=6, duration=400.0, num_seizures=1)
    detector = Detector("demo", rules="none", channels="all")
    segments = detector.segments(recording)
    probabilities = detector.detect_segments(segments).probabilities
    ictal = segments.labels()
    assert np.median(probabilities[ictal]) > 0.5 > np.median(probabilities[~ictal])
