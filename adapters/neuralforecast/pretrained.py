"""The pretrained forecaster as a model of neuralforecast: forecasts at once, or after a short training."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence, Sized
from functools import partial
from typing import Any

import torch
from neuralforecast.common._base_model import BaseModel
from neuralforecast.losses.pytorch import MAE, MSE, RMSE, HuberQLoss, IQLoss, QuantileLoss
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.adapters.neuralforecast.base_model import PanelModel, arguments_of, inputs_of
from mvpa_ts.adapters.neuralforecast.model import MVPA, NETWORK, RENAMED, check_names, check_schedule, training_of
from mvpa_ts.adapters.neuralforecast.panel import Panel
from mvpa_ts.adapters.neuralforecast.training import HostTraining, flattened, levels_of, scaled_by_host
from mvpa_ts.adapters.options import check_whole, temporarily
from mvpa_ts.checks import check_flags
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.base import QUICK, QUICK_RATE
from mvpa_ts.forecasting.pretrained.pretrained import bounds_of
from mvpa_ts.forecasting.pretrained.seasons import checked_season, season_of

_OF_MEAN = tuple((2 * number + 1) / 40 for number in range(20))  # quantiles whose mean is that of the forecast
# Arguments of the host that would reach nothing: the network standardises what it reads itself.
_NOT_READ = ("stat_exog_list", "cat_emb_dim", "exclude_insample_y", "scaler_type")


class PretrainedMVPA(PanelModel):
    """A forecaster that was trained on other panels and forecasts any; `MVPA.from_pretrained` makes one.

    With ``max_steps=0``, the default, `fit` trains nothing. With more steps it trains further on the panel. Each panel
    may have another number of series. It is saved and loaded like every model of neuralforecast.

    Parameters
    ----------
    h : int
        Steps to forecast, any number.
    input_size : int, optional
        Steps to look back at, at most 8192, the default. The network uses 512 of them, or six seasons if a season has
        more than 320 steps; means and a regression use the others.
    n_series : int, optional
        Not needed: `fit` and `predict` take any number of series.
    base : str, default "base"
        "base" or "small", which the package holds, or a folder with another one.
    ordered : bool, default False
        Whether series that are neighbours by name belong together, as sensors along a line do.
    season : int, optional
        Steps of a season to try beside the seasons that the forecaster finds; 0 for none. None takes the season of the
        host's `freq`: 168 for hours, 288 for five minutes, 12 for months.
    channel_order : list or "correlation", optional
        As in `MVPA`: neighbours in this order belong together. Not read beside `hist_exog_list`.
    channel_positions : dict or table, optional
        Where each series lies, as in `MVPA`: one coordinate for places on a line, two or three for places in space.
        The forecaster then reads the series near each other as neighbours, without any training.
    bounded : bool or (lower, upper), default False
        Keep forecasts within bounds, None for none: (0, None) for counts and amounts. True: the range of the rows read.
    futr_exog_list, hist_exog_list : list of str, optional
        Columns that are known ahead, and columns that end with the series. The effect of the former is found in the
        history, without training; the latter are read as further series of the panel, and not with positions.
    cat_exog_list, categorical_cardinalities
        Which of these columns are categories, and how many values each has, as in the host. Each value counts as a
        column of 0 and 1; one that the history lacks counts as the mean of all.
    training : dict, optional
        As in `MVPA`: `weight_averaging`, `averaging_warm_up` and `frequency_weight`.
    max_steps : int, default 0
        Training steps on the panel.
    learning_rate : float, default 3e-4
        Learning rate of the training on the panel.
    loss : default MAE
        MSE and RMSE give the mean, other losses of a point the median; MQLoss and QuantileLoss any quantiles.
    **options
        As in every model of the host.

    Raises
    ------
    ValueError
        The loss needs other outputs than quantiles, or an option is not for a pretrained forecaster.

    Examples
    --------
    >>> from neuralforecast import NeuralForecast
    >>> from neuralforecast.utils import AirPassengersPanel
    >>> from mvpa_ts.adapters.neuralforecast import MVPA
    >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    >>> forecaster = NeuralForecast(models=[MVPA.from_pretrained("base", h=12, **quiet)], freq="ME")
    >>> forecaster.fit(AirPassengersPanel[["unique_id", "ds", "y"]])  # reads the panel, trains nothing
    >>> forecaster.predict().shape
    (24, 3)
    """

    EXOGENOUS_STAT = False
    _keeps_covariates = True
    bytes_ahead = 20_000  # 28,000 for two series and 100,000 steps

    def __init__(
        self,
        h: int,
        input_size: int | None = None,
        n_series: int | None = None,
        base: str = "base",
        ordered: bool = False,
        season: int | None = None,
        channel_order: Sequence[Any] | str | None = None,
        channel_positions: Any = None,
        bounded: bool | Sequence[float | None] = False,
        training: dict[str, Any] | None = None,
        loss: nn.Module | None = None,
        valid_loss: nn.Module | None = None,
        max_steps: int = 0,
        learning_rate: float = 3e-4,
        val_check_steps: int = 100,
        batch_size: int = 32,
        valid_batch_size: int | None = None,
        windows_batch_size: int = 32,
        inference_windows_batch_size: int = 32,
        num_lr_decays: int = -1,
        start_padding_enabled: bool = True,
        **options: Any,
    ) -> None:
        _refuse(options)
        network = load_base(base)
        # The host asks each multivariate model for a number of series, which means nothing here.
        if n_series is None and isinstance(channel_order, Sized) and not isinstance(channel_order, str):
            n_series = max(1, len(channel_order))
        n_series = 1 if n_series is None else n_series
        input_size = network.farthest if input_size is None else input_size
        check_whole(h=h, input_size=input_size, n_series=n_series)
        check_whole(0, max_steps=max_steps)
        check_schedule(val_check_steps, windows_batch_size, loss, valid_loss)
        loss = MAE() if loss is None else loss
        if (levels := _levels(loss)) is None:
            raise ValueError(
                f"loss must be a point loss (MAE, MSE, …) or a quantile loss (MQLoss, QuantileLoss), got "
                f"{type(loss).__name__}: the pretrained forecaster gives quantiles"
            )
        season = checked_season(season)
        # Refused here, not in a forecast.
        bounds_of(bounded, torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.bool))
        super().__init__(**arguments_of(BaseModel, locals()), **options)
        # Saved as a number, so that a file does not change its meaning with the shipped network.
        self.hparams["input_size"] = input_size
        self._set_book(channel_order, channel_positions, n_series)
        self.ordered, self.season, self._season, self.bounded = ordered, season, 0, bounded
        check_flags(self, "ordered", "start_padding_enabled")
        if self.hist_exog_list and channel_positions is not None:
            raise ValueError("hist_exog_list must be left out with channel_positions: its columns lie nowhere")
        self._mean = levels is _OF_MEAN
        self._levels = sorted(set(levels))
        self._columns = [self._levels.index(level) for level in levels]
        self.network = network
        # Its rate is small already, so it is not lowered. The choice among simple forecasts, which takes the place of
        # the linear path, learns far faster.
        settings = training_of(training, learning_rate, full_rate_steps=None)
        quick = partial(operator.contains, QUICK)
        self._training = HostTraining(settings, linear_ratio=QUICK_RATE, on_linear_path=quick)

    def forward(self, windows_batch: dict[str, Any]) -> Tensor:
        """Forecast the host's windows, [B, h, N·m] in the layout that the loss takes apart."""
        view = self.view(windows_batch["insample_y"].shape[-1], windows_batch["insample_y"].device)
        x, observed, historic, future = inputs_of(windows_batch, view.order)
        positions = view.inputs.get("positions")
        if positions is None and (self.ordered or (self._book.order is not None and not self.hist_exog_list)):
            positions = torch.arange(x.shape[-1], device=x.device)[:, None].float()
        categories = [name for name in self.futr_cat_exog_list for _ in range(self._cat_emb_dim(name))]
        quantiles = forecast_quantiles(
            self.network, x, observed, horizon=self.h, levels=self._levels, positions=positions, season=self._season,
            future=future, historic=historic, names=self._known_numbers + categories, bounded=self.bounded,
        )  # fmt: skip
        output = quantiles[..., self._columns][:, :, view.order.argsort()]
        output = output.mean(3, keepdim=True) if self._mean else output
        self._training.note_forecast(output if self.training else None)
        return flattened(output, self.loss)

    def _cat_emb_dim(self, name: str) -> int:
        return self.categorical_cardinalities[name]

    def _build_cat_embeddings(self, names: Sequence[str]) -> nn.ModuleList:
        # Columns of 0 and 1, in place of the host's vectors, which would have to be learnt; number 0 is no category.
        tables = (F.pad(torch.eye(self._cat_emb_dim(name)), (0, 0, 1, 0)) for name in names)
        return nn.ModuleList(nn.Embedding.from_pretrained(table) for table in tables)

    def predict(self, dataset: Any, *args: Any, h: int | None = None, **kwargs: Any) -> Any:
        """Forecast a panel, of any `h`; called by `NeuralForecast.predict`. Raises ValueError for `explain`."""
        if kwargs.get("explainer_config") is not None:
            raise ValueError(
                f"explain() needs models without {self}: no gradient leads from a pretrained forecast back to the "
                "rows. Train MVPA and explain that"
            )
        # The host would read its own forecasts as values, and intervals would not grow with the horizon.
        horizon = max(self.h, h or 0)
        with temporarily(self, h=horizon, horizon_backup=horizon):
            return super().predict(dataset, *args, **kwargs)

    def to_onnx(self, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError: of the pretrained forecaster, `base_to_onnx` writes the network alone."""
        raise ValueError(
            f"{self} cannot be written as ONNX with all that it does. Its network can: "
            "mvpa_ts.forecasting.onnx.base_to_onnx(model.network, path, shape=(rows, series), horizon=h)"
        )

    def _read(self, panel: Panel, val_size: int, test_size: int) -> PretrainedMVPA:
        if val_size + test_size >= panel.dataset.max_size:
            raise ValueError(
                f"df must have rows before those that cross_validation holds out ({val_size + test_size}), got "
                f"{panel.dataset.max_size} in its longest series: give a smaller n_windows, step_size or test_size"
            )
        self._fitted_index = panel.index
        self.val_size, self.test_size = val_size, test_size  # what the host's forecasts of the past read
        return self

    def _checked_panel(self, dataset: Any, unseen: int, *, fitting: bool) -> Panel:
        # The season comes with the frequency of the panel, so it is read wherever a panel comes in.
        panel = super()._checked_panel(dataset, unseen, fitting=fitting)
        if fitting:  # it takes any number of series
            self.n_series = self.hparams["n_series"] = len(panel)
        if panel.index is not None and panel.index.scaled and not isinstance(self.bounded, bool):
            raise ValueError(
                f"bounded ({self.bounded!r}) is in units of y, and local_scaler_type of NeuralForecast gives others: "
                "leave local_scaler_type out, since the network scales each series itself"
            )
        freq = None if panel.index is None else panel.index.freq  # that the user gave to the host
        self._season = season_of(freq) if self.season is None else self.season
        return panel


def _refuse_shift(owner: nn.Module, name: str, module: Any) -> None:
    """Raise ValueError where darts wants steps that begin later, which a model trains for and this one is not told."""
    if isinstance(module, PretrainedMVPA) and (shift := getattr(owner, "output_chunk_shift", 0)):
        raise ValueError(
            f"output_chunk_shift must be 0 with PretrainedMVPA, got {shift}: add it to output_chunk_length, and leave "
            f"the first {shift} steps of the forecast out"
        )


nn.modules.module.register_module_module_registration_hook(_refuse_shift)


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise an error for an option that a network which exists already, and reads the series alone, cannot take."""
    of_host = inspect.signature(BaseModel.__init__).parameters
    for name, value in options.items():
        if name in _NOT_READ and value not in (None, [], of_host[name].default):
            raise ValueError(
                f"{name} must be left out: a pretrained forecaster reads the series, futr_exog_list and "
                f"hist_exog_list; use MVPA for {name}"
            )
        of_mvpa = name in inspect.signature(MVPA.__init__).parameters and name not in of_host
        if of_mvpa or RENAMED.get(name, name) in NETWORK.names:
            raise ValueError(
                f"{name} must be left out: a pretrained forecaster has its network already, got {value!r}; use MVPA "
                f"for {name}"
            )
    check_names(options, PretrainedMVPA.__init__)


def _levels(loss: nn.Module) -> tuple[float, ...] | None:
    """Quantiles that a loss of the host wants, in its order; of a point those of mean or median; None for others."""
    if (levels := levels_of(loss)) is not None:
        return tuple(round(float(level), 6) for level in levels)
    if isinstance(loss, IQLoss):  # a quantile that is drawn anew
        return None
    if isinstance(loss, (QuantileLoss, HuberQLoss)):
        return (float(loss.q),)
    if scaled_by_host(loss) or loss.outputsize_multiplier != 1:
        return None
    return _OF_MEAN if isinstance(loss, (MSE, RMSE)) else (0.5,)  # squares ask for the mean
