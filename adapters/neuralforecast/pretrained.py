"""The pretrained forecaster as a model of neuralforecast: forecasts at once, or after a short training."""

from __future__ import annotations

import inspect
from collections.abc import Sized
from typing import Any

from neuralforecast.losses.pytorch import HuberMQLoss, MQLoss, QuantileLoss
from torch import Tensor, nn

from mvpa_ts.adapters.neuralforecast import callers, losses, panel
from mvpa_ts.adapters.neuralforecast.model import MVPA, register
from mvpa_ts.forecasting.pretrained import forecast_quantiles, load_base
from mvpa_ts.forecasting.pretrained.base import QUICK, QUICK_RATE
from mvpa_ts.forecasting.pretrained.seasons import season_of

# Options of `MVPA` that make or start its network; this one exists.
_OF_THE_NETWORK = (
    "hidden_size", "n_heads", "linear_hidden_size", "dropout", "attn_dropout", "head_dropout", "patch_len", "stride",
    "components", "channel_distance", "max_channels", "mixing_heads", "covariate_maps", "channel_window",
    "cycle_column", "cycle_per_series", "phase_weights", "individual", "level_reversion", "shuffle_channels", "ridge",
    "cycle_strength", "reversion_strength", "use_norm",
)  # fmt: skip
_NOT_FOR_IT = ("futr_exog_list", "hist_exog_list", "stat_exog_list", "cat_exog_list", "cycle_length", "bounded",
               "exclude_insample_y", "scaler_type", "linear_learning_rate", "channel_vectors")  # fmt: skip
_POSITIONS = (
    "channel_positions must be left out: a pretrained forecaster uses only an order of the series, which "
    "channel_order with ordered=True gives; to use distances, train MVPA"
)


