"""MVPA as a model of neuralforecast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from neuralforecast.common._base_model import BaseModel, pl
from neuralforecast.common._scalers import TemporalNorm
from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import MAE
from torch import Tensor, nn

from mvpa_ts.adapters.neuralforecast import losses
from mvpa_ts.adapters.neuralforecast.configuration import (
    DEFAULT,
    check_names,
    check_objects,
    check_units,
    check_whole,
    check_window,
    network_config,
)
from mvpa_ts.adapters.neuralforecast.cycle import check_cycle, phase_of
from mvpa_ts.adapters.neuralforecast.fitting import Fitting
from mvpa_ts.adapters.neuralforecast.host_overrides import HostOverrides, MaskedWindows
from mvpa_ts.adapters.neuralforecast.mixins import FrequencyLoss, PathRates, WeightAveraging
from mvpa_ts.adapters.neuralforecast.series import checked_order, checked_positions
from mvpa_ts.checks import check_flags
from mvpa_ts.forecasting.network import ForecastingNetwork
from mvpa_ts.forecasting.training import ForecasterTraining

_TRAINING = ForecasterTraining()


class MVPA(Fitting, WeightAveraging, PathRates, FrequencyLoss, MaskedWindows, HostOverrides, BaseModel):
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
    hidden_size, n_heads, encoder_layers, linear_hidden_size : int
        Width, heads, blocks, and hidden width of the gated MLP.
    dropout, attn_dropout, head_dropout : float
    patch_len, stride : int, optional
        Steps in a token and between tokens; by default those of `ForecastingConfig`, shortened to `input_size`.
    components : sequence of {"content", "time", "channel"}
        Terms of the attention score.
    channel_distance : {"absolute", "signed"}
    max_channels : int
        Channels further apart than this share what is learnt about their distance.
    mixing_heads : int
        Heads of the linear path that read the other series; 0 leaves it to each series alone.
    covariate_maps : bool
        Read exogenous columns that change with time in the linear path too.
    channel_window : int, optional
        Compare the content of series at most this far apart, 1 to ``n_series - 1``. The time of a step is then linear
        in `n_series`.
    cycle_length : int, optional
        Steps of a learnable cycle. Needs `cycle_column`.
    cycle_column : str, optional
        Column of `futr_exog_list` with each step's position in the cycle, a whole number. It is not used as a feature.
    cycle_per_series : bool
        Give each series a cycle of its own. The number of series is then fixed.
    phase_weights : bool
        Weigh each step that the linear path reads by a learnt factor of its phase in the cycle.
    individual : bool
        Give each series parameters of its own, for series that are different things. The series and their order are
        then fixed.
    level_reversion : bool
        Learn how far each step of the forecast returns from the window's mean towards zero. For series that were
        standardised as a whole, for example by `local_scaler_type` of `NeuralForecast`.
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
    channel_vectors : bool, optional
        Learn for each series a vector that says which others it reads in the linear path, whatever their order. A
        series that was not in the training has no vector; it is read by its distance. The default is True where
        `mixing_heads` read 2 to ``8 * max_channels`` series (256); above, the cost would grow with their square.
    shuffle_channels : bool
        Train on random channel orders.
    ridge : float, optional
        Start the linear path and the cycle in closed form from the training rows, with this ridge: .1 for little noise,
        3 for much. None starts at zero. See `mvpa_ts.least_squares_start`.
    cycle_strength, reversion_strength : float
        Options of this start.
    frequency_weight : float
        Share of the training loss that is the L1 norm of the error's Fourier transform over the horizon (FreDF,
        arXiv:2402.02399); of quantiles, of the median's error. Not with distributions.
    weight_averaging : float, optional
        Decay of an exponential moving average of the weights, which is validated and kept. None keeps no average.
    averaging_warm_up : bool
        Let the average forget faster at first, so that short trainings do not keep what they began with.
    linear_learning_rate : float, optional
        Learning rate of the linear path and the cycle; by default 30 times `learning_rate`, the rate of the attention
        path. An `lr_scheduler` that sets rates itself, such as `OneCycleLR`, takes a list of two: of the
        attention path, then of the linear one.
    lr_scheduler, num_lr_decays
        As in every model of neuralforecast. The default is one cycle of both learning rates over `max_steps`. If there
        are more steps than windows in the panel, its peaks are lower.
    use_norm : bool
        Normalise each window and series in the network. For losses that only neuralforecast can scale back
        (distributions, implicit quantiles), and with `exclude_insample_y`, its scaler does it instead.
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

    EXOGENOUS_FUTR = True
    EXOGENOUS_HIST = True
    EXOGENOUS_STAT = True
    EXOGENOUS_CAT = True
    MULTIVARIATE = True
    RECURRENT = False
    _least_steps = 1

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
        hidden_size: int = DEFAULT["dim"],
        n_heads: int = DEFAULT["num_heads"],
        encoder_layers: int = DEFAULT["num_layers"],
        linear_hidden_size: int = DEFAULT["mlp_dim"],
        dropout: float = DEFAULT["dropout"],
        attn_dropout: float = DEFAULT["attention_dropout"],
        head_dropout: float = DEFAULT["head_dropout"],
        patch_len: int | None = None,
        stride: int | None = None,
        components: Sequence[str] = DEFAULT["components"],
        channel_distance: str = DEFAULT["channel_distance"],
        max_channels: int = DEFAULT["max_channels"],
        mixing_heads: int = DEFAULT["mixing_heads"],
        covariate_maps: bool = DEFAULT["covariate_maps"],
        channel_window: int | None = DEFAULT["channel_window"],
        cycle_length: int | None = DEFAULT["cycle_length"],
        cycle_column: str | None = None,
        cycle_per_series: bool = False,
        phase_weights: bool = DEFAULT["phase_weights"],
        individual: bool = False,
        level_reversion: bool = DEFAULT["level_reversion"],
        bounded: bool = False,
        channel_order: Sequence[Any] | str | None = None,
        channel_positions: Any = None,
        channel_vectors: bool | None = None,
        shuffle_channels: bool = DEFAULT["shuffle_channels"],
        ridge: float | None = None,
        cycle_strength: float = _TRAINING.cycle_strength,
        reversion_strength: float = _TRAINING.reversion_strength,
        frequency_weight: float = _TRAINING.frequency_weight,
        weight_averaging: float | None = _TRAINING.weight_averaging,
        averaging_warm_up: bool = _TRAINING.averaging_warm_up,
        linear_learning_rate: float | None = None,
        use_norm: bool = DEFAULT["normalise"],
        loss: nn.Module | None = None,
        valid_loss: nn.Module | None = None,
        max_steps: int = 1000,
        learning_rate: float = 1e-3,
        num_lr_decays: int = -1,
        early_stop_patience_steps: int = -1,
        val_monitor: str = "ptl/val_loss",
        val_check_steps: int = 100,
        batch_size: int = 32,
        valid_batch_size: int | None = None,
        windows_batch_size: int = 32,
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
        check_whole(h=h, input_size=input_size, n_series=n_series, step_size=step_size)
        check_whole(self._least_steps, max_steps=max_steps)
        # The host takes 50.0 too.
        check_whole(val_check_steps=int(val_check_steps) if isinstance(val_check_steps, float) else val_check_steps)
        if windows_batch_size is not None:  # None takes all
            check_whole(windows_batch_size=windows_batch_size)
        check_objects(nn.Module, "MAE()", loss=loss, valid_loss=valid_loss)
        training = ForecasterTraining(
            learning_rate=learning_rate,
            linear_learning_rate=linear_learning_rate,
            weight_averaging=weight_averaging,
            frequency_weight=frequency_weight,
            ridge=ridge,
            cycle_strength=cycle_strength,
            reversion_strength=reversion_strength,
        )
        check_names(trainer_kwargs, MVPA.__init__, BaseModel.__init__, pl.Trainer.__init__)
        order, positions = checked_order(channel_order, n_series), checked_positions(channel_positions)
        check_cycle(cycle_length, cycle_column, futr_exog_list, cat_exog_list)
        loss = MAE() if loss is None else loss
        host_scales = exclude_insample_y or losses.scaled_by_host(loss)
        scaler = scaler_type or ("standard" if host_scales else "identity")
        if host_scales or scaler != "identity":
            wanted = {
                "bounded": bounded, "level_reversion": level_reversion, "ridge": ridge is not None,
                "frequency_weight": frequency_weight > 0.0,
            }  # fmt: skip
            check_units(wanted, loss, scaler_type, exclude_insample_y)

        super().__init__(
            h=h, input_size=input_size, n_series=n_series, futr_exog_list=futr_exog_list,
            hist_exog_list=hist_exog_list, stat_exog_list=stat_exog_list, cat_exog_list=cat_exog_list,
            categorical_cardinalities=categorical_cardinalities, cat_emb_dim=cat_emb_dim,
            exclude_insample_y=exclude_insample_y, loss=loss, valid_loss=valid_loss, max_steps=max_steps,
            learning_rate=learning_rate, num_lr_decays=num_lr_decays,
            early_stop_patience_steps=early_stop_patience_steps, val_monitor=val_monitor,
            val_check_steps=val_check_steps, batch_size=batch_size, valid_batch_size=valid_batch_size,
            windows_batch_size=windows_batch_size, inference_windows_batch_size=inference_windows_batch_size,
            start_padding_enabled=start_padding_enabled,
            training_data_availability_threshold=training_data_availability_threshold, step_size=step_size,
            scaler_type=scaler, random_seed=random_seed, drop_last_loader=drop_last_loader, alias=alias,
            optimizer=optimizer, optimizer_kwargs=optimizer_kwargs, lr_scheduler=lr_scheduler,
            lr_scheduler_kwargs=lr_scheduler_kwargs, dataloader_kwargs=dataloader_kwargs, **trainer_kwargs,
        )  # fmt: skip
        self.weight_averaging = weight_averaging
        self.averaging_warm_up = averaging_warm_up
        self.linear_learning_rate = linear_learning_rate
        self.cycle_column = cycle_column
        self.cycle_per_series = cycle_per_series
        self.individual = individual
        self.bounded = bounded
        self.channel_vectors = channel_vectors
        check_flags(self, "averaging_warm_up", "cycle_per_series", "individual", "bounded", "channel_vectors")
        self.frequency_weight = frequency_weight
        self._training = training
        self.channel_order = self.hparams["channel_order"] = order  # as plain values, for they are saved
        self.channel_positions = self.hparams["channel_positions"] = positions
        self._anchors_counts = scaler_type is None  # a scaler that somebody chose is taken as it is
        if cycle_column is not None:
            features = len({*self.futr_exog_list, *self.hist_exog_list} - {*self.cat_exog_list, cycle_column})
            self.scaler: Any = TemporalNorm(scaler, dim=1, num_features=1 + features)
        check_window(channel_window, n_series)  # type: ignore[arg-type]
        config = network_config(
            n_series,  # type: ignore[arg-type]
            horizon=h, lookback=input_size, patch_length=patch_len, patch_stride=stride, dim=hidden_size,
            num_heads=n_heads, mlp_dim=linear_hidden_size, num_layers=encoder_layers, components=components,
            channel_distance=channel_distance, max_channels=max_channels, mixing_heads=mixing_heads,
            covariate_maps=covariate_maps, channel_window=channel_window,
            channel_vectors=n_series if channel_vectors else None,
            position_size=len(positions[0][1]) if positions else 0, dropout=dropout, attention_dropout=attn_dropout,
            head_dropout=head_dropout, num_outputs=self.loss.outputsize_multiplier, cycle_length=cycle_length,
            cycle_channels=n_series if cycle_per_series else None, phase_weights=phase_weights,
            individual_channels=n_series if individual else None, level_reversion=level_reversion,
            bounded_channels=n_series if bounded else None,
            future_size=self.futr_exog_size - (cycle_column is not None), historic_size=self.hist_exog_size,
            static_size=self.stat_exog_size, normalise=use_norm and not host_scales,
            shuffle_channels=shuffle_channels, location_outputs=losses.location_outputs(self.loss),
        )  # fmt: skip
        if channel_vectors is None:
            config = config.with_vectors(n_series)  # type: ignore[arg-type]
        # As chosen here, for a panel that is trained on later may have another number of series.
        self.hparams["channel_vectors"] = config.channel_vectors is not None
        self._own_units = scaler == "identity"
        self._scales_features = self._own_units and scaler_type is None
        self._reads_units = config.normalise and self._own_units
        self.network = ForecastingNetwork(config)
        losses.start_in_order(self.network.linear, self.loss)

    @staticmethod
    def from_pretrained(name: str = "base", *, h: int, **options: Any) -> MVPA:
        """Make a forecaster that needs no training; `options` are those of `PretrainedMVPA`.

        Parameters
        ----------
        name : str, default "base"
            A forecaster that the package holds, or a folder with another one.
        h : int
            Steps to forecast.

        Raises
        ------
        FileNotFoundError
            There is no such forecaster.
        ValueError
            An option does not fit, such as an `input_size` of more steps than the forecaster reads.
        """
        # By its registered name: that class is a subclass of this one.
        model: MVPA = MODEL_FILENAME_DICT["pretrainedmvpa"](h, base=name, **options)
        network: Any = model.network
        if model.input_size > (most := network.network.farthest):  # not in __init__, which reads saved models too
            raise ValueError(
                f"input_size must be left out, or be at most the {most} steps that the forecaster reads, got "
                f"{model.input_size}"
            )
        return model

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls.__name__, cls)

    def forward(self, windows_batch: dict[str, Any]) -> Tensor:
        """Forecast the host's windows, [B, h, N·m] in the layout that the loss takes apart."""
        x = windows_batch["insample_y"]
        observed = windows_batch["insample_mask"] > 0
        if observed.ndim == 2:  # darts has one mask for all series
            observed = observed[..., None].expand_as(x)
        historic, future = (
            None if windows_batch[name] is None else rearrange(windows_batch[name], "b f l n -> b l n f")
            for name in ("hist_exog", "futr_exog")
        )
        phase = None
        if self.cycle_column is not None and future is not None:
            column = [name for name in self.futr_exog_list if name not in self.cat_exog_list].index(self.cycle_column)
            phase = phase_of(future[..., column], observed)
            if future.requires_grad:
                x = x + 0.0 * future[..., column].sum()  # explainers want every input in the graph
            future = torch.cat([future[..., :column], future[..., column + 1 :]], dim=-1)
        static = windows_batch["stat_exog"]

        shown = self.shown(x.shape[-1], observed.device)
        order = shown.order
        output = self.network(
            x[..., order],
            observed[..., order],
            phase=phase,
            historic=None if historic is None else historic[:, :, order],
            future=None if future is None else future[:, :, order],
            static=None if static is None else static[order],
            **shown.inputs,
        )[:, :, order.argsort()]
        output = losses.sorted_quantiles(output, self.loss)
        self._forecast = output if self.training and self.frequency_weight else None
        return losses.flattened(output, self.loss)


def register(name: str, model: type[MVPA]) -> None:
    """Let the host save and load models of that class name as `model`."""
    if not issubclass(MODEL_FILENAME_DICT.setdefault(name.lower(), model), MVPA):
        raise ValueError(f"neuralforecast has a model {name!r} already; give the subclass another name")
    MODEL_FILENAME_DICT[name.lower()] = model


register("MVPA", MVPA)
