"""An order of channels in which neighbours are alike, for series that come in none."""

from __future__ import annotations

import numpy as np


def correlation_order(values: np.ndarray) -> list[int]:
    """Walk from channel to channel, always on to the one that is correlated most with the last.

    Parameters
    ----------
    values : array, shape (n, C)
        Training data; NaN is missing and counts as the channel's mean.

    Returns
    -------
    list of int
        The C channels, each once. The walk starts at the channel that is correlated least with all others: an end.

    Examples
    --------
    >>> import numpy as np
    >>> source = np.random.default_rng(0).standard_normal(500).cumsum()
    >>> correlation_order(np.stack([source[shift : shift + 400] for shift in (0, 40, 20)], axis=1))
    [0, 2, 1]
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(f"values must be [n, C] with at least one row and channel, got shape {values.shape}")
    deviations = values - np.nanmean(np.where(np.isnan(values).all(0), 0.0, values), axis=0)
    deviations = np.nan_to_num(deviations)
    norms = np.linalg.norm(deviations, axis=0)
    unit = deviations / np.where(norms > 0.0, norms, 1.0)
    likeness = unit.T @ unit
    np.fill_diagonal(likeness, 0.0)
    order = [int(likeness.sum(0).argmin())]
    left = np.ones(len(likeness), dtype=bool)
    left[order] = False
    while left.any():
        following = int(np.where(left, likeness[order[-1]], -2.0).argmax())
        order.append(following)
        left[following] = False
    return order
