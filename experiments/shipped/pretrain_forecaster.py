"""Pretrain the panel forecaster on made-up panels and the training parts of real ones, on a GPU or a CPU, in pieces.

The rate falls as a cosine over `--steps`. Start the same command again and it goes on from its last checkpoint; on a
CPU it then gives the weights that it would have given without the stop. An average of the weights is what is kept.

Examples
--------
    python experiments/shipped/pretrain_forecaster.py --minutes 30           # half an hour of the run
    python experiments/shipped/pretrain_forecaster.py --export my_forecaster # a folder like that of the package
    python experiments/shipped/pretrain_forecaster.py --quick                # a few steps, in a temporary folder
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.forecasting.panels import Panels, RealPanels, made_up
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mvpa_ts.files import replaced
from mvpa_ts.forecasting.pretrained.base import LEVELS, QUICK, BaseForecaster, Reading
from mvpa_ts.forecasting.pretrained.configuration import BaseConfig, mvpa_forecaster_base, mvpa_forecaster_small
from mvpa_ts.forecasting.pretrained.pretrained import save_base

SIZES = {"base": mvpa_forecaster_base, "small": mvpa_forecaster_small}
CALENDARS = (4, 7, 12, 24, 48, 52, 96, 144, 168, 288, 288)
"""Seasons in steps that a calendar may tell; of half-hours, weeks, minutes."""
CHANNELS = (1, 1, 1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Series of a panel; each batch has one of these numbers."""
HORIZONS = (64, 64, 64, 64, 64, 64, 32, 128, 256, 736)
REAL = 0.15
"""Share of batches from real panels."""
QUICK_RATE = 10.0
UNMOVED = 1e-4
"""Unit of a history whose values are all the same."""
WARM_UP, AVERAGE = 300, 0.998
REUSE, POOL = 4, 32
"""Reading a batch costs more than a step on it: one step in four reads another, three take any of the last."""


