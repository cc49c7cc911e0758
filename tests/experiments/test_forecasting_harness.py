"""The forecasting harness: errors against loops, resumable tables, and agreement with neuralforecast's own path."""

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import forecasting
import numpy as np
import pandas as pd
import pytest
import torch
from harness.forecasting import report as forecasting_report
from harness.forecasting.models import MODELS, SCRIPT, TRANSFORMERS, WithCycle, build, project_first
from harness.forecasting.transformer import calendar
from harness.tables import append_row
from support.library import run_python
from support.made_up_networks import SMALL

from mvpa_ts.datasets.forecasting import forecasting_windows
from mvpa_ts.forecasting import training as training_module
from mvpa_ts.forecasting.errors import evaluate
from mvpa_ts.forecasting.training import train
from mvpa_ts.windows import Windows


@pytest.fixture
def frame() -> pd.DataFrame:
    """Three channels as long as an ETTh file: a daily wave, a walk, noise."""
    rows, generator = 17420, np.random.default_rng(0)
    hours = np.arange(rows)
    return pd.DataFrame(
        {
            "date": pd.date_range("2016-07-01", periods=rows, freq="h"),
            "a": np.sin(2 * np.pi * hours / 24) + 0.1 * generator.standard_normal(rows),
            "b": generator.standard_normal(rows).cumsum() * 0.1,
            "c": generator.standard_normal(rows),
        }
    )


def test_a_killed_command_goes_on_in_the_middle_of_a_run(frame, tmp_path, monkeypatch):
    def few_windows(*arguments: Any, **options: Any) -> dict[str, Windows]:
        windows = forecasting_windows(*arguments, **options)
        return {part: replace(whole, starts=whole.starts[:64]) for part, whole in windows.items()}

    monkeypatch.setattr(forecasting, "load_forecasting_frame", lambda name: frame)
    monkeypatch.setattr(forecasting, "forecasting_windows", few_windows)
    evaluations, stop = 0, 0

    def counted(*arguments: Any) -> tuple[float, float]:
        nonlocal evaluations
        evaluations += 1
        if evaluations == stop:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(training_module, "evaluate", counted)

    def run(table: Path, *model: str) -> dict[str, Any]:
        command = ["forecasting.py", "--datasets", "ETTh1", "--horizons", "96", "--table", str(table), "--models"]
        monkeypatch.setattr(sys, "argv", [*command, *model])
        forecasting.main()
        return pd.read_csv(table).drop(columns=["seconds", "seconds_per_epoch"]).iloc[0].to_dict()

    ensemble = "MVPA, mean of 5 networks"
    whole = run(tmp_path / "whole.csv", ensemble)
    assert evaluations == 5  # each member once, at its end
    evaluations, stop = 0, 3
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped.csv", ensemble)
    folder = tmp_path / "stopped_checkpoints"
    assert len(list(folder.iterdir())) == 3
    evaluations, stop = 0, 0
    assert run(tmp_path / "stopped.csv", ensemble) == whole
    assert evaluations == 3  # two members were whole
    assert not list(folder.iterdir())


def test_training_is_reproducible(frame):
    windows = forecasting_windows(frame, "ETTh1", lookback=96, horizon=96)
    small = {part: whole.only(slice(64)) for part, whole in windows.items()}
    outcomes = []
    for _ in range(2):
        model, training, _ = build("MVPA", "ETTh1", 96, 3, seed=3)
        outcomes.append(train(model, small, training, seed=3, max_steps=2).validation_mse)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_forecasts_all_channels(name):
    model, _, settings = build(name, "ETTh1", 24, 3, seed=1)
    x = torch.randn(2, 96, 3)
    forecast = model.eval()(x, phase=torch.tensor([0, 5]))
    assert forecast.shape == (2, 24, 3, 1)
    assert settings
    if name in TRANSFORMERS:
        return  # all channels are one token, and before training no channel is nearer to its own past
    # Every channel's forecast follows its own channel.
    moved = x.clone()
    moved[:, :, 1] += torch.linspace(0, 3, 96)
    change = (model(moved, phase=torch.tensor([0, 5])) - forecast).abs().mean((0, 1, 3))
    assert change.argmax() == 1


