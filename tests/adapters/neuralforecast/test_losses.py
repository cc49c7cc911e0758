"""Every loss of the host: series and outputs are never mixed up, levels hold, quantiles do not cross."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from neuralforecast.losses import pytorch as host

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.neuralforecast.training import flattened

POINT = {
    "MAE": host.MAE,
    "MSE": host.MSE,
    "RMSE": host.RMSE,
    "MAPE": host.MAPE,
    "SMAPE": host.SMAPE,
    "MASE": lambda: host.MASE(seasonality=1),
    "FreDF": host.FreDF,
    "HuberLoss": host.HuberLoss,
    "QuantileLoss": lambda: host.QuantileLoss(0.3),
    "HuberQLoss": lambda: host.HuberQLoss(0.3),
    "IQLoss": host.IQLoss,
    "HuberIQLoss": host.HuberIQLoss,
}
MULTI = {
    "MQLoss": lambda: host.MQLoss(level=[50, 80]),
    "HuberMQLoss": lambda: host.HuberMQLoss(quantiles=[0.9, 0.1, 0.5]),
}
DISTRIBUTIONS = {
    **{
        name: (lambda name=name: host.DistributionLoss(name, num_samples=50))
        for name in ("Normal", "StudentT", "Poisson", "NegativeBinomial", "Bernoulli", "ISQF")
    },
    "Tweedie": lambda: host.DistributionLoss("Tweedie", rho=1.5, num_samples=50),
    "PMM": lambda: host.PMM(n_components=3, num_samples=50),
    "GMM": lambda: host.GMM(n_components=3, weighted=True, num_samples=50),
    "NBMM": lambda: host.NBMM(n_components=2, weighted=True, num_samples=50),
}
LOSSES = {**POINT, **MULTI, **DISTRIBUTIONS}
UNSCALED = {"Bernoulli"}  # its mean is a probability


def outputs(model: Any, data: Any) -> np.ndarray:
    """What the model says of each series, [N, …]: parameters of a distribution, before sampling, or the forecast."""
    if not model.loss.is_distribution_output:
        return model.predict(data).reshape(len(data), -1)
    arguments: list[torch.Tensor] = []
    sample = model.loss.sample
    model.loss.sample = lambda distr_args, **options: (
        arguments.extend(distr_args) or sample(distr_args=distr_args, **options)
    )
    try:
        model.predict(data)
    finally:
        del model.loss.sample
    tensors = [tensor for tensor in arguments if isinstance(tensor, torch.Tensor)]
    return torch.cat([tensor.movedim(2, 0).flatten(1) for tensor in tensors], 1).numpy()


@pytest.fixture
def two_panels(panel: Callable, dataset: Callable) -> Callable:
    """The same series twice: by name, and renamed so that the host sorts them in another order."""

    def make(order: list[int]) -> tuple[Any, Any]:
        frame = panel(len(order))
        frame["y"] = (frame["y"] / 10).round()  # counts
        names = sorted(frame["unique_id"].unique())
        renamed = {names[old]: names[new] for new, old in enumerate(order)}
        return dataset(frame), dataset(frame.assign(unique_id=frame["unique_id"].map(renamed)))

    return make


@pytest.mark.parametrize("name", LOSSES)
def test_permuting_series_permutes_the_forecast(name, tiny, awaken, two_panels):
    order = [2, 0, 3, 1]
    model = awaken(tiny(loss=LOSSES[name](), components=["content", "time"]))
    here, there = (outputs(model, data) for data in two_panels(order))
    np.testing.assert_allclose(there, here[order], rtol=2e-4, atol=2e-4)
    assert not np.allclose(here, here[order], rtol=1e-2), "series must differ, or the test proves nothing"


@pytest.mark.parametrize("name", LOSSES)
def test_forecasts_keep_each_series_at_its_level(name, tiny, panel, fit):
    frame = panel(4)
    if name == "Bernoulli":
        frame["y"] = (frame["y"] % 2 > 1) * 1.0
    elif name in DISTRIBUTIONS:
        frame["y"] = frame["y"].round()
    model = tiny(loss=LOSSES[name](), max_steps=3, learning_rate=1e-2)
    forecast = fit(model, frame, val_size=6).predict().set_index("unique_id").drop(columns="ds")
    assert np.isfinite(forecast.to_numpy()).all()
    if name in UNSCALED:
        assert forecast.to_numpy().min() >= 0
        assert forecast.to_numpy().max() <= 1
        return
    level = forecast.iloc[:, 0].groupby("unique_id").mean()
    expected = 100.0 * np.arange(1, 5)
    # Untrained, some distributions of counts start at a fraction of the mean.
    tolerance = 0.6 if name in ("NegativeBinomial", "NBMM", "Tweedie") else 0.2
    np.testing.assert_allclose(level, expected, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("name", "slope"),
    [("Poisson", -1), ("NegativeBinomial", 1), ("NegativeBinomial", -1), ("Tweedie", -1), ("PMM", -1), ("NBMM", 1),
     ("NBMM", -1)],
)  # fmt: skip
def test_counts_of_any_level_are_forecast_near_their_level(name, slope, tiny, panel, fit):
    frame = panel(2, rows=80)
    steps = np.tile(np.linspace(-1, 1, 80), 2) * slope
    level = np.where(frame["unique_id"] == "s00", 1000, 8)
    frame["y"] = np.random.default_rng(0).poisson(level * (1 + 0.6 * steps))
    model = tiny(2, loss=DISTRIBUTIONS[name](), max_steps=50, learning_rate=3e-2, encoder_layers=1)
    fitted = fit(model, frame)
    last = frame.groupby("unique_id")["y"].apply(lambda values: values.tail(6).mean())
    forecast = fitted.predict().groupby("unique_id")["MVPA"].mean()
    np.testing.assert_allclose(forecast, last, rtol=0.45)


@pytest.mark.parametrize("quantiles", [None, [0.9, 0.05, 0.5, 0.2]], ids=["level", "unsorted"])
@pytest.mark.parametrize("loss", [host.MQLoss, host.HuberMQLoss])
@pytest.mark.parametrize("state", ["untrained", "badly trained"])
def test_quantiles_never_cross(
    loss, quantiles, state, tiny, awaken, panel,
    dataset
):  # fmt: skip
    chosen = loss(quantiles=quantiles) if quantiles else loss(level=[20, 50, 90])
    model, data = tiny(loss=chosen, learning_rate=1.0), dataset(panel(4))
    if state == "untrained":
        awaken(model)
    else:
        model.fit(data)
    forecast = model.predict(data)
    ascending = forecast[:, chosen.quantiles.argsort().numpy()]
    assert (np.diff(ascending, axis=1) >= 0).all()
    assert (np.diff(ascending, axis=1) > 0).any()


LOCATIONS = {  # among what domain_map returns; ISQF's knots are summed up from the lowest
    "StudentT": 1,
    "ISQF": 4,
    **dict.fromkeys(["Normal", "Poisson", "NegativeBinomial", "Bernoulli", "Tweedie", "PMM", "GMM", "NBMM"], 0),
}


@pytest.mark.parametrize("name", LOCATIONS)
def test_a_cycle_moves_the_location_of_a_distribution_and_nothing_else(name, tiny):
    model = tiny(2, loss=DISTRIBUTIONS[name](), cycle_length=4, cycle_column="phase", futr_exog_list=["phase"])
    torch.nn.init.zeros_(model.network.linear.weight)  # the cycle's way through the look-back
    batch = {
        "insample_y": torch.zeros(1, 12, 2),
        "insample_mask": torch.ones(1, 12, 2),
        "futr_exog": torch.arange(18.0)[None, None, :, None].expand(1, 1, 18, 2),
        "hist_exog": None,
        "stat_exog": None,
    }
    mapped = []
    for size in (0.0, 1.0):
        torch.nn.init.constant_(model.network.cycle, size)
        mapped.append(model.loss.domain_map(model(batch)))
    moved = [
        i
        for i, (before, after) in enumerate(zip(*mapped, strict=True))
        if isinstance(before, torch.Tensor) and not torch.allclose(before, after)
    ]
    i = LOCATIONS[name]
    assert moved == [i]
    torch.testing.assert_close(mapped[1][i] - mapped[0][i], torch.ones_like(mapped[0][i]))


@pytest.mark.parametrize("name", LOSSES)
def test_layout_matches_the_host(name):
    """A canary: the host takes apart what `flattened` put together."""
    loss = LOSSES[name]()
    m, N = loss.outputsize_multiplier, 3
    marked = torch.arange(N * m, dtype=torch.float32).reshape(1, 1, N, m).expand(2, 5, N, m)
    if name in POINT or name in ("Tweedie", "ISQF"):
        assert flattened(marked, loss).shape == (2, 5, N * m)
        return
    mapped = loss.domain_map(flattened(marked, loss))
    parts = torch.cat([part if part.ndim == 4 else part[..., None] for part in mapped], -1) if m > 1 else mapped[0]
    if name in MULTI:
        parts = mapped
    torch.testing.assert_close(parts.reshape(2, 5, N, m), marked)


def test_implicit_quantiles_train_on_all_after_a_prediction(tiny, panel, dataset):
    """After a prediction the host would train on that prediction's quantile alone."""
    model, data = tiny(loss=host.IQLoss()), dataset(panel(4))
    model.fit(data)
    model.predict(data, quantiles=[0.9])
    model.fit(data)
    assert isinstance(model.loss.q, torch.Tensor)


