"""A start for the linear path and the cycle of a `ForecastingNetwork` in closed form, before any gradient step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from einops import rearrange
from torch import Tensor

from mvpa_ts.forecasting.network import ForecastingNetwork, location_scale


@torch.no_grad()
def least_squares_start(
    network: ForecastingNetwork,
    batches: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]],
    *,
    ridge: float = 0.1,
    cycle_strength: float = 0.5,
    correction_ridge: float = 3.0,
    reversion_strength: float = 0.25,
) -> None:
    """Set the cycle to a share of the mean profile, and the linear path to the ridge regression on what is left.

    With `level_reversion`, what then remains is regressed on the level of the window. All are functions of all windows
    at once, so that they carry no noise of a short training. What is minimised is the squared error after scaling back,
    so windows weigh as much as the variance of their look-back.

    Parameters
    ----------
    network : ForecastingNetwork
        With one output per step; changed in place. Its attention path stays as it is (a new one gives zero).
    batches : callable
        Called up to three times; gives windows: look-back (B, L, C), horizon (B, h, C) and phase (B,), all observed.
    ridge : float
        Added to the variance of every input, of which the mean is about one. A tenth keeps the regression from reading
        noise; more helps where windows are few or the future is less like the past.
    cycle_strength : float
        Share of the profile that becomes the cycle. Half, because the cycle of a window differs in strength from the
        mean, and the linear path sees what is left of it.
    correction_ridge : float
        The same for the corrections of `individual_channels`, which are fitted to what the common matrix leaves.
    reversion_strength : float
        Share of the regression's return to zero that is kept. Windows return to the mean of the rows that they are part
        of more surely than later ones will: levels drift.

    Raises
    ------
    ValueError
        The network has several outputs, there is no window, or a ridge is negative.

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
    if config.num_outputs != 1:
        raise ValueError(f"network must have one output per step, it has {config.num_outputs}")
    if ridge < 0.0 or correction_ridge < 0.0:
        raise ValueError(f"ridge and correction_ridge must be at least 0, got {ridge} and {correction_ridge}")
    if config.phase_weights:
        network.phase_weights.zero_()
    if config.cycle_length is not None:
        network.cycle.copy_(cycle_strength * _mean_profile(network, batches()))
    # Sums of squares and products over windows, one matrix a channel or one for all.
    variance, covariance, total = _moments(network, batches())
    if not bool(total.sum() > 0.0):
        raise ValueError("batches gave no window that varies")
    common = _ridge_solution(variance.sum(0), covariance.sum(0), total.sum(), ridge)
    network.linear.weight.copy_(common.mT)
    network.linear.bias.zero_()
    if config.individual_channels is not None:
        left = covariance - variance @ common
        network.corrections.copy_(_ridge_solution(variance, left, total, correction_ridge))
    if config.level_reversion:
        network.reversion.copy_(reversion_strength * _return_to_zero(network, batches()))


def _moments(
    network: ForecastingNetwork, batches: Iterable[tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted sums of past × past [K, L, L], past × future [K, L, h] and of the weights [K]; K channels, or 1."""
    config = network.config
    L, K = config.lookback, config.individual_channels or 1
    variance = network.linear.weight.new_zeros(K, L, L, dtype=torch.float64)
    covariance = variance.new_zeros(K, L, config.horizon)
    total = variance.new_zeros(K)
    group = "c b" if config.individual_channels is not None else "1 (b c)"
    for x, y, phase in batches:
        past, future, scale = _normalised(network, x, y, phase)
        rows = rearrange(past, f"b l c -> {group} l")
        weight = rearrange(scale.square(), f"b 1 c -> {group} 1")
        weighted = (rows * weight).mT
        variance += weighted @ rows
        covariance += weighted @ rearrange(future, f"b h c -> {group} h")
        total += weight.sum((1, 2))
    return variance, covariance, total


def _ridge_solution(variance: Tensor, covariance: Tensor, total: Tensor, ridge: float) -> Tensor:
    """(variance / total + ridge)⁻¹ covariance / total; one matrix, or one for each entry of `total`."""
    total = total.clamp(min=torch.finfo(total.dtype).tiny)[..., None, None]
    identity = torch.eye(variance.shape[-1], dtype=variance.dtype, device=variance.device)
    return torch.linalg.solve(variance / total + ridge * identity, covariance / total)


def _return_to_zero(network: ForecastingNetwork, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Regression of the errors of a network without reversion on the level of the window, for each step, [h]."""
    network.reversion.zero_()
    training = network.training
    network.eval()
    product, square = torch.zeros(network.config.horizon, dtype=torch.float64), 0.0
    for x, y, phase in batches:
        level = location_scale(x, None)[0].double()
        error = network(x, phase=phase)[..., 0].double() - y.double()
        product = product + (error * level).sum((0, 2)).to(product.device)
        square += level.square().sum().item()
    network.train(training)
    return product / max(square, torch.finfo(product.dtype).tiny)


def _mean_profile(network: ForecastingNetwork, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Mean of the normalised look-backs at each phase, [cycle_length, cycle_channels or 1]."""
    config, cycle = network.config, network.cycle
    total = torch.zeros_like(cycle, dtype=torch.float64)
    count = torch.zeros_like(total[:, :1])
    steps = torch.arange(config.lookback, device=cycle.device)
    assert config.cycle_length is not None
    for x, _, phase in batches:
        location, scale = location_scale(x, None) if config.normalise else (x.new_zeros(()), x.new_ones(()))
        values = (x - location) / scale
        if config.cycle_channels is None:
            values = values.mean(-1, keepdim=True)
        at = ((phase[:, None] + steps) % config.cycle_length).flatten()
        total.index_add_(0, at, values.flatten(0, 1).double())
        count.index_add_(0, at, torch.ones_like(at, dtype=torch.float64)[:, None])
    return (total / count.clamp(min=1.0)).to(cycle.dtype)


def _normalised(network: ForecastingNetwork, x: Tensor, y: Tensor, phase: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Look-back and horizon as the linear path sees them, and the scale of each window and channel [B, 1, C]."""
    config = network.config
    location, scale = location_scale(x, None) if config.normalise else (x.new_zeros(()), x.new_ones(x[:, :1].shape))
    past, future = (x - location) / scale, (y - location) / scale
    if config.cycle_length is not None:
        steps = torch.arange(config.lookback + config.horizon, device=x.device)
        cycle = network.cycle[(phase[:, None] + steps) % config.cycle_length]
        past, future = past - cycle[:, : config.lookback], future - cycle[:, config.lookback :]
    return past.double(), future.double(), scale.double()