class PretrainedMVPA(MVPA):
    """A forecaster that was trained on made-up series and forecasts any panel; `MVPA.from_pretrained` makes one.

    With ``max_steps=0``, the default, `fit` trains nothing. With more steps it trains further on the panel. Each panel
    may have another number of series. It is saved and loaded like every model of neuralforecast.

    Parameters
    ----------
    h : int
        Steps to forecast. Up to 64 come from one pass, more by paths.
    input_size : int, optional
        Steps to look back at, at most 2048, the default. The network uses 512 of them, or six seasons if a season has
        more than 320 steps.
    base : str, default "base"
        Name of the shipped forecaster, or a folder with another one.
    ordered : bool, default False
        Whether series that are neighbours by name (or by `channel_order`) belong together, as sensors along a line do.
    season : int, optional
        Steps of a season to try beside the seasons that the forecaster finds; 0 for none. None takes the season of the
        host's `freq`: 168 for hours, 288 for five minutes, 12 for months.
    n_series : int, optional
        Not needed: `fit` and `predict` take any number of series.
    max_steps : int, default 0
        Training steps on the panel.
    learning_rate : float, default 3e-4
        Learning rate of the training on the panel.
    loss : default MAE
        MAE and other losses of a point give the median; MQLoss and QuantileLoss any quantiles.
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

    _full_rate_steps = None  # its rate is small already
    _least_steps = 0

    def __init__(
        self,
        h: int,
        input_size: int | None = None,
        n_series: int | None = None,
        base: str = "base",
        ordered: bool = False,
        season: int | None = None,
        max_steps: int = 0,
        learning_rate: float = 3e-4,
        start_padding_enabled: bool = True,
        **options: Any,
    ) -> None:
        if options.get("channel_positions") is not None:
            raise ValueError(_POSITIONS)
        wanted = {name: options.get(name) for name in _NOT_FOR_IT}
        if refused := [
            name
            for name, value in wanted.items()
            if value is not None and not (isinstance(value, (str, bool, list)) and value in ("identity", False, []))
        ]:
            raise ValueError(
                f"{refused[0]} must be left out: a pretrained forecaster reads only the series; use MVPA for "
                f"{refused[0]}"
            )
        usual = inspect.signature(MVPA.__init__).parameters
        for name in (name for name in _OF_THE_NETWORK if name in options):
            value = tuple(options[name]) if isinstance(options[name], list) else options[name]
            if value != usual[name].default:
                raise ValueError(
                    f"{name} must be left out: a pretrained forecaster has its network already, got {value!r}; use "
                    f"MVPA for {name}"
                )
        order = options.get("channel_order")
        if n_series is None and isinstance(order, Sized) and not isinstance(order, str):
            n_series = max(1, len(order))
        for name in ("encoder_layers", "channel_vectors"):  # the host saves what the parent was told
            options.pop(name, None)
        network = load_base(base)
        super().__init__(
            h=h,
            input_size=network.farthest if input_size is None else input_size,
            n_series=1 if n_series is None else n_series,
            encoder_layers=0,  # the network that the parent makes is replaced
            channel_vectors=False,
            max_steps=max_steps,
            learning_rate=learning_rate,
            start_padding_enabled=start_padding_enabled,
            **options,
        )
        levels = _levels(self.loss)
        if levels is None:
            raise ValueError(
                f"loss must be a point loss (MAE, MSE, …) or a quantile loss (MQLoss, QuantileLoss), got "
                f"{type(self.loss).__name__}: the pretrained forecaster gives quantiles"
            )
        if season is not None and (isinstance(season, bool) or season != int(season) or season < 0):
            raise ValueError(f"season must be a whole number of steps, 0 for none, or None, got {season!r}")
        self._reads_units, self.season = False, season  # it standardises every series itself
        self.network: Any = _Quantiles(network, h, levels, ordered)

    def fit(
        self,
        dataset: Any,
        val_size: int = 0,
        test_size: int = 0,
        random_seed: int | None = None,
        distributed_config: Any = None,
    ) -> MVPA:
        """Train for `max_steps` steps on a panel of any number of series; called by `NeuralForecast.fit`."""
        self.n_series = self.hparams["n_series"] = len(dataset)
        self._read_season()
        if self.max_steps:
            self.network.train()  # it was loaded for forecasts
            return super().fit(dataset, val_size, test_size, random_seed, distributed_config)
        self._check_panel(dataset, 0, distributed_config)
        panel.check_dates(dataset)
        self.val_size, self.test_size = val_size, test_size  # what the host's forecasts of the past read
        return self

    def finetune(self, **changes: Any) -> Any:
        """As that of `MVPA`; raises ValueError for `channel_positions`, which the network does not read."""
        if changes.get("channel_positions") is not None:
            raise ValueError(_POSITIONS)
        return super().finetune(**changes)

    def predict(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Forecast a panel; called by `NeuralForecast.predict`.

        Raises
        ------
        ValueError
            `NeuralForecast.explain` asks for an explanation.
        """
        if kwargs.get("explainer_config") is not None:
            raise ValueError(
                f"explain() needs models without {self}: no gradient leads from a pretrained forecast back to the "
                "rows. Train MVPA and explain that"
            )
        self._read_season()
        return super().predict(dataset, *args, **kwargs)

    def _read_season(self) -> None:
        told = self.season
        self.network.season = season_of(callers.frequency()) if told is None else int(told)

    @property
    def _linear_ratio(self) -> float:
        return QUICK_RATE

    @staticmethod
    def _on_linear_path(name: str) -> bool:
        """The choice among simple forecasts takes the place of the linear path: it learns far faster."""
        return name.removeprefix("network.") in QUICK


class _Quantiles(nn.Module):
    """The network, called as `ForecastingNetwork` is, with the outputs that a loss of the host wants."""

    def __init__(self, network: nn.Module, horizon: int, levels: tuple[float, ...], ordered: bool) -> None:
        super().__init__()
        self.network, self.horizon, self.ordered, self.season = network, horizon, ordered, 0
        self.levels = sorted(set(levels))
        self.columns = [self.levels.index(level) for level in levels]
        # As the parent's network has it; nothing is trained by it.
        self.config = network.config

    def forward(self, x: Tensor, mask: Tensor, **_: Any) -> Tensor:
        return forecast_quantiles(
            self.network,  # type: ignore[arg-type]
            x,
            mask,
            horizon=self.horizon,
            levels=self.levels,
            ordered=self.ordered,
            season=self.season,
        )[..., self.columns]


def _levels(loss: nn.Module) -> tuple[float, ...] | None:
    """Quantiles that a loss of the host wants, in its order; the median for a point; None for distributions."""
    if isinstance(loss, (MQLoss, HuberMQLoss)):
        return tuple(round(float(level), 6) for level in loss.quantiles)
    if isinstance(loss, QuantileLoss):
        return (float(loss.q),)
    return None if losses.scaled_by_host(loss) or loss.outputsize_multiplier != 1 else (0.5,)


register("PretrainedMVPA", PretrainedMVPA)
