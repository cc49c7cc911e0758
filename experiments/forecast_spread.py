"""How wide the pretrained forecaster's intervals should be, on made-up series of kinds that it is not trained on.

Two designs are compared. The first corrects the spread of each series by its own past: the network forecasts from
earlier origins, and the share of values outside its 80 % intervals, drawn towards 20 % by a number of imagined steps,
sets a factor. The second is one rule for all: wider at the next steps and for short histories.

    python experiments/forecast_spread.py            # results/forecasting/forecast_spread.md, a minute of one core
    python experiments/forecast_spread.py --quick    # two kinds, written elsewhere
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from harness.command_line import script_parser
from harness.forecasting.other_kinds import KINDS
from harness.tables import hardware, results_folder
from torch import Tensor

from mvpa_ts.files import write_text
from mvpa_ts.forecasting.base import LEVELS, BaseForecaster, widening
from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.quantiles import pinball_loss

SIZES = ((28, 6), (60, 8), (120, 12), (300, 24), (512, 48))
"""Steps of history and of horizon."""
BACKS = (6, 12, 24, 48)
"""Steps before the end from which the network forecasts the past."""
OUTSIDE = 0.2


class Case(NamedTuple):
    """Forecasts of series of one kind and length, and of their past.

    Parameters
    ----------
    forecast : Tensor, shape (N, h, Q)
        Without the widening.
    truth : Tensor, shape (N, h)
    steps : int
        Steps of the history.
    past : list of (Tensor, Tensor)
        The same from earlier origins.
    """

    forecast: Tensor
    truth: Tensor
    steps: int
    past: list[tuple[Tensor, Tensor]]


def main() -> None:
    """Forecast, then compare the designs."""
    parser = script_parser(__doc__, "two kinds, written elsewhere")
    parser.add_argument("--base", default="base", help="name of a shipped forecaster, or a folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    network, cases = load_base(arguments.base), []
    for kind in list(KINDS)[: 2 if arguments.quick else None]:
        for steps, horizon in SIZES[: 2 if arguments.quick else None]:
            cases.append(case(network, kind, steps, horizon))
    lines = [
        "# Spread of the pretrained forecaster on kinds of series that it is not trained on", "",
        f"| 80 % intervals of {len(cases)} kinds and lengths | hold 75 to 85 % | hold on average "
        "| away from 80 % | quantile loss |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for label, factors in designs(cases).items():
        inside = torch.tensor([float(held(one, factor)) for one, factor in zip(cases, factors, strict=True)])
        losses = torch.cat([loss(one, factor) - loss(one, 1.0) for one, factor in zip(cases, factors, strict=True)])
        good = int(((inside >= 0.745) & (inside < 0.855)).sum())
        lines.append(
            f"| {label} | {good} | {inside.mean():.1%} | {(inside - 0.8).abs().mean():.1%} | "
            f"{float(losses.mean().exp()):.4f} |"
        )
    lines += [
        "",
        "The quantile loss is the geometric mean over series, beside that of the network as it is. By its own past: "
        f"the network forecasts the last {', '.join(map(str, BACKS))} steps; the number is that of imagined steps.",
        "",
        f"{hardware('cpu')}.",
    ]
    path = results_folder("forecasting", quick=arguments.quick) / "forecast_spread.md"
    write_text(path, "\n".join(lines) + "\n")
    print("\n".join(lines))


@torch.no_grad()
def case(network: BaseForecaster, kind: str, steps: int, horizon: int) -> Case:
    """Forecast series of a kind, and their past."""
    number = 64 if steps < 300 else 32
    series = KINDS[kind](number, steps + horizon, torch.Generator().manual_seed(11))

    def narrow(history: Tensor, ahead: int) -> Tensor:
        wide = network(history[..., None])[:, :ahead, 0]
        factor = widening(ahead, torch.full((1, 1), history.shape[1]))[:, :, 0]
        middle = wide[..., len(LEVELS) // 2, None]
        return middle + (wide - middle) / factor

    history = series[:, :steps]
    past = [(narrow(history[:, :-back], back), history[:, -back:]) for back in BACKS if steps - back >= 16]
    return Case(narrow(history, horizon), series[:, steps:], steps, past)


def designs(cases: list[Case]) -> dict[str, list[Tensor | float]]:
    """Factors of the spread for each case, [N or 1, h, 1], by the name of the design."""
    rule: list[Tensor | float] = [widening(one.truth.shape[1], torch.full((1, 1), one.steps))[:, :, 0] for one in cases]
    found: dict[str, list[Tensor | float]] = {"as it is": [1.0] * len(cases)}
    for imagined in (30, 120, 300):
        found[f"by its own past, {imagined}"] = [of_past(one, imagined) for one in cases]
    found["next steps and short histories wider"] = rule
    for imagined in (120, 300):
        own = [of_past(one, imagined, widened=True) for one in cases]
        found[f"both, {imagined}"] = [rule[place] * factor for place, factor in enumerate(own)]
    return found


def of_past(one: Case, imagined: int, *, widened: bool = False) -> Tensor:
    """Factor [N, 1, 1] that would have let an interval hold its share, drawn towards 1."""
    outside, count = torch.zeros(len(one.truth)), 0
    for forecast, truth in one.past:
        factor = widening(truth.shape[1], torch.full((1, 1), one.steps - truth.shape[1]))[:, :, 0] if widened else 1.0
        low, high = scaled(forecast, factor)[..., [0, -1]].unbind(-1)
        outside += ((truth < low) | (truth > high)).sum(1)
        count += truth.shape[1]
    share = ((outside + OUTSIDE * imagined) / (count + imagined)).clamp(0.002, 0.98)
    score = torch.special.ndtri(1.0 - share / 2)
    return (torch.special.ndtri(torch.tensor(1.0 - OUTSIDE / 2)) / score).clamp(1 / 3, 3.0)[:, None, None]


def scaled(forecast: Tensor, factor: Tensor | float) -> Tensor:
    """Quantiles moved away from the median by a factor."""
    middle = forecast[..., len(LEVELS) // 2, None]
    return middle + (forecast - middle) * factor


def held(one: Case, factor: Tensor | float) -> Tensor:
    """Share of values in the 80 % interval."""
    low, high = scaled(one.forecast, factor)[..., [0, -1]].unbind(-1)
    return ((one.truth >= low) & (one.truth <= high)).float().mean()


def loss(one: Case, factor: Tensor | float) -> Tensor:
    """Log of the quantile loss of each series, [N]."""
    losses = pinball_loss(scaled(one.forecast, factor), one.truth, torch.tensor(LEVELS))
    return losses.mean((1, 2)).clamp(min=1e-9).log()


if __name__ == "__main__":
    main()
