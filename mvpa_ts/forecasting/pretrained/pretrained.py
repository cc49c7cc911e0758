"""Weights that the package ships: a `BaseForecaster` trained on made-up series, and forecasts of any length with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources
from numbers import Real
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.checks import listed, read_fields, warn
from mvpa_ts.files import read_config
from mvpa_ts.forecasting.pretrained.base import (
    LEAST_STEPS,
    LEVELS,
    MOST_SERIES,
    QUICK,
    QUICK_RATE,
    BaseConfig,
    BaseForecaster,
    Reading,
)
from mvpa_ts.forecasting.pretrained.chance import with_chance
from mvpa_ts.forecasting.pretrained.covariates import BEYOND, covariate_effects
from mvpa_ts.forecasting.pretrained.jumps import cleaned
from mvpa_ts.forecasting.pretrained.layout import layout
from mvpa_ts.forecasting.pretrained.power_transform import PowerTransform
from mvpa_ts.forecasting.pretrained.running_totals import added_up, signs_of_totals, with_steps
from mvpa_ts.forecasting.pretrained.seasons import checked_season, with_year
from mvpa_ts.forecasting.pretrained.simple_forecasts import filled
from mvpa_ts.forecasting.quantiles import pinball_loss, rounded_as_counted
from mvpa_ts.learning_rates import parameter_groups
from mvpa_ts.random_state import OwnRandomState
from mvpa_ts.training import TrainingRun
from mvpa_ts.weights import CONFIG_NAME, WEIGHTS_NAME, load_strictly, read_weights, save_model
from mvpa_ts.windows import observed_range

NAMES = ("base", "small")
"""Names of the forecasters that the package holds."""
_MOST_READ = 2048  # windows times series that finetuning keeps in memory: 20 kB each
_WINDOWS, _MOST_TRAINED = 16, 512  # windows of a finetuning step, and windows times series at most


def load_base(name: str | Path = "base") -> BaseForecaster:
    """A pretrained forecaster, in evaluation mode.

    Parameters
    ----------
    name : str or path
        "base", or "small", which takes half the time and errs 2 % more; or a folder that `save_base` wrote.

    Raises
    ------
    FileNotFoundError
        There is no such forecaster.
    ValueError
        `name` is no text or path, or the folder holds something else, or weights that do not fit.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.forecasting.pretrained import load_base
    >>> load_base("base")(torch.randn(1, 48, 3)).shape  # 48 steps of three series
    torch.Size([1, 64, 3, 9])
    """
    if not isinstance(name, (str, Path)):
        raise ValueError(f"name must be 'base', 'small' or a folder, got {name!r}")
    if str(name) in NAMES:
        with resources.as_file(resources.files("mvpa_ts.forecasting.pretrained") / "weights" / str(name)) as folder:
            return _read(folder)
    folder = Path(name)
    if not (folder / CONFIG_NAME).is_file():
        raise FileNotFoundError(
            f"there is no pretrained forecaster {str(name)!r}: take 'base' or 'small', which the package holds, "
            f"or a folder with {CONFIG_NAME}"
        )
    return _read(folder)


def save_base(
    network: BaseForecaster, folder: str | Path, card: str = "", beside: Mapping[str, str] | None = None
) -> None:
    """Write a forecaster's folder: config.json, weights in half precision (safetensors), and a model card.

    `beside` names further files and their texts, which are replaced together with these.

    Raises ValueError where a weight is not finite, or too large for half precision.
    """
    texts = {**({"README.md": card} if card else {}), **(beside or {})}
    save_model(copy.deepcopy(network).half(), asdict(network.config), folder, beside=texts)


def _read(folder: Path) -> BaseForecaster:
    config = read_fields(BaseConfig, read_config(folder / CONFIG_NAME), folder / CONFIG_NAME)
    with OwnRandomState(0):  # its start is replaced by the weights
        network = BaseForecaster(config)
    weights = {name: tensor.float() for name, tensor in read_weights(folder / WEIGHTS_NAME).items()}
    load_strictly(network, weights, folder / WEIGHTS_NAME)
    return network.eval()


def forecast_quantiles(
    network: BaseForecaster,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    horizon: int,
    levels: Sequence[float] = LEVELS,
    positions: Tensor | None = None,
    season: int | None = None,
    future: Tensor | None = None,
    historic: Tensor | None = None,
    names: Sequence[str] = (),
    bounded: bool | Sequence[float | None] = False,
) -> Tensor:
    """Quantiles of a horizon of any length, at any levels.

    Of a running total, such as a meter's readings, the steps are forecast and added up. Where nothing tells what
    comes next, a series that stays and then changes, such as a price, is forecast by its last value and by how often
    and how far it changes, and lumps, such as sales of spare parts, by the share of each value so far.

    Parameters
    ----------
    network : BaseForecaster
    x, mask, positions, season
        As in `BaseForecaster.forward`. Of days (a season of 7, or 5), the year
        takes the place of the week where it repeats.
    horizon : int
    levels : sequence of float
        Increasing, within (0, 1).
    future : Tensor, shape (B, L + horizon, C, k), optional
        Covariates of each series that are known ahead. Their effect is found in the history and taken from it; the
        forecast of the rest has their effect added. One that says nothing about its series has none.
    historic : Tensor, shape (B, L, C, m), optional
        Covariates of each series that end where it ends. They are read as further series of the panel.
    names : sequence of str, optional
        Names of the known covariates, for messages.
    bounded : bool or (lower, upper), default False
        Keep quantiles within bounds; None is none: (0, None) for counts and amounts. True: the range of the history.

    Returns
    -------
    Tensor, shape (B, horizon, C, len(levels))
        Whole numbers for a series that is counted in few pieces, see `rounded_as_counted`.

    Raises
    ------
    ValueError
        `x` holds an infinite value; the bounds are no pair in order; covariates are missing within the horizon, or have
        another shape; there are positions and past covariates, which lie nowhere.

    Warns
    -----
    UserWarning
        A series has fewer than 16 observed steps, or values outside `bounded`. A covariate goes over the range of its
        history by more than a tenth of it in the future: it then counts as that.
    """
    if not hasattr(network, "checked_mask"):
        raise ValueError(f"network must be a BaseForecaster, such as load_base('base'), got {network!r:.100}")
    mask, horizon = network.checked_mask(x, mask, horizon), int(horizon)
    x = x.masked_fill(~mask, 0.0)
    if not x.isfinite().all():
        raise ValueError("x must hold finite numbers where they are observed, or NaN without a mask; got others")
    training = getattr(network, "training", False)
    if not training:
        _warn_of_short_series(mask, horizon)
    lower, upper = (end[:, None, :, None] for end in bounds_of(bounded, x, mask))
    seasons = with_year(x, mask, checked_season(season))
    ahead = partial(
        _ahead, network, horizon=horizon, positions=positions, season=seasons, future=future, historic=historic
    )
    sign = signs_of_totals(x, mask) * (not training)
    # Hosts pad windows of the training beyond the end of a series with zeros, which nobody gave.
    warned = None if training else names
    if sign.any():
        wanted = sorted({*levels, 0.5})
        forecast = ahead(x, mask, levels=wanted, names=warned)
        steps = ahead(*with_steps(x, mask, sign), levels=LEVELS, names=None)
        forecast = added_up(forecast, steps, x[:, -1], sign, wanted)[..., [wanted.index(level) for level in levels]]
    else:
        forecast = ahead(x, mask, levels=levels, names=warned)
    if not training:  # what is rounded has no gradient
        if all(covariates is None or not covariates.shape[-1] for covariates in (future, historic)):
            forecast = with_chance(forecast, x, mask, levels, seasons)
        forecast = rounded_as_counted(forecast, x, mask)
    return torch.minimum(torch.maximum(forecast, lower), upper)


def _ahead(
    network: BaseForecaster,
    x: Tensor,
    mask: Tensor,
    *,
    horizon: int,
    levels: Sequence[float],
    positions: Tensor | None,
    season: int | Tensor | None,
    future: Tensor | None,
    historic: Tensor | None,
    names: Sequence[str] | None,
) -> Tensor:
    """The network's quantiles [B, h, C, Q] with the effects of covariates; with their names, warns of far values."""
    L = x.shape[1]
    if future is not None:
        # Effects on a skewed series are shares of its level: they add up in its root.
        transform = PowerTransform.fitted(x, mask)
        x = transform.apply(x)
        with torch.no_grad():
            effects = _effects(x, mask, future, horizon, names)
        x = (x - effects[:, :L]).masked_fill(~mask, 0.0)
    stride = 1
    if historic is not None and historic.shape[3:] != (0,):
        if historic.ndim != 4 or historic.shape[:3] != x.shape:
            B, _, C = x.shape
            raise ValueError(f"historic must be [B, L, C, m] = [{B}, {L}, {C}, m], got shape {tuple(historic.shape)}")
        if positions is not None:
            raise ValueError("historic must be left out with positions: covariates lie nowhere. Leave one out")
        # Each series is followed by its covariates, so that a panel that is read in groups keeps them together.
        stride = 1 + historic.shape[3]
        begun = mask.cummax(1).values[..., None]  # hosts pad what lies before
        x = torch.cat([x[..., None], historic.nan_to_num(0.0)], 3).flatten(2)
        mask = torch.cat([mask[..., None], ~historic.isnan() & begun], 3).flatten(2)
    forecast = network(x, mask, horizon=horizon, positions=positions, season=season, levels=levels)[:, :, ::stride]
    return forecast if future is None else transform.inverse(forecast + effects[:, L:, :, None])


