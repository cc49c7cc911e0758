"""A start for the linear path, the cycle and the effects of covariates in closed form, before any gradient step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mvpa_ts.forecasting.network.network import ForecastingNetwork, phase_of_steps
from mvpa_ts.forecasting.normalisation import location_scale
from mvpa_ts.windows import Windows

_CORRECTION_RIDGE = 3.0
# Windows that a closed-form start reads at least, where there are as many; neighbours are alike.
_CLOSED_FORM_WINDOWS, _CLOSED_FORM_EVERY = 128, 4
# Of the regression on covariates: lags of its errors, and rows for each.
_MOST_LAGS, _ROWS_OF_LAG = 24, 10
_ROUNDS = 5  # of errors and regression in turn; the numbers move by less than a thousandth afterwards
_ROWS_OF_COVARIATE = 4
_MOST_VALUES = 2_000_000  # read at most, the last ones: more would not change what is learnt
# Scores of the linear path beside regressions in the window, of which the best is taken, and windows that are read.
_SCORES, _SHARE_EVERY = (0.0, 2.0, 4.0, 8.0, 16.0), 8
_DOUBT = 4.0  # squares of the t-value below which an effect counts as none


@torch.no_grad()
def least_squares_start(
    network: ForecastingNetwork,
    batches: Callable[[], Iterable[Sequence[Tensor | None]]],
    *,
    ridge: float = 0.1,
    cycle_strength: float = 0.5,
    reversion_strength: float = 0.25,
) -> None:
    """Set the cycle to a share of the mean profile, and the linear path to the ridge regression on what is left.

    If `normalise` is "reverting", what then remains is regressed on the level of the window. Last, the linear path
    gets the share of the forecast that it earns beside the regressions inside each window. All windows are used at
    once, so there is no noise of a short training. The squared error after scaling back is minimised, so a window
    counts as much as the variance of its look-back.

    Parameters
    ----------
    network : ForecastingNetwork
        Changed in place. Its attention path stays as it is (a new one gives zero). If there are several outputs a step,
        all get the same forecast, and their biases are scaled by the remaining errors. Quantiles that were started at
        those of a normal distribution (`start_in_order`) then have the spread of the errors.
    batches : callable
        Called some times; gives windows: look-back (B, L, C), horizon (B, h, C) and phase (B,) or (B, L + h).
        If values are missing, it also gives the look-back's mask (B, L, C) and which values of the horizon count
        (B, h, C); None: all. A channel of a window is used if its whole horizon counts and half of its look-back is
        observed. Missing values there are taken as the window's mean.
    ridge : float
        Added to the variance of every input, whose mean is about one. A tenth keeps the regression from reading noise.
        More helps if windows are few, or if the future is less like the past; matrices of single channels have
        a ridge of 3.
    cycle_strength : float
        Share of the mean profile that becomes the cycle. Half by default, because the cycle of a window differs in
        strength from the mean. The linear path sees the rest.
    reversion_strength : float
        Share of the regression's return to zero that is kept. It is less than one because levels drift.

    Raises
    ------
    ValueError
        Some outputs are not levels, no window varies, or `ridge` is negative.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts import ForecastingConfig, ForecastingNetwork, least_squares_start
    >>> series = torch.sin(torch.arange(400) * 2 * torch.pi / 24)[:, None]
    >>> windows = series.unfold(0, 72, 1).mT  # [windows, L + h, C]
    >>> network = ForecastingNetwork(ForecastingConfig(horizon=24, lookback=48))
    >>> phase = torch.zeros(len(windows), dtype=torch.long)
    >>> least_squares_start(network, lambda: [(windows[:, :48], windows[:, 48:], phase)], ridge=1e-4)
    >>> forecast = network.eval()(windows[:, :48])[..., 0]
    >>> bool((forecast - windows[:, 48:]).abs().max() < 1e-3)
    True
    """
    config = network.config
    if network.location_outputs is not None:
        raise ValueError("network must have location_outputs=None: with other values not every output is a level")
    if ridge < 0.0:
        raise ValueError(f"ridge must be at least 0, got {ridge}")
    if config.cycle_length is not None:
        network.cycle.copy_(cycle_strength * _mean_profile(network, batches()))
    variance, covariance, total, squares = _moments(network, batches())
    if not bool(total.sum() > 0.0):
        raise ValueError("batches must hold at least one window whose values vary, got none")
    common = _ridge_solution(variance.sum(0), covariance.sum(0), total.sum(), ridge)
    outputs = config.num_outputs
    network.linear.weight.copy_(common.mT.repeat_interleave(outputs, 0))
    solution = common.expand_as(covariance)
    if "matrix" in config.per_channel:
        left = covariance - variance @ common
        corrections = _ridge_solution(variance, left, total, _CORRECTION_RIDGE)
        network.corrections.copy_(corrections.repeat_interleave(outputs, 2))
        solution = solution + corrections
    if outputs == 1:
        network.linear.bias.zero_()
    else:
        explained = (solution * (2.0 * covariance - variance @ solution)).sum((0, 1))
        spread = ((squares - explained) / total.sum()).clamp(min=0.0).sqrt()
        network.linear.bias.mul_(spread.repeat_interleave(outputs))
    training = network.training
    network.eval()
    shares = None if network.regressions is None or network.regressions.off else network.regressions
    if shares is not None:
        shares.step_score[:, -1] = _SCORES[-1]  # of the network alone, until its share is known
    if config.normalise == "reverting":
        network.reversion.copy_(reversion_strength * _return_to_zero(network, batches()))
    if shares is not None:
        score = shares.step_score[:, -1]
        errors = []
        for number in _SCORES:
            score.fill_(number)
            errors.append(_squared_error(network, batches()))
        score.fill_(_SCORES[errors.index(min(errors))])
    network.train(training)


def start_in_closed_form(model: nn.Module, windows: Windows, training: Any) -> None:
    """Call `least_squares_start`, if `training` has a `ridge`, on some of the windows, because neighbours are alike.

    Windows without a missing value are enough where there are some; otherwise all are read, with their masks. Raises
    ValueError if the model is no `ForecastingNetwork`, and where `least_squares_start` does.
    """
    if training.ridge is None:
        return
    if not isinstance(model, ForecastingNetwork):
        raise ValueError(f"ridge needs a ForecastingNetwork to start in closed form, got {type(model).__name__}")
    complete = windows.complete()
    usable = complete if len(complete) else windows
    stride = max(1, min(_CLOSED_FORM_EVERY, len(usable) // _CLOSED_FORM_WINDOWS))
    chosen = usable.thinned(stride)

    def batches() -> Iterator[tuple[Tensor | None, ...]]:
        for inputs, target, counted in chosen.batches(256):
            x = inputs["x"]
            if (effects := model.effects(x, inputs["mask"], inputs["future"], inputs["units"])) is not None:
                x, target = x - effects[:, : windows.lookback], target - effects[:, windows.lookback :]
            yield x, target, inputs["phase"], inputs["mask"], counted

    strengths = {name: getattr(training, name) for name in ("ridge", "cycle_strength", "reversion_strength")}
    least_squares_start(model, batches, **strengths)


def _moments(
    network: ForecastingNetwork, batches: Iterable[Sequence[Tensor | None]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted sums over windows for each of K channels, or for all as one (K = 1)."""
    config = network.config
    L, K = config.lookback, config.channels_with("matrix") or 1
    variance = network.linear.weight.new_zeros(K, L, L, dtype=torch.float64)  # past × past
    covariance = variance.new_zeros(K, L, config.horizon)  # past × future
    total = variance.new_zeros(K)  # of the weights
    squares = variance.new_zeros(config.horizon)  # of the future, over all channels
    group = "c b" if "matrix" in config.per_channel else "1 (b c)"
    for past, future, weight in _normalised(network, batches):
        rows, weights = rearrange(past, f"b l c -> {group} l"), rearrange(weight, f"b 1 c -> {group} 1")
        weighted = (rows * weights).mT
        variance += weighted @ rows
        covariance += weighted @ rearrange(future, f"b h c -> {group} h")
        total += weights.sum((1, 2))
        squares += (future.square() * weight).sum((0, 2))
    return variance, covariance, total, squares


