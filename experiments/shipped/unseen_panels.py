"""The pretrained forecaster on panels that it never saw, beside what a ridge regression finds in the same history.

Made-up panels are drawn from seeds of their own; of the real ones, rows and latitudes that the training left out. The
median forecast is scored, mean square error. Arms switch parts of the same network off; nothing is trained again.

    python experiments/shipped/unseen_panels.py            # results/shipped/unseen_panels.csv
    python experiments/shipped/unseen_panels.py --tasks sea --seeds 1     # some rows of it anew
    python experiments/shipped/unseen_panels.py --figure   # results/shipped/sea_level.png from the rows at hand
    python experiments/shipped/unseen_panels.py --quick    # two tasks, few windows, printed only
"""

from __future__ import annotations

import copy
import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import matplotlib.pyplot as plt
import numpy as np
import torch
from harness.command_line import script_parser
from harness.figures import style
from harness.structure import stored
from harness.structure.tasks import DELAY, MEMORY, NOISE, _source, _wave, leaders, regimes
from torch import Tensor

from mvpa_ts.files import replaced
from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.pretrained.base import MOST_SERIES, BaseForecaster, Reading
from mvpa_ts.forecasting.pretrained.covariates import covariate_effects
from mvpa_ts.forecasting.pretrained.layout import SAME, UNKNOWN
from mvpa_ts.forecasting.pretrained.relations import NAMES

CONTEXT = 512
ROOT = Path(__file__).parents[1] / "results" / "shipped"


class Windows(NamedTuple):
    """Windows of one task.

    Parameters
    ----------
    past, future : Tensor, shape (B, L, C) and (B, h, C)
        NaN is missing.
    positions : Tensor, shape (C, k), optional
    last : bool
        Whether the last step of the horizon alone is scored.
    floor : float, optional
    known : Tensor, shape (B, L + h, C, k), optional
        Covariates that are known ahead.
    """

    past: Tensor
    future: Tensor
    positions: Tensor | None = None
    last: bool = False
    floor: float | None = None
    known: Tensor | None = None


def cut(
    values: np.ndarray, horizon: int, number: int, positions: np.ndarray | None = None, context: int = CONTEXT
) -> Windows:
    """So many windows, evenly spread over the rows."""
    starts = np.linspace(0, len(values) - context - horizon, number).astype(int)
    rows = torch.tensor(np.stack([values[start : start + context + horizon] for start in starts]), dtype=torch.float32)
    place = None if positions is None else torch.tensor(positions, dtype=torch.float32)
    return Windows(rows[:, :context], rows[:, context:], place)


def line(channels: int) -> np.ndarray:
    """Places one apart."""
    return np.arange(channels, dtype=float)[:, None]


def wave(seed: int, channels: int, *, shuffled: bool = False) -> Windows:
    """The wave of the board: delay 8 steps a channel, AR(1) source, noise .3."""
    draws = np.random.default_rng([1, seed, channels])
    values = _wave(6000, channels, draws)
    drawn = cut(values, 48, 24, None if shuffled else line(channels))
    floor = wave_floor(drawn, np.arange(192 + 48)[:, None] - DELAY * np.arange(channels))
    if shuffled:
        order = torch.tensor(draws.permutation(channels))
        drawn = drawn._replace(past=drawn.past[..., order], future=drawn.future[..., order])
    return drawn._replace(floor=floor)


def wave_floor(windows: Windows, moment: np.ndarray) -> float:
    """Error of the Gaussian posterior mean given which `moment` [L + h, C] of the source the last L steps show."""
    L = len(moment) - windows.future.shape[1]
    seen, ahead = moment[:L].ravel(), moment[L:].ravel()
    covariance = MEMORY ** np.abs(seen[:, None] - seen) + NOISE**2 * np.eye(len(seen))
    weights = np.linalg.solve(covariance, MEMORY ** np.abs(seen[:, None] - ahead))
    past = windows.past[:, -L:].flatten(1).double().numpy()
    return float(np.mean((past @ weights - windows.future.flatten(1).double().numpy()) ** 2))


