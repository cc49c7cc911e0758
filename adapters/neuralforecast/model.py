"""MVPA as a model of neuralforecast."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from neuralforecast.common._base_model import BaseModel, pl
from neuralforecast.common._scalers import TemporalNorm
from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import MAE, MSE, RMSE, TukeyLoss
from torch import Tensor, nn

from mvpa_ts.adapters.neuralforecast.base_model import FittedSeries, PanelModel, PanelView, arguments_of, inputs_of
from mvpa_ts.adapters.neuralforecast.panel import Panel, whole_positions
from mvpa_ts.adapters.neuralforecast.training import (
    HostTraining,
    flattened,
    is_central,
    levels_of,
    location_outputs,
    scaled_by_host,
    sorted_quantiles,
)
from mvpa_ts.adapters.options import MOVED, Group, check_objects, check_whole, forecasting_config, meant, refuse_fields
from mvpa_ts.checks import check_choices, check_flags, warn
from mvpa_ts.forecasting.network import ForecastingNetwork
from mvpa_ts.forecasting.network.closed_form import covariate_effects, start_in_closed_form
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.network.mixing import mixing_share
from mvpa_ts.forecasting.onnx import to_onnx
from mvpa_ts.forecasting.quantiles import start_in_order
from mvpa_ts.forecasting.training import LINEAR_RATE, ForecasterTraining
from mvpa_ts.random_state import OwnRandomState
from mvpa_ts.windows import FeatureScaling, Scaling, Windows

_OWN = {  # fields of ForecastingConfig that are arguments here, by their name here
    "patch_length": "patch_len",
    "dim": "hidden_size",
    "num_heads": "n_heads",
    "num_layers": "encoder_layers",
    "dropout": "dropout",
    "components": "components",
    "channel_window": "channel_window",
    "cycle_length": "cycle_length",
    "horizon": "h",
    "lookback": "input_size",
}
_WORDS = {**_OWN, "position_size": "channel_positions"}
_FOLLOW = {  # fields that follow from other arguments
    "position_size": "channel_positions",
    "num_channels": "n_series",
    "num_outputs": "loss",
    "feature_sizes": "futr_exog_list, hist_exog_list or stat_exog_list",
}
NETWORK_ELSEWHERE = (
    {field: f"it is the argument {name}" for field, name in _OWN.items()}
    | {field: f"it follows from the argument {name}" for field, name in _FOLLOW.items()}
    | MOVED
)
TRAINING_ELSEWHERE = {
    "learning_rate": "it is the argument learning_rate",
    **dict.fromkeys(("steps", "epochs"), "the number of steps is the argument max_steps"),
    "batch_size": "the number of windows in a step is the argument windows_batch_size",
    "schedule": "the schedule is the argument lr_scheduler",
    "weight_decay": "it is an option of the optimizer, optimizer_kwargs={'weight_decay': …}",
    "clip": "it is the argument gradient_clip_val of Lightning's Trainer",
    "loss": "it is the argument loss",
    "horizon_decay": "near steps get more weight by loss=MAE(horizon_weight=…)",
    "validation_fraction": "validation rows come from NeuralForecast.fit(val_size=…)",
    "keep": "early stopping keeps the best weights, see early_stop_patience_steps",
    "patience": "it is the argument early_stop_patience_steps",
}
NETWORK = Group("network", ForecastingConfig, NETWORK_ELSEWHERE)
TRAINING = Group("training", ForecasterTraining, TRAINING_ELSEWHERE)
# Words of the host's other models, and of arguments that went, for fields of the core.
RENAMED = {
    "stride": "patch_stride",
    "linear_hidden_size": "mlp_dim",
    "attn_dropout": "attention_dropout",
    "use_norm": "normalise",
    "cycle_per_series": "per_channel",
    # The host makes each batch an epoch, and Lightning takes a step after each.
    "accumulate_grad_batches": "batch_size",
}


FITTED_COPY = "fit, and take forecaster.models[0], for a NeuralForecast trains a copy of the model that it was given"
_SCALERS = ("identity", "standard", "robust", "minmax", "minmax1", "invariant", "revin")  # of the host


class MVPA(PanelModel):
    """Multi-variate parallel attention for `neuralforecast.NeuralForecast`.

    All series of the panel are read together, as the channels of one window. They are ordered by name, unless
    `channel_order` or `channel_positions` say otherwise. A fitted model forecasts any number of series.

    Parameters
    ----------
    h, input_size : int
        Steps to forecast and steps to look at.
    n_series : int
        Series in the panel at fit.
    futr_exog_list, hist_exog_list, stat_exog_list : list of str, optional
        Exogenous columns known ahead, known in the past only, and constant.
    cat_exog_list, categorical_cardinalities, cat_emb_dim
        Which of these columns are categories, how many values each has, and the width of their embeddings, as in the
        other models of neuralforecast.
    exclude_insample_y : bool
        Forecast from exogenous columns alone.
    hidden_size, n_heads, encoder_layers : int
        Width, heads and blocks of the attention path.
    dropout : float
    patch_len : int, optional
        Steps in a token; by default that of `ForecastingConfig`, shortened to `input_size`.
    components : sequence of {"content", "time", "channel"}
        Terms of the attention score.
    channel_window : int, optional
        Compare the content of series at most this far apart, 1 to ``n_series - 1``. The time of a step is then linear
        in `n_series`.
    cycle_length : int, optional
        Steps of a learnable cycle. Needs `cycle_column`.
    cycle_column : str, optional
        Column of `futr_exog_list` with each step's position in the cycle, a whole number. It is not used as a feature.
    individual : bool
        Give each series parameters of its own, for series that are different things. The series and their order are
        then fixed.
    bounded : bool
        Keep forecasts and quantiles of each series between the smallest and the largest value that it had in training.
        For series that often lie at a limit (rain, sunshine, sales), not for series that grow. The series and their
        order are then fixed.
    channel_order : list or "correlation", optional
        All ids of the panel, in an order in which neighbours belong together. "correlation" finds such an order in the
        training rows. A panel of other series than those of the fit gets an order from its own rows.
    channel_positions : dict or table, optional
        Where each series lies: ids with one or more coordinates (a place along a shaft, kilometres, latitude and
        longitude), or a table with a column "unique_id" and one for each coordinate. The linear path then reads other
        series by where they lie, in units of the distance to the nearest one. With one coordinate, attention also
        sees the series in its order. Every series that is ever forecast needs a position, here or by `finetune`, so
        there may be more than the panel has.
    network : dict, optional
        Further options of `ForecastingConfig` by their names there, such as ``{"mixing_heads": 4}``. `per_channel` may
        hold "cycle", which gives each series a cycle of its own, and "vectors", by which each learns which others it
        reads in the linear path, whatever their order. The default is "vectors" where `mixing_heads` read 2 to 256
        series; above, the cost would grow with their square.
        `patch_stride` is by default as long as the patch. `normalise` normalises each window and series in the
        network. For losses that only neuralforecast can scale back (distributions, implicit quantiles), and with
        `exclude_insample_y`, its scaler does it instead.
    training : dict, optional
        Further options of `ForecasterTraining` by their names there: `ridge` with `cycle_strength` and
        `reversion_strength`, `frequency_weight` (of quantiles, of the median's error; not with distributions),
        `weight_averaging`, `averaging_warm_up`, `linear_learning_rate` (that of the attention path is `learning_rate`)
        and `full_rate_steps`. An `lr_scheduler` that sets rates itself, such as `OneCycleLR`, takes a list of two: of
        the attention path, then of the linear one.
    lr_scheduler, num_lr_decays
        As in every model of neuralforecast. The default is one cycle of both learning rates over `max_steps`. If there
        are more steps than windows in the panel, its peaks are lower.
    scaler_type : str, optional
        The scaler of neuralforecast. None takes "standard" if the network cannot normalise. Otherwise the network
        normalises the series, and exogenous columns of numbers are scaled by their mean and deviation in the training.
    early_stop_patience_steps : int
        As in every model of neuralforecast. The model keeps the weights of the best validation.
    loss, valid_loss, learning_rate, max_steps, ..., **trainer_kwargs
        As in every model of neuralforecast.

    Raises
    ------
    ValueError
        An argument is out of range, or the panel does not fit. Training has then not started.

    Examples
    --------
    >>> from neuralforecast import NeuralForecast
    >>> from neuralforecast.utils import AirPassengersPanel
    >>> from mvpa_ts.adapters.neuralforecast import MVPA
    >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    >>> model = MVPA(h=12, input_size=24, n_series=2, max_steps=1, **quiet)
    >>> forecaster = NeuralForecast(models=[model], freq="ME")
    >>> forecaster.fit(AirPassengersPanel[["unique_id", "ds", "y"]])
    >>> forecaster.predict().shape
    (24, 3)
    """

    _windows: Windows | None = None  # to solve regressions on when the training ends

    def __init__(
        self,
        h: int,
        input_size: int,
        n_series: int | None = None,
        futr_exog_list: list[str] | None = None,
        hist_exog_list: list[str] | None = None,
        stat_exog_list: list[str] | None = None,
        cat_exog_list: list[str] | None = None,
        categorical_cardinalities: dict[str, int] | None = None,
        cat_emb_dim: str | int = "fastai",
        exclude_insample_y: bool = False,
        hidden_size: int = ForecastingConfig.dim,
        n_heads: int = ForecastingConfig.num_heads,
        encoder_layers: int = ForecastingConfig.num_layers,
        dropout: float = ForecastingConfig.dropout,
        patch_len: int | None = None,
        components: Sequence[str] = ForecastingConfig.components,
        channel_window: int | None = None,
        cycle_length: int | None = None,
        cycle_column: str | None = None,
        individual: bool = False,
        bounded: bool = False,
        channel_order: Sequence[Any] | str | None = None,
        channel_positions: Any = None,
        network: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        loss: nn.Module | None = None,
        valid_loss: nn.Module | None = None,
        max_steps: int = ForecasterTraining.steps,
        learning_rate: float = ForecasterTraining.learning_rate,
        num_lr_decays: int = -1,
        early_stop_patience_steps: int = -1,
        val_monitor: str = "ptl/val_loss",
        val_check_steps: int = 100,
        batch_size: int = 32,
        valid_batch_size: int | None = None,
        windows_batch_size: int = ForecasterTraining.batch_size,
        inference_windows_batch_size: int = 32,
        start_padding_enabled: bool = False,
        training_data_availability_threshold: float | list[float] = 0.0,
        step_size: int = 1,
        scaler_type: str | None = None,
        random_seed: int = 1,
        drop_last_loader: bool = False,
        alias: str | None = None,
        optimizer: type[torch.optim.Optimizer] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        lr_scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None = None,
        lr_scheduler_kwargs: dict[str, Any] | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
        **trainer_kwargs: Any,
    ) -> None:
        check_names(trainer_kwargs, MVPA.__init__)
        check_whole(h=h, input_size=input_size, n_series=n_series, step_size=step_size, max_steps=max_steps)
        check_schedule(val_check_steps, windows_batch_size, loss, valid_loss)
        check_cycle(cycle_length, cycle_column, futr_exog_list, cat_exog_list)
        # Checked before the host's constructor, which would say less, or nothing until training begins.
        options = NETWORK.checked(network)
        settings = training_of(training, learning_rate)
        loss = MAE() if loss is None else loss
        host_scales = exclude_insample_y or scaled_by_host(loss)
        scaler = scaler_type or ("standard" if host_scales else "identity")
        check_choices(SimpleNamespace(scaler_type=scaler), scaler_type=_SCALERS)
        if host_scales or scaler != "identity":
            wanted = {
                "bounded": bounded, 'normalise="reverting"': options.get("normalise") == "reverting",
                "ridge": settings.ridge is not None, "frequency_weight": settings.frequency_weight > 0.0,
            }  # fmt: skip
            for name in (name for name, value in wanted.items() if value):
                raise ValueError(
                    f"{name} needs windows in the units of the series: leave out scaler_type and exclude_insample_y, "
                    "and take no loss of a distribution or of implicit quantiles; got "
                    f"scaler_type={scaler_type!r}, exclude_insample_y={exclude_insample_y}, loss={type(loss).__name__}"
                )

        super().__init__(**{**arguments_of(BaseModel, locals()), "scaler_type": scaler}, **trainer_kwargs)
        self.cycle_column, self.individual, self.bounded = cycle_column, individual, bounded
        if isinstance(bounded, (tuple, list)):
            raise ValueError(
                f"bounded must be True (the range of the training) or False where a model is trained, got {bounded!r}; "
                "limits of your own are for MVPA.from_pretrained"
            )
        check_flags(self, "individual", "bounded", "exclude_insample_y", "start_padding_enabled")
        self._set_book(channel_order, channel_positions, n_series)
        self._anchors_counts = scaler_type is None  # a scaler that somebody chose is taken as it is
        # The cycle's column is no number to scale, so the host's scaler must be one column narrower.
        if cycle_column is not None:
            features = len({*self.futr_exog_list, *self.hist_exog_list} - {*self.cat_exog_list, cycle_column})
            self.scaler: Any = TemporalNorm(scaler, dim=1, num_features=1 + features)
        config = forecasting_config(
            options, self.n_series, _WORDS, f"n_series - 1 = {self.n_series - 1}",
            horizon=h, lookback=input_size, patch_length=patch_len, dim=hidden_size, num_heads=n_heads,
            num_layers=encoder_layers, components=components, channel_window=channel_window, dropout=dropout,
            cycle_length=cycle_length, position_size=self._book.position_size,
            individual=individual, bounded=bounded, num_outputs=self.loss.outputsize_multiplier,
            feature_sizes=(self.futr_exog_size - bool(cycle_column), self.hist_exog_size, self.stat_exog_size),
            normalise=not host_scales and options.get("normalise", True),
        )  # fmt: skip
        # As chosen here, for a panel that is trained on later may have another number of series.
        per_channel = [name for name in config.per_channel if name in ("vectors", "cycle")]
        self.hparams["network"] = {**options, "per_channel": per_channel}
        self.hparams["training"] = dict(training or {})
        self._own_units = scaler == "identity"
        self._scales_features = self._own_units and scaler_type is None
        self._reads_units = config.normalise and self._own_units
        with OwnRandomState(random_seed):
            self.network = ForecastingNetwork(config, location_outputs(self.loss))
        if (levels := levels_of(self.loss)) is not None:
            start_in_order(self.network.linear, levels.sort().values)
        # Parameters of a distribution are no levels: at 30 times the rate they ran away.
        linear_ratio = 1.0 if scaled_by_host(self.loss) else LINEAR_RATE
        self._training = HostTraining(settings, linear_ratio=linear_ratio)

    @staticmethod
    def from_pretrained(name: str = "base", *, h: int, **options: Any) -> PanelModel:
        """Make a forecaster that needs no training; `options` are those of `PretrainedMVPA`.

        Parameters
        ----------
        name : str, default "base"
            "small" takes half the time and errs 2 % more (docs/pretrained.md). Or a folder with another forecaster.
        h : int
            Steps to forecast.

        Raises
        ------
        FileNotFoundError
            There is no such forecaster.
        ValueError
            An option does not fit, such as an `input_size` of more steps than the forecaster reads.
        """
        # By its registered name, since that file imports this one.
        model: PanelModel = MODEL_FILENAME_DICT["pretrainedmvpa"](h, base=name, **options)
        if model.input_size > (most := model.network.farthest):  # not in __init__, which reads saved models too
            raise ValueError(
                f"input_size must be left out, or be at most the {most} steps that the forecaster reads, got "
                f"{model.input_size}"
            )
        return model

    def forward(self, windows_batch: dict[str, Any]) -> Tensor:
        """Forecast the host's windows, [B, h, N·m] in the layout that the loss takes apart."""
        # The network sees the series in their own order, the host gets the forecast back in its order.
        view = self.view(windows_batch["insample_y"].shape[-1], windows_batch["insample_y"].device)
        x, observed, historic, future = inputs_of(windows_batch, view.order)
        static, phase = windows_batch["stat_exog"], None
        if self.cycle_column is not None and future is not None:
            column = [name for name in self.futr_exog_list if name not in self.cat_exog_list].index(self.cycle_column)
            # Missing rows hold a position of 0, which is not read.
            phase = whole_positions(future[..., column].detach().round().long(), observed.any(2))
            if future.requires_grad:
                x = x + 0.0 * future[..., column].sum()  # explainers want every input in the graph
            future = torch.cat([future[..., :column], future[..., column + 1 :]], dim=-1)
        static = None if static is None else static[view.order]
        output = self.network(x, observed, phase=phase, historic=historic, future=future, static=static, **view.inputs)
        output = sorted_quantiles(output[:, :, view.order.argsort()], self.loss)
        self._training.note_forecast(output if self.training else None)
        return flattened(output, self.loss)

    def to_onnx(self, path: str | Path) -> None:
        """Write the trained network as ONNX, for windows of `input_size` rows of the series of the last fit.

        It takes `values` (1, input_size, n_series), series in the host's order, and gives `quantiles` (1, h, n_series,
        outputs) of the loss, the smallest first. See `mvpa_ts.forecasting.onnx`.

        Raises
        ------
        ValueError
            The model reads exogenous columns, or the host scales its rows or windows or maps its outputs.
        ImportError
            onnx or onnxscript are not installed.
        """
        if self.futr_exog_list or self.hist_exog_list or self.stat_exog_list:
            raise ValueError("exogenous columns cannot be read from ONNX: fit a model without any")
        if not self._own_units or (levels_of(self.loss) is None and self.loss.outputsize_multiplier > 1):
            raise ValueError(
                "ONNX takes a loss of points or quantiles and no scaler_type, got "
                f"{type(self.loss).__name__} and windows that {'the network' if self._own_units else 'the host'} "
                "scales: what the host does is not in the file"
            )
        if self._fitted_series is not None and self._fitted_series.scaled:
            raise ValueError(
                "ONNX takes rows in units of y: local_scaler_type of NeuralForecast is not in the file, fit without it"
            )
        if self._fitted_series is None or len(self._fitted_series.order) != self.n_series:
            raise ValueError(f"to_onnx needs a fitted model of {self.n_series} series: {FITTED_COPY}")
        view = self._view_of(None, self.n_series)  # not that of the panel that was forecast last
        # The network standardises each window itself, as it does in the host.
        scaling = Scaling(np.zeros(self.n_series), np.ones(self.n_series))
        to_onnx(self.network, path, scaling=scaling, channel_inputs=view.inputs, order=view.order.tolist())

    def scaled_columns(self, values: Tensor, columns: Any, dim: int) -> Tensor:
        """Values of a batch with their exogenous columns, which lie along `dim`, scaled and bounded by the last fit."""
        by_column = {} if self._fitted_series is None else self._fitted_series.features
        if not by_column:
            return values
        rows = []
        for column in columns:
            scaling = by_column.get(column, [0.0, 1.0, -math.inf, math.inf])
            limits = map(float, FeatureScaling(*map(np.array, scaling)).limits())
            rows.append([*(scaling[:2] if self._scales_features else (0.0, 1.0)), *limits])
        shape = (-1, *[1] * (values.ndim - 1 - dim))
        location, scale, lower, upper = (numbers.reshape(shape) for numbers in values.new_tensor(rows).unbind(1))
        return (torch.minimum(torch.maximum(values, lower), upper) - location) / scale

    def _check_familiar(self, panel: Panel) -> None:
        super()._check_familiar(panel)
        if not self.start_padding_enabled:  # else windows of few rows were trained on
            panel.warn_of_short_history(self.input_size, self.h, self._fitted_index)

    @property
    def _kept_series(self) -> list[str]:
        chosen = {"individual": self.individual, "bounded": self.bounded,
                  "cycle in per_channel": "cycle" in self.network.config.per_channel}  # fmt: skip
        return [name for name, value in chosen.items() if value]

    def _prepare(self, panel: Panel, lookback: int, last_date: Any) -> None:
        """Start the network in closed form and set its bounds, as far as the options ask for it."""
        settings, before = self._training.settings, self._fitted_series
        if before is None:  # else the cycle may be learnt already
            panel.warn_of_long_cycle(self.network.config.cycle_length)
        else:
            self._keep_vectors(before.rows(panel.names, len(panel)), len(panel))
        super()._prepare(panel, lookback, last_date)
        if before is not None:
            self._keep_effects(before)
        # Bounds and the closed-form start belong to single series, so they follow the network's order.
        view = self.view(len(panel), torch.device("cpu"))
        if self.bounded:
            lower, upper = panel.value_range()
            self.network.set_bounds(lower[view.order], upper[view.order])
        explained = self._start_effects(panel)
        lowers_mixing_rate = self._training.lowers_rates(self) and self.network.mixing is not None
        regressions = self.network.regressions if panel.in_memory else None
        self._windows = None
        if self.network.fitted is not None:
            self.network.fitted.clear()
        if not lowers_mixing_rate and settings.ridge is None and regressions is None:
            return
        windows = panel.windows(explained, lookback=self.input_size, horizon=self.h, cycle_column=self.cycle_column)
        ordered = windows.channels(view.order)
        if lowers_mixing_rate:
            self._training.mixing_share = mixing_share(windows)
        if regressions is not None:
            regressions.start(ordered)
            if self.network.fitted is not None and self._reads_units and is_central(self.loss):
                self._windows = replace(ordered, channel_inputs={**view.inputs, **ordered.channel_inputs})
        start_in_closed_form(self.network, ordered, settings)

    def on_train_end(self) -> None:  # a hook of Lightning
        """Keep the average, and solve regressions on the rows of training beside the network that it is."""
        super().on_train_end()
        windows, self._windows = self._windows, None
        if windows is not None and self.network.fitted is not None:
            power = 2.0 if isinstance(self.loss, (MSE, RMSE)) else 1.0
            windows = windows.to(self.device)
            # Bounds in the units of the series would cut off the windows, which have units of their own.
            with self.network.bounded_by(*windows.value_range()):
                self.network.fitted.finish(self.network, windows, middle=self.network.middle, power=power)
            if self.val_size > 0 and self.trainer.world_size == 1:
                self._training.best_loss = self._validation_loss()

    @torch.no_grad()
    def _validation_loss(self) -> float:
        """The host's loss of the network as it forecasts, regressions and all: by it a search compares trials."""
        training, loader = self.training, self.trainer.datamodule.val_dataloader()
        batches = [self.transfer_batch_to_device(batch, self.device, 0) for batch in loader]
        self.log = lambda *_, **__: None  # Lightning lets nothing be logged so late
        try:
            losses = [self.eval().validation_step(batch, 0) for batch in batches]
        finally:
            del self.log
            self.train(training)
            self.validation_step_outputs.clear()
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def _start_effects(self, panel: Panel) -> np.ndarray | float:
        """Start the effects of covariates, if all are zero yet, by a regression; what they explain, [rows, N] or 0."""
        network, fitted = self.network, self._fitted_series
        if not network.reads_effects or not self._reads_units or not self._scales_features:
            return 0.0
        if bool(network.future_effects.any()) or not panel.in_memory or fitted is None:
            return 0.0  # weights that are trained further, or a table in files
        # Categories come last in the network, as vectors that are learnt.
        if not (names := self._known_numbers):
            return 0.0
        deviations = torch.tensor(fitted.units)[:, 1]
        values = torch.tensor(panel.rows(weighed=True)) / deviations
        features = self.scaled_columns(torch.tensor(panel.features(names)[: len(values)]), names, dim=2)
        effects = covariate_effects(values, values.isfinite(), features)
        network.future_effects[: len(names)] = effects.to(network.future_effects)
        return (features @ effects * deviations).nan_to_num(0.0).numpy()

    @torch.no_grad()
    def _keep_effects(self, before: FittedSeries) -> None:
        """Covariates do as much as before to the series of the last fit, whose deviations may have changed since."""
        fitted = self._fitted_series
        if fitted is None or not self.network.reads_effects or not self._reads_units:
            return
        rows = before.rows(fitted.names, len(fitted.order))
        pairs = [(before.units[row][1], now) for row, (_, now) in zip(rows, fitted.units, strict=True) if row >= 0]
        if changes := [math.log(then / now) for then, now in pairs if 0.0 < then < math.inf and 0.0 < now < math.inf]:
            self.network.future_effects.mul_(math.exp(sum(changes) / len(changes)))

    def _feature_scales(self, panel: Panel) -> dict[str, list[float]]:
        columns = {*self.futr_exog_list, *self.hist_exog_list, *self.stat_exog_list}
        numbers = sorted(columns - {*self.cat_exog_list, self.cycle_column})
        # Weights that are trained further keep the scale that they were trained with.
        scales = panel.feature_scales(numbers)
        before = {} if self._fitted_series is None else self._fitted_series.features
        for name, (*scale, lower, upper) in before.items():
            _, _, lowest, largest = scales.get(name, (0.0, 1.0, lower, upper))
            scales[name] = [*scale, min(lower, lowest), max(upper, largest)]
        return scales

    def _view_of(self, panel: Panel | None, count: int = 0) -> PanelView:
        view, fitted = super()._view_of(panel, count), self._fitted_series
        count = len(view.order)
        rows = [-1] * count if fitted is None else fitted.rows(view.names, count)
        if "vectors" in self.network.config.per_channel:
            view.inputs["series"] = torch.tensor(rows)[view.order]
        if self._reads_units and fitted is not None and (panel is not None or -1 not in rows):
            # A series that was not in training has its units from its rows in the panel at hand.
            new_units = fitted.units_of_new(panel.units()).tolist() if panel is not None and -1 in rows else []
            units = [new_units[i] if row < 0 else fitted.units[row] for i, row in enumerate(rows)]
            view.inputs["units"] = torch.tensor(units)[view.order]
        return view

    def _keep_vectors(self, rows: list[int], count: int) -> None:
        """Give the vectors of the last fit to the series that had them, new ones to the others."""
        config = self.network.config
        vectors = config.channels_with("vectors")
        if vectors is None or rows == list(range(vectors)):
            return
        # The number of vectors is a size of the network, so another number of series needs another network.
        state = self.network.state_dict()
        other = ForecastingNetwork(replace(config, num_channels=count), self.network.location_outputs)
        self.network = other.to(next(iter(state.values())).device)
        drawn = self.network.state_dict()
        for name in (name for name in drawn if name.endswith((".channel_query", ".channel_key", ".channel_weight"))):
            kept = [i for i, row in enumerate(rows) if row >= 0]
            drawn[name][kept] = state[name][[rows[i] for i in kept]]
            state[name] = drawn[name]
        self.network.load_state_dict(state)


def training_of(options: Mapping[str, Any] | None, learning_rate: float, **defaults: Any) -> ForecasterTraining:
    """Settings from `training={…}`; `defaults` are those of a model that has others than the core."""
    return ForecasterTraining(**{**defaults, **TRAINING.checked(options)}, learning_rate=learning_rate)


def check_names(names: Iterable[str], maker: Callable[..., Any]) -> None:
    """Raise TypeError for an argument that nobody takes; the host would say so only when it trains."""
    takers = (maker, BaseModel.__init__, pl.Trainer.__init__)
    arguments = {name for taker in takers for name in inspect.signature(taker).parameters} - {"self"}
    strange = [name for name in names if name in RENAMED or name not in arguments]
    refuse_fields(strange, (NETWORK, TRAINING), RENAMED)
    if strange:
        hint = meant(strange[0], arguments)
        raise TypeError(f"{strange[0]} is neither an argument of MVPA nor of Lightning's Trainer: {hint}")


def check_schedule(val_check_steps: Any, windows_batch_size: Any, loss: Any, valid_loss: Any) -> None:
    """Raise ValueError for arguments of the host that it would stumble over late."""
    # The host takes 50.0 too.
    whole = isinstance(val_check_steps, float) and val_check_steps.is_integer()
    check_whole(val_check_steps=int(val_check_steps) if whole else val_check_steps)
    if windows_batch_size is not None:  # None takes all
        check_whole(windows_batch_size=windows_batch_size)
    check_objects(nn.Module, "MAE()", loss=loss, valid_loss=valid_loss)
    for name, chosen in (("loss", loss), ("valid_loss", valid_loss)):
        if isinstance(chosen, TukeyLoss):
            raise ValueError(
                f"{name} must grow with the error, and TukeyLoss of neuralforecast falls: take HuberLoss()"
            )
        levels = getattr(chosen, "quantiles", None)
        levels = [getattr(chosen, "q", 0.5)] if levels is None else [float(level) for level in levels]
        # The host takes any, and forecasts of 1.5 are NaN.
        if not all(0.0 < level < 1.0 for level in levels):
            raise ValueError(
                f"{name} must have quantiles between 0 and 1, and levels between 0 and 100 percent, got the quantiles "
                f"{[round(level, 4) for level in levels]}"
            )
        if narrow := [round(level, 4) for level in levels if 0.0 < abs(level - 0.5) < 0.0051]:
            warn(f"{name} has quantiles {narrow}: if level is meant, it is in percent, such as 80")


def check_cycle(length: int | None, column: str | None, future: list[str] | None, categories: list[str] | None) -> None:
    """Raise ValueError unless the cycle has a column, known ahead, with each step's position."""
    if (length is None) != (column is None):
        raise ValueError(
            "cycle_length and cycle_column must be given together: the host passes no dates, so a column of "
            f"futr_exog_list must hold each step's position; got cycle_length={length!r}, cycle_column={column!r}"
        )
    if column is not None and (column not in (future or []) or column in (categories or [])):
        raise ValueError(f"cycle_column ({column!r}) must be in futr_exog_list and not in cat_exog_list")
