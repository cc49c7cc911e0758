"""The one training loop that every forecasting model of the experiments goes through."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mvpa_ts import ForecastingNetwork, least_squares_start
from mvpa_ts.datasets.forecasting import WindowSet
from mvpa_ts.files import replaced
from mvpa_ts.forecasting.network import parameter_groups


@dataclass(frozen=True)
class Training:
    """How a model is trained; the defaults are those of MVPA, peers bring their published ones."""

    learning_rate: float = 6e-3
    batch_size: int = 256
    epochs: int = 15
    patience: int = 15  # epochs without a better validation error; one cycle of the rate is best seen to its end
    loss: Literal["l1", "mse"] = "l1"
    schedule: Literal["one-cycle", "halving", "constant"] = "one-cycle"  # "halving": after every epoch but the first
    weight_decay: float = 0.0
    weight_averaging: float | None = 0.99  # decay per step of the averaged weights that are validated and kept
    clip: float | None = 1.0
    keep: Literal["best", "last"] = "best"  # the weights of the best validation epoch, or those at the end
    ridge: float | None = None  # start the linear path in closed form with that ridge; None starts at zero
    cycle_strength: float = 0.5  # of that start
    reversion_strength: float = 0.25  # of that start
    linear_rate: float = 1.0  # share of the learning rate that the linear path and the cycle get
    horizon_decay: float = 0.0  # the error k steps ahead weighs k to the power of minus that
    frequency_weight: float = 0.0  # share of the loss taken by the L1 norm of the error's Fourier transform over steps
    frequency_masking: float = 0.0  # share of the frequencies of each training window that are left out at a time
    frequency_mixing: float = 0.0  # share of them that are taken from another window


@dataclass(frozen=True)
class Checkpoint:
    """A file for the state of a run that is under way, and the settings that no other run has."""

    path: Path
    settings: str


@dataclass(frozen=True)
class Outcome:
    """What a training run gave; errors are means over all windows, steps and channels, in scaled units.

    Seconds are processor time of this process on a CPU, which other work on the machine changes little, and wall-clock
    time on a GPU.
    """

    validation_mse: float
    validation_mae: float
    epochs: int
    seconds: float
    seconds_per_epoch: float


def train(
    model: nn.Module,
    windows: dict[str, WindowSet],
    training: Training,
    *,
    seed: int,
    max_steps: int | None = None,
    report: Callable[[int, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train in place; keep the weights of the epoch with the smallest validation MSE, or the last, as `training` says.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(x [B, L, C], first_row [B]) -> [B, h, C]``.
    windows : dict of WindowSet
        "train" and "validation" are used, nothing else.
    max_steps : int, optional
        Stop after that many steps (for smoke runs and tests).
    report : callable, optional
        Told the epoch and its validation MSE.
    checkpoint : Checkpoint, optional
        Its file is written after each epoch and gone on from when it is there: the end is that of a run without a stop.
        The caller removes it.
    """
    generator = torch.Generator().manual_seed(seed)
    steps_per_epoch = -(-len(windows["train"]) // training.batch_size)
    total_steps = min(max_steps or training.epochs * steps_per_epoch, training.epochs * steps_per_epoch)
    clock = time.process_time if windows["train"].values.device.type == "cpu" else time.perf_counter
    started = clock()
    if training.ridge is not None:
        start_in_closed_form(model, windows["train"], training)
    network = getattr(model, "network", None)
    if isinstance(network, ForecastingNetwork) and network.config.bounded_channels is not None:
        network.set_bounds(*windows["train"].value_range())
    optimizer = torch.optim.AdamW(_groups(model, training), weight_decay=training.weight_decay)
    one_cycle = (
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=total_steps + 1, pct_start=0.2
        )
        if training.schedule == "one-cycle"
        else None
    )
    averaged = (
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(training.weight_averaging), use_buffers=True)
        if training.weight_averaging
        else None
    )
    kept: nn.Module = averaged.module if averaged is not None else model
    run = _Run(
        {"model": model, "optimizer": optimizer, "one_cycle": one_cycle, "averaged": averaged},
        generator,
        windows["train"].values.device,
        weights=copy.deepcopy(kept.state_dict()),
    )
    if checkpoint is not None and checkpoint.path.is_file():
        run.load(checkpoint)
        started = clock() - run.seconds
    while run.step < total_steps and (training.keep == "last" or run.epoch - run.best_epoch < training.patience):
        model.train()
        for x, y, first_row in windows["train"].batches(training.batch_size, generator):
            x, y = augmented(x, y, training)
            optimizer.zero_grad(set_to_none=True)
            training_loss(model(x, first_row), y, training).backward()
            if training.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            optimizer.step()
            if one_cycle is not None:
                one_cycle.step()
            if averaged is not None:
                averaged.update_parameters(model)
            run.step += 1
            if run.step == total_steps:
                break
        run.epoch += 1
        if training.schedule == "halving":
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate * 0.5 ** (run.epoch - 1)
        if training.keep == "best" or run.step == total_steps:
            mse, mae = evaluate(kept, windows["validation"])
            if report is not None:
                report(run.epoch, mse)
            if training.keep == "last" or mse < run.mse:
                run.mse, run.mae, run.best_epoch = mse, mae, run.epoch
                run.weights = copy.deepcopy(kept.state_dict())
        run.seconds = clock() - started
        if checkpoint is not None:
            run.save(checkpoint)
            started = clock() - run.seconds
    model.load_state_dict(run.weights)
    return Outcome(run.mse, run.mae, run.epoch, run.seconds, run.seconds / max(run.epoch, 1))