@pytest.mark.parametrize(
    ("name", "dataset", "horizon", "own", "trained"),
    [
        ("PatchTST", "ETTh1", 720, {"encoder_layers": 1, "n_heads": 16}, {}),
        ("PatchTST", "ETTh2", 96, {"encoder_layers": 3, "n_heads": 4}, {"epochs": 10}),
        ("PatchTST", "Weather", 336, {"encoder_layers": 2, "n_heads": 4}, {"epochs": 3, "batch_size": 128}),
        ("iTransformer", "ETTh1", 192, {"hidden_size": 256, "d_ff": 256, "e_layers": 2}, {}),
        ("iTransformer", "Weather", 96, {"hidden_size": 512, "d_ff": 512, "e_layers": 3}, {}),
        (
            "TimeMixer",
            "Weather",
            96,
            {"d_model": 16, "e_layers": 3},
            {"learning_rate": 1e-2, "epochs": 20, "patience": 10},
        ),
        ("TimeMixer", "ETTh2", 720, {"e_layers": 2}, {"learning_rate": 1e-2, "batch_size": 32, "patience": 3}),
        ("TimeXer", "ETTh1", 100, {"hidden_size": 256, "d_ff": 2048}, {"batch_size": 4}),  # the nearest horizon's
        ("VanillaTransformer", "Weather", 96, {"hidden_size": 512}, {"epochs": 3}),
    ],
)
def test_peers_have_their_published_settings(name, dataset, horizon, own, trained):
    _, training, settings = build(name, dataset, horizon, 3, seed=1)
    assert {key: settings[key] for key in own} == own
    assert settings.keys().isdisjoint({"ETTh1", "ETTh2", "Weather", "training"})
    assert (training.loss, training.schedule, training.clip) == (SCRIPT.loss, SCRIPT.schedule, None)
    assert {key: getattr(training, key) for key in trained} == trained


