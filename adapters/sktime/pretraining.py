"""The networks of the forecaster: trained by `fit`, before it on a panel, shipped with the package, or from files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from sktime.exceptions import NotFittedError
from sktime.forecasting.base import BaseForecaster, ForecastingHorizon

from mvpa_ts.adapters.options import host_words
from mvpa_ts.adapters.sktime.columns import Columns, arranged, book_of
from mvpa_ts.adapters.sktime.frames import check_same_rows, columns_of, frequency_of, panel_of
from mvpa_ts.adapters.sktime.parameters import check_folder, checked_device, network_config, seed_of, training_of
from mvpa_ts.adapters.sktime.progress import progress_bar
from mvpa_ts.adapters.sktime.shipped import ShippedForecaster, check_parameters, side_by_side
from mvpa_ts.checks import keep_whole
from mvpa_ts.files import read_config

if TYPE_CHECKING:
    from mvpa_ts.forecasting.fitted import FittedForecaster
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    from mvpa_ts.windows import Scaling, Series

# Beside the network's own files, which know channels by their number and not by name.
_COLUMNS = "columns.json"
_FINETUNE_STEPS = 50
_SHORTER = (
    "Fewer steps (max_steps, finetune_steps), fewer windows a step (training={'batch_size': 16}), or num_layers=0, "
    "which leaves out the attention, take less"
)


class Pretraining(BaseForecaster):
    """The networks of the forecaster and their files; `pretrained_` is one for all instances of a panel."""

    pretrained_: Any

    def pretrain(self, y: Any, X: Any = None, fh: ForecastingHorizon | None = None) -> Self:
        """Train one network on all series of a panel; `fit` goes on from it.

        With `pretrained`, the shipped network is trained further, for `finetune_steps` steps.

        Parameters
        ----------
        y : panel in a format of sktime
        X : None
            sktime hands no columns of a panel to `pretrain`.
        fh : relative forecasting horizon
            Sets how many steps the network forecasts.

        Raises
        ------
        ValueError
            X is given, fh is not, or fh counts from no step.
        """
        if X is not None:
            raise ValueError("X must be left out of pretrain, as sktime cannot pass on X of a panel; give X to fit")
        return super().pretrain(y, fh=fh)

    def fit(self, y: Any, X: Any = None, fh: Any = None) -> Self:
        """Fit to `y` and the columns of `X`, as sktime's forecasters do."""
        check_same_rows(y, X)
        return super().fit(y, X=X, fh=fh)

    def _pretrain(self, y: pd.DataFrame, X: pd.DataFrame | None = None, fh: ForecastingHorizon | None = None) -> Self:
        if fh is None:
            raise ValueError("fh must be given to pretrain: it sets how many steps the network forecasts, got None")
        return self._pretrain_from(None, y, _last_step(fh))

    def _pretrain_update(
        self, y: pd.DataFrame, X: pd.DataFrame | None = None, fh: ForecastingHorizon | None = None
    ) -> Self:
        start: Any = getattr(self, "pretrained_", None) or getattr(self, "fitted_", None)
        if start is None:
            return self._pretrain(y, X, fh)
        return self._pretrain_from(start, y, start.horizon if fh is None else _last_step(fh))

    def _pretrain_from(self, start: Any, y: pd.DataFrame, horizon: int) -> Self:
        from mvpa_ts.windows import Scaling

        if self.pretrained is not None:
            # The shipped network reads any number of series, so instances become columns of one.
            instances = side_by_side(panel_of(y))
            times = y.index.levels[-1] if isinstance(y.index, pd.MultiIndex) else y.index
            shipped = self._shipped(start, horizon, times)
            self.pretrained_ = self._finetuned(shipped, instances, Scaling.from_zero(instances.values), {})
            return self
        parameters = self.get_params(deep=False)
        if start is not None:
            _check_pretrained(start, horizon, y, None)
        columns = arranged(y, parameters, start)
        series = panel_of(y[columns.names], self.sp)
        if start is None:
            check_rows(max(len(instance.values) for instance in series), horizon)
        config = network_config(parameters, series, horizon) if start is None else start.config
        self.pretrained_ = self._train(series, config, self.max_steps, "pretrain", columns, start=start)
        return self

    def _checked_features(
        self, start: Any, horizon: int, y: pd.DataFrame, X: pd.DataFrame | None
    ) -> pd.DataFrame | None:
        """X in the order of the network that `fit` starts from; raises ValueError where that is for other data."""
        if start is None or self.pretrained is not None:
            return X
        _check_pretrained(start, horizon, y, X)
        if self.bounded != ("bounds" in start.config.per_channel):
            raise ValueError(f"bounded ({self.bounded}) must be the same as in pretrain")
        if X is not None and start.feature_names is not None:
            from mvpa_ts.forecasting.series import plain

            by_name = {plain(name): name for name in X.columns}
            return columns_of(X, [by_name.get(name, name) for name in start.feature_names])
        return X

    @property
    def _finetune_steps(self) -> int:
        """Steps of `fit` after `pretrain` and of `update`; raises ValueError if the parameter is no such number."""
        keep_whole(self, 0, "finetune_steps")
        if self.finetune_steps is not None:
            return self.finetune_steps
        return _FINETUNE_STEPS if self.pretrained is None else 0

    def _shipped(self, start: ShippedForecaster | None, horizon: int, index: pd.Index) -> ShippedForecaster:
        """The shipped network, or the one that `pretrain` has made of it, with the season of the index."""
        from mvpa_ts.forecasting.pretrained import load_base
        from mvpa_ts.forecasting.pretrained.seasons import checked_season, season_of

        check_parameters(self.get_params(deep=False), self.get_param_defaults())
        frequency = index.freq if isinstance(index, pd.PeriodIndex) else frequency_of(index)
        season = checked_season(self.sp, 1, "sp")
        season = season_of(frequency) if season is None else season
        if start is not None:
            return replace(start, horizon=horizon, season=season)
        with host_words({"name": "pretrained"}):
            network = load_base(self.pretrained)
        return ShippedForecaster(network, horizon, ordered=self.channel_order is not None, season=season)

    def _finetuned(
        self, shipped: ShippedForecaster, series: Series, scaling: Scaling, channel_inputs: Mapping[str, Any]
    ) -> ShippedForecaster:
        if not (steps := self._finetune_steps):
            return shipped
        rate = training_of(self.get_params(deep=False), steps, from_scratch=False).learning_rate
        seed = seed_of(self.random_state)
        return shipped.finetuned(series, scaling, channel_inputs, steps=steps, learning_rate=rate, seed=seed)

    def _train(
        self, series: list[Series], config: ForecastingConfig, steps: int, label: str, columns: Columns, *,
        start: FittedForecaster | None = None,
    ) -> FittedForecaster:  # fmt: skip
        from mvpa_ts.forecasting.fitted import fit_forecaster
        from mvpa_ts.forecasting.series import plain
        from mvpa_ts.training import TrainingClock

        # Bounds are those of the series to forecast, not of the panel that was trained on before.
        if label != "pretrain":
            values = series[0].values[:, :, None]  # columns without a value are refused before
            self._range = np.nanmin(values, 0), np.nanmax(values, 0)
        training = training_of(self.get_params(deep=False), steps, from_scratch=start is None or label == "pretrain")
        clock = TrainingClock(_SHORTER)

        def progress(step: int, loss: float) -> None:
            clock.after_step(step, steps)
            show(label, step, steps, loss=loss)

        # Vectors and parameters of single columns stay with the names that they were learned under.
        names: Any = tuple(map(plain, columns.names))
        if other := start is not None and names != start.channel_names:
            start = replace(start, channel_scales=None)
        with progress_bar(self.verbose) as show:
            fitted = fit_forecaster(
                series,
                config,
                training,
                levels=self.quantiles if start is None else start.levels,
                scalings=[self._scaling] if label == "update" else None,
                start=start,
                channel_inputs=columns.channel_inputs,
                seed=seed_of(self.random_state),
                device=checked_device(self.device),
                progress=progress,
            )
        if start is not None and other:
            fitted, names = replace(fitted, channel_scales=None), start.channel_names
        features = tuple(map(plain, self._features or ())) if config.feature_sizes.future else None
        return replace(fitted, feature_names=features, channel_names=names)

    def to_files(self, folder: str | Path) -> None:
        """Write the network of `fit`, or of `pretrain`, as safetensors and JSON, with the order and the positions of
        columns; data and parameters of training stay behind.
        """
        fitted: Any = getattr(self, "fitted_", None) or getattr(self, "pretrained_", None)
        if fitted is None:
            raise NotFittedError("to_files needs a trained forecaster of one series, or of pretrain: call one first")
        book = book_of(self.get_params(deep=False))
        columns = json.dumps({"channel_order": book.order, "channel_positions": book.pairs})
        fitted.to_files(folder, beside={_COLUMNS: columns})

    @classmethod
    def from_files(cls, folder: str | Path, **parameters: Any) -> Self:
        """A pretrained forecaster from what `to_files` wrote: `fit` goes on from its network.

        Unlike sktime's `load`, which unpickles, this executes nothing from the files. `parameters` are those of the
        constructor; the network's sizes come from the files, and so do `quantiles`, `bounded`, `channel_order` and
        `channel_positions` if they are not given.
        """
        from mvpa_ts.forecasting.fitted import FittedForecaster

        check_folder(folder, "forecaster")
        columns = Path(folder) / _COLUMNS
        saved = read_config(columns) if columns.is_file() else {}
        saved = {name: saved.get(name) for name in ("channel_order", "channel_positions")}
        book_of(saved)
        if not (Path(folder) / "forecaster.json").is_file() and (Path(folder) / "config.json").is_file():
            return cls(**{"pretrained": str(folder), "channel_order": saved["channel_order"], **parameters})
        start = FittedForecaster.from_files(folder)
        bounded = "bounds" in start.config.per_channel
        forecaster: Any = cls(**{"quantiles": start.levels, "bounded": bounded, **saved, **parameters})
        forecaster.pretrained_ = start
        forecaster._pretrained_attrs = ["pretrained_"]
        forecaster._state = "pretrained"
        return forecaster


