"""What each process of tests/ieeg/training/test_parallel.py runs; importable by name, as new processes need it."""

from pathlib import Path

import torch
from harness.processes import join, leave
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.training.parallel import clip_gradients, parallelize

SAMPLES = 4
NORM = 0.05  # well below the norm of the gradients, so that clipping counts


def model() -> MVPFormer:
    torch.manual_seed(0)
    return MVPFormer(mvpformer_tiny(context=3, num_heads=4, num_kv_heads=2, dropout=0.0)).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    signal = torch.randn(SAMPLES, 3, 3 * 2560, generator=generator, dtype=torch.float64)
    mask = torch.rand(SAMPLES, 3, 3, generator=generator) > 0.2
    return signal, mask


def step(network: MVPFormer, signal: Tensor, mask: Tensor) -> tuple[float, float]:
    """One step of AdamW; the loss and the norm of the gradient before it was clipped."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    embeddings = network.encode(signal, mask)  # as pretraining does; the second half goes through `forward`
    features = network.decode(embeddings, token_mask=mask)
    loss = network.predict(features).square().mean() + (network.predict_next(signal) - 0.1).square().mean()
    loss.backward()
    norm = clip_gradients(network.parameters(), NORM)
    optimizer.step()
    return loss.item(), norm.item()


def process(rank: int, shape: tuple[int, ...], axes: tuple[str, ...], folder: str) -> None:
    processes = torch.Size(shape).numel()
    join(rank, processes, folder)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
    network = parallelize(model(), mesh)
    held = sum(getattr(weight, "_local_tensor", weight).numel() for weight in network.stack.blocks.parameters())
    share, parts = (mesh["data"].get_local_rank(), mesh["data"].size()) if "data" in axes else (0, 1)
    signal, mask = (part.chunk(parts)[share] for part in batch())
    loss, norm = step(network, signal, mask)
    state = get_model_state_dict(network, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    torch.save({"loss": loss, "norm": norm, "held": held, "state": state}, Path(folder) / f"{rank}.pt")
    leave()