@dataclass
class _Run:
    """How far a training run is, and all that its rest depends on."""

    parts: dict[str, Any]  # each with a state_dict, or None
    generator: torch.Generator
    device: torch.device
    weights: dict[str, Tensor]  # of the best epoch, or of the last
    mse: float = float("inf")
    mae: float = float("inf")
    best_epoch: int = 0
    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    _COUNTED = ("weights", "mse", "mae", "best_epoch", "step", "epoch", "seconds")

    def save(self, checkpoint: Checkpoint) -> None:
        """Write everything, by way of a temporary file."""
        random = [self.generator.get_state(), torch.get_rng_state()]
        if self.device.type == "cuda":
            random.append(torch.cuda.get_rng_state(self.device))
        state = {name: getattr(self, name) for name in self._COUNTED} | {
            "settings": checkpoint.settings,
            "parts": {name: part.state_dict() for name, part in self.parts.items() if part is not None},
            "random": random,
        }
        with replaced(checkpoint.path) as temporary:
            torch.save(state, temporary)

    def load(self, checkpoint: Checkpoint) -> None:
        """Take up a run where it was left; one of other settings, or a damaged file, is refused."""
        try:
            state = torch.load(checkpoint.path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, UnpicklingError) as error:
            raise ValueError(f"{checkpoint.path} is damaged: remove it to begin anew") from error
        if state["settings"] != checkpoint.settings:
            raise ValueError(
                f"{checkpoint.path} was begun with other settings, {state['settings']}, not {checkpoint.settings}: "
                "remove it to begin anew"
            )
        for name, part in self.parts.items():
            if part is not None:
                part.load_state_dict(state["parts"][name])
        own, cpu, *cuda = state["random"]
        self.generator.set_state(own)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state(*cuda, self.device)
        for name in self._COUNTED:
            setattr(self, name, state[name])


def start_in_closed_form(model: nn.Module, windows: WindowSet, training: Training) -> None:
    """Least squares for the linear path of a network of this library, on every fourth window: neighbours are alike."""
    complete = windows.complete()
    every_fourth = replace(complete, starts=complete.starts[::4])
    network, ridge = model.get_submodule("network"), training.ridge
    assert isinstance(network, ForecastingNetwork)
    assert ridge is not None
    least_squares_start(
        network,
        lambda: every_fourth.batches(256),
        ridge=ridge,
        cycle_strength=training.cycle_strength,
        reversion_strength=training.reversion_strength,
    )


def _groups(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    """Parameters with their learning rates."""
    rate, network = training.learning_rate, getattr(model, "network", None)
    if not isinstance(network, ForecastingNetwork):
        return [{"params": list(model.parameters()), "lr": rate}]
    return parameter_groups(network, learning_rate=rate, linear_rate=rate * training.linear_rate)


def augmented(x: Tensor, y: Tensor, training: Training) -> tuple[Tensor, Tensor]:
    """Windows without some of their frequencies, or with those of another (FrAug, arXiv:2302.09292).

    Look-back [B, L, C] and horizon [B, h, C] are transformed together, so that they still belong to each other. The
    same frequencies are meant in all channels of a window; its mean stays.
    """
    if not training.frequency_masking and not training.frequency_mixing:
        return x, y
    windows = torch.cat([x, y], dim=1)
    spectrum = torch.fft.rfft(windows, dim=1)
    shape = (spectrum.shape[0], spectrum.shape[1] - 1, 1)
    waves = spectrum[:, 1:]
    if training.frequency_masking:
        waves = waves.masked_fill(torch.rand(shape, device=x.device) < training.frequency_masking, 0.0)
    if training.frequency_mixing:
        others = waves[torch.randperm(len(waves), device=x.device)]
        waves = torch.where(torch.rand(shape, device=x.device) < training.frequency_mixing, others, waves)
    windows = torch.fft.irfft(torch.cat([spectrum[:, :1], waves], dim=1), n=windows.shape[1], dim=1)
    return windows[:, : x.shape[1]], windows[:, x.shape[1] :]


def training_loss(forecast: Tensor, y: Tensor, training: Training) -> Tensor:
    """Mean error of [B, h, C], part of it over frequencies instead of steps (FreDF, arXiv:2402.02399).

    Errors of neighbouring steps go together, those of frequencies less so. The transform is orthonormal, which keeps
    both parts on one scale. Near steps may count for more (CARD, arXiv:2305.12095): they hold less noise to learn from.
    """
    error = forecast - y
    if training.horizon_decay:
        weight = torch.arange(1, error.shape[1] + 1, device=error.device) ** -training.horizon_decay
        error = error * (weight / weight.mean())[:, None]
    mean = error.abs().mean() if training.loss == "l1" else error.square().mean()
    if not training.frequency_weight:
        return mean
    spectrum = torch.fft.rfft(error, dim=1, norm="ortho").abs().mean()
    return (1.0 - training.frequency_weight) * mean + training.frequency_weight * spectrum


def evaluate(model: nn.Module, windows: WindowSet, batch_size: int = 128) -> tuple[float, float]:
    """One mean of squared and of absolute error over all windows, steps and channels."""
    squared, absolute = errors_by_channel(model, windows, batch_size).mean(1).tolist()
    return squared, absolute


@torch.no_grad()
def errors_by_channel(model: nn.Module, windows: WindowSet, batch_size: int = 128) -> Tensor:
    """Means of squared and of absolute error over all windows and steps, [2, C]."""
    model.eval()
    sums, count = torch.zeros(2, windows.values.shape[1], dtype=torch.float64, device=windows.values.device), 0
    for x, y, first_row in windows.batches(batch_size):
        error: Tensor = model(x, first_row).double() - y.double()
        sums += torch.stack([error.square().sum((0, 1)), error.abs().sum((0, 1))])
        count += error.shape[0] * error.shape[1]
    return sums / count
