"""Ridge classification and regression in closed form, the penalty chosen by leaving one series out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

_PENALTIES = 10.0 ** torch.arange(-1.0, 6.1, 0.5, dtype=torch.float64)
_SHARPNESS = torch.logspace(-1, 2, 61, dtype=torch.float64)


class Ridge(NamedTuple):
    """Weight [K, P] and bias [K] of logits; logits [n, K] of series that were left out, and their loss."""

    weight: Tensor
    bias: Tensor
    left_out: Tensor
    loss: float


def fit_ridge(features: Tensor, labels: Tensor, weights: Tensor, *, num_classes: int, copies: int = 1) -> Ridge:
    """Logits whose softmax is calibrated, or, for one class, numbers.

    The targets are ±1. The scores are multiplied by a factor; it and the penalty have the smallest cross-entropy over
    the series when each is left out with all of its copies. Numbers are their own targets, their factor is 1 and their
    loss the squared error. What is left out follows from one eigendecomposition of the smaller
    Gram matrix: leaving rows g out changes their residuals from r to (I − H)⁻¹ r, where H is the block of the hat
    matrix at g.

    Parameters
    ----------
    features : Tensor, shape (copies · n, P)
        Standardised; all series, then a copy of all, and so on.
    labels : Tensor, shape (n,)
        Classes, or, for one class, numbers.
    weights : Tensor, shape (n,)
        What each series counts; their mean does not matter.
    num_classes : int
        K.
    copies : int
        How many forms of each series there are, the first being the series itself.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.classification.ridge import fit_ridge
    >>> features = torch.tensor([[-1.0], [-0.9], [0.9], [1.0]])
    >>> ridge = fit_ridge(features, torch.tensor([0, 0, 1, 1]), torch.ones(4), num_classes=2)
    >>> (features @ ridge.weight.T + ridge.bias).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    rows, share = features.double(), (weights / weights.sum() / copies).double().repeat(copies)[:, None]
    regression = num_classes == 1
    target = labels.double()[:, None] if regression else 2.0 * F.one_hot(labels, num_classes).double() - 1.0
    target = target.repeat(copies, 1)
    row_mean, target_mean = (share * rows).sum(0), (share * target).sum(0)
    root = (share * len(rows)).sqrt()
    X, Y = (rows - row_mean) * root, (target - target_mean) * root  # [copies · n, P], [copies · n, K]

    dual = X.shape[0] <= X.shape[1]
    values, vectors = torch.linalg.eigh(X @ X.T if dual else X.T @ X)
    kept = values > values[-1] * 1e-10
    values, vectors = values[kept], vectors[:, kept]
    basis = vectors if dual else X @ vectors / values.sqrt()  # left singular vectors of X
    projected = basis.T @ Y
    by_series = rearrange(basis, "(m n) r -> n m r", m=copies)
    intercept = rearrange(share.sqrt(), "(m n) 1 -> n m 1", m=copies)

    smallest, penalty, sharpness, left_out = float("inf"), 1.0, 1.0, target[: len(labels)]
    first = slice(0, len(labels))
    for candidate in _PENALTIES.tolist():
        shrinkage = values / (values + candidate)
        residual = rearrange(Y - basis @ (shrinkage[:, None] * projected), "(m n) k -> n m k", m=copies)
        hat = (by_series * shrinkage) @ by_series.mT + intercept @ intercept.mT
        residual = torch.linalg.solve(torch.eye(copies).to(hat) * (1 + 1e-9) - hat, residual)
        scores = target[first] - residual[:, 0] / root[first].clamp(min=1e-12)
        factors = torch.ones(1).to(scores) if regression else _SHARPNESS.to(scores)
        scaled = scores[..., None] * factors  # [n, K, factors]
        if regression:
            losses = (scaled - target[first, :, None]).square().sum(1)
        else:
            losses = F.cross_entropy(scaled, labels[:, None].expand(-1, len(factors)), reduction="none")
        totals = ((losses * share[first]).sum(0) * copies).nan_to_num(torch.inf)
        best = int(totals.argmin())
        if (loss := totals[best].item()) < smallest:
            smallest, penalty, sharpness, left_out = loss, candidate, factors[best].item(), scaled[..., best]
    coefficients = projected / (values + penalty)[:, None]
    weight = X.T @ (basis @ coefficients) if dual else vectors @ (values.sqrt()[:, None] * coefficients)
    bias = target_mean - row_mean @ weight
    return Ridge((weight.T * sharpness).to(features), (bias * sharpness).to(features), left_out.to(features), smallest)
