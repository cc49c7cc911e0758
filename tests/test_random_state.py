"""Random numbers of one's own: threads do not take each other's, and the state of the process stays as it was."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mvpa_ts.classification import ClassificationConfig, ClassificationTraining, fit_classifier, fit_regressor
from mvpa_ts.forecasting import ForecasterTraining, ForecastingConfig, Series, fit_forecaster
from mvpa_ts.forecasting.network import ForecastingNetwork
from mvpa_ts.random_state import OwnRandomState

_DRAWS = {
    "a layer": lambda: nn.Linear(5, 7).weight.detach(),
    "dropout": lambda: F.dropout(torch.ones(50), 0.3, training=True),
    "dropout of all": lambda: nn.Dropout(1.0)(torch.ones(5)),
    "dropout in place": lambda: F.dropout(torch.ones(50), 0.3, training=True, inplace=True),
    "numbers": lambda: torch.rand(3) + torch.randn(3) + torch.randint(9, (3,)) + torch.rand_like(torch.ones(3)),
    "an order": lambda: torch.randperm(20),
    "a method": lambda: torch.empty(9).normal_() + torch.empty(9).uniform_(0, 2) + torch.empty(9).bernoulli_(0.5),
    "starts": lambda: nn.init.xavier_uniform_(torch.empty(3, 4)) + nn.init.trunc_normal_(torch.empty(3, 4)),
    "a table": lambda: nn.Embedding(4, 3).weight.detach(),
    "a distribution": lambda: torch.distributions.Normal(0.0, 1.0).sample((4,)),
    "counts": lambda: torch.distributions.NegativeBinomial(3.0, torch.tensor([0.4, 0.6])).sample((4,)),
    "shares": lambda: torch.distributions.Dirichlet(torch.ones(3)).sample(),
    "Student's": lambda: torch.distributions.StudentT(3.0).sample((4,)),
    "choices": lambda: torch.ones(9).multinomial(4),
}


@pytest.mark.parametrize("name", _DRAWS)
def test_the_numbers_are_those_of_torchs_seed_and_the_state_stays(name):
    torch.manual_seed(3)
    expected = _DRAWS[name]()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    with OwnRandomState(3):
        got = _DRAWS[name]()
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_it_goes_on_from_the_state_in_force():
    torch.manual_seed(5)
    with OwnRandomState():
        first = torch.rand(3)
    assert torch.equal(first, torch.rand(3))
    with OwnRandomState(6) as outer:
        with OwnRandomState():
            inner = torch.rand(3)
        assert OwnRandomState.current() is outer
        assert torch.equal(inner, torch.rand(3))
    assert OwnRandomState.current() is None


def test_generators_that_are_given_count():
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7))
    with OwnRandomState(8):
        assert torch.equal(torch.rand(3, generator=torch.Generator().manual_seed(7)), expected)


def _forecaster() -> torch.Tensor:
    values = np.random.default_rng(0).standard_normal((80, 3)).cumsum(0)
    config = ForecastingConfig(
        6, 12, patch_length=6, patch_stride=6, dim=8, mlp_dim=8, attention_dropout=0.2, num_outputs=9,
        num_channels=3, per_channel=("vectors",),
    )  # fmt: skip
    fitted = fit_forecaster([Series(values)], config, ForecasterTraining(steps=20))
    return torch.from_numpy(fitted.predict(Series(values)))


def _panel() -> list[np.ndarray]:
    return [np.sin(np.arange(24) * (0.5 + row % 2))[None] for row in range(12)]


_SMALL = {"dim": 8, "num_heads": 2, "mlp_dim": 8, "width": 8, "conv_layers": 1, "kernel_features": 84}


def _classifier() -> torch.Tensor:
    training = ClassificationTraining(steps=10, num_networks=2)
    labels = [row % 2 for row in range(12)]
    config = ClassificationConfig(1, 2, 24, **_SMALL)  # type: ignore[arg-type]
    return torch.from_numpy(fit_classifier(_panel(), labels, config=config, training=training).predict_proba(_panel()))


def _regressor() -> torch.Tensor:
    config = ClassificationConfig(1, 1, 24, **_SMALL)  # type: ignore[arg-type]
    training = ClassificationTraining(steps=10, num_networks=1)
    fitted = fit_regressor(_panel(), np.arange(12.0), config=config, training=training)
    return torch.from_numpy(fitted.predict(_panel()))


@pytest.mark.parametrize("fit", [_forecaster, _classifier, _regressor])
def test_threads_give_what_one_run_alone_gives(fit):
    torch.manual_seed(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    alone = fit()
    with ThreadPoolExecutor(3) as pool:
        together = [running.result() for running in [pool.submit(fit) for _ in range(3)]]
    for result in together:
        assert torch.equal(result, alone)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[union-attr, index]


def test_files_are_read_without_a_draw(tmp_path):  # type: ignore[no-untyped-def]
    from mvpa_ts.forecasting.fitted import FittedForecaster

    config = ForecastingConfig(6, 12, patch_length=6, patch_stride=6, dim=8, mlp_dim=8)
    FittedForecaster(ForecastingNetwork(config), (0.5,)).to_files(tmp_path)
    before = torch.get_rng_state()
    FittedForecaster.from_files(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
