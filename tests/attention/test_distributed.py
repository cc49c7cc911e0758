"""A stack of MVPA blocks in data-parallel training: two processes give the gradients of one on the joined batch."""

from __future__ import annotations

import copy
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, distributed, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork, MVPAttention
from mvpa_ts.blocks import MVPAStack, ParallelBlock, SwiGLU

PROCESSES = 2


def stack() -> MVPAStack:
    torch.manual_seed(0)
    blocks = [ParallelBlock(MVPAttention(16, 4, 2, window=1), SwiGLU(16, 24), 16) for _ in range(2)]
    return MVPAStack(blocks, 16, time_rows=5, channel_rows=3)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2 * PROCESSES, 5, 3, 16, generator=generator)
    mask = torch.rand(2 * PROCESSES, 5, 3, generator=generator) > 0.2
    return x, mask


def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    return model(x, token_mask=mask).square().mean()


def process(rank: int, kind: str, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES)
    model: nn.Module = stack()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (PROCESSES,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    x, mask = (part.chunk(PROCESSES)[rank] for part in batch())
    loss(model, x, mask).backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        gradient = parameter.grad
        gradients[name.removeprefix("module.")] = gradient.full_tensor() if kind == "fsdp" else gradient
    if rank == 0:
        torch.save(gradients, Path(folder) / "gradients.pt")
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="this torch is built without distributed training")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_are_those_of_one_process(kind: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(process, (kind, port, str(tmp_path)), nprocs=PROCESSES)
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
