"""The forecasting harness: errors against loops, resumable tables, and agreement with neuralforecast's own path."""

from __future__ import annotations

import os
import subprocess
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
from harness.forecasting import training as training_module
from harness.forecasting.models import MODELS, SCRIPT, Core, build
from harness.forecasting.training import Checkpoint, Outcome, Training, augmented, evaluate, train, training_loss
from harness.tables import append_row
from torch import Tensor, nn

from mvpa_ts import ForecastingConfig
from mvpa_ts.datasets.forecasting import WindowSet, forecasting_windows


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


class _Repeat(nn.Module):
    """Forecasts the last value plus a learnable shift."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, first_row: Tensor) -> Tensor:
        return x[:, -1:].expand(-1, self.horizon, -1) + self.shift


def test_error_is_one_mean_over_all_windows() -> None:
    values = torch.tensor(np.random.default_rng(0).standard_normal((50, 2)), dtype=torch.float32)
    windows = WindowSet(values, torch.arange(7, 30), lookback=6, horizon=4)
    squared, absolute = [], []
    for start in range(7, 30):
        for step in range(4):
            for channel in range(2):
                error = values[start + 5, channel].item() - values[start + 6 + step, channel].item()
                squared.append(error**2)
                absolute.append(abs(error))
    for batch_size in (1, 5, 128):  # a last batch that is not full counts too
        assert evaluate(_Repeat(4), windows, batch_size) == pytest.approx((np.mean(squared), np.mean(absolute)), 1e-6)


@pytest.mark.parametrize("weight_averaging", [None, 0.5])
def test_training_keeps_the_weights_of_the_best_epoch(frame: pd.DataFrame, weight_averaging: float | None) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=8, horizon=2)
    small = {part: WindowSet(w.values, w.starts[:64], 8, 2) for part, w in windows.items()}
    # A rate this high makes later epochs worse than some earlier one.
    training = Training(0.5, 16, 6, 6, "mse", "constant", weight_averaging=weight_averaging)
    model, seen = _Repeat(2), []
    outcome = train(model, small, training, seed=0, report=lambda epoch, mse: seen.append(mse))
    assert outcome.epochs == len(seen) == 6
    assert outcome.validation_mse == min(seen)
    assert evaluate(model, small["validation"]) == pytest.approx((min(seen), outcome.validation_mae), rel=1e-6)


def test_training_keeps_the_last_weights_when_told(frame: pd.DataFrame) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=8, horizon=2)
    small = {part: WindowSet(w.values, w.starts[:64], 8, 2) for part, w in windows.items()}
    training = Training(0.5, 16, 6, 1, "mse", "constant", weight_averaging=None, keep="last")
    model, seen = _Repeat(2), []
    outcome = train(model, small, training, seed=0, report=lambda epoch, mse: seen.append(mse))
    assert outcome.epochs == 6
    assert seen == [outcome.validation_mse]  # nothing depends on the epochs before
    assert evaluate(model, small["validation"])[0] == pytest.approx(seen[0], rel=1e-6)


def test_frequency_loss_is_that_of_a_transform_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    forecast, y = torch.randn(2, 5, 3, generator=generator), torch.randn(2, 5, 3, generator=generator)
    error = (forecast - y).double().numpy()
    steps = np.arange(5)
    spectrum = np.array(
        [
            abs(sum(error[b, :, c] * np.exp(-2j * np.pi * k * steps / 5))) / np.sqrt(5)
            for b in range(2)
            for c in range(3)
            for k in range(3)
        ]
    )
    expected = 0.25 * np.abs(error).mean() + 0.75 * spectrum.mean()
    assert training_loss(forecast, y, Training(frequency_weight=0.75)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("option", ["frequency_masking", "frequency_mixing"])
def test_augmented_windows_keep_their_mean_and_take_whole_waves(option: str) -> None:
    steps, generator = np.arange(12), np.random.default_rng(0)
    amplitudes = generator.normal(size=(64, 6, 2))  # frequencies 1 to 6 of 64 windows
    waves = np.stack([np.cos(2 * np.pi * k * steps / 12 + k) for k in range(1, 7)])
    level = np.arange(64.0)[:, None, None]
    whole = torch.from_numpy(level + np.einsum("bkc,ks->bsc", amplitudes, waves))
    torch.manual_seed(0)
    x, y = augmented(whole[:, :8], whole[:, 8:], Training(**{option: 0.25}))
    assert (x.shape, y.shape) == ((64, 8, 2), (64, 4, 2))
    changed = torch.cat([x, y], 1).numpy() - level
    found = np.einsum("bsc,ks->bkc", changed, waves) / np.square(waves).sum(1)[:, None]
    kept = np.isclose(found, amplitudes).all(2)
    others = np.zeros((1, 6, 2)) if option == "frequency_masking" else amplitudes
    taken = np.isclose(found[:, None], others[None]).all(3).any(1)
    assert (kept | taken).all()
    assert 0.65 < kept.mean() < 0.85
    same = augmented(whole[:, :8], whole[:, 8:], Training())
    assert torch.equal(torch.cat(same, 1), whole)


@pytest.mark.parametrize(
    "changes",
    [{}, {"keep": "last"}, {"schedule": "halving", "weight_averaging": None}, {"frequency_masking": 0.3, "ridge": 1.0}],
    ids=str,
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    frame: pd.DataFrame, tmp_path: Path, changes: dict[str, Any]
) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=96, horizon=24)
    small = {part: WindowSet(w.values, w.starts[:64], 96, 24) for part, w in windows.items()}
    checkpoint = Checkpoint(tmp_path / "run.pt", "these settings")

    def run(stop: int | None) -> tuple[Outcome, dict[str, Tensor]]:
        torch.manual_seed(3)
        config = ForecastingConfig(24, 96, 24, 12, individual_channels=3)  # its dropout draws from the global generator
        model, steps = Core(config), 0

        def interrupt(model: nn.Module, inputs: object) -> None:
            nonlocal steps
            steps += model.training
            if steps == stop:
                raise KeyboardInterrupt

        model.register_forward_pre_hook(interrupt)
        training = replace(Training(2e-3, 16, 4), **changes)
        outcome = train(model, small, training, seed=3, checkpoint=None if stop is None else checkpoint)
        return outcome, model.state_dict()

    whole, weights = run(None)
    for stop in (11, 7):  # in the third epoch of four steps, and after the second in the fourth
        with pytest.raises(KeyboardInterrupt):
            run(stop)
    resumed, same = run(99)
    assert (resumed.validation_mse, resumed.validation_mae) == (whole.validation_mse, whole.validation_mae)
    assert resumed.epochs == whole.epochs == 4
    assert all(torch.equal(same[name], weights[name]) for name in weights)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(frame: pd.DataFrame, tmp_path: Path) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=8, horizon=2)
    small = {part: WindowSet(w.values, w.starts[:32], 8, 2) for part, w in windows.items()}
    path, training = tmp_path / "run.pt", Training(0.1, 16, 1, weight_averaging=None)
    train(_Repeat(2), small, training, seed=0, checkpoint=Checkpoint(path, "one"))
    with pytest.raises(ValueError, match=r"run\.pt was begun with other settings, one, not two: remove it"):
        train(_Repeat(2), small, training, seed=0, checkpoint=Checkpoint(path, "two"))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"run\.pt is damaged: remove it"):
        train(_Repeat(2), small, training, seed=0, checkpoint=Checkpoint(path, "one"))
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"run\.pt is damaged: remove it"):
        train(_Repeat(2), small, training, seed=0, checkpoint=Checkpoint(path, "one"))


def test_a_killed_command_goes_on_in_the_middle_of_a_run(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few_windows(*arguments: Any, **options: Any) -> dict[str, WindowSet]:
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


def test_the_rate_is_halved_after_every_epoch_but_the_first(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=8, horizon=2)
    small = {part: WindowSet(w.values, w.starts[:32], 8, 2) for part, w in windows.items()}
    rates: list[float] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    train(_Repeat(2), small, Training(0.8, 16, 4, 4, "mse", "halving"), seed=0)
    assert rates == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2]  # two steps an epoch


def test_training_stops_when_validation_does_not_improve(frame: pd.DataFrame) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=8, horizon=2)
    small = {part: WindowSet(w.values, w.starts[:32], 8, 2) for part, w in windows.items()}
    model = _Repeat(2)
    model.shift.requires_grad_(True)
    training = Training(0.0, 16, 50, 3, "mse", "constant", weight_averaging=None)
    assert train(model, small, training, seed=0).epochs == 4  # the first is the best, three more are waited for


def test_training_is_reproducible(frame: pd.DataFrame) -> None:
    windows = forecasting_windows(frame, "ETTh1", lookback=96, horizon=96)
    small = {part: WindowSet(w.values, w.starts[:64], 96, 96) for part, w in windows.items()}
    outcomes = []
    for _ in range(2):
        model, training, _ = build("MVPA", "ETTh1", 96, 3, seed=3)
        outcomes.append(train(model, small, training, seed=3, max_steps=2).validation_mse)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_forecasts_all_channels(name: str) -> None:
    model, _, settings = build(name, "ETTh1", 24, 3, seed=1)
    x = torch.randn(2, 96, 3)
    forecast = model.eval()(x, torch.tensor([0, 5]))
    assert forecast.shape == (2, 24, 3)
    assert settings
    # Every channel's forecast follows its own channel.
    moved = x.clone()
    moved[:, :, 1] += torch.linspace(0, 3, 96)
    change = (model(moved, torch.tensor([0, 5])) - forecast).abs().mean((0, 1))
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
def test_peers_have_their_published_settings(
    name: str, dataset: str, horizon: int, own: dict[str, Any], trained: dict[str, Any]
) -> None:
    _, training, settings = build(name, dataset, horizon, 3, seed=1)
    assert {key: settings[key] for key in own} == own
    assert settings.keys().isdisjoint({"ETTh1", "ETTh2", "Weather", "training"})
    assert (training.loss, training.schedule, training.clip) == (SCRIPT.loss, SCRIPT.schedule, None)
    assert {key: getattr(training, key) for key in trained} == trained


def test_a_table_is_resumed_and_never_half_written(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_report_averages_only_complete_sets() -> None:
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


def test_harness_and_cross_validation_agree(frame: pd.DataFrame) -> None:
    from neuralforecast import NeuralForecast

    from mvpa_ts.adapters.neuralforecast import MVPA

    L, h, count = 48, 12, 20
    rows = frame.tail(L + h + count - 1 + 60).reset_index(drop=True)
    long = rows.melt("date", var_name="unique_id", value_name="y").rename(columns={"date": "ds"})
    model = MVPA(
        h=h, input_size=L, n_series=3, hidden_size=8, n_heads=2, linear_hidden_size=8, max_steps=3, accelerator="cpu",
        enable_progress_bar=False, logger=False, enable_model_summary=False,
    )  # fmt: skip
    host = NeuralForecast(models=[model], freq="h")
    forecasts = host.cross_validation(long, n_windows=count, step_size=1, refit=False)
    assert len(forecasts) == count * h * 3
    error = forecasts["MVPA"] - forecasts["y"]

    fitted = host.models[0]
    core = Core(fitted.network.config)
    core.network.load_state_dict(fitted.network.state_dict())
    values = torch.tensor(rows[["a", "b", "c"]].to_numpy(), dtype=torch.float32)
    first = len(values) - (L + h + count - 1)
    windows = WindowSet(values, torch.arange(first, first + count), L, h)
    assert evaluate(core, windows) == pytest.approx((error.pow(2).mean(), error.abs().mean()), rel=1e-5)


def test_missing_code_is_masked_for_networks_of_this_library() -> None:
    config = ForecastingConfig(horizon=4, lookback=8, num_layers=0)
    core = Core(config, torch.tensor([-7.0, -9.0]))
    nn.init.normal_(core.network.linear.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 8, 2, generator=torch.Generator().manual_seed(1))
    coded = x.clone()
    coded[0, 2, 0], coded[1, 5, 1], coded[2, 5, 1] = -7.0, -9.0, -7.0  # the last is not its channel's code
    mask = torch.ones_like(x, dtype=torch.bool)
    mask[0, 2, 0] = mask[1, 5, 1] = False
    rows = torch.zeros(3, dtype=torch.long)
    assert torch.equal(core(coded, rows), core.network(coded, mask)[..., 0])
    assert not torch.allclose(core(coded, rows)[0, :, 0], core.network(coded)[0, :, 0, 0])


def test_harness_needs_no_host_for_the_models_of_this_library(frame: pd.DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "ETT-small"
    folder.mkdir()
    frame.to_csv(folder / "ETTh1.csv", index=False)
    script = Path(forecasting.__file__)
    code = f"""
import runpy, sys
for name in ("neuralforecast", "pytorch_lightning", "lightning", "optuna", "sktime", "pooch", "tqdm", "matplotlib"):
    sys.modules[name] = None  # importing it fails
sys.path.insert(0, {str(script.parent)!r})
sys.argv = ["forecasting.py", "--quick", "--table", {str(tmp_path / "table.csv")!r}]
runpy.run_path({str(script)!r}, run_name="__main__")
"""
    environment = {**os.environ, "MVPA_TS_DATA": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "| MVPA |" in (tmp_path / "table.md").read_text()
