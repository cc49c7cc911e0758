"""A distribution of skpro made of quantiles; imported where `predict_proba` is called, for skpro is optional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from skpro.distributions import Histogram, HistogramQPD


class ExactHistogram(Histogram):
    """A histogram whose quantile function is not rounded: that of skpro 2.16 has four digits after the point."""

    def _ppf(self, p: np.ndarray) -> np.ndarray:
        quantiles = np.empty(np.shape(p))
        for row, column in np.ndindex(quantiles.shape):
            below = np.concatenate([[0.0], np.cumsum(self.bin_mass[row][column])])
            quantiles[row, column] = np.interp(p[row, column], below, self.bins[row][column])
        return quantiles


class QuantileDistribution(HistogramQPD):
    """Quantiles of every step and column, with constant density between them and as far beyond as is left."""

    @classmethod
    def of(cls, quantiles: np.ndarray, levels: list[float], index: pd.Index, columns: pd.Index) -> QuantileDistribution:
        """The distribution with quantiles [steps, C, levels] that do not cross."""
        # Quantiles of equal value, as those on a bound, have no density: they are moved apart by what no one sees.
        size = np.abs(quantiles).max(2, keepdims=True) + np.ptp(quantiles, 2, keepdims=True)
        quantiles = quantiles + 1e-9 * (size + 1e-30) * np.arange(len(levels))
        rows = pd.MultiIndex.from_product([levels, index])
        table = pd.DataFrame(quantiles.transpose(2, 0, 1).reshape(len(rows), -1), index=rows, columns=columns)
        return cls(table, tails="uniform", index=index, columns=columns)

    def _build_delegate(self, *arguments: Any) -> ExactHistogram:
        histogram = super()._build_delegate(*arguments)
        *_, index, columns = arguments
        return ExactHistogram(histogram.bins, histogram.bin_mass, index=index, columns=columns)

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> QuantileDistribution:
        index = self.index if rowidx is None else self.index[rowidx]
        columns = self.columns if colidx is None else self.columns[colidx]
        return QuantileDistribution(self.quantiles, tails=self.tails, index=index, columns=columns)
