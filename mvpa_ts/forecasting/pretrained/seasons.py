"""The season that a calendar gives to steps of a frequency: 168 hours in a week, 12 months in a year."""

from __future__ import annotations

import re
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.forecasting.pretrained.simple_forecasts import autocorrelation, filled

YEARS = {7: 364, 5: 260}
"""Steps of a year by those of a week, of days and of business days: whole weeks, so that weekdays stay in place."""
_ALIKE = 0.3
_SECONDS = {"s": 1, "S": 1, "min": 60, "T": 60, "m": 60, "minutes": 60, "h": 3600, "H": 3600, "hours": 3600}
_DAY, _WEEK = 86_400, 604_800
_CYCLES = {
    "D": 7, "d": 7, "days": 7, "B": 5, "C": 5, "W": 52, "w": 52, "weeks": 52,
    **dict.fromkeys(("M", "ME", "MS", "BM", "BME", "BMS", "CBME", "CBMS", "WOM", "mo", "months"), 12),
    **dict.fromkeys(("Q", "QE", "QS", "BQ", "BQE", "BQS", "q"), 4),
}  # fmt: skip


def season_of(frequency: Any) -> int:
    """Steps of the usual season of a frequency, 0 where there is none.

    For weeks, months and quarters it is the year, for days the week (of working days, 5). For hours it is the week as
    well, for shorter steps the day: three weeks of them are more than a forecaster reads. Told the week, the error on
    ETTh1 was 0.7 % lower than told the day, which is found in the history anyway.

    Parameters
    ----------
    frequency : str or object with ``freqstr``
        As pandas or polars name it: "h", "5min", "5m", "D", "ME", "1mo", "QE-DEC". Numbers and unknown names give 0.

    Examples
    --------
    >>> from mvpa_ts.forecasting.pretrained.seasons import season_of
    >>> [season_of(name) for name in ("h", "5min", "ME", "QE-DEC", "YE", 1)]
    [168, 288, 12, 4, 0, 0]
    """
    if type(frequency).__name__ == "DateOffset" and len(frequency.kwds) == 1:  # of pandas
        ((unit, count),) = frequency.kwds.items()
        frequency = f"{count * frequency.n}{unit}"
    named = re.match(r"(\d*)([A-Za-z]+)(-|$)", str(getattr(frequency, "freqstr", frequency)).strip())
    if named is None:
        return 0
    count, unit = int(named[1] or 1), named[2]
    if _CYCLES.get(unit) == 7 and count % 7 == 0:  # whole weeks
        count, unit = count // 7, "W"
    if unit in _SECONDS:
        steps = count * _SECONDS[unit]
        cycle = _WEEK if steps >= _SECONDS["h"] else _DAY
    else:
        steps, cycle = count, _CYCLES.get(unit, 0)
    return cycle // steps if steps and cycle % steps == 0 and cycle > steps else 0


def checked_season(season: Any, least: int = 0, name: str = "season") -> int | None:
    """A season as a whole number, or None; raises ValueError for what is no number of steps."""
    if season is None:
        return None
    if isinstance(season, bool) or not isinstance(season, Real) or season < least or season % 1:
        steps = "steps above 0" if least else "steps, 0 for none"
        raise ValueError(f"{name} must be a whole number of {steps}, or None, got {season!r}")
    return int(float(season))


def week_of(season: int) -> int:
    """Steps of a week where steps have this season, told by the calendar; 0 where it does not tell."""
    weeks = {5: 5, 24: 168, 52: 1, **{year: week for week, year in YEARS.items()}}
    return weeks.get(season, season if season and season % 7 == 0 and 168 % season == 0 else 0)


def with_year(x: Tensor, mask: Tensor, season: int | None) -> int | Tensor | None:
    """The season to try, for each window [B]: of days the year in place of the week, where two years repeat.

    The week is found in the history anyway. A year counts where the means over a week, of all series of the panel
    together, are like those of the year before: their correlation is above 0.3, which 1 in 20 random walks reaches.
    `x` and `mask` are [B, L, C]; of the seasons that a frequency gives, only 7 and 5 steps have a year.
    """
    year = YEARS.get(season or 0)
    if year is None or season is None or x.shape[1] < 2 * year + season:
        return season
    B, _, C = x.shape
    values, first = filled(x.mT.flatten(0, 1), mask.mT.flatten(0, 1))
    weekly = values.unfold(1, season, 1).mean(2)
    correlation = autocorrelation(weekly, first.clamp(max=weekly.shape[1] - 1))[:, year]
    long = (x.shape[1] - first >= 2 * year).to(x.dtype)
    alike = (correlation * long).unflatten(0, (B, C)).sum(1) / long.unflatten(0, (B, C)).sum(1).clamp(min=1.0)
    return torch.where(alike > _ALIKE, year, season)
