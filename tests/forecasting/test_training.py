"""Training on masked windows: which rows are read, learned and held out, against loops over them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.made_up_networks import damage, identity, series

from mvpa_ts.forecasting.fitted import FittedForecaster, fit_forecaster
from mvpa_ts.forecasting.network.configuration import FeatureSizes, ForecastingConfig
from mvpa_ts.forecasting.quantiles import LEVELS
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.windows import Scaling, Series

L, H = 8, 3


def config(**changes: Any) -> ForecastingConfig:
    small = {"patch_length": 4, "patch_stride": 2, "dim": 8, "num_heads": 2, "mlp_dim": 8, "num_outputs": len(LEVELS)}
    return ForecastingConfig(H, L, **{**small, **changes})


def fit(given: list[Series], training: ForecasterTraining | None = None, **options: Any) -> FittedForecaster:
    features = 0 if given[0].features is None else given[0].features.shape[1]
    return fit_forecaster(
        given, config(feature_sizes=FeatureSizes(features)), training or ForecasterTraining(steps=3), **options
    )


def weights(fitted: FittedForecaster) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in fitted.network.parameters()])


def bounds(fitted: FittedForecaster) -> np.ndarray:
    return np.stack([fitted.network.lower.numpy(), fitted.network.upper.numpy()])


class TestTraining:
    def test_learns(self):
        given = series(120)
        fitted = fit([Series(given.values[:-H])], ForecasterTraining(steps=40, learning_rate=0.03))
        error = abs(fitted.predict(Series(given.values[:-H]))[..., 4] - given.values[-H:]).mean()
        assert error < 0.3

    def test_held_out_rows_are_not_learned(self):
        """Weights that are kept at the end differ only by which validation is best, so look at a single step."""
        given, other = series(), series()
        other.values[-8:] += 5
        scaling = [Scaling.of(given.values)]
        training = ForecasterTraining(steps=1, validation_fraction=0.2)
        first, second = (fit([one], training, scalings=scaling) for one in (given, other))
        assert torch.equal(weights(first), weights(second))
        without = ForecasterTraining(steps=1)
        first, second = (fit([one], without, scalings=scaling) for one in (given, other))
        assert not torch.equal(weights(first), weights(second))

    def test_the_best_validated_weights_are_kept(self):
        # Nothing to learn, at a rate at which the weights never come to rest: the last are no better than any others.
        given = Series(np.random.default_rng(1).normal(size=(60, 1)))
        training = ForecasterTraining(
            steps=20,
            learning_rate=0.3,
            schedule="constant",
            full_rate_steps=None,
            weight_averaging=None,
            validation_fraction=0.3,
        )
        scaling = [Scaling.of(given.values)]
        best, last = (fit([given], replace(training, keep=keep), scalings=scaling) for keep in ("best", "last"))

        def error(fitted: FittedForecaster) -> float:
            """The pinball loss over the windows whose targets are held out, which validation compares."""
            losses = []
            for end in range(42, 61 - H):
                forecast = fitted.predict(Series(given.values[:end]), *scaling)
                beyond = given.values[end : end + H].reshape(H, 1, 1) - forecast.reshape(H, 1, len(LEVELS))
                losses.append(np.maximum(beyond * LEVELS, beyond * (np.array(LEVELS) - 1.0)))
            return float(np.mean(losses))

        assert error(best) < error(last)

    def test_patience_stops(self):
        told: list[int] = []
        given = Series(np.random.default_rng(0).normal(size=(60, 1)))
        training = ForecasterTraining(steps=100, learning_rate=0.3, validation_fraction=0.3, patience=2)
        fit([given], training, progress=lambda step, loss: told.append(step))
        assert told == list(range(1, len(told) + 1))
        assert len(told) < 100

    @pytest.mark.parametrize("steps", [0, 1, 2, 7])
    def test_any_number_of_steps(self, steps):
        told: list[int] = []
        fit([series()], ForecasterTraining(steps=steps), progress=lambda step, loss: told.append(step))
        assert len(told) == steps

    def test_the_linear_path_has_its_own_learning_rate(self):
        """Adam's first step moves every weight by the learning rate, whatever its gradient."""
        training = ForecasterTraining(steps=1, weight_averaging=None, learning_rate=1e-3)
        networks = [fit([series()], replace(training, linear_learning_rate=rate)).network for rate in (None, 2e-2)]
        linear, further = (network.linear.weight.abs().mean().item() for network in networks)
        assert linear == pytest.approx(1.5 * further, rel=1e-3)  # 30 times the learning rate by default
        head, same = (network.encoder.head.weight for network in networks)
        torch.testing.assert_close(head, same)
        with pytest.raises(ValueError, match="linear_learning_rate must be positive or None, got 0"):
            ForecasterTraining(linear_learning_rate=0)

    def test_missing_values_do_not_matter_whatever_they_were(self):
        given = series()
        given.values[10:14, 1] = np.nan
        assert np.isfinite(fit([given]).predict(given)).all()

    def test_goes_on_from_a_start_without_touching_it(self):
        start = fit([series()])
        before = weights(start).clone()
        further = fit([series(seed=1)], start=start, seed=np.int64(0))
        assert torch.equal(weights(start), before)
        assert not torch.equal(weights(further), before)
        same = fit([series(seed=1)], ForecasterTraining(steps=0), start=start)
        assert torch.equal(weights(same), before)


