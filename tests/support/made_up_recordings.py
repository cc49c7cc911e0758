"""Small recordings with something to learn, small models, and commands without their warnings."""

import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from mvpa_ts.ieeg import MVPFormer, Preprocessing, mvpformer_tiny
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.recordings.recording import Recording

SMALL: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "num_layers": 1, "num_classes": 2, "context": 4}
PLAIN = Preprocessing(band=None, notch=None, reference=None)
WITHOUT_DROPOUT: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "context": 4, "dropout": 0.0}


def recording(subject: str, seed: int, segments: int = 40, channels: int = 3, rest: int = 0) -> Recording:
    """Rhythms in noise that go on from segment to segment, since 5 s are whole cycles, while their phase drifts.

    The last `rest` samples of the last segment are missing.
    """
    rng = np.random.default_rng(seed)
    samples = segments * 2560 - rest
    frequency = rng.integers(5, 20, (channels, 1)) / 5
    phase = np.cumsum(2 * np.pi * frequency / 512 + rng.normal(0, 0.01, (channels, samples)), axis=1)
    signal = 50 * np.sin(phase) + rng.normal(0, 5, (channels, samples))
    return Recording.from_array(
        signal.astype(np.float32),
        512.0,
        [f"A{c + 1}" for c in range(channels)],
        "µV",
        subject=subject,
        name=f"{subject}_made_up",
        seizures=[(onset, offset) for onset, offset in ((20.0, 50.0), (120.0, 140.0)) if offset < samples / 512],
    )


def noise(seconds: float, rate: float = 512.0, channels: int = 3, seed: int = 0, **options: Any) -> Recording:
    """Noise of 50 µV in channels A1, A2, …"""
    x = np.random.default_rng(seed).normal(0, 50, (channels, round(seconds * rate)))
    return Recording.from_array(x, rate, [f"A{number + 1}" for number in range(channels)], "µV", **options)


def signal(segments: int = 4, channels: int = 3, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, segments * 2560, generator=torch.Generator().manual_seed(0))


def seeded(**changes: Any) -> MVPFormer:
    """A tiny MVPFormer with these changes, the same each time."""
    torch.manual_seed(0)
    return MVPFormer(mvpformer_tiny(**changes)).eval()


def decided(**changes: Any) -> MVPFormer:
    """The same with a larger head, so that probabilities differ and a wrong context shows."""
    model = seeded(**changes)
    with torch.no_grad():
        model.head.weight.mul_(20)
    return model


def enlarged(**changes: Any) -> MVPFormer:
    """The same in float64 with larger weights than at the start, so that attention is far from uniform."""
    model = seeded(**changes)
    with torch.no_grad():
        for name, parameter in model.stack.named_parameters():
            if "norm" not in name:
                parameter.mul_(8.0)
    return model.double()


def run(*arguments: object) -> int:
    """The status of a command, whose warnings are left out."""
    with warnings.catch_warnings(action="ignore"):
        return main([str(argument) for argument in arguments])


def quiet_trainer(**options: Any) -> pl.Trainer:
    """Lightning's trainer on the CPU, which prints and logs nothing."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", use_distributed_sampler=False, **(quiet | options))


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file may grow past `size` bytes: the system refuses the write as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
