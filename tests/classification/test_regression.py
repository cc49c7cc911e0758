"""Numbers instead of classes: the same network, loss, split and files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from mvpa_ts.classification import (
    ClassificationConfig,
    ClassificationNetwork,
    ClassificationTraining,
    FittedClassifier,
    FittedRegressor,
    fit_regressor,
)
from mvpa_ts.classification.loop import Part
from mvpa_ts.classification.ridge import _PENALTIES, fit_ridge
from mvpa_ts.classification.training import kernel_share

SMALL = {"tokens": 16, "positions": 32, "width": 8, "dim": 16, "mlp_dim": 16, "kernel_features": 300}


def panel(n: int = 40, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Two channels of unequal length whose frequency is to be found."""
    generator = np.random.default_rng(seed)
    rates = generator.uniform(0.3, 1.5, n)
    series = []
    for rate in rates:
        steps = np.arange(generator.integers(20, 31))
        wave = np.sin(steps * rate + generator.uniform(0, 6))
        series.append(
            np.stack([wave, generator.normal(size=len(steps))]) + 0.1 * generator.normal(size=(2, len(steps)))
        )
    return series, 100.0 + 10.0 * rates


def config(**changes: float) -> ClassificationConfig:
    return ClassificationConfig(2, 1, 30, **{**SMALL, **changes})  # type: ignore[arg-type]


def test_the_number_is_found():
    """Each path alone, and both: far better than the mean on series that were not seen."""
    series, targets = panel(80)
    training = ClassificationTraining(steps=60, evaluate_every=20)
    fitted = fit_regressor(series[:60], targets[:60], config=config(), training=training)
    for share in (None, 0.0, 1.0):  # that of the training, and all of one path
        for network in () if share is None else fitted.networks:
            network.kernel_share.fill_(share)
        error = fitted.predict(series[60:]) - targets[60:]
        assert np.mean(error**2) < 0.3 * np.mean((targets[60:] - targets[:60].mean()) ** 2)


def test_units_of_the_targets_do_not_matter():
    series, targets = panel(16)
    training = ClassificationTraining(steps=3)
    plain, scaled = (
        fit_regressor(series, values, config=config(), training=training).predict(series)
        for values in (targets, 1e6 * targets - 5.0)
    )
    np.testing.assert_allclose(scaled, 1e6 * plain - 5.0, rtol=1e-5)
    constant = fit_regressor(series, np.full(16, 3.0), config=config(), training=training)
    assert constant.predict(series).tolist() == [3.0] * 16


def test_ridge_is_scikit_learns_and_its_rows_are_left_out_for_real():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(14, 5, generator=generator, dtype=torch.float64)
    numbers = features[:, 0] + 0.5 * torch.randn(14, generator=generator, dtype=torch.float64)
    ridge = fit_ridge(features, numbers, torch.ones(14), num_classes=1)
    losses = []
    for penalty in _PENALTIES.tolist():
        kept = [np.delete(np.arange(14), row) for row in range(14)]
        # A penalty counts against the sum over all rows, also where one of them is left out.
        left_out = [
            Ridge(penalty).fit(features[rows].numpy(), numbers[rows].numpy()).predict(features[[row]].numpy())[0]
            for row, rows in enumerate(kept)
        ]
        losses.append(np.mean((np.array(left_out) - numbers.numpy()) ** 2))
        if losses[-1] == min(losses):
            whole, best = Ridge(penalty).fit(features.numpy(), numbers.numpy()), left_out
    assert ridge.loss == pytest.approx(min(losses), rel=1e-6)
    np.testing.assert_allclose(ridge.left_out[:, 0], best, rtol=1e-5)
    np.testing.assert_allclose(ridge.weight[0], whole.coef_, rtol=1e-6)
    np.testing.assert_allclose(ridge.bias, whole.intercept_, rtol=1e-5, atol=1e-8)


def test_the_paths_are_averaged():
    network = ClassificationNetwork(config()).eval()
    with torch.no_grad():
        network.kernel_share.fill_(0.25)
        network.kernels.weight.normal_()  # type: ignore[union-attr]
        x = torch.randn(3, 30, 2)
        parts = [path(x) for path in (network.attention, network.kernels)]  # type: ignore[misc]
        torch.testing.assert_close(network(x), 0.75 * parts[0] + 0.25 * parts[1])


def test_the_share_of_the_paths_follows_the_smaller_error():
    numbers = torch.linspace(-1.0, 1.0, 50)
    part = Part(torch.zeros(50, 30, 2), torch.ones(50, 30, 2, dtype=torch.bool), numbers, 1)

    class Constant(torch.nn.Linear):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 1)

    shares = [
        kernel_share(Constant(1, 1), left_out[:, None], part, ClassificationTraining())  # type: ignore[arg-type]
        for left_out in (numbers, -3.0 * numbers)
    ]
    assert shares[0] > 0.7
    assert shares[1] < 0.3


def test_files_hold_everything(tmp_path):
    series, targets = panel(12)
    fitted = fit_regressor(series, targets, config=config(), training=ClassificationTraining(steps=2))
    fitted.to_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["regressor.json", "regressor.safetensors"]
    again = FittedRegressor.from_files(tmp_path)
    np.testing.assert_array_equal(again.predict(series), fitted.predict(series))
    with pytest.raises(ValueError, match=r"series\[0\] must have the 2 channels that the training had, got 1"):
        again.predict([series[0][:1]])
    with pytest.raises(OSError, match=r"classifier\.json"):
        FittedClassifier.from_files(tmp_path)
    text = (tmp_path / "regressor.json").read_text()
    (tmp_path / "regressor.json").write_text(text.replace('"target_scale": ', '"target_scale": "a", "other": '))
    with pytest.raises(ValueError, match="target_location and target_scale must hold finite numbers"):
        FittedRegressor.from_files(tmp_path)


def test_bad_targets_are_named():
    series, targets = panel(8)
    for wrong in (targets[:-1], np.append(targets[:-1], np.nan), targets.astype(str)):
        with pytest.raises(ValueError, match="targets must be 8 finite numbers, one for each series"):
            fit_regressor(series, wrong, config=config())
    with pytest.raises(ValueError, match=r"config\.num_classes must be 1 for a regression, got 3"):
        fit_regressor(series, targets, config=replace(config(), num_classes=3))
    with pytest.raises(ValueError, match=r"num_channels \(3\) must be the number of channels of the series \(2\)"):
        fit_regressor(series, targets, config=replace(config(), num_channels=3))