def bounds_of(bounded: bool | Sequence[float | None], x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of each series' forecasts, [B, C]; infinite where there are none.

    Raises ValueError unless `bounded` is True, False or a pair in order.
    """
    infinity = x.new_full(x[:, 0].shape, torch.inf)
    if isinstance(bounded, bool):
        return observed_range(x, mask) if bounded else (-infinity, infinity)
    pair = tuple(bounded) if isinstance(bounded, Sequence) else ()
    right = all(end is None or isinstance(end, Real) for end in pair)
    ends = [sign * torch.inf if end is None else end for sign, end in zip((-1, 1), pair, strict=False)]
    if not right or len(ends) != 2 or len(pair) != 2 or not ends[0] < ends[1]:
        raise ValueError(
            f"bounded must be True, False or a pair (lower, upper) in order, None for none; got {bounded!r}"
        )
    outside = mask & ((x < ends[0]) | (x > ends[1]))
    if count := int(outside.sum()):
        warn(
            f"bounded is {bounded!r}, but {count} values of the history lie outside, such as {x[outside][0]:.6g}: all "
            "forecasts are moved inside. Give other bounds if that is not meant"
        )
    return torch.full_like(infinity, ends[0]), torch.full_like(infinity, ends[1])


def _effects(x: Tensor, mask: Tensor, future: Tensor, horizon: int, names: Sequence[str] | None) -> Tensor:
    """Effects of known covariates, [B, L + h, C]; with names, warns of values beyond the history's."""
    B, L, C = x.shape
    if future.ndim != 4 or future.shape[:3] != (B, L + horizon, C):
        raise ValueError(
            f"future must be [B, L + horizon, C, k] = [{B}, {L + horizon}, {C}, k], got shape {tuple(future.shape)}"
        )
    if (missing := ~future[:, L:].isfinite()).any():
        step = int(missing.any((0, 2, 3)).nonzero()[0]) + 1
        raise ValueError(
            f"future must hold a number at each step of the horizon, got none at step {step} of {horizon}: a covariate "
            "that ends earlier is a past one"
        )
    # What lies before a series begins is padding, which is not among its values.
    finite = future.isfinite() & F.pad(mask.cummax(1).values, (0, 0, 0, horizon), value=True)[..., None]
    rows = mask & finite[:, :L].all(3)
    # Not their mean, which of equal values may be rounded to another one: they would seem to vary.
    by_series = [tensor.permute(0, 2, 3, 1).flatten(0, 2) for tensor in (future, finite)]
    future = filled(*by_series)[0].unflatten(0, (B, C, -1)).permute(0, 3, 1, 2)
    if names is not None:
        _warn_of_range(future, L, names)
    begin = int(mask.any(2).any(0).to(torch.uint8).argmax())
    values, rows, series = (tensor[:, begin:].transpose(1, 2).flatten(0, 1) for tensor in (x, rows, future))
    return F.pad(covariate_effects(values, rows, series).unflatten(0, (B, C)).mT, (0, 0, begin, 0))


def _warn_of_range(future: Tensor, length: int, names: Sequence[str]) -> None:
    lowest, highest = future[:, :length].amin(1), future[:, :length].amax(1)
    varied = highest > lowest
    names = [*names, *(f"number {index}" for index in range(len(names), future.shape[3]))]
    unseen = ((future[:, length:] != lowest[:, None]).any(1) & ~varied).any((0, 1))
    if constant := [name for name, ahead in zip(names, unseen.tolist(), strict=False) if ahead]:
        warn(f"covariates that never vary in their history have no effect, whatever comes: {listed(constant)}")
    spread = torch.where(varied, highest - lowest, torch.inf)
    over = torch.maximum(future[:, length:].amax(1) - highest, lowest - future[:, length:].amin(1)) / spread
    for index, distance in enumerate(over.amax((0, 1)).tolist()):
        if distance > BEYOND:
            warn(
                f"the covariate {names[index]} goes {distance:.2g} times its range over what its history holds: it "
                f"counts as {BEYOND:g} times the range over it"
            )


def finetuned(
    network: BaseForecaster,
    values: Tensor,
    *,
    horizon: int,
    steps: int,
    learning_rate: float = 3e-4,
    seed: int = 0,
    positions: Tensor | None = None,
    season: int | None = None,
    future: Tensor | None = None,
) -> BaseForecaster:
    """A copy of a forecaster, trained further on one panel.

    Windows are drawn from the whole panel, 16 for a step, or fewer if there are more than 32 series; of more than 256
    series, a step draws that many. Windows near the beginning of the panel have a short history. The loss is the
    pinball loss of all quantiles over the first `horizon` steps, in units of each series' usual step.

    Parameters
    ----------
    network : BaseForecaster
    values : Tensor, shape (L, C)
        NaN is missing.
    horizon : int
        Steps that shall be forecast well; of more than 64, the first 64 are trained on.
    steps : int
    learning_rate : float
        Small: the weights are good already. The choice among simple forecasts learns 100 times faster.
    seed : int
    positions, season
        As in `BaseForecaster.forward`.
    future : Tensor, shape (L, C, k), optional
        Covariates, whose effect is taken from the panel first; see `forecast_quantiles`.

    Raises
    ------
    ValueError
        The panel is too short to train on.
    FloatingPointError
        Training diverged.
    """
    network = copy.deepcopy(network)
    # Finetuning looks at no more steps of a forecast.
    horizon = min(horizon, 64)
    earliest, latest = min(LEAST_STEPS, len(values) - horizon), len(values) - horizon
    if earliest < 4:
        raise ValueError(f"a panel to train on must have at least {horizon + 4} rows, horizon + 4, got {len(values)}")
    generator = torch.Generator().manual_seed(seed)
    observed = ~values.isnan()
    filled = values.nan_to_num(0.0).float()
    filled = PowerTransform.fitted(filled[None], observed[None]).apply(filled[None])[0]
    if future is not None:
        filled = (filled - _effects(filled[None], observed[None], future[None].float(), 0, None)[0]) * observed
    pairs = observed[1:] & observed[:-1]
    unit = ((filled[1:] - filled[:-1]).abs() * pairs).sum(0) / pairs.sum(0).clamp(min=1)
    unit = unit + 0.1 * (filled.masked_fill(~observed, 0.0).std(0) + 1e-6)
    padded, mask = (F.pad(rows, (0, 0, network.farthest, 0)) for rows in (filled, observed))
    levels = torch.tensor(LEVELS)
    # Trained is the forecast of steps alone, without those of means of several steps.
    back = int(network.reach(torch.tensor(season or 0)))
    groups = parameter_groups(
        network, learning_rate=learning_rate, linear_rate=QUICK_RATE * learning_rate, linear=lambda name: name in QUICK
    )
    C = values.shape[1]
    batch_size = max(1, min(_WINDOWS, _MOST_TRAINED // C))
    draws = [torch.randint(earliest, latest + 1, (batch_size,), generator=generator) for _ in range(steps)]
    # No weight changes what a window reads: on a short panel each window is read once.
    windows = torch.cat(draws).unique() if draws else torch.empty(0, dtype=torch.long)
    once = C <= MOST_SERIES and len(windows) * C <= _MOST_READ

    def read(ends: Tensor, series: Tensor | slice) -> Reading:
        past = network.farthest - back + ends[:, None] + torch.arange(back)
        x, counted = padded[past][..., series], mask[past][..., series]
        placed = None if positions is None else positions[series].expand(len(x), -1, -1)
        place = layout(placed, len(x), x.shape[2])
        return network.read(*cleaned(x, counted), horizon, place, season)

    readings = read(windows, slice(None)) if once and len(windows) else None

    def losses() -> Iterator[Tensor]:
        for step, ends in enumerate(draws):
            run.scale_rates(1.0 - step / steps)
            ahead = network.farthest + ends[:, None] + torch.arange(horizon)
            series: Tensor | slice = slice(None)
            if C > MOST_SERIES:
                series = torch.randperm(C, generator=generator)[:MOST_SERIES].sort().values
            reading = read(ends, series) if readings is None else readings.of(torch.searchsorted(windows, ends))
            forecast = network.forecast(reading)[:, :horizon]
            target, counted, size = padded[ahead][..., series], mask[ahead][..., series], unit[series]
            losses_of_steps = pinball_loss(forecast / size[:, None], target / size, levels)
            yield (losses_of_steps * counted[..., None]).sum() / counted.sum().clamp(min=1)

    run = TrainingRun(network, groups, steps=steps, learning_rate=learning_rate, clip=1.0)
    run.over(losses())
    return network.eval()


def _warn_of_short_series(mask: Tensor, horizon: int) -> None:
    observed = mask.sum(1)
    if int(observed.max()) < horizon:
        warn(
            f"the horizon has {horizon} steps and no series more than {observed.max()} observed ones: forecasts beyond "
            "as many steps repeat what was seen, and how sure they are was never tried"
        )
    if int(short := (observed < LEAST_STEPS).sum()):
        warn(
            f"{short} of {observed.numel()} series have fewer than {LEAST_STEPS} observed steps (the fewest: "
            f"{observed.min()}), and the forecaster was trained on {LEAST_STEPS} and more: their forecasts are little "
            "more than the last values"
        )
