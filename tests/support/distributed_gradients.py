"""What each process of tests/attention/test_distributed.py runs; importable by name, as new processes need it."""

from pathlib import Path

import torch
from harness.processes import join, leave
from torch import Tensor, nn

from mvpa_ts import MVPAttention
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


def process(rank: int, kind: str, folder: str) -> None:
    join(rank, PROCESSES, folder)
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
    leave()