def irregular(seed: int) -> Windows:
    """A wave along 16 places at irregular distances, 5 steps a unit."""
    draws = np.random.default_rng([11, seed])
    place = np.cumsum(draws.uniform(0.3, 1.7, 16))
    return _moving(draws, np.round(5 * place).astype(int), place[:, None])


def plane(seed: int) -> Windows:
    """A plane wave over 20 places in a square, 6 steps a unit."""
    draws = np.random.default_rng([12, seed])
    place = draws.uniform(0.0, 4.5, (20, 2))
    angle = draws.uniform(0.0, 2 * np.pi)
    delay = np.round(6 * (place @ [np.cos(angle), np.sin(angle)])).astype(int)
    return _moving(draws, delay - delay.min(), place)


def _moving(draws: np.random.Generator, delay: np.ndarray, place: np.ndarray) -> Windows:
    source = _source(6000 + int(delay.max()), draws)
    clean = source[int(delay.max()) + np.arange(6000)[:, None] - delay]
    values = (clean + NOISE * draws.standard_normal(clean.shape)) / (1 + NOISE**2) ** 0.5
    return cut(values, 48, 24, place)


def changing(seed: int) -> Windows:
    """A wave of 12 channels whose direction and speed are drawn anew every 250 to 400 steps."""
    draws = np.random.default_rng([13, seed])
    rows, delays = 8000, np.zeros((8000, 12), dtype=int)
    for regime in regimes(rows, draws):
        delays[regime] = int(draws.integers(3, 11)) * (1 if draws.random() < 0.5 else -1) * np.arange(12)
    source = _source(rows + 400, draws)
    moment = 200 + np.arange(rows)[:, None] - delays
    clean = source[moment]
    values = (clean + NOISE * draws.standard_normal(clean.shape)) / (1 + NOISE**2) ** 0.5
    drawn = cut(values, 24, 40, line(12))
    ends = np.linspace(0, rows - CONTEXT - 24, 40).astype(int) + CONTEXT + 24
    floors = [
        wave_floor(drawn._replace(past=past[None], future=future[None]), moment[end - 24 - 128 : end])
        for past, future, end in zip(drawn.past, drawn.future, ends, strict=True)
    ]
    return drawn._replace(floor=float(np.mean(floors)))


def decoys(seed: int, *, season: bool) -> Windows:
    """Twelve series that have nothing to do with each other, perhaps but for equal seasons."""
    draws = np.random.default_rng([14, seed])
    values = np.stack([_source(6000, draws) for _ in range(12)], 1)
    if season:
        phase = draws.uniform(0, 2 * np.pi, 12)
        values += 2 * np.sin(2 * np.pi * np.arange(6000)[:, None] / 24 + phase)
    return cut(values + NOISE * draws.standard_normal(values.shape), 48, 24, line(12))


def failing(seed: int) -> Windows:
    """The wave of 12 channels, five of which are lost 64 steps before the end; these alone are scored."""
    drawn = wave(seed, 12)
    lost = np.random.default_rng([15, seed]).permutation(12)[:5]
    past, future = drawn.past.clone(), torch.full_like(drawn.future, torch.nan)
    past[:, -64:, lost] = torch.nan
    future[..., lost] = drawn.future[..., lost]
    return drawn._replace(past=past, future=future, floor=None)


def sea_level(latitude: float, months: int) -> Windows:
    """Sea level along a latitude, its season and trend removed, from 240 months: the error of one month ahead."""
    level = stored.sea_level(latitude, 240)
    level /= level[:240].std(0)
    # The last five years, which no training saw.
    drawn = cut(level[len(level) - 60 - 240 :], months, 12, line(level.shape[1]), context=240)
    return drawn._replace(last=True)


def gauges() -> Windows:
    """A year of 126 tide gauges with coordinates, in units of each one's deviation; training ended with 2009."""
    values, place = stored.tide_gauges()
    return cut(_standardised(values, 600)[600 - CONTEXT :], 12, 12, place)


