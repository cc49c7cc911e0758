"""A stack of MVPA blocks in data-parallel training: two processes give the gradients of one on the joined batch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from support.distributed_gradients import PROCESSES, batch, loss, process, stack
from torch import distributed

from mvpa_ts import ForecastingConfig, ForecastingNetwork


@pytest.mark.skipif(not distributed.is_available(), reason="this torch is built without distributed training")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_are_those_of_one_process(kind: str, tmp_path: Path) -> None:
    mp.spawn(process, (kind, str(tmp_path)), nprocs=PROCESSES)
    model = stack()
    loss(model, *batch()).backward()
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=True)
    expected = dict(model.named_parameters())
    assert gradients.keys() == expected.keys()
    for name, parameter in expected.items():
        torch.testing.assert_close(gradients[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("masked", [False, True])
def test_every_parameter_of_the_forecasting_network_gets_a_gradient(masked: bool) -> None:
    network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=96))
    unmasked = copy.deepcopy(network)
    x = torch.randn(2, 96, 3)
    mask = torch.ones_like(x, dtype=torch.bool) if masked else None
    network(x, mask=mask).square().sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []
    torch.testing.assert_close(network(x), unmasked(x, mask=torch.ones_like(x, dtype=torch.bool)))
