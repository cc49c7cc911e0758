"""How far back the simple forecasts of the pretrained forecaster should look, on made-up series.

The network reads 512 steps, the simple forecasts may read more. Three ways are compared: 512 steps; six of the season
that is told, at least 512 and at most 2048 steps; all of the history. Shipped are six seasons where the season is of
more than 320 steps, of which 512 show too little. The seeds are not those of the training.

    python experiments/forecast_reach.py            # results/forecasting/forecast_reach.md, some minutes of one core
    python experiments/forecast_reach.py --quick    # few series, written elsewhere
"""

from __future__ import annotations

import torch
from harness.command_line import script_parser
from harness.forecasting.synthetic import made_up_panels
from harness.tables import hardware, results_folder
from torch import Tensor

from mvpa_ts.files import write_text
from mvpa_ts.forecasting.base import FARTHEST, BaseForecaster
from mvpa_ts.forecasting.pretrained import load_base
from mvpa_ts.forecasting.simple_forecasts import CYCLES

SEASONS = (0, 24, 84, 144, 168, 288, 336, 672)
"""Steps of the season that is told and there; 0 tells none."""
LENGTHS = (1024, 2048)
CHANNELS = (1, 2, 4, 8)
SERIES = 48
"""Series of a batch."""


class SixSeasons(BaseForecaster):
    """Simple forecasts look back at six seasons, however long the season."""

    def _reach(self, season: Tensor) -> Tensor:
        return (CYCLES * season).clamp(min=self.config.lookback, max=FARTHEST)


class All(BaseForecaster):
    """Simple forecasts look back at all that there is."""

    def _reach(self, season: Tensor) -> Tensor:
        return torch.full_like(season, FARTHEST)


def main() -> None:
    """Forecast, then write the table."""
    parser = script_parser(__doc__, "few series, written elsewhere")
    parser.add_argument("--base", default="base", help="name of a shipped forecaster, or a folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shipped = load_base(arguments.base)
    six_seasons, reads_all = (kind(shipped.config).eval() for kind in (SixSeasons, All))
    for network in (six_seasons, reads_all):
        network.load_state_dict(shipped.state_dict())
    lines = [
        "# How far back the pretrained forecaster's simple forecasts should look", "",
        "| season told, steps | history, steps | six seasons | all |", "|---|---|---|---|",
    ]  # fmt: skip
    batches = 1 if arguments.quick else 16
    for season in SEASONS[-2:] if arguments.quick else SEASONS:
        for length in LENGTHS[:1] if arguments.quick else LENGTHS:
            short, six, whole = errors(six_seasons, reads_all, season, length, batches)
            lines.append(f"| {season or 'none'} | {length} | {beside(six, short)} | {beside(whole, short)} |")
    lines += [
        "",
        "Absolute error of the median, beside that of 512 steps: geometric means over "
        f"{batches * SERIES} series and standard errors; 64 steps ahead.",
        "",
        f"{hardware('cpu')}.",
    ]
    write_text(results_folder("forecasting", quick=arguments.quick) / "forecast_reach.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


@torch.no_grad()
def errors(
    six_seasons: BaseForecaster, reads_all: BaseForecaster, season: int, length: int, batches: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean absolute errors of each series, [N], of 512 steps, of six seasons and of all."""
    found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for batch in range(batches):
        generator = torch.Generator().manual_seed(31_000 + 100 * season + 10 * length + batch)
        channels, config = CHANNELS[batch % len(CHANNELS)], six_seasons.config
        number, total = SERIES // channels, length + config.horizon
        calendar = torch.full((number,), season) if season else None
        values, mask, ordered = made_up_panels(
            number, channels, total, generator, torch.full((number,), float(total)), calendar
        )
        x, seen, truth, real = values[:, :length], mask[:, :length], values[:, length:], mask[:, length:]
        recent = (part[:, -config.lookback :] for part in (x, seen))
        medians = (
            six_seasons(*recent, ordered=ordered, season=season),
            six_seasons(x, seen, ordered=ordered, season=season),
            reads_all(x, seen, ordered=ordered, season=season),
        )
        for errors_of, quantiles in zip(found, medians, strict=True):
            error = (quantiles[..., 4] - truth).abs() * real
            errors_of.append((error.sum(1) / real.sum(1).clamp(min=1)).clamp(min=1e-6).flatten())
    short, six, whole = (torch.cat(part) for part in found)
    return short, six, whole


def beside(errors_of: Tensor, short: Tensor) -> str:
    """Geometric mean of the ratio, with its standard error."""
    logs = (errors_of / short).log().clamp(-3.0, 3.0)
    return f"{logs.mean().exp():.3f} ± {logs.std() / len(logs) ** 0.5:.3f}"


if __name__ == "__main__":
    main()