def stations() -> Windows:
    """A day of fine dust at twelve stations in Beijing, after November 2015, where training ended."""
    return cut(_standardised(stored.panel("beijing_air")[..., 0], 24_000)[24_000:], 24, 24)


def farms() -> Windows:
    """A day of power of ten wind farms, whose wind forecast is known ahead."""
    whole = stored.panel("gefcom14_wind")
    power = cut(_standardised(whole[..., 0], len(whole)), 24, 24)
    winds = [cut(whole[..., index], 24, 24) for index in range(1, whole.shape[2])]
    return power._replace(known=torch.stack([torch.cat([wind.past, wind.future], 1) for wind in winds], 3))


def _standardised(values: np.ndarray, rows: int) -> np.ndarray:
    return (values - np.nanmean(values[:rows], 0)) / np.nanstd(values[:rows], 0)


TASKS: dict[str, Callable[[int], Windows]] = {
    "wave, 12 channels": lambda seed: wave(seed, 12),
    "wave, 24 channels": lambda seed: wave(seed, 24),
    "wave, 12 channels, shuffled": lambda seed: wave(seed, 12, shuffled=True),
    "wave, 24 channels, shuffled": lambda seed: wave(seed, 24, shuffled=True),
    "wave, irregular places": irregular,
    "wave over a plane": plane,
    "changing wave": changing,
    "leaders, random": lambda seed: cut(leaders(seed)["test"].values.numpy(), 24, 30),
    "failing sensors": failing,
    "decoys": lambda seed: decoys(seed, season=False),
    "decoys, equal seasons": lambda seed: decoys(seed, season=True),
    "real: tide gauges": lambda seed: gauges(),
    "real: stations": lambda seed: stations(),
    "real: farms": lambda seed: farms(),
}
REAL = ("sea", "real")
for _latitude in (-15.375, 15.625, 32.625):
    for _months in (1, 2, 3):
        TASKS[f"sea level at {_latitude:.1f}°, {_months} months"] = lambda seed, latitude=_latitude, months=_months: (
            sea_level(latitude, months)
        )


@dataclass(frozen=True)
class Arm:
    """A row of the table: what is switched off."""

    attention: bool = True
    distances: bool = True
    regressions: bool = True
    travelling: bool = True
    panel: bool = True
    places: bool = True
    known: bool = True


ARMS = {
    "whole network": Arm(),
    "without attention between channels": Arm(attention=False),
    "without distances in attention": Arm(distances=False),
    "without regressions in the history": Arm(regressions=False),
    "without what travels": Arm(travelling=False),
    "places not told": Arm(places=False),
    "covariates not told": Arm(known=False),
    "series by series": Arm(panel=False),
}
WIDE = ("whole network", "places not told", "series by series")
"""Arms on panels of hundreds of series, minutes each."""