def _ridge_solution(variance: Tensor, covariance: Tensor, total: Tensor, ridge: float) -> Tensor:
    """(variance / total + ridge)⁻¹ covariance / total; one matrix, or one for each entry of `total`."""
    total = total.clamp(min=torch.finfo(total.dtype).tiny)[..., None, None]
    identity = torch.eye(variance.shape[-1], dtype=variance.dtype, device=variance.device)
    return torch.linalg.solve(variance / total + ridge * identity, covariance / total)


def _return_to_zero(network: ForecastingNetwork, batches: Iterable[Sequence[Tensor | None]]) -> Tensor:
    """Regression of the errors without reversion and bounds on the level of the window, for each step, [h]."""
    network.reversion.zero_()
    product, square = torch.zeros(network.config.horizon, dtype=torch.float64), 0.0
    for x, y, phase, mask, counted in map(_filled, batches):
        level = location_scale(x, mask)[0].double() * _counting(mask, counted)
        with network.bounded_by(-torch.inf, torch.inf):
            error = _middle(network, x, mask, phase).double() - y.double()
        product = product + (error * level).sum((0, 2)).to(product.device)
        square += level.square().sum().item()
    return product / max(square, torch.finfo(product.dtype).tiny)


def _squared_error(network: ForecastingNetwork, batches: Iterable[Sequence[Tensor | None]]) -> float:
    """Of the median over what counts, in units of the windows' deviations; every eighth window is read."""
    total = 0.0
    for batch in batches:
        x, y, phase, mask, counted = _filled([None if tensor is None else tensor[::_SHARE_EVERY] for tensor in batch])
        error = (_middle(network, x, mask, phase) - y).square()
        error = error / location_scale(x, mask)[1].square().mean()
        total += float((error if counted is None else error * counted).double().sum())
    return total


