"""MVPA as a forecaster of sktime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from sktime.datatypes import update_data
from sktime.forecasting.base import ForecastingHorizon

from mvpa_ts.adapters.options import temporarily, unchanged_if_refused
from mvpa_ts.adapters.sktime import frames
from mvpa_ts.adapters.sktime.columns import arranged
from mvpa_ts.adapters.sktime.parameters import DictOptions, forecaster_groups, network_config, warn_of_short_history
from mvpa_ts.adapters.sktime.pretraining import Pretraining, check_rows
from mvpa_ts.adapters.sktime.shipped import ShippedForecaster, bounds_of_rows

if TYPE_CHECKING:
    from mvpa_ts.forecasting.streaming import ForecastStream
    from mvpa_ts.windows import Series


class MVPAForecaster(DictOptions, Pretraining):
    """Multi-variate parallel attention for sktime: all columns of `y` are forecast together, with quantiles.

    Parameters
    ----------
    input_size : int, optional
        Steps to look back at. By default twice the horizon and at least 96. For short series it is at most two thirds
        of the rows before the last horizon.
    patch_length : int, optional
        Steps in a token; by default that of `ForecastingConfig`, shortened to `input_size`.
    dim, num_heads, num_layers, components, dropout, channel_window
        As in `ForecastingConfig`. The columns of `y` are the channels; `channel_window` must be smaller than their
        number.
    channel_order : list or "correlation", optional
        The columns in an order in which neighbours belong together, or "correlation", which finds such an order in the
        rows of `fit`. By default it is the order of `y`, or that along `channel_positions` of one coordinate.
    channel_positions : dict, table or pairs, optional
        Coordinates of each column (a depth; latitude and longitude). The linear path then reads other columns by their
        position instead of their order. It may name more columns than `y` has.
    sp : int, optional
        Seasonal periodicity: steps of a learnt cycle. None learns no cycle. With `pretrained`, a season that the
        network should try; None takes that of the index, such as 12 for months.
    individual : bool
        Give each column of `y` parameters of its own, for columns that are different things. Their number is then
        fixed.
    bounded : bool
        Keep forecasts and quantiles of each column between the smallest and the largest value of the rows that it was
        last fitted to. For columns that often lie at a limit (rain, sunshine, sales), not for columns that grow. Their
        number is then fixed. With `pretrained`, a pair (lower, upper) gives the limits, None for none.
    quantiles : sequence of float
        Levels to train. They must include 0.5, the point forecast. Other levels are interpolated between them.
    max_steps, learning_rate
        As in `ForecasterTraining`, where the first is `steps`.
    network : dict, optional
        Further options of `ForecastingConfig` by their names there, such as ``{"mixing_heads": 4}``. `per_channel` may
        hold "cycle", which gives each column a cycle of its own, and "vectors", by which each learns which others it
        reads, whatever their order. Vectors are kept by name. A column that was not in the training has no vector; it
        is read by its distance or position. The default is "vectors" where `mixing_heads` read 2 to 256 columns;
        above, the cost would grow with their square. `patch_stride` is by default as long as the patch. Grids and
        `set_params` reach an option as ``network__mixing_heads``.
    training : dict, optional
        Further options of `ForecasterTraining` by their names there, such as ``{"ridge": 1.0}``.
    pretrained : str or path, optional
        "base" or "small", which come with the package, or the folder of another. It forecasts without training, and
        reads `X`. With it can be set `channel_order` (neighbours then belong together), `channel_positions`, `bounded`,
        `sp`, `finetune_steps`, `learning_rate`, `random_state`, `device` and `verbose`.
    finetune_steps : int, optional
        Steps of `fit` after `pretrain`, and of `update`, at 0.6 of the learning rate. 0 leaves the weights as they are.
        By default 50, and 0 with `pretrained`.
    random_state : int, RandomState or None
        Two fits on the CPU with the same number agree to the bit.
    device : str
        Where to train, "cpu" or "cuda". Forecasts are made on the CPU.
    verbose : bool
        Show a progress bar.

    Notes
    -----
    Missing values, and rows that the time index lacks, are masked. Columns of `X` are known ahead: `predict` needs
    their rows at `fh`. Gaps in `X` are interpolated.

    `pretrain` trains one network on all instances of a panel. `fit` then trains a copy of it further, for any number of
    columns. Without `pretrain`, `fit` on a panel trains one network for each instance, as everywhere in sktime.

    Examples
    --------
    >>> from sktime.datasets import load_airline
    >>> from mvpa_ts.adapters.sktime import MVPAForecaster
    >>> forecaster = MVPAForecaster(sp=12, max_steps=5, random_state=0)
    >>> forecaster.fit(load_airline(), fh=[1, 2, 12]).predict_quantiles(alpha=[0.1, 0.9]).shape
    (3, 2)
    """

    _tags = {  # noqa: RUF012
        "y_inner_mtype": "pd.DataFrame",
        "capability:exogenous": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:update": True,
        "capability:pretrain": True,
        "pretrain:fitted_params": ["pretrained_"],
    }
    _groups = staticmethod(forecaster_groups)
    # Rows are kept in _cur_y and _cur_X, once.
    _config = {"remember_data": False}  # noqa: RUF012

    def __init__(
        self,
        input_size: int | None = None,
        patch_length: int | None = None,
        dim: int = 32,
        num_heads: int = 4,
        num_layers: int = 1,
        components: Sequence[str] = ("content", "time", "channel"),
        dropout: float = 0.3,
        channel_window: int | None = None,
        channel_order: Sequence[Any] | str | None = None,
        channel_positions: Any = None,
        sp: int | None = None,
        individual: bool = False,
        bounded: bool = False,
        quantiles: Sequence[float] = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975),
        max_steps: int = 1000,
        learning_rate: float = 0.001,
        network: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        pretrained: str | Path | None = None,
        finetune_steps: int | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self._keep(locals())
        self._y = self._X = None  # for those who switch the host's own store on
        if pretrained is not None and not finetune_steps:  # else it is trained for the steps of fh
            self.set_tags(**{"requires-fh-in-fit": False})

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: ForecastingHorizon | None) -> MVPAForecaster:
        from mvpa_ts.windows import Scaling

        self._frequency = frames.checked_frequency(y.index)
        if isinstance(y.index, pd.DatetimeIndex) and self._frequency is None:
            raise ValueError(
                f"y must have a frequency where it has one row, {y.index[0]}, for the dates of the forecast: take "
                "y.asfreq('D'), or another one"
            )
        horizon = 1 if fh is None else int(frames.steps_ahead(fh, self.cutoff, self._frequency).max())
        start: Any = getattr(self, "pretrained_", None)
        X = self._checked_features(start, horizon, y, X)
        if empty := list(y.columns[y.isna().all()]):
            raise ValueError(f"y must hold a value in each column, got none in {empty}")
        self._cur_y, self._cur_X = y, X
        self._features = None if X is None else list(X.columns)
        steps = self._finetune_steps
        # A shipped network brings its own sizes, so the parameters of a new one are not read.
        shipped = None if self.pretrained is None else self._shipped(start, horizon, y.index)
        self._columns = arranged(y, self.get_params(deep=False), start if shipped is None else None)
        series = self._series(y, X)
        self._scaling = Scaling.of(series.values) if shipped is None else Scaling.from_zero(series.values)
        if shipped is not None:
            self.fitted_: Any = self._finetuned(shipped, series, self._scaling, self._columns.channel_inputs)
        elif start is None:
            check_rows(len(series.values), horizon)
            config = network_config(self.get_params(deep=False), [series], horizon)
            self.fitted_ = self._train([series], config, self.max_steps, "fit", self._columns)
        else:
            if steps:
                check_rows(len(series.values), start.config.horizon)
            self.fitted_ = self._train([series], start.config, steps, "fit", self._columns, start=start)
        self._warn_of_short_history(series)
        return self

    def _warn_of_short_history(self, series: Series) -> None:
        config = getattr(self.fitted_, "config", None)  # none of a shipped network, which warns itself
        # Of fewer rows than a new network reads, `fit` said so.
        if config and (len(series.values) >= config.lookback or hasattr(self, "pretrained_")):
            rows = pd.DataFrame(series.values, columns=self._columns.names)
            warn_of_short_history(rows, config.lookback, config.horizon)

    def _check_fh(self, fh: Any, pred_int: bool = False) -> Any:
        frames.check_fh(fh, getattr(self, "_cutoff", None))
        return super()._check_fh(fh, pred_int)

    def _check_X(self, X: Any = None) -> Any:  # noqa: N802
        frames.check_table("X", X)
        return super()._check_X(X)

    def update(self, y: Any, X: Any = None, update_params: bool = True) -> Self:
        """Append rows and train on, as sktime's forecasters do; rows need an index, which an array lacks."""
        with self._refused_whole(y, X):
            return super().update(y, X=X, update_params=update_params)

    @contextmanager
    def _refused_whole(self, y: Any, X: Any) -> Iterator[None]:
        """Check new rows, and leave the forecaster as it was where a call with them is refused."""
        frames.check_new_rows(y, X, getattr(self, "_cur_y", None))
        # Of a panel, the host updates a forecaster for each instance, one after the other.
        with unchanged_if_refused(self, *np.ravel(getattr(self, "forecasters_", ()))):
            yield  # the host moves the cutoff first, and forecasts would begin there

    def _check_single(self, call: str) -> None:
        """Raise NotFittedError before `fit`, and ValueError after that of a panel."""
        self.check_is_fitted()
        if not hasattr(self, "fitted_"):
            raise ValueError(
                f"{call} needs the forecaster of one series, and that of a panel holds one for each instance: take one "
                'of forecaster.forecasters_["forecasters"]'
            )

    def _vectorize(self, methodname: str, **kwargs: Any) -> Any:
        frames.check_instances(kwargs.get("y") if methodname == "fit" else self._yvec, **kwargs)
        return super()._vectorize(methodname, **kwargs)

    def effects(self, coverage: float = 0.8) -> pd.DataFrame:
        """By how much each column of y changes where a column of X is one unit larger, with intervals.

        It is a regression on the rows at hand, whose errors are autoregressive (`effects_table`): what the data say,
        from which a trained network starts, also with `pretrained`. `sp`, or the season of the index, is held the same.

        Parameters
        ----------
        coverage : float, default 0.8
            Share of the intervals that shall hold the effect.

        Returns
        -------
        pd.DataFrame
            Columns unique_id, covariate, effect, lower, upper.

        Raises
        ------
        ValueError
            The forecaster was fitted without X.
        """
        from mvpa_ts.forecasting.effects import effects_table
        from mvpa_ts.forecasting.pretrained.seasons import season_of

        self._check_single("effects")
        if self._features is None:
            raise ValueError("effects needs covariates: give X to fit, this forecaster was fitted without X")
        # Rows on their grid, so that a gap is no step.
        series = self._series(self._cur_y, self._cur_X)
        assert series.features is not None
        index = self._cur_y.index
        season = season_of(index.freq if isinstance(index, pd.PeriodIndex) else self._frequency)
        return effects_table(
            series.values, series.features, self._columns.names, self._features,
            season=season if self.sp is None else int(self.sp), coverage=coverage,
        )  # fmt: skip

    def stream(self) -> ForecastStream:
        """A stream that goes on after the last row: `update(rows)` and `predict()` without what the host does around.

        Forecasts equal those after ``update(rows, update_params=False)``: quantiles `fitted_.levels` of all steps up
        to the last of `fit`, or of the last `predict` with `pretrained`, columns in the order of `stream.columns`.

        Raises
        ------
        ValueError
            The forecaster reads X, or has ``bounded=True`` with `pretrained`, which reads all rows; or its dates are on
            no grid.
        """
        from mvpa_ts.forecasting.streaming import ForecastStream

        self._check_single("stream")
        fitted, y = self.fitted_, self._cur_y
        if self._features is not None:
            raise ValueError(f"a stream takes no X, got columns {self._features}: use update, with X known ahead")
        if isinstance(fitted, ShippedForecaster):
            if self.bounded:
                raise ValueError(f"bounded must be left out of a pretrained stream, got {self.bounded!r}: use update")
            fitted = replace(fitted, horizon=int(frames.steps_ahead(self.fh, self.cutoff, self._frequency).max()))
        series = self._series(y, None)
        if np.ndim(series.position) and getattr(fitted, "config", None) and fitted.config.cycle_length:
            raise ValueError(f"a stream with sp counts steps, and a local clock may jump, {y.index[-1]}: use update")
        stream = ForecastStream(
            fitted, self._columns.names, scaling=self._scaling, channel_inputs=self._columns.channel_inputs,
            position=int(series.positions(0, 0)[0]),
        )  # fmt: skip
        stream.update(series.values)
        # Times are checked from here on; the rows before them are on their grid already.
        stream.time, stream.step = y.index[-1], 1 if self._frequency is None else self._frequency
        return stream

    def to_onnx(self, path: str | Path) -> None:
        """Write the trained network as ONNX, for windows of `input_size` rows and the columns of y in their order.

        It takes `values` (1, rows, columns) in the units of y, with `sp` also `phase`, the place of the first row in
        the season as the index counts it, and gives `quantiles` (1, steps, columns, levels). See
        `mvpa_ts.forecasting.onnx`.

        Raises
        ------
        ValueError
            The forecaster reads X, or is `pretrained`: of that, `base_to_onnx` writes the network alone.
        ImportError
            onnx or onnxscript are not installed.
        """
        import torch

        from mvpa_ts.forecasting.onnx import to_onnx

        self._check_single("to_onnx")
        if isinstance(self.fitted_, ShippedForecaster):
            raise ValueError(
                "pretrained cannot be written as ONNX with all that it does. Its network can: "
                "mvpa_ts.forecasting.onnx.base_to_onnx(load_base('base'), path, shape=(rows, columns), horizon=...)"
            )
        if self._features is not None:
            raise ValueError(f"X cannot be read from ONNX, got columns {self._features}: fit without X")
        columns = list(self._cur_y.columns)
        # Columns are standardised before they reach the network, as in `FittedForecaster.predict`.
        units = torch.tensor([[0.0, 1.0]]).repeat(len(columns), 1)
        to_onnx(
            self.fitted_.network, path, scaling=self._scaling, order=[columns.index(n) for n in self._columns.names],
            channel_inputs={"units": units, **self._columns.channel_inputs},
        )  # fmt: skip

    def update_predict_single(self, y: Any = None, fh: Any = None, X: Any = None, update_params: bool = True) -> Any:
        """Append rows, train on and forecast, as sktime's forecasters do; rows need an index, which an array lacks."""
        with self._refused_whole(y, X):
            return super().update_predict_single(y, fh=fh, X=X, update_params=update_params)

    def update_predict(
        self, y: Any, cv: Any = None, X: Any = None, update_params: bool = True, reset_forecaster: bool = True
    ) -> Any:
        """Update and predict step by step, as sktime's forecasters do; without `cv` each time the steps of `fh`.

        The host's own default forecasts one step, which a forecaster fitted for others refuses. Rows need an index,
        which an array lacks.
        """
        from sktime.split import ExpandingWindowSplitter

        with self._refused_whole(y, X):
            options = {"X": X, "update_params": update_params, "reset_forecaster": reset_forecaster}
            if cv is not None or self._fh is None:
                return super().update_predict(y, cv=cv, **options)
            self.check_is_fitted()
            frequency = getattr(self, "_frequency", None) or frames.frequency_of(self.cutoff)
            # The host's splitter counts rows, and its forecaster keeps to the horizon of `fit`, perhaps hours or dates.
            ahead = frames.steps_ahead(self.fh, self.cutoff, frequency)
            fh = ForecastingHorizon(ahead, is_relative=True)
            with temporarily(self, _fh=fh):
                return super().update_predict(y, cv=ExpandingWindowSplitter(initial_window=1, fh=fh), **options)

    def _update(self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True) -> MVPAForecaster:
        if self._features is not None and X is None:
            raise ValueError(f"X must be given to update: the forecaster was fitted with columns {self._features}")
        if isinstance(self.cutoff, pd.DatetimeIndex) and self._frequency is not None:
            # The host infers it anew from these rows: three weekdays look like days.
            dated = pd.date_range(self.cutoff[0], periods=1, freq=self._frequency)
            if dated[0] == self.cutoff[0]:
                self._set_cutoff(dated)
        names = list(self._cur_y.columns)
        if y.shape[1] > len(names) and (new := [name for name in y.columns if name not in names]):
            raise ValueError(f"y must have the columns of fit, {names}, got {new} too: to forecast them, call fit")
        y = y.set_axis(names, axis=1) if len(names) == y.shape[1] == 1 else frames.columns_of(y, names, "y")
        rows = update_data(self._cur_y, y)
        frames.check_on_grid(rows.index, self._frequency)
        self._cur_y = rows
        if X is not None:
            self._cur_X = update_data(self._cur_X, frames.columns_of(X, self._features))
        series = self._series(self._cur_y, self._cur_X)  # which checks the rows
        if update_params and self._finetune_steps:
            if isinstance(self.fitted_, ShippedForecaster):
                self.fitted_ = self._finetuned(self.fitted_, series, self._scaling, self._columns.channel_inputs)
            else:
                self.fitted_ = self._train(
                    [series], self.fitted_.config, self._finetune_steps, "update", self._columns,
                    start=self.fitted_,
                )  # fmt: skip
        self._warn_of_short_history(series)
        return self

    def _update_predict_single(
        self, y: pd.DataFrame, fh: ForecastingHorizon, X: pd.DataFrame | None = None, update_params: bool = True
    ) -> pd.DataFrame:
        # The host's calls `update` with this table, and would then forecast tables to a user who gave a series.
        return self._update(y, X=X, update_params=update_params)._predict(fh, X)

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.DataFrame:
        index, quantiles = self._forecast(fh, X, [0.5])
        return pd.DataFrame(quantiles[..., 0], index=index, columns=self._cur_y.columns)

    def _predict_quantiles(self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:
        index, quantiles = self._forecast(fh, X, alpha)
        columns = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        return pd.DataFrame(quantiles.reshape(len(index), -1), index=index, columns=columns)

    def _predict_proba(self, fh: ForecastingHorizon, X: pd.DataFrame | None, marginal: bool = True) -> Any:
        """A distribution of skpro with the trained quantiles; between them its density is constant."""
        from mvpa_ts.adapters.sktime.distribution import QuantileDistribution

        # Without tails the distribution would end at the outermost quantile that was trained.
        levels = sorted({0.001, 0.01, 0.99, 0.999, *self.fitted_.levels})
        index, quantiles = self._forecast(fh, X, levels)
        return QuantileDistribution.of(quantiles, levels, index, pd.Index(self._get_varnames()))

    def _forecast(
        self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: Sequence[float]
    ) -> tuple[pd.Index, np.ndarray]:
        """Index of the steps asked for, and their quantiles [steps, C, levels], columns as in y."""
        import torch

        from mvpa_ts.forecasting.quantiles import quantiles_at

        steps, fitted = frames.steps_ahead(fh, self.cutoff, self._frequency), self.fitted_
        if isinstance(fitted, ShippedForecaster):  # its network forecasts any horizon at any levels
            covariates, levels = tuple(self._features or ()), tuple(sorted(set(alpha)))
            fitted = replace(fitted, horizon=int(steps.max()), covariates=covariates, asked=levels)
        horizon = fitted.horizon
        if steps.max() > horizon:
            raise ValueError(f"fh must not go past the {horizon} steps of fit, got step {steps.max()}")
        ahead = frames.index_ahead(self.cutoff, self._frequency, horizon)
        index = ahead[steps - 1]
        rows: pd.DataFrame | None = self._cur_X
        if X is not None:
            X = frames.columns_of(X, self._features)
            rows = X if rows is None else X.combine_first(rows)
        if rows is not None and (missing := index.difference(rows.index)).size:
            raise ValueError(
                f"X must hold the rows of fh in predict: the forecaster was fitted with columns {self._features}; "
                f"{len(missing)} rows are missing, from {missing[0]} to {missing[-1]}"
            )
        y, columns = self._cur_y.loc[: self.cutoff[0]], self._columns
        quantiles = fitted.predict(self._series(y, rows, ahead), self._scaling, columns.channel_inputs)[steps - 1]
        wanted = quantiles_at(torch.from_numpy(quantiles), fitted.levels, alpha).numpy()
        if self.bounded:  # the network's bounds are rounded, and what lies past its levels is extrapolated
            shipped = isinstance(fitted, ShippedForecaster)
            limits = bounds_of_rows(self.bounded, y[columns.names].to_numpy(float)) if shipped else self._range
            wanted = np.clip(wanted, *limits)
        return index, wanted[:, [columns.names.index(name) for name in y.columns]]

    def _series(self, y: pd.DataFrame, X: pd.DataFrame | None, ahead: pd.Index | None = None) -> Series:
        """Rows on their grid, columns in the network's order; what is missing in between is NaN."""
        end = y.index[-1] if ahead is None else max(y.index[-1], self.cutoff[0])
        grid = frames.regular(y.index, end, self._frequency)
        y = y[self._columns.names]
        # A network from files may have a cycle that this forecaster was not asked for.
        learnt: Any = getattr(self, "fitted_", None) or getattr(self, "pretrained_", None)
        cycle = self.sp or getattr(getattr(learnt, "config", None), "cycle_length", None)
        cycle = None if self.pretrained is not None else cycle
        return frames.series_of(y, X, grid, ahead, frames.positions_of(grid, ahead, self._frequency, cycle))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small networks and few steps, for sktime's conformance tests."""
        small = {"dim": 4, "num_heads": 1, "max_steps": 2, "finetune_steps": 1, "random_state": 0}
        return [
            {**small, "input_size": 6, "quantiles": (0.1, 0.5, 0.9), "network": {"mlp_dim": 4}},
            {
                **small,
                "sp": 7,
                "bounded": True,
                "channel_order": "correlation",
                "network": {"mlp_dim": 4, "per_channel": ["vectors", "cycle"]},
                "training": {"linear_learning_rate": 0.02, "validation_fraction": 0.2, "patience": 1},
            },
            {"pretrained": "base"},
        ]
