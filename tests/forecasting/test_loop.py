"""The training loop on windows: which weights are kept, rates, checkpoints; and errors against loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, ForecastingNetwork
from mvpa_ts.forecasting.errors import evaluate, forecast_loss
from mvpa_ts.forecasting.training import Checkpoint, Outcome, train
from mvpa_ts.windows import Windows

# A peer's: no average, the rate as it is.
PLAIN = ForecasterTraining(epochs=6, batch_size=16, loss="mse", schedule="constant", weight_averaging=None)


def parts(lookback: int = 8, horizon: int = 2, count: int = 64) -> dict[str, Windows]:
    """A daily wave, a walk and noise; the same number of windows to train on and to validate with."""
    rows, generator = 1000, np.random.default_rng(0)
    columns = [
        np.sin(2 * np.pi * np.arange(rows) / 24) + 0.1 * generator.standard_normal(rows),
        generator.standard_normal(rows).cumsum() * 0.1,
        generator.standard_normal(rows),
    ]
    values = torch.tensor(np.stack(columns, 1), dtype=torch.float32)
    starts = {"train": torch.arange(count), "validation": torch.arange(600, 600 + count)}
    return {part: Windows(values, first, lookback, horizon) for part, first in starts.items()}


class _Repeat(nn.Module):
    """Forecasts the last value plus a learnable shift."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.horizon = horizon
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        return (x[:, -1:].expand(-1, self.horizon, -1) + self.shift)[..., None]


def test_error_is_one_mean_over_all_windows():
    values = torch.tensor(np.random.default_rng(0).standard_normal((50, 2)), dtype=torch.float32)
    windows = Windows(values, torch.arange(7, 30), lookback=6, horizon=4)
    squared, absolute = [], []
    for start in range(7, 30):
        for step in range(4):
            for channel in range(2):
                error = values[start + 5, channel].item() - values[start + 6 + step, channel].item()
                squared.append(error**2)
                absolute.append(abs(error))
    for batch_size in (1, 5, 128):  # a last batch that is not full counts too
        assert evaluate(_Repeat(4), windows, batch_size) == pytest.approx((np.mean(squared), np.mean(absolute)), 1e-6)


@pytest.mark.parametrize(
    "changes",
    [{"patience": 6}, {"patience": 6, "weight_averaging": 0.5}, {"patience": 1, "keep": "last"}],
    ids=["best epoch", "best average", "last when told"],
)
def test_training_keeps_the_weights_of_the_best_epoch_or_the_last(changes):
    windows = parts(8, 2, 64)
    # A rate this high makes later epochs worse than some earlier one.
    training = replace(PLAIN, learning_rate=0.5, **changes)
    model, seen = _Repeat(2), []
    outcome = train(model, windows, training, seed=0, report=lambda epoch, mse: seen.append(mse))
    assert outcome.epochs == 6
    assert len(seen) == (1 if "keep" in changes else 6)  # the last depends on none of the epochs before
    assert outcome.validation_mse == min(seen)
    assert evaluate(model, windows["validation"]) == pytest.approx((min(seen), outcome.validation_mae), rel=1e-6)


def test_frequency_loss_is_that_of_a_transform_written_out():
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
    assert forecast_loss(forecast[..., None], y, frequency_weight=0.75).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"keep": "last"}, {"schedule": "halving", "weight_averaging": None}, {"ridge": 1.0}],
    ids=str,
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, changes):
    windows = parts(24, 8, 64)
    checkpoint = Checkpoint(tmp_path / "run.pt", "these settings")

    def run(stop: int | None) -> tuple[Outcome, dict[str, Tensor]]:
        torch.manual_seed(3)
        # Its dropout draws from the global generator.
        config = ForecastingConfig(8, 24, 12, 6, dim=8, num_heads=2, mlp_dim=8, num_channels=3, per_channel=("matrix",))
        model, steps = ForecastingNetwork(config), 0

        def interrupt(model: nn.Module, inputs: object) -> None:
            nonlocal steps
            steps += model.training
            if steps == stop:
                raise KeyboardInterrupt

        model.register_forward_pre_hook(interrupt)
        training = ForecasterTraining(**{"learning_rate": 2e-3, "batch_size": 16, "epochs": 4, **changes})
        outcome = train(model, windows, training, seed=3, checkpoint=None if stop is None else checkpoint)
        return outcome, model.state_dict()

    whole, weights = run(None)
    for stop in (11, 7):  # in the third epoch of four steps, and after the second in the fourth
        with pytest.raises(KeyboardInterrupt):
            run(stop)
    resumed, same = run(99)
    assert (resumed.validation_mse, resumed.validation_mae) == (whole.validation_mse, whole.validation_mae)
    assert resumed.epochs == whole.epochs == 4
    assert all(torch.equal(same[name], weights[name]) for name in weights)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    windows = parts(8, 2, 32)
    path, training = tmp_path / "run.pt", replace(PLAIN, learning_rate=0.1, epochs=1)
    train(_Repeat(2), windows, training, seed=0, checkpoint=Checkpoint(path, "one"))
    with pytest.raises(ValueError, match=r"run\.pt was begun with other settings, one, not two: remove it"):
        train(_Repeat(2), windows, training, seed=0, checkpoint=Checkpoint(path, "two"))
    torch.save(torch.zeros(3), tmp_path / "no checkpoint.pt")
    for content in (path.read_bytes()[:500], (tmp_path / "no checkpoint.pt").read_bytes(), b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.pt is damaged: remove it"):
            train(_Repeat(2), windows, training, seed=0, checkpoint=Checkpoint(path, "one"))


def test_the_rate_is_halved_after_every_epoch_but_the_first(monkeypatch):
    windows = parts(8, 2, 32)
    rates: list[float] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    train(_Repeat(2), windows, replace(PLAIN, learning_rate=0.8, epochs=4, schedule="halving"), seed=0)
    assert rates == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2]  # two steps an epoch


def test_training_stops_when_validation_does_not_improve():
    windows = parts(8, 2, 32)
    model = _Repeat(2)
    model.shift.requires_grad_(True)
    training = replace(PLAIN, learning_rate=1e-30, epochs=50, patience=3)
    assert train(model, windows, training, seed=0).epochs == 4  # the first is the best, three more are waited for


@pytest.mark.parametrize(("steps", "max_steps"), [(0, None), (5, 0)])
def test_a_training_of_no_step_leaves_the_weights(steps, max_steps):
    model = _Repeat(2)
    outcome = train(model, parts(8, 2, 32), ForecasterTraining(steps=steps), seed=0, max_steps=max_steps)
    assert outcome.epochs == 0
    assert model.shift.item() == 0.0


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_training_without_windows_says_so(part):
    windows = parts(8, 2, 32)
    windows[part] = windows[part].only(slice(0, 0))
    with pytest.raises(ValueError, match=rf"^windows\['{part}'\] must hold at least one window, got none$"):
        train(_Repeat(2), windows, PLAIN, seed=0)