def batch(
    seed: int, step: int, series: int, config: BaseConfig, device: torch.device, real: RealPanels | None,
    told: float = 0.5,
) -> tuple[Panels, int]:  # fmt: skip
    """Panels of one step and their horizon, drawn from the seed and the number of the step alone."""
    generator = torch.Generator(device).manual_seed(seed * 1_000_003 + step)
    draws = random.Random(seed * 1_000_003 + step)
    channels, horizon = draws.choice(CHANNELS), draws.choice(HORIZONS)
    number = max(1, series * 64 // max(64, horizon // 2) // channels)
    total = config.lookback + horizon
    unknown = torch.zeros(number, dtype=torch.long, device=device)
    with torch.device(device):
        if real is not None and draws.random() < REAL:
            values, mask, place = real.draw(number, channels, total, min(horizon, 64), generator)
            return Panels(values, mask, place, unknown), horizon
        # The panels of half of the batches are short, down to 16 steps, and about as long as each other.
        length = torch.full((number,), float(config.lookback))
        if draws.random() < 0.5:
            longest = math.log(config.lookback / 16) * draws.random()
            length = 16.0 * math.exp(longest) * (0.7 + 0.3 * torch.rand(number, generator=generator, device=device))
            length = length.clamp(min=16.0)
        season, calendar = unknown, unknown
        if draws.random() < told:
            drawn = torch.tensor(CALENDARS)[
                torch.randint(len(CALENDARS), (number,), generator=generator, device=device)
            ]
            season = torch.where(drawn <= length, drawn, 0)
            # A calendar is wrong for some panels: their series have other seasons, or none.
            calendar = season * (torch.rand(number, generator=generator, device=device) < 0.8)
        values, mask, place = made_up(number, channels, total, generator, length + horizon, calendar)
        seen = torch.arange(total)[None, :, None] >= config.lookback - length[:, None, None]
        return Panels(values, mask & seen, place, season), horizon


class Readings(Dataset[tuple[Panels, Reading, Tensor]]):
    """What is read of each batch, by its number, with its loss units; on the CPU, to go from process to process."""

    def __init__(self, arguments: argparse.Namespace, config: BaseConfig) -> None:
        self.arguments, self.config = arguments, config

    @cached_property
    def real(self) -> RealPanels | None:
        """The real panels, where there are any; each process loads its own."""
        torch.set_flush_denormal(True)
        data = self.arguments.data
        return RealPanels(data, torch.device(self.arguments.device)) if data and (data / "panels").is_dir() else None

    @cached_property
    def network(self) -> BaseForecaster:
        """No weight of it counts for what is read."""
        return BaseForecaster(self.config).train()

    def __getitem__(self, index: int) -> tuple[Panels, Reading, Tensor]:
        arguments, L = self.arguments, self.config.lookback
        device = torch.device(arguments.device)
        panels, horizon = batch(arguments.seed, index, arguments.series, self.config, device, self.real)
        reading = self.network.read(panels.values[:, :L], panels.mask[:, :L], horizon, panels.place, panels.season)
        return moved((panels, reading, units(panels, L)), torch.device("cpu"))


def moved(tensors: Any, device: torch.device) -> Any:
    """Tuples of tensors, named or not, on a device."""
    if tensors is None or isinstance(tensors, Tensor):
        return tensors if tensors is None else tensors.to(device, non_blocking=device.type == "cuda")
    parts = [moved(tensor, device) for tensor in tensors]
    return type(tensors)(*parts) if hasattr(tensors, "_fields") else tuple(parts)


def loss_of(network: BaseForecaster, panels: Panels, reading: Reading, weights: Tensor) -> Tensor:
    """Pinball loss in units of the history's usual step, near steps counting more."""
    L = network.config.lookback
    device = panels.values.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        forecast = network.forecast(reading)
    h = panels.values.shape[1] - L
    target, real = panels.values[:, L:], panels.mask[:, L:]
    error = (target[..., None] - forecast[:, :h]) / weights[:, None, :, None]
    levels = torch.tensor(LEVELS, device=device)
    # Far outliers: what no forecast can know should not lead.
    losses = torch.maximum(levels * error, (levels - 1.0) * error).clamp(max=20.0)
    near = 1.0 / (1.0 + torch.arange(h, device=device) / 32.0)
    # A history that does not move has no unit.
    moves = (weights > UNMOVED).to(near.dtype)[:, None]
    weight = (real * near[None, :, None] * moves)[..., None]
    return (losses * weight).sum() / (weight.sum() * len(LEVELS)).clamp(min=1.0)


def units(panels: Panels, lookback: int) -> Tensor:
    """The usual step of each history, [B, C]."""
    past, seen = panels.values[:, :lookback], panels.mask[:, :lookback]
    pairs = seen[:, 1:] & seen[:, :-1]
    step = (torch.diff(past, dim=1).abs() * pairs).sum(1) / pairs.sum(1).clamp(min=1)
    count = seen.sum(1).clamp(min=1)
    mean = (past * seen).sum(1) / count
    deviation = (((past - mean[:, None]) * seen).square().sum(1) / count).sqrt()
    return (step + 0.1 * deviation).clamp(min=UNMOVED)


class Averaged:
    """An exponential average of the weights."""

    def __init__(self, network: BaseForecaster) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        self.steps = 0

    @torch.no_grad()
    def take(self, network: BaseForecaster) -> None:
        """One more step."""
        self.steps += 1
        decay = min(AVERAGE, (1 + self.steps) / (10 + self.steps))
        own = list(self.weights.values())
        torch._foreach_lerp_(own, list(network.state_dict().values()), 1.0 - decay)


def waves(channels: int, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The board's wave, of another seed: histories of 512 steps and the 48 after them."""
    generator = torch.Generator().manual_seed(77)
    rows = number * 200 + 560 + 8 * channels
    source = torch.zeros(rows)
    noise = torch.randn(rows, generator=generator) * (1 - 0.81) ** 0.5
    for t in range(1, rows):
        source[t] = 0.9 * source[t - 1] + noise[t]
    step = (
        torch.arange(number)[:, None, None] * 200 + torch.arange(560)[:, None] + 8 * (channels - torch.arange(channels))
    )
    clean = source[step]
    x = (clean + 0.3 * torch.randn(clean.shape, generator=generator)) / 1.09**0.5
    return x[:, :512].to(device), x[:, 512:].to(device)


@torch.no_grad()
def validate(network: BaseForecaster, device: torch.device, batches: int) -> dict[str, float]:
    """Loss on made-up panels of another seed, coverage of the 80 % interval, and waves."""
    network.eval()
    total, inside, count = 0.0, 0.0, 0.0
    L = network.config.lookback
    for index in range(batches):
        panels, horizon = batch(987_654, index, 128, network.config, device, None)
        reading = network.read(panels.values[:, :L], panels.mask[:, :L], horizon, panels.place, panels.season)
        total += loss_of(network, panels, reading, units(panels, L)).item()
        forecast, y, real = network.forecast(reading)[:, :horizon], panels.values[:, L:], panels.mask[:, L:]
        inside += float((((y >= forecast[..., 0]) & (y <= forecast[..., -1])) & real).sum())
        count += float(real.sum())
    found = {"validation": total / batches, "coverage": inside / count}
    for channels in (12, 24):
        x, y = waves(channels, 12, device)
        positions = torch.arange(channels, dtype=torch.float32)[:, None]
        for name, place in (("ordered", positions), ("no order", None)):
            forecast = network(x, horizon=48, positions=place)[:, :48, :, 4]
            found[f"wave {channels} {name}"] = (forecast - y).square().mean().item()
    network.train()
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    """Train until the time or the steps are over."""
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    if arguments.quick:
        arguments.size, arguments.steps, arguments.series = "small", 3, 4
        arguments.folder = Path(tempfile.mkdtemp())
    torch.manual_seed(arguments.seed)
    config = SIZES[arguments.size]()
    network = BaseForecaster(config).to(device)
    groups: dict[str, list[Tensor]] = {"decayed": [], "other": [], "quick": []}
    for name, parameter in network.named_parameters():
        groups["quick" if name in QUICK else "decayed" if parameter.ndim == 2 else "other"].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": groups["decayed"], "weight_decay": 0.03}, {"params": groups["other"]}, {"params": groups["quick"]}],
        lr=arguments.learning_rate, betas=(0.9, 0.98), weight_decay=0.0,
    )  # fmt: skip
    factors = (1.0, 1.0, QUICK_RATE)
    averaged = Averaged(network)
    checkpoint = arguments.folder / "checkpoint.pt"
    step = 0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True, map_location=device)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        averaged.weights, averaged.steps = state["averaged"], state["step"]
        step = state["step"]
    elif arguments.start is not None:
        network.load_state_dict(torch.load(arguments.start, weights_only=True, map_location=device), strict=False)
        averaged = Averaged(network)
    if arguments.export is not None:
        network.load_state_dict(averaged.weights)
        save_base(network, arguments.export, f"# {arguments.size}, after {step} steps, seed {arguments.seed}\n")
        print(f"{arguments.export}: the network after {step} steps")
        return
    saved = begun = time.perf_counter()
    mean_loss = math.nan
    pool: deque[tuple[Panels, Reading, Tensor]] = deque(maxlen=POOL)
    # The pool of a run that goes on holds what that of an undisturbed run would hold.
    read = -(-step // REUSE)
    numbers = range(max(0, read - POOL), -(-arguments.steps // REUSE))
    loader = DataLoader(
        Readings(arguments, config), batch_size=None, sampler=numbers, num_workers=arguments.readers,
        multiprocessing_context="spawn" if arguments.readers else None, pin_memory=device.type == "cuda",
    )  # fmt: skip
    batches = (moved(reading, device) for reading in loader)
    for _ in range(min(read, POOL)):
        pool.append(next(batches))
    network.train()
    while step < arguments.steps and (now := time.perf_counter()) - begun < 60.0 * arguments.minutes:
        for factor, group in zip(factors, optimizer.param_groups, strict=True):
            group["lr"] = factor * arguments.learning_rate * rate(step, arguments.steps)
        if step % REUSE == 0:
            pool.append(next(batches))
        place = len(pool) - 1
        if step % REUSE:
            place = random.Random(f"{arguments.seed} {step}").randrange(len(pool))
        loss = loss_of(network, *pool[place])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if torch.isfinite(torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)):
            optimizer.step()
        step += 1
        averaged.take(network)
        mean_loss = loss.item() if math.isnan(mean_loss) else 0.99 * mean_loss + 0.01 * loss.item()
        if step % arguments.every == 0 or step == arguments.steps:
            own = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            network.load_state_dict(averaged.weights)
            minutes, few = (now - begun) / 60, 2 if arguments.quick else 12
            report = {"step": step, "minutes": round(minutes, 1), "loss": round(mean_loss, 4)}
            print(json.dumps(report | validate(network, device, few)), flush=True)
            network.load_state_dict(own)
        if now - saved > arguments.save:
            save(checkpoint, network, optimizer, averaged, step)
            saved = now
    save(checkpoint, network, optimizer, averaged, step)


def rate(step: int, steps: int) -> float:
    """Share of the learning rate: a linear rise, then a cosine to a hundredth."""
    return min(1.0, (step + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * step / steps)))


def save(path: Path, network: BaseForecaster, optimizer: torch.optim.Optimizer, averaged: Averaged, step: int) -> None:
    """Write everything that the rest of the run depends on, whole or not at all; and the average alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "network": network.state_dict(), "optimizer": optimizer.state_dict(), "averaged": averaged.weights,
        "step": step,
    }  # fmt: skip
    with replaced(path) as temporary:
        torch.save(state, temporary)
    with replaced(path.with_name("averaged.pt")) as temporary:
        torch.save({name: tensor.cpu() for name, tensor in averaged.weights.items()}, temporary)


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = script_parser(__doc__, "a few steps, in a temporary folder")
    parser.add_argument("--size", choices=sorted(SIZES), default="base")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--series", type=int, default=64, help="series in a batch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--readers", type=int, default=0, help="processes that read batches beside the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1000, help="steps between two validations")
    parser.add_argument("--export", type=Path, help="write the averaged weights to this folder")
    parser.add_argument("--save", type=float, default=60.0, help="seconds between two checkpoints")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--start", type=Path, help="averaged.pt of an earlier run, whose weights it begins with")
    parser.add_argument("--folder", type=Path, default=Path("pretraining_output"))
    data = os.environ.get("MVPA_TS_DATA")
    parser.add_argument("--data", type=Path, default=Path(data) if data else None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
