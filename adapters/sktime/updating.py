"""New rows after `fit`: what the host would misread is refused, or told to it in its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pandas as pd
from sktime.forecasting.base import ForecastingHorizon

from mvpa_ts.adapters.sktime.frames import check_has_times, frequency_of, steps_ahead

if TYPE_CHECKING:
    from collections.abc import Callable


class Updating:
    """Mix-in for the forecaster: `update`, `update_predict` and `update_predict_single` of sktime."""

    if TYPE_CHECKING:  # of the forecaster
        fh: ForecastingHorizon
        cutoff: pd.Index
        check_is_fitted: Callable[[], None]
        _fh: ForecastingHorizon | None

    def update(self, y: Any, X: Any = None, update_params: bool = True) -> Self:
        """Append rows and train on, as sktime's forecasters do; rows need an index, which an array lacks."""
        check_has_times(y)
        return super().update(y, X=X, update_params=update_params)  # type: ignore[misc]

    def update_predict_single(self, y: Any = None, fh: Any = None, X: Any = None, update_params: bool = True) -> Any:
        """Append rows, train on and forecast, as sktime's forecasters do; rows need an index, which an array lacks."""
        check_has_times(y)
        return super().update_predict_single(y, fh=fh, X=X, update_params=update_params)  # type: ignore[misc]

    def update_predict(
        self,
        y: Any,
        cv: Any = None,
        X: Any = None,
        update_params: bool = True,
        reset_forecaster: bool = True,
    ) -> Any:
        """Update and predict step by step, as sktime's forecasters do; without `cv` each time the steps of `fh`.

        The host's own default forecasts one step, which a forecaster fitted for others refuses. Rows need an index,
        which an array lacks.
        """
        check_has_times(y)
        options = {"X": X, "update_params": update_params, "reset_forecaster": reset_forecaster}
        if cv is not None or self._fh is None:
            return super().update_predict(y, cv=cv, **options)  # type: ignore[misc]
        from sktime.split import ExpandingWindowSplitter

        self.check_is_fitted()
        frequency = getattr(self, "_frequency", None) or frequency_of(self.cutoff)
        # The host's splitter counts rows, and its forecaster keeps to the horizon of `fit`, perhaps hours or dates.
        told, self._fh = self._fh, ForecastingHorizon(steps_ahead(self.fh, self.cutoff, frequency), is_relative=True)
        try:
            cv = ExpandingWindowSplitter(initial_window=1, fh=self._fh)
            return super().update_predict(y, cv=cv, **options)  # type: ignore[misc]
        finally:
            self._fh = told
