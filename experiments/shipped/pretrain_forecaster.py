"""Pretrain the base forecaster on made-up series alone, in pieces: start the same command again and it goes on.

The rate falls as a cosine over `--steps`. A killed run goes on from its last checkpoint and gives the weights that it
would have given without the kill. Every 1000 steps the network forecasts made-up panels of another seed. No real series
is read.

Examples
--------
    python experiments/shipped/pretrain_forecaster.py --minutes 30          # half an hour of the run, then stop
    python experiments/shipped/pretrain_forecaster.py --export my_forecaster    # a folder like that of the package
    python experiments/shipped/pretrain_forecaster.py --quick               # a few steps, in a temporary folder
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.forecasting.synthetic import made_up_panels
from torch import Tensor

from mvpa_ts.files import replaced
from mvpa_ts.forecasting.pretrained import load_base, save_base
from mvpa_ts.forecasting.pretrained.base import LEVELS, BaseForecaster, Reading
from mvpa_ts.forecasting.pretrained.configuration import BaseConfig, mvpa_forecaster_base
from mvpa_ts.forecasting.quantiles import pinball_loss

CALENDARS = (4, 7, 12, 24, 48, 52, 96, 144, 168, 288, 288)
"""Seasons in steps that a calendar may tell; of half-hours, weeks, minutes."""
CHANNELS = (1, 1, 2, 3, 4, 6, 8, 12)
"""Series of a panel; each batch has one of these numbers."""
SIZES = mvpa_forecaster_base()
"""Twice as wide as the default of `BaseConfig` and a block deeper. A step takes half as long again."""
WARM_UP = 200
REUSE, POOL = 3, 24
"""Reading a batch costs as much as two steps on it: one step in three reads another, two take any of the last."""
CARD = """# A forecaster that needs no training

Forecasts any panel of series at once: nine quantiles of 64 steps from up to 512 steps of history (2048 if a season of
more than 320 steps is told), longer horizons by paths. About 1.1 million weights, in half precision.

- **Made from**: made-up series alone (`experiments/harness/forecasting/synthetic.py`, seed {seed}): seasons, trends,
  walks, counts, regimes, days with nights, rush hours, waves through channels, gaps. No real series was read.
- **Made by**: `python experiments/shipped/pretrain_forecaster.py --seed {seed}`, {steps} steps of {series} series, an
  hour and forty minutes of one core, a batch read for three steps{start}.
- **Use**: `mvpa_ts.forecasting.pretrained.load_base()`; in hosts see docs/pretrained.md, with the errors measured.
- **Not for**: histories below 16 steps, seasons that the history does not hold once, decisions without a check on
  your data.