def _last_step(fh: ForecastingHorizon) -> int:
    if not fh.is_relative or isinstance(fh.to_pandas(), pd.TimedeltaIndex):
        raise ValueError(f"fh must be relative in pretrain, steps ahead of each series' end, got {fh.to_pandas()}")
    return int(np.max(np.asarray(fh)))


def check_rows(rows: int, horizon: int) -> None:
    """Raise ValueError where a series is too short to train on."""
    if rows < horizon + 2:
        raise ValueError(
            f"y must have at least {horizon + 2} rows, {horizon} to forecast (fh) and 2 to look back at, got {rows}: "
            "give more rows, shorten fh, pretrain on other series and fit with finetune_steps=0, or take "
            "pretrained='base'"
        )


def _check_pretrained(pretrained: FittedForecaster, horizon: int, y: pd.DataFrame, X: pd.DataFrame | None) -> None:
    from mvpa_ts.forecasting.series import plain

    config = pretrained.config
    if horizon > config.horizon:
        raise ValueError(
            f"fh must not go past the {config.horizon} steps of pretrain, got step {horizon}: pretrain with fh up "
            f"to step {horizon}; for a forecaster from files, fit with such fh before saving"
        )
    for option, name in (("individual", "matrix"), ("bounded", "bounds")):
        if (channels := config.channels_with(name)) not in (None, y.shape[1]):
            raise ValueError(f"y must have the {channels} columns of pretrain ({option}=True), got {y.shape[1]}")
    trained, names = pretrained.channel_names or (), [plain(name) for name in y.columns]
    if "matrix" in config.per_channel and {*trained} & {*names} and {*trained} != {*names}:
        raise ValueError(
            f"y must have the columns of pretrain, {list(trained)}, for with individual=True each has its own "
            f"parameters, got {names}"
        )
    columns = 0 if X is None else X.shape[1]
    if columns != config.feature_sizes.future:
        raise ValueError(f"X must have the {config.feature_sizes.future} columns of pretrain, got {columns}")