def test_validation_of_counts_sees_the_look_back_as_it_was(tiny, panel, dataset, monkeypatch):
    """The host scales the look-back back for the validation loss: not by what anchors a count distribution."""
    seen = {}
    monkeypatch.setattr(
        host.MAE, "__call__", lambda self, y, y_hat, y_insample, mask: seen.update(locals()) or y.mean()
    )
    loss = host.DistributionLoss("NegativeBinomial", num_samples=20)
    frame = panel(4)
    frame["y"] = frame["y"].round()
    tiny(loss=loss, valid_loss=host.MAE()).fit(dataset(frame), val_size=6)
    expected = frame["y"].to_numpy().reshape(4, 60)[:, -18:-6].T
    np.testing.assert_allclose(seen["y_insample"][0].numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_one_of_network_and_host_normalises(name, tiny):
    """The network must not undo a normalisation on the parameters of a distribution: only the host can."""
    model = tiny(loss=LOSSES[name]())
    by_host = name in DISTRIBUTIONS or name in ("IQLoss", "HuberIQLoss")
    assert model.network.config.normalise is not by_host
    assert model.scaler.scaler_type == ("standard" if by_host else "identity")
    assert not tiny(loss=LOSSES[name](), scaler_type="robust", network={"normalise": False}).network.config.normalise


@pytest.mark.parametrize("scaler", ["identity", "robust", "minmax", "minmax1", "revin", "invariant"])
@pytest.mark.parametrize("name", ["MAE", "MQLoss", "Normal"])
def test_a_chosen_scaler_is_honoured(scaler, name, tiny, panel, dataset):
    model, data = tiny(loss=LOSSES[name](), scaler_type=scaler), dataset(panel(4))
    assert model.scaler.scaler_type == scaler
    model.fit(data)
    assert np.isfinite(model.predict(data)).all()


def test_quantiles_start_in_order_around_the_mean():
    # Levels of 80 and 95 %; the host puts the median first.
    model = MVPA(h=3, input_size=24, n_series=2, loss=host.MQLoss(level=[80, 95]), network={"regressions": False})
    windows = torch.randn(4, 24, 2, generator=torch.Generator().manual_seed(0)) * 5 + 20
    batch = {"insample_y": windows, "insample_mask": torch.ones_like(windows)}
    with torch.no_grad():
        forecast = model.eval()({**batch, "hist_exog": None, "futr_exog": None, "stat_exog": None})
    forecast = forecast.reshape(4, 3, 2, 5).mT  # [window, step, quantile, series]
    normal = torch.tensor([NormalDist().inv_cdf(level) for level in (0.5, 0.025, 0.1, 0.9, 0.975)])[:, None]
    expected = windows.mean(1)[:, None, None] + normal * windows.std(1, correction=0)[:, None, None]
    torch.testing.assert_close(forecast, expected.expand_as(forecast), rtol=1e-4, atol=1e-3)