def test_timemixer_with_its_last_maps_in_the_other_order_is_the_same_model():
    pytest.importorskip("neuralforecast")
    model = build("TimeMixer", "ETTh1", 24, 5, 1)[0].double()
    x, found = torch.randn(3, 96, 5, dtype=torch.float64), []
    for change in (lambda model: None, project_first):
        change(model)
        torch.manual_seed(0)  # of the dropout
        model.zero_grad()
        forecast = model(x)
        forecast.square().sum().backward()
        found.append([forecast.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 50
    torch.testing.assert_close(*reversed(found), rtol=1e-9, atol=1e-9)
    assert "future_multi_mixing" in vars(model.model)


def test_a_table_is_resumed_and_never_half_written(frame, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(forecasting, "load_forecasting_frame", lambda name: frame)
    table = tmp_path / "forecasting.csv"
    arguments = ["forecasting.py", "--quick", "--table", str(table), "--models", "Linear"]
    monkeypatch.setattr(sys, "argv", arguments)
    forecasting.main()
    monkeypatch.setattr(sys, "argv", [*arguments, "MVPA"])
    forecasting.main()
    assert "[1/1] MVPA" in capsys.readouterr().out  # the linear model was not run again
    rows = pd.read_csv(table)
    assert list(rows["model"]) == ["Linear", "MVPA"]
    assert table.with_suffix(".md").is_file()
    assert table.with_suffix(".png").is_file()

    before = table.read_bytes()
    monkeypatch.setattr(sys, "argv", [*arguments, "--lookback", "48"])
    with pytest.raises(SystemExit, match="holds runs at look-back 96, not 48"):
        forecasting.main()
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        append_row(table, {"model": "x"})
    assert table.read_bytes() == before


def test_report_averages_only_complete_sets():
    runs = [
        ("MVPA", horizon, seed, 0.1 * index + 0.02 * seed)
        for index, horizon in enumerate((96, 192, 336, 720), start=1)
        for seed in (1, 2)
    ]
    rows = pd.DataFrame([*runs, ("Linear", 96, 1, 0.4)], columns=["model", "horizon", "seed", "test_mse"])
    rows = rows.assign(dataset="ETTh1", test_mae=0.5, parameters=1000, seconds_per_epoch=1.0, seconds=15.0)
    rows = rows.assign(hardware="some", threads=1, torch="2")
    report = forecasting_report.markdown_report(rows)
    assert "| MVPA | 0.130 ± 0.014 / 0.500 |" in report
    assert "**0.280 ± 0.014 / 0.500**" in report  # (.13 + .23 + .33 + .43) / 4
    assert "| Linear | 0.400 / 0.500 | – | – | – | – |" in report


def test_harness_and_cross_validation_agree(frame):
    from neuralforecast import NeuralForecast

    from mvpa_ts.adapters.neuralforecast import MVPA

    L, h, count = 48, 12, 20
    rows = frame.tail(L + h + count - 1 + 60).reset_index(drop=True)
    long = rows.melt("date", var_name="unique_id", value_name="y").rename(columns={"date": "ds"})
    model = MVPA(h=h, n_series=3, **SMALL | {"input_size": L, "max_steps": 3, "accelerator": "cpu"})
    host = NeuralForecast(models=[model], freq="h")
    forecasts = host.cross_validation(long, n_windows=count, step_size=1, refit=False)
    assert len(forecasts) == count * h * 3
    error = forecasts["MVPA"] - forecasts["y"]

    fitted = host.models[0]
    values = torch.tensor(rows[["a", "b", "c"]].to_numpy(), dtype=torch.float32)
    first = len(values) - (L + h + count - 1)
    windows = Windows(values, torch.arange(first, first + count), L, h)
    # The heads read channels in units of their training rows, which the harness has as 0 and 1: it scales the data.
    trained = values[: len(values) - (h + count - 1)].double()
    units = torch.stack([trained.mean(0), trained.std(0, correction=0)], dim=1).float()
    forward = fitted.network.forward
    fitted.network.forward = lambda x, **inputs: forward(x, **{**inputs, "units": units})
    assert evaluate(fitted.network, windows) == pytest.approx((error.pow(2).mean(), error.abs().mean()), rel=1e-5)


def test_harness_needs_no_host_for_the_models_of_this_library(frame, tmp_path):
    folder = tmp_path / "ETT-small"
    folder.mkdir()
    frame.to_csv(folder / "ETTh1.csv", index=False)
    content = (folder / "ETTh1.csv").read_bytes()
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  ETT-small/ETTh1.csv\n")
    script = Path(forecasting.__file__)
    code = f"""
import runpy, sys
for name in ("neuralforecast", "pytorch_lightning", "lightning", "optuna", "sktime", "pooch", "tqdm", "matplotlib"):
    sys.modules[name] = None  # importing it fails
sys.path.insert(0, {str(script.parent)!r})
sys.argv = ["forecasting.py", "--quick", "--table", {str(tmp_path / "table.csv")!r}]
runpy.run_path({str(script)!r}, run_name="__main__")
"""
    run_python(code, env=os.environ | {"MVPA_TS_DATA": str(tmp_path)}, timeout=120)
    assert "| MVPA |" in (tmp_path / "table.md").read_text()


def test_the_benchmarks_transformer_mixes_channels_and_knows_the_calendar():
    model, training, _ = build("Transformer, 64 wide", "ETTh1", 24, 3, seed=1)
    assert training == SCRIPT
    model.eval()
    x, phase = torch.randn(2, 96, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 5])
    forecast = model(x, phase=phase)
    assert forecast.shape == (2, 24, 3, 1)
    changed = x.clone()
    changed[..., 0] += 1.0
    # Products are in bfloat16, so that a single number may come out the same.
    assert (model(changed, phase=phase) - forecast)[..., 1, 0].abs().mean() > 0.01
    assert (model(x, phase=phase + 1) - forecast).abs().max() > 1e-4
    dates = pd.date_range("2016-07-01", periods=17420, freq="h")
    columns = [dates.hour / 23, dates.dayofweek / 6, (dates.day - 1) / 30, (dates.dayofyear - 1) / 365]
    expected = torch.tensor(np.stack(columns, axis=1) - 0.5, dtype=torch.float32)
    torch.testing.assert_close(calendar("ETTh1")[:17420], expected)


def test_without_its_linear_path_the_network_starts_from_the_mean_and_learns_by_attention_alone():
    model, _, settings = build("MVPA, 4 patches, all terms, no linear path", "ETTh1", 24, 3, seed=1)
    beside, _, other = build("MVPA, 4 patches, all terms", "ETTh1", 24, 3, seed=1)
    names = {name for name, _ in beside.named_parameters()}
    assert names - {name for name, _ in model.named_parameters()} == {"linear.weight", "linear.bias"}
    assert settings == other | {"linear_path": False}
    x = torch.randn(2, 96, 3)
    torch.testing.assert_close(model(x)[..., 0], x.mean(1, keepdim=True).expand(2, 24, 3))


class Silent(torch.nn.Module):
    """Forecasts nothing, and keeps what it read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.read = x
        return x.new_zeros(len(x), 3, x.shape[2], 1)


def test_a_peer_with_a_cycle_reads_what_the_cycle_leaves():
    """The cycle is of normalised windows: taken off at each step's own phase, and added to the forecast."""
    network = WithCycle(Silent(), length=4, channels=2, horizon=3)
    cycle = torch.arange(8.0).view(4, 2)
    network.cycle.data.copy_(cycle)
    x = torch.randn(1, 6, 2, generator=torch.Generator().manual_seed(0))
    forecast = network(x, torch.tensor([3]))
    mean, deviation = x[0].mean(0), x[0].std(0, unbiased=False)
    for step in range(6):
        expected = (x[0, step] - mean) / deviation - cycle[(3 + step) % 4]
        torch.testing.assert_close(network.encoder.read[0, step], expected, atol=1e-4, rtol=1e-4)
    for step in range(3):
        expected = cycle[(3 + 6 + step) % 4] * deviation + mean
        torch.testing.assert_close(forecast[0, step, :, 0], expected, atol=1e-4, rtol=1e-4)