@pytest.fixture
def schedule(monkeypatch):
    """Groups of parameters and the number of steps with which a training begins."""

    def begin(**options: Any) -> tuple[list[dict[str, Any]], int]:
        monkeypatch.setattr("mvpa_ts.training.one_cycle", caught)
        with pytest.raises(InterruptedError) as begun:
            fit([series(40)], ForecasterTraining(learning_rate=0.01, linear_learning_rate=0.1, **options))
        return begun.value.args

    def caught(optimizer: torch.optim.Optimizer, total: int) -> None:
        raise InterruptedError(optimizer.param_groups, total)

    return begin


@pytest.mark.parametrize(
    ("steps", "options", "share"),
    [
        (30, {}, 1.0),
        (40, {}, 0.75),
        (900, {}, 0.05),
        (15, {"full_rate_steps": 0.1}, 0.2),
        (40, {"full_rate_steps": None}, 1.0),
        (12, {"epochs": 13}, 1.0),
    ],
)
def test_few_windows_lower_the_rates(steps, options, share, schedule):
    """Of 32 windows, two with a part of their horizon only; the attention path's rate goes down most."""
    groups, total = schedule(steps=steps, **options)
    assert [group["lr"] for group in groups] == pytest.approx([0.01 * share**2, 0.1 * share])
    assert total == (13 if "epochs" in options else steps)


@pytest.mark.parametrize(("options", "count"), [({}, 3), ({"full_rate_steps": None}, 2), ({"epochs": 1}, 2)])
def test_heads_that_read_unrelated_channels_learn_slowly(options, count, schedule, monkeypatch):
    monkeypatch.setattr("mvpa_ts.forecasting.training.mixing_share", lambda windows: 0.25)
    groups, _ = schedule(steps=9, **options)
    assert [group["lr"] for group in groups] == pytest.approx([0.01, 0.0025, 0.1] if count == 3 else [0.01, 0.1])
    if count == 3:
        assert len(groups[1]["params"]) == 3  # maps, scores by distance, score of nothing


class TestPrediction:
    def test_order_and_scale(self):
        given = series()
        fitted = fit([given])
        quantiles = fitted.predict(given)
        assert quantiles.shape == (H, 2, len(LEVELS))
        assert (np.diff(quantiles, axis=-1) >= 0).all()
        moved = fitted.predict(Series(1e4 + 50 * given.values))
        np.testing.assert_allclose(moved, 1e4 + 50 * quantiles, atol=0.01)

    def test_rows_before_the_look_back_do_not_matter(self):
        given = series(features=1, ahead=H)
        fitted, scaling = fit([given]), Scaling.of(given.values)
        short = Series(given.values[-L:], given.features[-L - H :])
        np.testing.assert_array_equal(fitted.predict(given, scaling), fitted.predict(short, scaling))

    def test_a_series_shorter_than_the_look_back(self):
        assert np.isfinite(fit([series()]).predict(series(1))).all()

    def test_needs_its_features(self):
        fitted = fit([series(features=1)])
        with pytest.raises(ValueError, match=r"features must reach horizon \(3\) rows past the values"):
            fitted.predict(series(features=1, ahead=2))
        with pytest.raises(ValueError, match=r"which makes 43 rows, got 0"):
            fitted.predict(series())

    def test_one_feature_is_not_taken_for_two(self):
        fitted = fit([series(features=2)])
        with pytest.raises(ValueError, match=r"^features must have 2 columns \(feature_sizes.future\), got 1$"):
            fitted.predict(series(features=1, ahead=H))


class TestErrors:
    def test_what_does_not_fit_together(self):
        with pytest.raises(ValueError, match="at least one series"):
            fit_forecaster([], config(), ForecasterTraining())
        with pytest.raises(ValueError, match=r"the same number of channels, got \[1, 2\]"):
            fit([series(channels=1), series()])
        with pytest.raises(ValueError, match=r"1 columns \(feature_sizes.future\)"):
            fit_forecaster([series()], config(feature_sizes=FeatureSizes(1)), ForecasterTraining())
        with pytest.raises(ValueError, match=r"num_outputs \(9\) must be the number of levels \(1\)"):
            fit([series()], levels=[0.5])
        with pytest.raises(ValueError, match=r"scalings must be 2, one for each series, got 1"):
            fit([series(), series()], scalings=[identity(2)])
        with pytest.raises(ValueError, match="start must have the same config"):
            fit_forecaster([series()], config(dim=16), ForecasterTraining(), start=fit([series()]))

    def test_nothing_to_learn(self):
        given = series()
        given.values[3:] = np.nan
        with pytest.raises(ValueError, match=r"hold no training window with an observed target"):
            fit([given])

    @pytest.mark.parametrize(
        "change", [{"steps": -1}, {"batch_size": 0}, {"learning_rate": 0.0}, {"weight_averaging": 1.0},
                   {"validation_fraction": 1.0}, {"patience": 1}, {"weight_decay": -1.0}, {"full_rate_steps": 0.0}],
    )  # fmt: skip
    def test_training(self, change):
        with pytest.raises(ValueError, match=next(iter(change))):
            ForecasterTraining(**change)


