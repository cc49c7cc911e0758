"""The networks of the forecaster: one that is trained, or the shipped one, which may be trained further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state

from mvpa_ts.adapters.sktime.columns import Columns
from mvpa_ts.adapters.sktime.frames import frequency_of
from mvpa_ts.adapters.sktime.parameters import checked_device, training_of
from mvpa_ts.adapters.sktime.progress import progress_bar
from mvpa_ts.adapters.sktime.shipped import ShippedForecaster, check_parameters
from mvpa_ts.checks import keep_whole

if TYPE_CHECKING:
    from mvpa_ts.forecasting.fitted import FittedForecaster
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    from mvpa_ts.windows import Scaling, Series

_FINETUNE_STEPS = 50


class Networks:
    """Mix-in for the forecaster."""

    if TYPE_CHECKING:  # of the forecaster
        quantiles: Sequence[float]
        learning_rate: float
        pretrained: str | Path | None
        finetune_steps: int | None
        channel_order: Any
        sp: int | None
        random_state: Any
        device: str
        verbose: bool
        get_params: Callable[..., dict[str, Any]]
        get_param_defaults: Callable[[], dict[str, Any]]
        _features: list[Any] | None
        _scaling: Scaling

    @property
    def _finetune_steps(self) -> int:
        """Steps of `fit` after `pretrain` and of `update`; raises ValueError if the parameter is no such number."""
        keep_whole(self, 0, "finetune_steps")
        if self.finetune_steps is not None:
            return self.finetune_steps
        return _FINETUNE_STEPS if self.pretrained is None else 0

    def _shipped(self, start: ShippedForecaster | None, horizon: int, index: pd.Index) -> ShippedForecaster:
        """The shipped network, or the one that `pretrain` has made of it, with the season of the index."""
        from mvpa_ts.forecasting.pretrained.seasons import season_of

        check_parameters(self.get_params(deep=False), self.get_param_defaults())
        if self.sp is not None and (isinstance(self.sp, bool) or int(self.sp) != self.sp or self.sp < 1):
            raise ValueError(f"sp must be a whole number of steps above 0, or None, got {self.sp!r}")
        frequency = index.freq if isinstance(index, pd.PeriodIndex) else frequency_of(index)
        season = season_of(frequency) if self.sp is None else int(self.sp)
        if start is not None:
            return replace(start, horizon=horizon, season=season)
        shipped = ShippedForecaster.load(self.pretrained, horizon, ordered=self.channel_order is not None)
        return replace(shipped, season=season)

    def _finetuned(self, shipped: ShippedForecaster, series: Series, scaling: Any = None) -> ShippedForecaster:
        if not self._finetune_steps:
            return shipped
        return shipped.finetuned(
            series,
            self._scaling if scaling is None else scaling,
            steps=self._finetune_steps,
            learning_rate=0.1 * self.learning_rate,
            seed=self._seed(),
        )

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31))

    def _train(
        self,
        series: list[Series],
        config: ForecastingConfig,
        steps: int,
        label: str,
        columns: Columns,
        *,
        start: FittedForecaster | None = None,
        scaling: Scaling | None = None,
    ) -> FittedForecaster:
        from mvpa_ts.forecasting.fitted import fit_forecaster
        from mvpa_ts.forecasting.series import plain

        if label != "pretrain":
            values = series[0].values[:, :, None]  # columns without a value are refused before
            self._range = np.nanmin(values, 0), np.nanmax(values, 0)
        training = training_of(
            self.get_params(deep=False), steps, len(columns.names), from_scratch=start is None or label == "pretrain"
        )
        with progress_bar(self.verbose) as show:
            fitted = fit_forecaster(
                series,
                config,
                training,
                levels=self.quantiles if start is None else start.levels,
                scalings=None if scaling is None else [scaling],
                start=start,
                of_channels=columns.of_channels,
                seed=self._seed(),
                device=checked_device(self.device),
                progress=lambda step, loss: show(label, step, steps, loss=loss),
            )
        # Vectors and parameters of single columns stay with the names that they were learned under.
        names = tuple(map(plain, columns.names)) if start is None else start.channel_names
        features = tuple(self._features or ()) if config.future_size else None
        return replace(fitted, feature_names=features, channel_names=names)
