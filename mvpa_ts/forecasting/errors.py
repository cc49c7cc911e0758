"""Errors of forecasts: what training minimises, and what tables report."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mvpa_ts.forecasting.quantiles import pinball_loss
from mvpa_ts.windows import Windows


def forecast_loss(
    forecast: Tensor,
    target: Tensor,
    counted: Tensor | None = None,
    *,
    loss: str = "l1",
    levels: Tensor | None = None,
    horizon_decay: float = 0.0,
    frequency_weight: float = 0.0,
) -> Tensor:
    """Mean error over windows, steps and channels, part of it over frequencies instead of steps.

    Parameters
    ----------
    forecast : Tensor, shape (B, h, C, m)
    target : Tensor, shape (B, h, C)
    counted : bool Tensor, shape (B, h, C), optional
        Which targets count; None: all.
    loss : {"l1", "mse"}
        Of point forecasts, m = 1.
    levels : Tensor, shape (m,), optional
        The outputs are quantiles of these levels, in this order, and have the pinball loss.
    horizon_decay : float
        The error k steps ahead weighs k to the power of minus that (CARD, arXiv:2305.12095): near steps hold less
        noise to learn from.
    frequency_weight : float
        Share of the mean that is taken by the L1 norm of the error's Fourier transform over the steps (FreDF,
        arXiv:2402.02399); of quantiles, of the median's error. Errors of neighbouring steps go together, those of
        frequencies less so. The transform is orthonormal, which keeps both parts on one scale.

    Returns
    -------
    Tensor, shape ()

    Examples
    --------
    >>> import torch
    >>> forecast_loss(torch.ones(1, 2, 1, 1), torch.tensor([[[3.0], [1.0]]]))
    tensor(1.)
    """
    weights: Tensor | float = 1.0
    if horizon_decay:
        weights = torch.arange(1, target.shape[1] + 1, device=target.device) ** -horizon_decay
        weights = (weights / weights.mean())[:, None]
    if levels is None:
        error = (forecast[..., 0] - target) * weights
        errors = error.abs() if loss == "l1" else error.square()
    else:
        errors = pinball_loss(forecast, target, levels).mean(-1) * weights
    mean = errors.mean() if counted is None else (errors * counted).sum() / counted.sum().to(errors.dtype)
    if not frequency_weight:
        return mean
    if levels is not None:
        error = (forecast[..., int((levels - 0.5).abs().argmin())] - target) * weights
    if counted is not None:
        error = error.masked_fill(~counted, 0.0)
    spectrum = torch.fft.rfft(error, dim=1, norm="ortho").abs().mean()
    return (1.0 - frequency_weight) * mean + frequency_weight * spectrum


def evaluate(model: nn.Module, windows: Windows, batch_size: int = 128) -> tuple[float, float]:
    """One mean of squared and of absolute error over all windows, steps and channels; see `errors_by_channel`."""
    squared, absolute = errors_by_channel(model, windows, batch_size).mean(1).tolist()
    return squared, absolute


@torch.no_grad()
def errors_by_channel(model: nn.Module, windows: Windows, batch_size: int = 128) -> Tensor:
    """Means of squared and of absolute error of the first output over all windows and steps, [2, C].

    Every value of the windows counts, also where nothing was observed.
    """
    model.eval()
    sums, count = torch.zeros(2, windows.values.shape[1], dtype=torch.float64, device=windows.values.device), 0
    for inputs, target, _ in windows.batches(batch_size):
        error: Tensor = model(**inputs)[..., 0].double() - target.double()
        sums += torch.stack([error.square().sum((0, 1)), error.abs().sum((0, 1))])
        count += error.shape[0] * error.shape[1]
    return sums / count


@torch.no_grad()
def quantile_error(model: nn.Module, windows: Windows, levels: Tensor, batch_size: int = 128) -> float:
    """Mean pinball loss over the targets that count."""
    model.eval()
    total, count = 0.0, 0
    for inputs, target, counted in windows.batches(batch_size):
        errors = pinball_loss(model(**inputs), target, levels).mean(-1)
        counted = torch.ones_like(errors, dtype=torch.bool) if counted is None else counted
        total += float((errors * counted).double().sum())
        count += int(counted.sum())
    return total / count