def _middle(network: ForecastingNetwork, x: Tensor, mask: Tensor | None, phase: Tensor) -> Tensor:
    """The forecast's level, [B, h, C]; effects of covariates are taken away already, so each is at its mean."""
    # What attention adds is zero before training, so that any places do.
    B, L, C = x.shape
    size, at = network.config.position_size, torch.arange(C, device=x.device)
    shapes = zip(("future", "historic", "static"), ((B, L + network.config.horizon, C), (B, L, C), (C,)), strict=True)
    inputs = {name: x.new_zeros(*shape, getattr(network.config.feature_sizes, name)) for name, shape in shapes}
    positions = at[:, None].expand(C, size) if size else None
    return network(x, mask, phase=phase, positions=positions, **inputs)[..., network.middle]


def _mean_profile(network: ForecastingNetwork, batches: Iterable[Sequence[Tensor | None]]) -> Tensor:
    """Mean of the normalised look-backs at each phase, [cycle_length, C or 1]."""
    config, cycle = network.config, network.cycle
    total = torch.zeros_like(cycle, dtype=torch.float64)
    count = torch.zeros_like(total)
    assert config.cycle_length is not None
    for x, _, phase, mask, _ in map(_filled, batches):
        location, scale = location_scale(x, mask) if config.normalise else (x.new_zeros(()), x.new_ones(()))
        values = (x - location) / scale
        weight = torch.ones_like(values) if mask is None else mask.to(values)
        values = values * weight
        if "cycle" not in config.per_channel:
            values = values.mean(-1, keepdim=True)
            weight = weight.mean(-1, keepdim=True)
        at = (phase_of_steps(phase, config.lookback)[:, : config.lookback] % config.cycle_length).flatten()
        total.index_add_(0, at, values.flatten(0, 1).double())
        count.index_add_(0, at, weight.flatten(0, 1).double())
    return torch.where(count > 0.0, total / count, 0.0).to(cycle.dtype)