def forecast(network: BaseForecaster, windows: Windows, arm: Arm) -> tuple[Tensor, dict[str, Tensor]]:
    """Medians [B, h, C] of the arm, and those of each regression alone, unless series are read one by one."""
    x, positions = windows.past, windows.positions if arm.places else None
    B, _, C = x.shape
    h = windows.future.shape[1]
    effects = 0.0
    if windows.known is not None and arm.known:
        of_series = (part.transpose(1, 2).flatten(0, 1) for part in (x.nan_to_num(0.0), ~x.isnan(), windows.known))
        effects = covariate_effects(*of_series).view(B, C, -1).mT
        x, effects = x - effects[:, :-h], effects[:, -h:]
    if not arm.panel:
        x, positions = x.movedim(2, 1).reshape(B * C, -1, 1), None
    # So many windows as the network reads at once, so that what its regressions gave can be told.
    parts = [_parts(network, rows, positions, h, arm) for rows in x.split(max(1, MOST_SERIES // x.shape[2]))]
    medians, single = torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts]).movedim(3, 1)
    if not arm.panel:
        return medians.view(B, C, h).mT + effects, {}
    return medians + effects, {name: single[..., index] + effects for index, name in enumerate(NAMES)}


class _Switched(BaseForecaster):
    """The shipped network with parts of what it reads switched off."""

    arm: Arm
    regressions: list[Tensor]

    @classmethod
    def of(cls, network: BaseForecaster, arm: Arm) -> _Switched:
        switched = copy.copy(network)
        switched.__class__ = cls
        switched.arm, switched.regressions = arm, []
        return switched

    def read(self, *arguments: Any) -> Reading:
        K = len(NAMES)
        reading = super().read(*arguments)
        if not self.arm.regressions:
            simple, relative = reading.simple.clone(), reading.relative.clone()
            simple[:, :, -K:] = simple[:, :, :1]
            relative[:, :, -K:] = 50.0
            reading = reading._replace(simple=simple, relative=relative, trust=torch.zeros_like(reading.trust))
        if not self.arm.travelling:
            reading = reading._replace(trust=torch.cat([reading.trust[:, :K], 0 * reading.trust[:, K:]], 1))
        if not self.arm.distances:
            reading = reading._replace(rows=torch.where(reading.rows == SAME, SAME, UNKNOWN))
        self.regressions.append(
            reading.simple[:, :, -K:] * reading.scale[..., None, None] + reading.location[..., None, None]
        )
        return reading

    def forecast(self, reading: Reading) -> Tensor:
        B, C = reading.location.shape
        if self.arm.attention:
            return super().forecast(reading)
        # Each series as a panel of its own, with what was read from all.
        values, real = (part.movedim(2, 1).flatten(0, 1)[:, :, None] for part in (reading.values, reading.real))
        rest = [part.flatten(0, 1)[:, None] for part in reading[2:-3]]
        rows, trust = torch.zeros(B * C, 1, 1, dtype=torch.long), reading.trust.repeat_interleave(C, 0)
        travelling = reading.travelling.flatten(0, 1)[:, None]
        alone = super().forecast(Reading(values, real, *rest, rows, travelling, trust))  # [B·C, h, 1, Q]
        return alone.squeeze(2).unflatten(0, (B, C)).transpose(1, 2)


def _parts(
    network: BaseForecaster, x: Tensor, positions: Tensor | None, horizon: int, arm: Arm
) -> tuple[Tensor, Tensor]:
    """Medians [B, h, C or 1] and the regressions' forecasts [B, C, K, h] of panels of so many series a group."""
    medians, single = [], []
    for group in torch.arange(x.shape[2]).tensor_split(-(-x.shape[2] // MOST_SERIES)):
        switched = _Switched.of(network, arm)
        rows = x[..., group]
        placed = None if positions is None else positions[group]
        medians.append(switched(rows.nan_to_num(0.0), ~rows.isnan(), horizon=horizon, positions=placed)[..., 4])
        single.append(switched.regressions[0][..., :horizon])  # the first is of the steps
    joined = torch.cat(medians, 2)
    return (joined[..., 0] if not arm.panel else joined), torch.cat(single, 1)


def error(windows: Windows, medians: Tensor) -> float:
    """Mean square error of all steps, or of the last alone."""
    if medians.shape != windows.future.shape:  # series that were read alone
        B, h, C = windows.future.shape
        medians = medians.reshape(B, C, h).mT
    square = (medians - windows.future).square()
    return float((square[:, -1] if windows.last else square).nanmean())


def rows(network: BaseForecaster, names: list[str], seeds: int, number: int | None) -> Iterator[dict[str, object]]:
    """One row for each task, seed and forecaster, on so many windows; None takes all."""
    for task in names:
        for seed in range(1, (1 if task.startswith(REAL) else seeds) + 1):
            windows = TASKS[task](seed)
            ahead = None if windows.known is None else windows.known[:number]
            windows = windows._replace(past=windows.past[:number], future=windows.future[:number], known=ahead)
            if windows.floor is not None:
                yield {"task": task, "seed": seed, "forecaster": "floor", "mse": windows.floor, "seconds": 0.0}
            last = windows.past.nan_to_num(0.0)[:, -1:].expand_as(windows.future)
            zero = error(windows, torch.zeros_like(last))
            yield {"task": task, "seed": seed, "forecaster": "zero", "mse": zero, "seconds": 0.0}
            arms = ARMS if windows.past.shape[2] <= 128 else {name: ARMS[name] for name in WIDE}
            for name, arm in arms.items():
                if not arm.known and windows.known is None:
                    continue
                begun = time.perf_counter()
                with torch.no_grad():
                    medians, single = forecast(network, windows, arm)
                seconds = (time.perf_counter() - begun) / len(windows.past)
                yield {"task": task, "seed": seed, "forecaster": name, "mse": error(windows, medians),
                       "seconds": seconds}  # fmt: skip
                if name == "whole network":
                    for regression, forecasts in single.items():
                        yield {"task": task, "seed": seed, "forecaster": f"ridge: {regression}",
                               "mse": error(windows, forecasts), "seconds": 0.0}  # fmt: skip


def draw(table: Path, latitude: float = 15.6) -> None:
    """Waves of the sea level, and the error of a month ahead without and with places, beside the table."""
    style.apply()
    shown = {"zero": "zero", "series by series": "series by series", "places not told": "panel",
             "whole network": "panel with places", "ridge: neighbours": "ridge, neighbours"}  # fmt: skip
    rows = csv.DictReader(table.open(newline=""))
    errors = {row["forecaster"]: float(row["mse"]) for row in rows
              if row["task"] == f"sea level at {latitude}°, 1 months"}  # fmt: skip
    windows = sea_level(latitude, 1)
    figure, (waves, bars) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2))
    image = waves.imshow(windows.past[-1, -120:], cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto", origin="lower")
    waves.set(title=f"Sea level at {latitude}° N", xlabel="place, from west to east", ylabel="month")
    figure.colorbar(image, ax=waves, label="deviations")
    bars.barh([*shown.values()], [errors[name] for name in shown], color="0.7")
    bars.patches[3].set_color("C0")
    bars.bar_label(bars.containers[0], fmt="%.2f", padding=3)
    bars.set(title="One month ahead", xlabel="mean square error", xlim=(0, 2.3))
    bars.invert_yaxis()
    figure.supxlabel("Data: Copernicus Marine, SEALEVEL_GLO_PHY_L4_MY_008_047", fontsize=7, x=0.01, ha="left")
    figure.savefig(table.with_name("sea_level.png"), dpi=80)


def main() -> None:
    """Score all tasks."""
    parser = script_parser(__doc__, "two tasks, one seed; write nothing")
    parser.add_argument("--figure", action="store_true", help="forecast nothing, draw the sea level")
    parser.add_argument("--model", default="base")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", help="beginnings of their names; all without it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = ROOT / "unseen_panels.csv"
    if arguments.figure:
        draw(path)
        return
    names = [name for name in TASKS if not arguments.tasks or name.startswith(tuple(arguments.tasks))]
    if not stored.file("sea_level").is_dir():
        names = [name for name in names if not name.startswith(REAL)]
    if arguments.quick:
        names = [name for name in names if name in ("changing wave", "decoys")]
    network = load_base(arguments.model)
    kept = list(csv.DictReader(path.open(newline=""))) if path.is_file() else []
    for name in names:
        scored = []
        for row in rows(network, [name], *((1, 2) if arguments.quick else (arguments.seeds, None))):
            scored.append(row)
            print(f"{name:32} {row['seed']} {row['forecaster']:38} {row['mse']:.3f} {row['seconds']:.2f} s", flush=True)
        if arguments.quick:
            continue
        # Written after each task, so that a run can be stopped and go on with --tasks.
        kept = [row for row in kept if row["task"] != name] + scored
        with replaced(path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(scored[0]))
            writer.writeheader()
            writer.writerows(kept)


if __name__ == "__main__":
    main()