"""


def main() -> None:
    """Train until the time or the steps are over."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    if arguments.quick:
        arguments.steps, arguments.series, arguments.folder = 3, 8, Path(tempfile.mkdtemp())
    torch.manual_seed(arguments.seed)
    random.seed(arguments.seed)
    config = SIZES
    network = BaseForecaster(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=arguments.learning_rate, weight_decay=0.01)
    checkpoint = arguments.folder / "checkpoint.pt"
    step = 0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        if "random" in state:  # older checkpoints lack it: they go on with other draws
            random.setstate(state["random"])
    elif arguments.start is not None:
        taken = take_what_fits(network, load_base(arguments.start))
        print(f"{arguments.start}: {taken} weights taken, the others begin anew", flush=True)
    if arguments.export:
        start = f", from the weights of {arguments.start} where they fit" if arguments.start else ""
        save_base(
            network,
            arguments.export,
            CARD.format(steps=step, series=arguments.series, seed=arguments.seed, start=start),
        )
        print(f"{arguments.export}: the network after {step} steps")
        return
    begun, mean_loss = time.perf_counter(), math.nan
    pool: deque[Panels] = deque(maxlen=POOL)
    readings: deque[Reading] = deque(maxlen=POOL)

    def take(step: int) -> None:
        pool.append(panels := batch(arguments.seed, step, arguments.series, config))
        readings.append(network.read(*(part[:, : config.lookback] for part in panels[:2]), panels.season))

    for earlier in list(range(0, step, REUSE))[-POOL:]:
        take(earlier)
    while step < arguments.steps and time.perf_counter() - begun < 60 * arguments.minutes:
        for group in optimizer.param_groups:
            group["lr"] = arguments.learning_rate * rate(step, arguments.steps)
        if step % REUSE == 0:
            take(step)
        place = len(pool) - 1 if step % REUSE == 0 else random.randrange(len(pool))
        loss = loss_of(network, pool[place], readings[place])
        if not torch.isfinite(loss):
            raise SystemExit(f"step {step}: the loss is {loss.item()}, the last checkpoint is {checkpoint}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        step += 1
        mean_loss = loss.item() if math.isnan(mean_loss) else 0.99 * mean_loss + 0.01 * loss.item()
        if step % 1000 == 0 or step == arguments.steps:
            report: dict[str, Any] = dict(validate(network, 2 if arguments.quick else 16))
            report["with a season told"] = validate(network, 2 if arguments.quick else 16, told=1.0)
            minutes = (time.perf_counter() - begun) / 60
            print(
                json.dumps({"step": step, "minutes": round(minutes, 1), "loss": round(mean_loss, 4), **report}),
                flush=True,
            )
        if step % 100 == 0 or step == arguments.steps:
            save(checkpoint, network, optimizer, step)
    save(checkpoint, network, optimizer, step)


def take_what_fits(network: BaseForecaster, other: BaseForecaster) -> int:
    """Copy another network's tensors of the same name and shape; the number of weights copied."""
    theirs = other.state_dict()
    fitting = {name: theirs[name] for name, own in network.state_dict().items() if theirs[name].shape == own.shape}
    network.load_state_dict(fitting, strict=False)
    return sum(tensor.numel() for tensor in fitting.values())


def rate(step: int, steps: int) -> float:
    """Share of the learning rate: a linear rise, then a cosine to a hundredth."""
    return min(1.0, (step + 1) / WARM_UP) * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * step / steps)))


class Panels(NamedTuple):
    """Panels of one step, with the season that a calendar tells.

    Parameters
    ----------
    values, mask : Tensor, shape (B, L + h, C)
    ordered : bool
    season : Tensor, shape (B,)
        0 where nothing is told.
    """

    values: Tensor
    mask: Tensor
    ordered: bool
    season: Tensor


def batch(seed: int, step: int, series: int, config: BaseConfig, told: float = 0.5) -> Panels:
    """Panels of one step, drawn from the seed and the number of the step alone; a share of batches tells a season."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    channels = CHANNELS[int(torch.randint(len(CHANNELS), (), generator=generator))]
    number = max(1, series // channels)
    # The panels of half of the batches are short, down to 16 steps, and about as long as each other: that is quicker.
    length = torch.full((number,), float(config.lookback))
    if torch.rand((), generator=generator) < 0.5:
        longest = math.log(config.lookback / 16) * torch.rand((), generator=generator)
        length = 16.0 * torch.exp(longest) * (0.7 + 0.3 * torch.rand(number, generator=generator))
        length = length.clamp(min=16.0)
    total = config.lookback + config.horizon
    season, calendar = torch.zeros(number, dtype=torch.long), None
    if told and torch.rand((), generator=generator) < told:
        drawn = torch.tensor(CALENDARS)[torch.randint(len(CALENDARS), (number,), generator=generator)]
        season = torch.where(drawn <= length, drawn, 0)
        # A calendar is wrong for some panels: their series have other seasons, or none.
        calendar = season * (torch.rand(number, generator=generator) < 0.8)
    values, mask, ordered = made_up_panels(number, channels, total, generator, length + config.horizon, calendar)
    seen = torch.arange(total)[None, :, None] >= config.lookback - length[:, None, None]
    return Panels(values, mask & seen, ordered, season)


def loss_of(network: BaseForecaster, panels: Panels, reading: Reading) -> Tensor:
    """Pinball loss in units of the history's usual step, near steps counting more."""
    L = network.config.lookback
    values, mask, ordered, _ = panels
    forecast = network.forecast(reading, ordered=ordered)
    past, seen = values[:, :L], mask[:, :L]
    pairs = seen[:, 1:] & seen[:, :-1]
    step = (torch.diff(past, dim=1).abs() * pairs).sum(1) / pairs.sum(1).clamp(min=1)
    count = seen.sum(1).clamp(min=1)
    mean = (past * seen).sum(1) / count
    deviation = (((past - mean[:, None]) * seen).square().sum(1) / count).sqrt()
    unit = (step + 0.1 * deviation).clamp(min=1e-4)[:, None, :, None]
    losses = pinball_loss(forecast / unit, values[:, L:] / unit[..., 0], torch.tensor(LEVELS))
    near = 1.0 / (1.0 + torch.arange(losses.shape[1]) / 32.0)
    # Far outliers: what no forecast can know should not lead.
    weight = (mask[:, L:] * near[None, :, None])[..., None]
    return (losses.clamp(max=20.0) * weight).sum() / (weight.sum() * len(LEVELS))


