"""What a study of seizure detection is made of: its rows, how long models train, and who is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from harness.detection.training import Recipe

from mvpa_ts.ieeg import MVPFormerConfig, Recording, mvpformer_m, mvpformer_s, mvpformer_tiny

SIZES: dict[str, Callable[..., MVPFormerConfig]] = {
    "tiny": mvpformer_tiny,
    "small": partial(mvpformer_tiny, dim=128, num_layers=3, num_heads=4, mlp_dim=288),
    "s": mvpformer_s,
    "m": mvpformer_m,
}
BATCH_SIZES = {"tiny": 8, "small": 8, "s": 8, "m": 2}
"""Spans in a batch of one process, as in the package's configurations s and m; the paper does not state its own."""


@dataclass(frozen=True)
class Configuration:
    """One row of a table.

    Attributes
    ----------
    name : str
        What the command line calls it.
    row : str
        What the table calls it.
    size : {"tiny", "small", "s", "m"}
    attention : {"mvpa", "llama"}
    pretraining : str or None
        Group of subjects; None: from scratch.
    continued : str, optional
        A further group on which the pretrained model goes on before it is finetuned.
    finetuning : {"lora", "full", "blocks", "head"}
    channels : "auto", "all", "manual" or int
        "manual" takes the cohort's list for each subject; a number is that of the automatic selection.
    noise : float, optional
        Signal-to-noise ratio of white noise on the test recordings (dB).
    test : str
        Group of subjects.
    model : tuple of (field, value)
        Changes of the model's configuration.
    printed : str, optional
        The paper's row for this one: a model of its summary, or one of its tables by subject.
    """

    name: str
    row: str
    size: Literal["tiny", "small", "s", "m"] = "s"
    attention: Literal["mvpa", "llama"] = "mvpa"
    pretraining: str | None = "pretraining"
    continued: str | None = None
    finetuning: Literal["lora", "full", "blocks", "head"] = "lora"
    channels: Literal["auto", "all", "manual"] | int = "auto"
    noise: float | None = None
    test: str = "unseen"
    model: tuple[tuple[str, Any], ...] = ()
    printed: str | None = None

    def groups(self) -> set[str]:
        """The groups of recordings that it needs."""
        return {"finetuning", self.test} | ({self.pretraining, self.continued} - {None})


@dataclass(frozen=True)
class Effort:
    """How long and with what settings models are trained. The defaults are the paper's, where it states them.

    Attributes
    ----------
    context : int
        T, segments in a window.
    pretraining_steps, finetuning_steps : int
        The paper states 1.2 million steps of pretraining, for M, and none for finetuning.
    pretraining_rate, finetuning_rate, full_rate : float
        Learning rates; the last for finetuning all weights.
    batch_size : int, optional
        Spans in a batch of one process; default: `BATCH_SIZES` of the model.
    windows : int
        Windows in a span.
    recipe : {"paper", "small"}
        Schedule, weight decay and initial weights, see `harness.detection.training.Recipe`.
    rules : {"szcore", "paper"}
        Post-processing and scoring.
    copies : int
        Views of each training recording, see `augmented`; 0: the recordings as they are, read from their files.
    model : mapping
        Changes of the model's configuration.
    accelerator, precision : str
        Lightning's.
    devices : int
        Processes of a training on recordings, one for each GPU. The paper states a node of eight. Each holds all
        weights; M and its batch need 75 GB (docs/scaling.md).
    """

    context: int = 100
    pretraining_steps: int = 1_200_000
    finetuning_steps: int = 10_000
    pretraining_rate: float = 1e-4
    finetuning_rate: float = 1e-4
    full_rate: float = 1e-4
    batch_size: int | None = None
    windows: int = 1
    recipe: Recipe = "paper"
    rules: Literal["szcore", "paper"] = "szcore"
    copies: int = 0
    model: Mapping[str, Any] | None = None
    accelerator: str = "auto"
    precision: str = "bf16-mixed"
    devices: int = 8

    def batch(self, size: str) -> int:
        """Spans in a batch of one process, for a model of this size."""
        return self.batch_size or BATCH_SIZES[size]


@dataclass(frozen=True)
class Cohort:
    """Recordings by what they are for.

    Attributes
    ----------
    name : str
        Part of the folders' names.
    groups : mapping of name to recordings
        "finetuning", the groups that configurations pretrain and test on and, optionally, "calibration": recordings on
        which the threshold is chosen; without it the threshold is 0.5.
    manual : mapping of subject to channels
        Channels chosen by hand.
    automatic : int
        How many channels "auto" takes.
    """

    name: str
    groups: Mapping[str, Sequence[Recording]]
    manual: Mapping[str, Sequence[str]] = field(default_factory=dict)
    automatic: int = 32
