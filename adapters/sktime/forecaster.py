"""MVPA as a forecaster of sktime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import check_random_state
from sktime.datatypes import update_data
from sktime.exceptions import NotFittedError
from sktime.forecasting.base import BaseForecaster, ForecastingHorizon

from mvpa_ts.adapters.sktime.frames import columns_of, frequency_of, panel_of, position_of, regular, series_of
from mvpa_ts.adapters.sktime.parameters import network_config, training_of
from mvpa_ts.adapters.sktime.progress import progress_bar
from mvpa_ts.forecasting.configuration import ForecastingConfig
from mvpa_ts.forecasting.fitted import FittedForecaster, fit_forecaster
from mvpa_ts.forecasting.quantiles import LEVELS, quantiles_at
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.windows import Scaling, Series

_DEFAULT = ForecastingConfig(1, 48)
_TRAINING = ForecasterTraining()


class MVPAForecaster(BaseForecaster):
    """Multi-variate parallel attention for sktime: all columns of `y` are forecast together, with quantiles.

    Parameters
    ----------
    input_size : int, optional
        Steps to look back at. By default twice the horizon and at least 96, but no more than two thirds of the rows
        that precede the last horizon.
    patch_length, patch_stride : int, optional
        Steps in a token and between tokens; by default 24, at most half of `input_size`, and half of that.
    dim, num_heads, mlp_dim, num_layers, components, channel_distance, max_channels, channel_window, dropout,
    attention_dropout, head_dropout, shuffle_channels
        As in `ForecastingConfig`. The columns of `y` are the channels, in their order; `channel_window` must be smaller
        than their number.
    sp : int, optional
        Seasonal periodicity: steps of a learnable cycle. None learns none.
    phase_weights : bool
        Weigh each step that the linear path reads by a learnt factor of its phase; needs `sp`.
    individual : bool
        Give each column of `y` parameters of its own, for columns that are different things; the network then keeps
        to their number.
    level_reversion : bool
        Learn how far each step of the forecast returns from the window's mean towards that of the whole column.
    bounded : bool
        Keep the forecasts of each column, and their quantiles, between the smallest and the largest value of all rows
        that it was last fitted to. For columns that cannot pass a limit and often lie on it: rain, sunshine, sales; not
        for those that grow. The network then keeps to their number.
    quantiles : sequence of float
        Levels to train, with 0.5, which is the point forecast. Others are interpolated in the normal score.
    max_steps, batch_size, learning_rate, linear_learning_rate, weight_decay, weight_averaging, horizon_decay,
    frequency_weight, ridge, cycle_strength, reversion_strength, validation_fraction, patience
        As in `ForecasterTraining`, where the first is `steps`.
    finetune_steps : int
        Steps of `fit` after `pretrain`, and of `update`, at a tenth of the learning rate. 0 leaves the weights alone.
    random_state : int, RandomState or None
        Two fits on the CPU with the same number agree to the bit.
    device : str
        Where to train, "cpu" or "cuda". Forecasts are made on the CPU.
    verbose : bool
        Show a progress bar.

    Notes
    -----
    Missing values, and rows that the time index lacks, are masked. Columns of `X` are taken as known ahead: `predict`
    needs their rows at `fh`. Gaps in `X` are interpolated.

    `pretrain` trains one network on all instances of a panel, of any length; `fit` then goes on from a copy of it, for
    any number of columns. `fit` on a panel without it trains one network an instance, as sktime does.

    Examples
    --------
    >>> from sktime.datasets import load_airline
    >>> from mvpa_ts.adapters.sktime import MVPAForecaster
    >>> forecaster = MVPAForecaster(sp=12, max_steps=5, random_state=0)
    >>> forecaster.fit(load_airline(), fh=[1, 2, 12]).predict_quantiles(alpha=[0.1, 0.9]).shape
    (3, 2)
    """

    _tags = {  # noqa: RUF012
        "authors": "mvpa-ts developers",
        "maintainers": "mvpa-ts developers",
        "python_dependencies": ["torch"],
        "y_inner_mtype": "pd.DataFrame",
        "X_inner_mtype": "pd.DataFrame",
        "requires-fh-in-fit": True,
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:categorical_in_X": False,
        "capability:missing_values": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:update": True,
        "capability:pretrain": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "pretrain:fitted_params": ["pretrained_"],
    }
    # Rows are kept in _cur_y and _cur_X, once.
    _config = {"remember_data": False}  # noqa: RUF012

    def __init__(
        self,
        input_size: int | None = None,
        patch_length: int | None = None,
        patch_stride: int | None = None,
        dim: int = _DEFAULT.dim,
        num_heads: int = _DEFAULT.num_heads,
        mlp_dim: int = _DEFAULT.mlp_dim,
        num_layers: int = _DEFAULT.num_layers,
        components: Sequence[str] = _DEFAULT.components,
        channel_distance: str = _DEFAULT.channel_distance,
        max_channels: int = _DEFAULT.max_channels,
        channel_window: int | None = _DEFAULT.channel_window,
        dropout: float = _DEFAULT.dropout,
        attention_dropout: float = _DEFAULT.attention_dropout,
        head_dropout: float = _DEFAULT.head_dropout,
        shuffle_channels: bool = _DEFAULT.shuffle_channels,
        sp: int | None = None,
        phase_weights: bool = _DEFAULT.phase_weights,
        individual: bool = False,
        level_reversion: bool = _DEFAULT.level_reversion,
        bounded: bool = False,
        quantiles: Sequence[float] = LEVELS,
        max_steps: int = _TRAINING.steps,
        batch_size: int = _TRAINING.batch_size,
        learning_rate: float = _TRAINING.learning_rate,
        linear_learning_rate: float | None = _TRAINING.linear_learning_rate,
        weight_decay: float = _TRAINING.weight_decay,
        weight_averaging: float | None = _TRAINING.weight_averaging,
        horizon_decay: float = _TRAINING.horizon_decay,
        frequency_weight: float = _TRAINING.frequency_weight,
        ridge: float | None = _TRAINING.ridge,
        cycle_strength: float = _TRAINING.cycle_strength,
        reversion_strength: float = _TRAINING.reversion_strength,
        validation_fraction: float = _TRAINING.validation_fraction,
        patience: int | None = _TRAINING.patience,
        finetune_steps: int = 50,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.input_size = input_size
        self.patch_length = patch_length
        self.patch_stride = patch_stride
        self.dim = dim
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.num_layers = num_layers
        self.components = components
        self.channel_distance = channel_distance
        self.max_channels = max_channels
        self.channel_window = channel_window
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.head_dropout = head_dropout
        self.shuffle_channels = shuffle_channels
        self.sp = sp
        self.phase_weights = phase_weights
        self.individual = individual
        self.level_reversion = level_reversion
        self.bounded = bounded
        self.quantiles = quantiles
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.linear_learning_rate = linear_learning_rate
        self.weight_decay = weight_decay
        self.weight_averaging = weight_averaging
        self.horizon_decay = horizon_decay
        self.frequency_weight = frequency_weight
        self.ridge = ridge
        self.cycle_strength = cycle_strength
        self.reversion_strength = reversion_strength
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.finetune_steps = finetune_steps
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        super().__init__()
        self._y = self._X = None  # for those who switch the host's own store on

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: ForecastingHorizon) -> MVPAForecaster:
        horizon = _last_step(fh, self.cutoff)
        pretrained: FittedForecaster | None = getattr(self, "pretrained_", None)
        if pretrained is not None:
            _check_pretrained(pretrained, horizon, y, X)
            if self.bounded != (pretrained.config.bounded_channels is not None):
                raise ValueError(f"bounded ({self.bounded}) must be that of pretrain")
            if X is not None and pretrained.feature_names is not None:
                X = columns_of(X, list(pretrained.feature_names))
        self._cur_y, self._cur_X, self._frequency = y, X, frequency_of(y.index)
        self._features = None if X is None else list(X.columns)
        series = self._series(y, X)
        if empty := list(y.columns[y.isna().all()]):
            raise ValueError(f"y must hold a value in each column, got none in {empty}")
        self._scaling = Scaling.of(series.values)
        if pretrained is None:
            _check_rows(len(series.values), horizon)
            config = network_config(self.get_params(), [series], horizon)
            self.fitted_ = self._train([series], config, self.max_steps, "fit")
            return self
        if self.finetune_steps:
            _check_rows(len(series.values), pretrained.config.horizon)
        self.fitted_ = self._train([series], pretrained.config, self.finetune_steps, "fit", start=pretrained)
        return self

    def pretrain(self, y: Any, X: Any = None, fh: ForecastingHorizon | None = None) -> MVPAForecaster:
        """Train one network on all series of a panel; `fit` goes on from it.

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
            raise ValueError("X must be left out of pretrain: sktime cannot hand on X of a panel; fit takes X")
        return super().pretrain(y, fh=fh)

    def _pretrain(
        self, y: pd.DataFrame, X: pd.DataFrame | None = None, fh: ForecastingHorizon | None = None
    ) -> MVPAForecaster:
        if fh is None:
            raise ValueError("fh must be given to pretrain: it sets how many steps the network forecasts, got None")
        horizon = _last_step(fh, None)
        series = panel_of(y, X)
        _check_rows(max(len(one.values) for one in series), horizon)
        self.pretrained_ = self._train(
            series, network_config(self.get_params(), series, horizon), self.max_steps, "pretrain"
        )
        return self

    def _pretrain_update(
        self, y: pd.DataFrame, X: pd.DataFrame | None = None, fh: ForecastingHorizon | None = None
    ) -> MVPAForecaster:
        start: FittedForecaster | None = getattr(self, "pretrained_", None) or getattr(self, "fitted_", None)
        if start is None:
            return self._pretrain(y, X, fh)
        _check_pretrained(start, start.config.horizon if fh is None else _last_step(fh, None), y, X)
        self.pretrained_ = self._train(panel_of(y, X), start.config, self.max_steps, "pretrain", start=start)
        return self

    def _update(self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True) -> MVPAForecaster:
        if self._features is not None and X is None:
            raise ValueError(f"X must be given to update: the forecaster was fitted with columns {self._features}")
        names = list(self._cur_y.columns)
        y = y.set_axis(names, axis=1) if len(names) == y.shape[1] == 1 else columns_of(y, names, "y")
        self._cur_y = update_data(self._cur_y, y)
        if X is not None:
            self._cur_X = update_data(self._cur_X, columns_of(X, self._features))
        if update_params and self.finetune_steps:
            start, series = self.fitted_, self._series(self._cur_y, self._cur_X)
            self.fitted_ = self._train(
                [series], start.config, self.finetune_steps, "update", start=start, scaling=self._scaling
            )
        return self

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.DataFrame:
        steps, index, quantiles = self._forecast(fh, X)
        median = self.fitted_.levels.index(0.5)
        return pd.DataFrame(quantiles[steps - 1, :, median], index=index, columns=self._cur_y.columns)

    def _predict_quantiles(self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:
        steps, index, quantiles = self._forecast(fh, X)
        values = quantiles_at(torch.from_numpy(quantiles[steps - 1]), self.fitted_.levels, alpha).numpy()
        if self.bounded:  # what lies past the trained levels is extrapolated
            values = np.clip(values, *self._range)
        names = self._get_varnames()
        columns = pd.MultiIndex.from_product([names, alpha])
        return pd.DataFrame(values.reshape(len(steps), -1), index=index, columns=columns)

    def _forecast(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> tuple[np.ndarray, pd.Index, np.ndarray]:
        """Steps asked for, their index, and the quantiles [h, C, Q] of all steps."""
        steps = np.asarray(fh.to_relative(self.cutoff)).astype(int)
        index = fh.to_absolute_index(self.cutoff)
        config = self.fitted_.config
        if steps.max() > config.horizon:
            raise ValueError(f"fh must not go past the {config.horizon} steps of fit, got step {steps.max()}")
        known: pd.DataFrame | None = self._cur_X
        if X is not None:
            X = columns_of(X, self._features)
            known = X if known is None else X.combine_first(known)
        ahead = ForecastingHorizon(np.arange(1, config.horizon + 1), freq=fh.freq).to_absolute_index(self.cutoff)
        if known is not None and (missing := index.difference(known.index)).size:
            raise ValueError(
                f"X must hold the rows of fh in predict: the forecaster was fitted with columns {self._features}; "
                f"no row for {list(missing[:3])}"
            )
        y = self._cur_y.loc[: self.cutoff[0]]
        quantiles = self.fitted_.predict(self._series(y, known, ahead), self._scaling)
        if self.bounded:
            quantiles = np.clip(quantiles, *self._range)  # the network's bounds are rounded
        return steps, index, quantiles

    def _series(self, y: pd.DataFrame, X: pd.DataFrame | None, ahead: pd.Index | None = None) -> Series:
        """Rows on their grid; what is missing in between is NaN."""
        end = y.index[-1] if ahead is None else max(y.index[-1], self.cutoff[0])
        grid = regular(y.index, end, self._frequency)
        return series_of(y, X, grid, ahead, position_of(grid, self._frequency))

    def _train(
        self,
        series: list[Series],
        config: ForecastingConfig,
        steps: int,
        label: str,
        *,
        start: FittedForecaster | None = None,
        scaling: Scaling | None = None,
    ) -> FittedForecaster:
        if label != "pretrain":
            values = series[0].values[:, :, None]  # columns without a value are refused before
            self._range = np.nanmin(values, 0), np.nanmax(values, 0)
        training = training_of(self.get_params(), steps, from_scratch=start is None or label == "pretrain")
        seed = check_random_state(self.random_state).randint(2**31)
        with progress_bar(self.verbose) as show:
            fitted = fit_forecaster(
                series,
                config,
                training,
                levels=self.quantiles if start is None else start.levels,
                scalings=None if scaling is None else [scaling],
                start=start,
                seed=seed,
                device=self.device,
                progress=lambda step, loss: show(label, step, steps, loss=loss),
            )
        return replace(fitted, feature_names=tuple(self._features or ())) if config.future_size else fitted

    def to_files(self, folder: str | Path) -> None:
        """Write the network of `fit`, or of `pretrain`, as safetensors and JSON; data and parameters stay behind."""
        fitted: FittedForecaster | None = getattr(self, "fitted_", None) or getattr(self, "pretrained_", None)
        if fitted is None:
            raise NotFittedError("to_files needs a forecaster after fit or pretrain")
        fitted.to_files(folder)

    @classmethod
    def from_files(cls, folder: str | Path, **parameters: Any) -> MVPAForecaster:
        """A pretrained forecaster from what `to_files` wrote: `fit` goes on from its network.

        Unlike sktime's `load`, which unpickles, this executes nothing from the files. `parameters` are those of the
        constructor; the network's sizes come from the files, and so do `quantiles` and `bounded` if they are not given.
        """
        pretrained = FittedForecaster.from_files(folder)
        bounded = pretrained.config.bounded_channels is not None
        forecaster = cls(**{"quantiles": pretrained.levels, "bounded": bounded, **parameters})
        forecaster.pretrained_ = pretrained
        forecaster._pretrained_attrs = ["pretrained_"]
        forecaster._state = "pretrained"
        return forecaster

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Small networks and few steps, for sktime's conformance tests."""
        small = {"dim": 4, "num_heads": 1, "mlp_dim": 4, "max_steps": 2, "finetune_steps": 1, "random_state": 0}
        return [
            {**small, "input_size": 6, "quantiles": (0.1, 0.5, 0.9)},
            {
                **small,
                "sp": 7,
                "phase_weights": True,
                "bounded": True,
                "linear_learning_rate": 0.02,
                "validation_fraction": 0.2,
                "patience": 1,
            },
        ]


def _last_step(fh: ForecastingHorizon, cutoff: pd.Index | None) -> int:
    if cutoff is None and not fh.is_relative:
        raise ValueError(f"fh must be relative in pretrain, steps ahead of each series' end, got {fh.to_pandas()}")
    return int(np.max(np.asarray(fh if fh.is_relative else fh.to_relative(cutoff))))


def _check_rows(rows: int, horizon: int) -> None:
    if rows < horizon + 2:
        raise ValueError(
            f"y must have at least {horizon + 2} rows, {horizon} to forecast (fh) and 2 to look back at, got {rows}: "
            "give more rows, shorten fh, or pretrain on other series and fit with finetune_steps=0"
        )


def _check_pretrained(pretrained: FittedForecaster, horizon: int, y: pd.DataFrame, X: pd.DataFrame | None) -> None:
    config = pretrained.config
    if horizon > config.horizon:
        raise ValueError(f"fh must not go past the {config.horizon} steps of pretrain, got step {horizon}")
    for option in ("individual", "bounded"):
        if (channels := getattr(config, f"{option}_channels")) not in (None, y.shape[1]):
            raise ValueError(f"y must have the {channels} columns of pretrain ({option}=True), got {y.shape[1]}")
    columns = 0 if X is None else X.shape[1]
    if columns != config.future_size:
        raise ValueError(f"X must have the {config.future_size} columns of pretrain, got {columns}")