def _normalised(
    network: ForecastingNetwork, batches: Iterable[Sequence[Tensor | None]]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Look-backs and horizons as the linear path sees them, and what each counts [B, 1, C], in double precision."""
    config = network.config
    for x, y, phase, mask, counted in map(_filled, batches):
        location, scale = x.new_zeros(()), x.new_ones(x[:, :1].shape)
        if config.normalise:
            location, scale = location_scale(x, mask)
        past, future = (x - location) / scale, (y - location) / scale
        if config.cycle_length is not None:
            cycle = network.cycle[phase_of_steps(phase, config.lookback + config.horizon) % config.cycle_length]
            past, future = past - cycle[:, : config.lookback], future - cycle[:, config.lookback :]
        if mask is not None:
            past = past.masked_fill(~mask, 0.0)
        weight = scale.square() * _counting(mask, counted)
        yield past.double(), future.double(), weight.double()


def _filled(batch: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Look-back, horizon, phase, mask and what counts; zeros where nothing is observed."""
    x, y, phase, mask, counted = (*batch, None, None)[:5]
    x = x if mask is None else x.masked_fill(~mask, 0.0)
    y = y if counted is None else y.masked_fill(~counted, 0.0)
    return x, y, phase, mask, counted


def _counting(mask: Tensor | None, counted: Tensor | None) -> Tensor | bool:
    """Which channels of which windows count, [B, 1, C]; True: all."""
    seen = True if mask is None else mask.float().mean(1, keepdim=True) >= 0.5
    return seen if counted is None else seen & counted.all(1, keepdim=True)


@torch.no_grad()
def start_effects(network: ForecastingNetwork, windows: Windows) -> None:
    """Set the effects of covariates to those of a regression on the windows' rows, if they are all zero yet."""
    if not network.reads_effects or windows.features is None or bool(network.future_effects.any()):
        return
    values, observed = windows.values, windows.rows_inside()[:, None]
    observed = observed.expand_as(values) if windows.observed is None else observed & windows.observed
    features = windows.features[:, None].expand(-1, values.shape[1], -1)
    network.future_effects.copy_(covariate_effects(values, observed, features))


@torch.no_grad()
def covariate_effects(values: Tensor, observed: Tensor, features: Tensor) -> Tensor:
    """Change of the values by one unit of each covariate, shared by the channels.

    The errors of the regression are taken as autoregressive, and both are fitted in turn (Cochrane and Orcutt, 1949):
    series that merely drift alike then have no effect on each other. Effects that the data hardly tell from zero are
    shrunk towards it by the non-negative garrote (Breiman, 1995).

    Parameters
    ----------
    values : Tensor, shape (n, C)
        In units of each channel's deviation.
    observed : bool Tensor, shape (n, C)
        What is stored elsewhere does not matter.
    features : Tensor, shape (n, C, F)
        NaN in rows that do not count.

    Returns
    -------
    Tensor, shape (F,)
        Zeros if there are fewer than four rows for each covariate.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> features = torch.randn(200, 1, 2)
    >>> values = 3.0 * features[..., 0] + 0.1 * torch.randn(200, 1)  # the second one does nothing
    >>> covariate_effects(values, torch.ones(200, 1, dtype=torch.bool), features).round().int().tolist()
    [3, 0]
    """
    best = regressed_effects(values, observed, features)
    none = torch.zeros(features.shape[2], dtype=values.dtype, device=values.device)
    if best is None:
        return none
    certain = best.effects.square() / best.uncertainty.clamp(min=torch.finfo(best.effects.dtype).tiny)
    return (best.effects * (1.0 - _DOUBT / certain).clamp(min=0.0)).nan_to_num(0.0).to(none)


def regressed_effects(
    values: Tensor, observed: Tensor, features: Tensor, *, most_lags: int = _MOST_LAGS
) -> EffectRegression | None:
    """The regression of `covariate_effects` before anything is shrunk; None with too few rows."""
    C, F = features.shape[1:]
    last = max(200, _MOST_VALUES // (C * (F + _MOST_LAGS)))
    y, X = values[-last:].double(), features[-last:].double()
    usable = observed[-last:] & X.isfinite().all(2)
    y, X = y.masked_fill(~usable, 0.0), X.masked_fill(~usable[..., None], 0.0)
    rows = int(usable.any(1).sum())
    lags = min(most_lags, rows // _ROWS_OF_LAG)
    while 2 * int((whole := _with_lags(usable, lags)).any(1).sum()) < rows:
        lags //= 2  # many values are missing
    if int(whole.any(1).sum()) - lags < _ROWS_OF_COVARIATE * F:
        return None
    # From both ends, for series that drift alike have two solutions; the one with the smaller errors counts.
    starts = X.new_zeros(F), EffectRegression(y, X, usable).effects
    return min((_alternated(y, X, usable, whole, lags, start) for start in starts), key=lambda fit: fit.variance)


class EffectRegression:
    """Least squares of values on covariates, each less its mean by channel."""

    def __init__(self, y: Tensor, X: Tensor, counted: Tensor) -> None:
        y, X = _centred(y[..., None], counted)[..., 0], _centred(X, counted)
        products = torch.einsum("ncf,ncg->fg", X, X)
        size = products.diagonal().clamp(min=torch.finfo(y.dtype).tiny)
        inverse = torch.linalg.inv(products + torch.diag(1e-6 * size + 1e-12))
        self.effects = inverse @ torch.einsum("ncf,nc->f", X, y)
        errors = y - X @ self.effects
        count = int(counted.sum())
        self.variance = float(errors.square().sum() / max(count, 1))
        # Errors of channels at one step may be alike: a step counts as one observation.
        scores = torch.einsum("ncf,nc->nf", X, errors)
        steps = int(counted.any(1).sum())
        corrected = steps / max(1, steps - X.shape[2] - 1)
        self.uncertainty = corrected * (inverse @ (scores.mT @ scores) @ inverse).diagonal()


def _alternated(y: Tensor, X: Tensor, known: Tensor, whole: Tensor, lags: int, effects: Tensor) -> EffectRegression:
    """Regression on what is left after subtracting what the last steps tell; errors and effects in turn."""
    for _ in range(_ROUNDS):
        errors = _centred((y - X @ effects)[..., None], known)[..., 0]
        past = torch.stack([errors.roll(lag, 0) for lag in range(1, lags + 1)], 2) if lags else errors[..., None] * 0.0
        weights = EffectRegression(errors, past, whole).effects
        filtered = [_filtered(rows, weights, whole) for rows in (y[..., None], X)]
        fit = EffectRegression(filtered[0][..., 0], filtered[1], whole)
        effects = fit.effects
    return fit


def _with_lags(known: Tensor, lags: int) -> Tensor:
    """Where a value and those of so many steps before are known."""
    whole = known.clone()
    for lag in range(1, lags + 1):
        whole &= known.roll(lag, 0)
        whole[:lag] = False
    return whole


def _filtered(x: Tensor, weights: Tensor, whole: Tensor) -> Tensor:
    left = x.clone()
    for lag, weight in enumerate(weights, start=1):
        left -= weight * x.roll(lag, 0)
    return left * whole[..., None]


def _centred(x: Tensor, counted: Tensor) -> Tensor:
    counted = counted[..., None].to(x)
    mean = (x * counted).sum(0) / counted.sum(0).clamp(min=1.0)
    return (x - mean) * counted
