"""The model card that `save_pretrained` writes."""

import pytest
import torch
import yaml

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny


def saved(folder, **changes) -> str:
    MVPFormer(mvpformer_tiny(dim=16, mlp_dim=24, num_layers=1, **changes)).save_pretrained(folder)
    return (folder / "README.md").read_text(encoding="utf-8")


def test_it_states_what_the_model_is(tmp_path):
    card = saved(tmp_path, num_classes=2, context=7)
    weights = sum(tensor.numel() for tensor in MVPFormer.from_pretrained(tmp_path).state_dict().values())
    assert f"{weights:,} weights" in card
    assert "windows of 7 segments" in card
    assert "A seizure detector" in card
    assert "not a medical device" in card
    front = yaml.safe_load(card.split("---")[1])
    assert front == {"library_name": "mvpa-ts", "tags": ["iEEG", "time-series"]}


def test_it_is_written_anew_with_the_model_but_not_over_a_text_of_ones_own(tmp_path):
    assert "windows of 7 segments" in saved(tmp_path, context=7)
    assert "windows of 5 segments" in saved(tmp_path, context=5)
    (tmp_path / "README.md").write_text("Mine, and true.", encoding="utf-8")
    assert saved(tmp_path, context=9) == "Mine, and true."


@pytest.mark.parametrize(("classes", "told"), [(0, False), (2, True)])
def test_only_a_detector_has_the_command_of_detection(tmp_path, classes, told):
    card = saved(tmp_path, num_classes=classes)
    assert ('mvpformer detect patient.edf --model "hf://OWNER/NAME"' in card) == told
    assert ("probabilities" in card) == told


def test_a_model_that_diverged_has_no_card(tmp_path):
    model = MVPFormer(mvpformer_tiny(dim=16, mlp_dim=24, num_layers=1))
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match=r"not finite|NaN|diverged"):
        model.save_pretrained(tmp_path)
    assert not (tmp_path / "README.md").exists()