@torch.no_grad()
def validate(network: BaseForecaster, batches: int, told: float = 0.0) -> dict[str, float]:
    """Errors on panels of another seed beside those of simple forecasts, and the coverage of the 80 % interval."""
    from mvpa_ts.forecasting.pretrained.simple_forecasts import filled, likely_periods, simple_forecasts

    network.eval()
    L, h = network.config.lookback, network.config.horizon
    ratios, inside, count = [], 0.0, 0.0
    for index in range(batches):
        values, mask, ordered, season = batch(987_654, index, 64, network.config, told)
        forecast = network(values[:, :L], mask[:, :L], ordered=ordered, season=season)
        x, seen = values[:, :L].mT.flatten(0, 1), mask[:, :L].mT.flatten(0, 1)
        past, first = filled(x, seen)
        simple = simple_forecasts(past, first, likely_periods(past, first)[0], h)
        target, real = values[:, L:].mT.flatten(0, 1), mask[:, L:].mT.flatten(0, 1)
        total = real.sum(1).clamp(min=1)
        own = ((forecast[..., 4].mT.flatten(0, 1) - target).abs() * real).sum(1) / total
        others = ((simple - target[:, None]).abs() * real[:, None]).sum(2) / total[:, None]
        # Season by the autocorrelation, or the last value where there is none; forecast 7 is the repeated season.
        naive = others[:, 7].clamp(min=1e-6)
        ratios.append(torch.stack([own / naive, own / others[:, 0].clamp(min=1e-6), others.amin(1) / naive], 1))
        low, high = forecast[..., 0], forecast[..., -1]
        y = values[:, L:]
        inside += float((((y >= low) & (y <= high)) & mask[:, L:]).sum())
        count += float(mask[:, L:].sum())
    logs = torch.cat(ratios).clamp(0.02, 50.0).log().mean(0).exp().tolist()
    names = ("over seasonal naive", "over last value", "best simple one over seasonal naive")
    network.train()
    return {name: round(value, 4) for name, value in zip(names, logs, strict=True)} | {
        "coverage": round(inside / count, 3)
    }


def save(path: Path, network: BaseForecaster, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write everything that the rest of the run depends on, whole or not at all."""
    state = {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "random": random.getstate(),
    }
    with replaced(path) as temporary:
        torch.save(state, temporary)


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=26_000)
    parser.add_argument("--series", type=int, default=64, help="series in a batch")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("pretraining_output"))
    parser.add_argument("--start", help="a forecaster, by name or folder, whose weights are taken where they fit")
    parser.add_argument("--export", type=Path, help="write the weights to this folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
