"""The pretraining of the forecaster goes on where it was stopped, the comparison of pretrainings from what it wrote."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pretrain_forecaster
import pytest
import torch
from harness.figures.predicted import mean_over_seeds

from mvpa_ts.forecasting.pretrained.configuration import mvpa_forecaster_base
from mvpa_ts.ieeg.training.similarity import COLUMNS, Similarity

SMALL = {"lookback": 64, "patch_length": 16, "chunk_length": 8, "dim": 16, "num_heads": 2, "mlp_dim": 24, "blocks": "p"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small network that is not validated; what the script sets for its process is set back."""
    monkeypatch.setattr(pretrain_forecaster, "SIZES", {"base": lambda: mvpa_forecaster_base(**SMALL)})
    monkeypatch.setattr(pretrain_forecaster, "HORIZONS", (16,))
    monkeypatch.setattr(pretrain_forecaster, "validate", lambda *_, **__: {})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def train(monkeypatch: pytest.MonkeyPatch, folder: Path, *, steps: float = float("inf")) -> dict[str, Any]:
    """Train for 8 steps, or stop after some: a look at the clock, one before each step, takes a minute."""
    clock = SimpleNamespace(perf_counter=itertools.count(step=60).__next__)
    monkeypatch.setattr(pretrain_forecaster, "time", clock)
    options = ["--steps", "8", "--series", "6", "--seed", "3", "--minutes", str(steps + 0.5), "--folder", str(folder)]
    monkeypatch.setattr(sys, "argv", ["pretrain_forecaster.py", *options])
    pretrain_forecaster.main()
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def test_a_run_that_was_stopped_gives_the_same_weights(tmp_path, monkeypatch):
    whole = train(monkeypatch, tmp_path / "whole")
    parts = [train(monkeypatch, tmp_path / "parts", steps=3)["step"] for _ in range(2)]
    resumed = train(monkeypatch, tmp_path / "parts")
    assert (parts, resumed["step"], whole["step"]) == ([3, 6], 8, 8)
    for name, weight in whole["network"].items():
        torch.testing.assert_close(resumed["network"][name], weight, rtol=0.0, atol=0.0, msg=name)


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    whole = train(monkeypatch, tmp_path / "whole")
    train(monkeypatch, tmp_path / "parts", steps=4)
    loss_of, calls = pretrain_forecaster.loss_of, itertools.count()

    def killed(*arguments: Any) -> torch.Tensor:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return loss_of(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_forecaster, "loss_of", killed)
        with pytest.raises(KeyboardInterrupt):
            train(patch, tmp_path / "parts")
    resumed = train(monkeypatch, tmp_path / "parts")
    assert all(torch.equal(resumed["network"][name], weight) for name, weight in whole["network"].items())


def test_the_comparison_of_pretrainings_takes_the_mean_over_seeds_of_what_it_wrote():
    rows = [("a", "r", 0.0, "interictal", 0.9, 0.5, 0.4), ("b", "s", 5.0, "ictal", 0.7, 0.6, 0.5)]
    segments = Similarity([pd.DataFrame(rows, columns=COLUMNS)]).segments
    tables = [json.loads(json.dumps(each.to_dict("list"))) for each in (segments, segments.assign(true=[0.7, 0.9]))]
    assert mean_over_seeds(tables[:1]).segments.equals(segments)
    assert mean_over_seeds(tables).segments["true"].tolist() == pytest.approx([0.8, 0.8])
