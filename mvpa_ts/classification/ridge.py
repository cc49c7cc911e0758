"""Ridge classification in closed form, its penalty and temperature chosen by leaving one out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_PENALTIES = 10.0 ** torch.arange(-1.0, 6.1, 0.5, dtype=torch.float64)
_SHARPNESS = torch.logspace(-1, 2, 61, dtype=torch.float64)


def fit_ridge(features: Tensor, labels: Tensor, weights: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Weight [K, P] and bias [K] of logits whose softmax is calibrated.

    The targets are ±1. The penalty has the smallest squared leave-one-out error; then the scores are multiplied by
    the factor that gives the leave-one-out scores the smallest cross-entropy. Both need one eigendecomposition of
    the smaller Gram matrix.

    Parameters
    ----------
    features : Tensor, shape (n, P)
        Standardised.
    labels : integer Tensor, shape (n,)
    weights : Tensor, shape (n,)
        What each row counts; their mean does not matter.
    num_classes : int
        K.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.classification.ridge import fit_ridge
    >>> features = torch.tensor([[-1.0], [-0.9], [0.9], [1.0]])
    >>> weight, bias = fit_ridge(features, torch.tensor([0, 0, 1, 1]), torch.ones(4), num_classes=2)
    >>> (features @ weight.T + bias).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    rows, share = features.double(), (weights / weights.sum()).double()[:, None]
    target = 2.0 * F.one_hot(labels, num_classes).double() - 1.0
    row_mean, target_mean = (share * rows).sum(0), (share * target).sum(0)
    root = (share * len(rows)).sqrt()
    X, Y = (rows - row_mean) * root, (target - target_mean) * root  # [n, P], [n, K]

    dual = X.shape[0] <= X.shape[1]
    values, vectors = torch.linalg.eigh(X @ X.T if dual else X.T @ X)
    kept = values > values[-1] * 1e-10
    values, vectors = values[kept], vectors[:, kept]
    basis = vectors if dual else X @ vectors / values.sqrt()  # left singular vectors of X
    projected = basis.T @ Y

    smallest, penalty, scores = float("inf"), 1.0, target
    for candidate in _PENALTIES.tolist():
        shrinkage = values / (values + candidate)
        leverage = (basis.square() @ shrinkage)[:, None] + share
        fitted = basis @ (shrinkage[:, None] * projected)
        left_out = (fitted - leverage * Y) / (1.0 - leverage).clamp(min=1e-6)
        error = (left_out - Y).square().mean().item()
        if error < smallest:
            smallest, penalty, scores = error, candidate, left_out / root + target_mean

    losses = torch.stack(
        [(F.cross_entropy(scores * s, labels, reduction="none") * share[:, 0]).sum() for s in _SHARPNESS.to(scores)]
    )
    sharpness = _SHARPNESS[losses.argmin().item()].item()
    coefficients = projected / (values + penalty)[:, None]
    weight = X.T @ (basis @ coefficients) if dual else vectors @ (values.sqrt()[:, None] * coefficients)
    bias = target_mean - row_mean @ weight
    return (weight.T * sharpness).to(features), (bias * sharpness).to(features)
