"""The fixed-kernel path against loops, and the ridge against scikit-learn and against leaving out for real."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.classification import panel, ridge
from mvpa_ts.classification.kernels import FixedKernels, KernelPath, interval_statistics


def test_shares_against_loops():
    torch.manual_seed(0)
    x = torch.randn(3, 2, 40)
    real = torch.ones(3, 40, dtype=torch.bool)
    real[1, 25:] = False
    x[1, :, 25:] = 0.0
    kernels = FixedKernels(2, 40, 600, seed=3)
    kernels.fit(x, real, torch.Generator().manual_seed(0))
    shares = kernels(x, real)
    taps = list(itertools.combinations(range(9), 3))
    column, checked = 0, 0
    for index, dilation in enumerate(kernels.dilations):
        for threshold in range(kernels.thresholds.shape[2]):
            for row in range(84):
                if row % 17 == 0:
                    weights = [2.0 if tap in taps[row] else -1.0 for tap in range(9)]
                    for b in range(3):
                        above = 0
                        steps = int(real[b].sum())
                        for t in range(steps):
                            response = 0.0
                            for tap, weight in enumerate(weights):
                                source = t + (tap - 4) * dilation
                                if 0 <= source < 40:
                                    for c in range(2):
                                        if kernels.subsets[index, row, c]:
                                            response += weight * x[b, c, source].item()
                            above += response > kernels.thresholds[index, row, threshold].item()
                        assert shares[b, column].item() == pytest.approx(above / steps, abs=1e-6)
                        checked += 1
                column += 1
    assert column == kernels.num_features == shares.shape[1]
    assert checked > 50


def test_thresholds_spread_over_the_responses():
    torch.manual_seed(0)
    x, real = torch.randn(30, 2, 60), torch.ones(30, 60, dtype=torch.bool)
    kernels = FixedKernels(2, 60, 2000)
    kernels.fit(x, real, torch.Generator().manual_seed(0))
    shares = kernels(x, real).mean(0)
    assert 0.4 < shares.mean() < 0.6
    histogram = torch.histc(shares, 5, 0, 1)
    assert histogram.min() > 0.1 * len(shares)


def test_long_series_take_bounded_memory(monkeypatch):
    torch.manual_seed(0)
    x, real = torch.randn(4, 1, 3000), torch.ones(4, 3000, dtype=torch.bool)
    real[0, 100:] = False
    whole, parts = FixedKernels(1, 3000, 500), FixedKernels(1, 3000, 500)
    whole.fit(x, real, torch.Generator().manual_seed(0))
    at_once = []

    def responses(x: Tensor, index: int) -> Tensor:
        at_once.append(len(x) * x.shape[2])
        return whole._responses(x, index)

    monkeypatch.setattr(parts, "_responses", responses)
    monkeypatch.setattr("mvpa_ts.classification.kernels._BATCH_STEPS", 3000)
    parts.fit(x, real, torch.Generator().manual_seed(0))
    assert set(at_once) == {3000}
    torch.testing.assert_close(parts.thresholds, whole.thresholds)
    monkeypatch.setattr("mvpa_ts.classification.kernels._THRESHOLD_STEPS", 1000)
    parts.fit(x, real, torch.Generator().manual_seed(0))
    assert 0.0 < (parts.thresholds - whole.thresholds).abs().mean() < 0.1 * whole.thresholds.std()

    assert [len(batch) for batch in panel.batches(20 * [np.zeros((1, 100_000))])] == 10 * [2]


def test_a_flat_series_responds_nowhere_by_rounding():
    torch.manual_seed(0)
    kernels = FixedKernels(1, 200, 1000)
    x, real = torch.full((4, 1, 200), 0.1), torch.ones(4, 200, dtype=torch.bool)
    kernels.fit(x, real, torch.Generator().manual_seed(0))
    for index in range(3):
        responses = kernels._responses(x, index)[:, :, 80:81]  # zero but for rounding, far from both ends
        assert responses.abs().max() < 1e-6
        assert (responses - kernels.thresholds[index]).abs().min() > 1e-6


def test_interval_statistics_against_numpy():
    torch.manual_seed(0)
    x, real = torch.randn(2, 3, 11), torch.ones(2, 11, dtype=torch.bool)
    real[1, 7:] = False
    found = interval_statistics(x, real, 2)
    assert found.shape == (2, 2 * 3 * 3)
    for b, bounds in enumerate([(0, 11, 0, 6, 6, 11), (0, 7, 0, 4, 4, 7)]):
        expected: list[float] = []
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            part = x[b, :, start:stop].double().numpy()
            expected += part.mean(1).tolist() + np.log(np.sqrt(part.var(1) + 1e-4)).tolist()
        np.testing.assert_allclose(found[b], expected, rtol=1e-4, atol=1e-5)
    assert KernelPath(963, 2, 50, 500).depth == 1
    assert KernelPath(3, 2, 50, 500).depth == 4


def left_out_scores(
    features: np.ndarray, target: np.ndarray, weights: np.ndarray, penalty: float, copies: int
) -> np.ndarray:
    """Scores of each series by a ridge that was fitted without it and its copies."""
    n = len(target) // copies
    scores = np.empty((n, target.shape[1]))
    for row in range(n):
        kept = np.arange(len(target)) % n != row
        model = Ridge(alpha=penalty).fit(features[kept], target[kept], sample_weight=weights[kept])
        scores[row] = model.predict(features[[row]])
    return scores


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(("n", "P"), [(12, 40), (30, 8)])  # dual and primal
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_equals_the_best_of_really_leaving_out(n, P, copies, weighted):
    generator = np.random.default_rng(1)
    labels = np.arange(n) % 3
    base = generator.normal(size=(n, P)) + 0.8 * np.eye(3, P)[labels] * 2
    features = np.concatenate([base + 0.3 * index * generator.normal(size=base.shape) for index in range(copies)])
    weights = generator.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    target = np.tile(2.0 * np.eye(3)[labels] - 1.0, (copies, 1))
    rows = np.tile(weights / weights.mean(), copies)

    best = (np.inf, 0.0, 0.0)
    for penalty in ridge._PENALTIES.tolist():
        scores = torch.tensor(left_out_scores(features, target, rows, penalty, copies))
        for factor in ridge._SHARPNESS.tolist():
            losses = F.cross_entropy(scores * factor, torch.tensor(labels), reduction="none").numpy()
            best = min(best, (float((losses * weights).sum() / weights.sum()), penalty, factor))
    smallest, penalty, factor = best
    model = Ridge(alpha=penalty).fit(features, target, sample_weight=rows)

    weight, bias, left_out, loss = ridge.fit_ridge(
        torch.tensor(features), torch.tensor(labels), torch.tensor(weights), num_classes=3, copies=copies
    )
    assert loss == pytest.approx(smallest, rel=0.02)
    expected = factor * left_out_scores(features, target, rows, penalty, copies)
    np.testing.assert_allclose(left_out, expected, rtol=0.1, atol=0.1)
    # Leaving out shifts the intercept too; the closed form treats it as fixed by n, hence the tolerance.
    np.testing.assert_allclose(weight, factor * model.coef_, rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(bias, factor * model.intercept_, rtol=0.02, atol=1e-2)


def test_path_learns_and_is_calibrated():
    generator = torch.Generator().manual_seed(0)
    steps = torch.arange(60)

    def panel(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(n) % 2
        wave = torch.sin(steps * (0.3 + 0.1 * labels[:, None]) + 6 * torch.rand(n, 1, generator=generator))
        return (wave + torch.randn(n, 60, generator=generator))[:, :, None], labels

    (x, labels), (other, other_labels) = panel(60), panel(200)
    path = KernelPath(1, 2, 60, 2000)
    assert torch.equal(path(x), torch.zeros(60, 2))  # before it is fitted
    path.fit(x, torch.ones_like(x, dtype=torch.bool), labels, torch.ones(60))
    probability = path(other).softmax(1)
    correct = (probability.argmax(1) == other_labels).float().mean()
    assert correct > 0.75
    assert abs(probability.amax(1).mean() - correct) < 0.1