def test_bounds_are_the_range_of_the_series(tmp_path):
    given = series(channels=3)
    given.values[:, 0] = np.maximum(given.values[:, 0], 0.0)  # half of them are zero
    given.values[5:9, 1] = np.nan
    given.values[:, 2] = np.nan
    options = {"learning_rate": 0.1, "weight_averaging": None}
    scaling = Scaling.of(given.values)
    fits = [
        fit_forecaster([given], config(num_channels=3, per_channel=(option,)), ForecasterTraining(steps=10, **options))
        for option in ("vectors", "bounds")
    ]
    low, high = np.nanmin(given.values[:, :2], 0)[:, None], np.nanmax(given.values[:, :2], 0)[:, None]
    forecasts = [[fit.predict(Series(given.values[:end]), scaling)[:, :2] for fit in fits] for end in range(10, 40, 3)]
    free, bounded = map(np.stack, zip(*forecasts, strict=True))
    assert ((free < low - 0.01) | (free > high + 0.01)).any()
    assert ((bounded >= low - 1e-6) & (bounded <= high + 1e-6)).all()
    assert (np.abs(bounded[:, :, 0]) < 1e-6).any()
    assert bounds(fits[1])[0, 2] < -1e38
    assert bounds(fits[1])[1, 2] > 1e38
    fits[1].to_files(tmp_path)
    again = FittedForecaster.from_files(tmp_path)
    np.testing.assert_array_equal(again.predict(given, scaling), fits[1].predict(given, scaling))
    # Another series, another range.
    other = Series(10.0 + 3.0 * series(channels=3, seed=1).values)
    moved = fit_forecaster([other], fits[1].config, ForecasterTraining(steps=0), start=fits[1])
    scaled = Scaling.of(other.values).apply(other.values)
    np.testing.assert_allclose(bounds(moved), [scaled.min(0), scaled.max(0)], rtol=1e-6)
    np.testing.assert_array_equal(bounds(fits[1]), bounds(again))  # those it started from


def test_files(tmp_path):
    given = series(features=2, ahead=H)
    fitted = fit([given])
    fitted.to_files(tmp_path)
    again = FittedForecaster.from_files(tmp_path)
    assert again.config == fitted.config
    np.testing.assert_array_equal(again.predict(given), fitted.predict(given))
    other = fit_forecaster([series()], config(dim=16), ForecasterTraining(steps=0))
    other.to_files(tmp_path / "other")
    weights = (tmp_path / "other" / "forecaster.safetensors").rename(tmp_path / "forecaster.safetensors")
    with pytest.raises(ValueError, match="does not fit"):
        FittedForecaster.from_files(tmp_path)
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"forecaster\.safetensors is damaged"):
        FittedForecaster.from_files(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": None}, "levels must hold finite numbers"),
        ({"levels": [0.5]}, "levels must be .*, as num_outputs says, got 1"),
        (
            {"feature_scaling": {"location": [1.0, 2.0], "scale": ["x", 1.0], "lower": [0.0], "upper": [1.0]}},
            "feature_scaling must hold 2 finite numbers",
        ),
        ({"feature_scaling": [1.0]}, "feature_scaling must hold a JSON object with the fields of FeatureScaling"),
        ({"feature_names": 3}, "feature_names must be a list of names"),
        ({"channel_scales": ["1"]}, "channel_scales must hold finite numbers"),
        ({"config": None}, "must hold a JSON object with the fields of ForecastingConfig"),
        ({"config.mlp_dim": 10**9}, "mlp_dim must lie between 0 and"),
        ({"config.num_layers": 10**7}, "num_layers must lie between 0 and"),
        ({"config.lookback": "12"}, "ForecastingConfig|lookback"),
        ({"-levels": 0}, "has no levels: it is damaged"),
    ],
)
def test_a_damaged_description_is_named(tmp_path, change, message):
    fit([series(features=2, ahead=H)], levels=LEVELS).to_files(tmp_path)
    damage(tmp_path / "forecaster.json", change)
    with pytest.raises(ValueError, match=message):
        FittedForecaster.from_files(tmp_path)
