"""Huge values and training that diverges: a named error, or finite probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mvpa_ts.classification import ClassificationConfig, ClassificationTraining, fit_classifier, loop
from mvpa_ts.classification.panel import Scaler

STEPS = np.arange(24)
SERIES = [np.stack([np.sin(STEPS * (0.5 + row % 2)), np.cos(STEPS)]) for row in range(12)]
LABELS = [row % 2 for row in range(12)]
SMALL = ClassificationConfig(2, 2, 24, width=4, dim=8, mlp_dim=8, num_layers=1, kernel_features=84)


def fit(series: list[np.ndarray], **settings):
    return fit_classifier(
        series, LABELS, config=SMALL, training=ClassificationTraining(**{"steps": 3, "num_networks": 1, **settings})
    )


def with_spike(size: float) -> np.ndarray:
    series = SERIES[0].copy()
    series[1, 3] = size
    return series


@pytest.mark.parametrize("size", [1e9, 1e155, 1e300])
def test_huge_values_in_training_give_finite_probabilities(size):
    for series in ([with_spike(size), *SERIES[1:]], [one * size for one in SERIES]):
        probabilities = fit(series).predict_proba(series)
        assert np.isfinite(probabilities).all()
        np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-5)


@pytest.fixture(scope="module")
def fitted():
    return fit(SERIES)


@pytest.mark.parametrize("size", [1e10, 1e20, 1e155, 1.7e308])
def test_value_far_from_the_training_data_is_named(fitted, size):
    with pytest.raises(ValueError, match=r"channel 1 of series\[1\] holds 1(\.7)?e\+\d+, which lies .* \(NaN\)"):
        fitted.predict_proba([SERIES[0], with_spike(size)])


@pytest.mark.parametrize("size", [1e3, 1e6, 1e8, -1e8, np.nan])
def test_values_below_that_give_finite_probabilities(fitted, size):
    assert np.isfinite(fitted.predict_proba([with_spike(size)])).all()
    assert np.isfinite(fitted.embed([with_spike(size)])).all()


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_training_that_diverges_says_so(validation):
    with pytest.raises(FloatingPointError, match=r"diverged by step \d+ of 40, where .*learning_rate \(1e\+30\)"):
        fit(SERIES, steps=40, learning_rate=1e30, validation=validation)


def test_best_weights_of_a_validation_are_kept():
    class Breaking(torch.nn.Module):
        """Logits that are NaN after eight steps."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.tensor([0.5, 0.0]))
            self.steps = 0

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            self.steps += self.training
            return (self.bias + (torch.nan if self.steps > 8 else 0.0)).expand(len(x), 2)

    part = loop.Part(*Scaler.fit(SERIES).padded(SERIES), torch.tensor(LABELS), 2)
    network = Breaking()
    training = ClassificationTraining(steps=40, evaluate_every=4, patience=10, weight_averaging=0.0)
    with pytest.warns(UserWarning, match="diverged by step 10 of 40.*the weights of step 8 are kept"):
        best = loop.train_network(network, part, part, training, steps=40, seed=0)
    assert best == 8
    assert network.bias.isfinite().all()


def test_without_blocks_the_convolutions_are_read_as_they_are():
    """No weights of attention are left, and the classifier still trains."""
    none = replace(SMALL, num_layers=0)
    fitted = fit_classifier(SERIES, LABELS, config=none, training=ClassificationTraining(steps=3, num_networks=1))
    np.testing.assert_allclose(fitted.predict_proba(SERIES).sum(1), 1.0, rtol=1e-5)
    assert all("blocks" not in name for name, _ in fitted.networks[0].named_parameters())
    with pytest.raises(ValueError, match="num_layers"):
        replace(SMALL, num_layers=-1)
