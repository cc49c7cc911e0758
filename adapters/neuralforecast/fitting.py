"""Fitting of MVPA by the host, continued training on other panels, and forecasts: checks come first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from neuralforecast.losses.pytorch import HuberIQLoss, IQLoss
from torch import Tensor

from mvpa_ts.adapters.neuralforecast import callers, panel
from mvpa_ts.adapters.neuralforecast.configuration import check_whole
from mvpa_ts.adapters.neuralforecast.series import SeriesKnowledge, checked_order, checked_positions
from mvpa_ts.adapters.neuralforecast.tables import check_tables
from mvpa_ts.forecasting.network.closed_form import covariate_effects, start_in_closed_form
from mvpa_ts.forecasting.network.mixing import mixing_share
from mvpa_ts.forecasting.training import ForecasterTraining

_OF_FINETUNE = ("n_series", "max_steps", "learning_rate", "channel_order", "channel_positions")
# Options with parameters of single series, which no other series has.
_OF_SINGLE_SERIES = ("cycle_per_series", "individual", "bounded")


class Fitting(SeriesKnowledge):
    """Mix-in for a model of the host: `fit`, `predict` and `finetune`."""

    n_series: int
    h: int
    input_size: int
    max_steps: int
    learning_rate: float
    linear_learning_rate: float | None
    cycle_column: str | None
    bounded: bool
    start_padding_enabled: bool
    batch_size: int
    valid_batch_size: int
    loss: Any
    metrics: Any
    hparams: Any
    trainer_kwargs: dict[str, Any]
    _training: ForecasterTraining
    _best_loss: float
    _windows: int | None
    _mixing_share: float
    _lowers_rates: bool

    @classmethod
    def load(cls, path: Any, allow_pickle: bool = False, trust_remote: bool = False, **options: Any) -> Any:
        """As the host loads a model; what `finetune` takes, such as `max_steps`, may be given here too.

        `NeuralForecast.load` hands its options on to this.
        """
        changes = {name: options.pop(name) for name in _OF_FINETUNE if name in options}
        return super().load(path, allow_pickle, trust_remote, **options).finetune(**changes)  # type: ignore[misc]

    def finetune(
        self,
        *,
        n_series: int | None = None,
        max_steps: int | None = None,
        learning_rate: float | None = None,
        channel_order: Sequence[Any] | str | None = None,
        channel_positions: Any = None,
    ) -> Any:
        """Get a fitted or loaded model ready to train on, on another panel; the next `fit` goes on from its weights.

        Series of the next panel that were in the last one keep their vectors (`channel_vectors`); others get new ones.

        Parameters
        ----------
        n_series : int, optional
            Series in that panel.
        max_steps : int, optional
            Steps of that training.
        learning_rate : float, optional
            Of that training; the rate of the linear path keeps its ratio. A tenth of the first rate is a good start.
        channel_order, channel_positions : optional
            Of that panel, as in `MVPA`. Enough for `predict` too: no training is needed in between.

        Returns
        -------
        MVPA
            The model itself. What is set here is saved with it.

        Raises
        ------
        ValueError
            The model has parameters of single series, which another number of series would not have, or an argument is
            out of range.

        Examples
        --------
        >>> from neuralforecast import NeuralForecast
        >>> from neuralforecast.utils import AirPassengersPanel
        >>> from mvpa_ts.adapters.neuralforecast import MVPA
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        >>> forecaster = NeuralForecast([MVPA(h=12, input_size=24, n_series=2, max_steps=1, **quiet)], freq="ME")
        >>> panel = AirPassengersPanel[["unique_id", "ds", "y"]]
        >>> forecaster.fit(panel)
        >>> _ = forecaster.models[0].finetune(n_series=1, max_steps=2)
        >>> forecaster.fit(panel[panel["unique_id"] == "Airline1"])
        >>> forecaster.predict().shape
        (12, 3)
        """
        changes: dict[str, Any] = {}
        if n_series is not None and n_series != self.n_series:
            check_whole(n_series=n_series)
            self._check_shared(n_series, "make a model without it to train on other panels")
            if isinstance(self.channel_order, list) and channel_order is None:
                raise ValueError(
                    "channel_order names the series of the first panel: give finetune the channel_order of the next one"
                )
            changes["n_series"] = n_series
        if max_steps is not None:
            check_whole(max_steps=max_steps)
            changes["max_steps"] = max_steps
        if learning_rate is not None:
            if not (isinstance(learning_rate, Real) and learning_rate > 0.0):
                raise ValueError(f"learning_rate must be positive, got {learning_rate!r}")
            changes["learning_rate"] = learning_rate
            if self.linear_learning_rate is not None:
                changes["linear_learning_rate"] = self.linear_learning_rate * learning_rate / self.learning_rate
        if channel_order is not None:
            changes["channel_order"] = checked_order(channel_order, n_series or self.n_series)
        if channel_positions is not None:
            changes["channel_positions"] = positions = checked_positions(channel_positions)
            size, wanted = len(positions[0][1]) if positions else 0, self.network.config.position_size
            if size != wanted:
                raise ValueError(
                    f"channel_positions must have {wanted} coordinates for each series, like those of the model, got "
                    f"{size}"
                )
        if max_steps is not None:
            self.trainer_kwargs["max_steps"] = max_steps
        for name, value in changes.items():
            setattr(self, name, value)
            self.hparams[name] = value
        return self

    def fit(
        self,
        dataset: Any,
        val_size: int = 0,
        test_size: int = 0,
        random_seed: int | None = None,
        distributed_config: Any = None,
    ) -> Any:
        """Check the panel and train; called by `NeuralForecast.fit`.

        Raises
        ------
        ValueError
            The panel does not fit the model.
        FloatingPointError
            Training diverged: a weight or the last loss is no finite number.
        """
        self._check_panel(dataset, 0, distributed_config)
        panel.check_series(dataset, self.n_series)
        panel.check_dates(dataset)
        lookback = 1 if self.start_padding_enabled else self.input_size
        panel.check_length(dataset, val_size, test_size, lookback, self.h)
        held_out = val_size + test_size
        if self._fitted_series is None:  # else the cycle may be known already
            panel.warn_of_long_cycle(dataset, held_out, self.cycle_column, self.hparams.get("cycle_length"))
        self.learn_series(dataset, held_out)
        self._windows = panel.windows_count(dataset, held_out, lookback=lookback, horizon=self.h)
        order = self.shown(len(dataset), torch.device("cpu")).order
        if self.bounded:
            lower, upper = panel.value_range(dataset, held_out)
            self.network.set_bounds(lower[order], upper[order])
        explained = self._start_effects(dataset, held_out)
        asks = self._lowers_rates and self.network.mixing is not None
        if asks or self._training.ridge is not None:
            windows = panel.windows(
                dataset, held_out, explained, lookback=self.input_size, horizon=self.h, cycle_column=self.cycle_column
            )
            self._mixing_share = mixing_share(windows) if asks else 1.0
            if self._training.ridge is not None:
                start_in_closed_form(
                    self.network,
                    windows.channels(order),
                    ridge=self._training.ridge,
                    cycle_strength=self._training.cycle_strength,
                    reversion_strength=self._training.reversion_strength,
                )
        if isinstance(self.loss, (IQLoss, HuberIQLoss)):
            self.loss.has_predicted = False  # else it would train on the quantile of the last prediction alone
        try:
            super().fit(dataset, val_size, test_size, random_seed, distributed_config)  # type: ignore[misc]
        except Exception as error:  # the host raises this very type
            if not str(error).startswith("Loss is NaN"):
                raise
            raise FloatingPointError(self._diverged("its loss became NaN")) from error
        if isinstance(mean := getattr(self.loss, "distr_mean", None), Tensor):
            self.loss.distr_mean = mean.detach()  # else the last step's graph stands in the way of saving
        self._check_training()
        if math.isfinite(self._best_loss):
            self.metrics["ptl/val_loss"] = torch.tensor(self._best_loss)  # of the weights that were kept
        return self

    @torch.no_grad()
    def _start_effects(self, dataset: Any, held_out: int) -> np.ndarray | float:
        """Set the effects of covariates to those of a regression on the panel, if they are all zero yet.

        Gives what they explain, [rows, N]; 0 if nothing was set.
        """
        network, fitted = self.network, self._fitted_series
        if not getattr(network, "reads_effects", False) or not self._reads_units or not self._scales_features:
            return 0.0
        if bool(network.future_effects.any()) or not hasattr(dataset, "temporal") or fitted is None:
            return 0.0  # weights that are trained further, or a table in files
        # Categories come last, as vectors that are learnt; they have no number to regress on.
        names = [name for name in self.futr_exog_list if name not in (*self.cat_exog_list, self.cycle_column)]
        if not names:
            return 0.0
        deviations = torch.tensor(fitted.units)[:, 1]
        values = torch.tensor(panel.rows(dataset, held_out, weighed=True)) / deviations
        features = self.scaled_columns(torch.tensor(panel.known_features(dataset, held_out, names)), names, dim=2)
        effects = covariate_effects(values, values.isfinite(), features)
        network.future_effects[: len(names)] = effects.to(network.future_effects)
        return (features @ effects * deviations).nan_to_num(0.0).numpy()

    def predict(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the panel and forecast; called by `NeuralForecast.predict`."""
        self._check_panel(dataset, self.test_size)
        panel.check_dates(dataset, self.input_size)
        if len(dataset) != self.n_series:
            self._check_shared(len(dataset), "fit another model to forecast others")
        self._check_known(dataset)
        self.show_series(dataset)
        return super().predict(dataset, *args, **kwargs)  # type: ignore[misc]

    def _check_shared(self, n_series: int, advice: str) -> None:
        for option in _OF_SINGLE_SERIES:
            if getattr(self, option):
                raise ValueError(
                    f"{option} keeps the model to the {self.n_series} series (n_series) of its fit, got {n_series}: "
                    f"{advice}"
                )

    def _check_known(self, dataset: Any) -> None:
        names, fitted = callers.ids(dataset), self._fitted_series
        if names is None or fitted is None:
            return
        strange = [repr(name) for name, row in zip(names, fitted.rows(names, len(names)), strict=True) if row < 0]
        for option in (option for option in _OF_SINGLE_SERIES if strange and getattr(self, option)):
            raise ValueError(
                f"{option} keeps the model to the series of its fit, got {panel.listed(strange)}, which were not "
                "there: fit another model to forecast others"
            )

    def _check_panel(self, dataset: Any, ahead: int, distributed_config: Any = None) -> None:
        panel.check_local(dataset, distributed_config)
        panel.check_static(dataset)
        check_tables(dataset)
        self._check_exog(dataset)  # type: ignore[attr-defined]
        panel.check_values(dataset, self.cycle_column, ahead)
        panel.check_order(dataset, self.channel_order)
        # The host cuts more series than this into separate batches and then mixes up their rows.
        self.batch_size = self.valid_batch_size = len(dataset)

    def _check_training(self) -> None:
        # A diverged model of the host forecasts NaN without a word.
        broken = [name for name, weight in self.network.named_parameters() if not weight.isfinite().all()]
        loss = self.metrics.get("train_loss")
        if broken or (loss is not None and not math.isfinite(loss)):
            raise FloatingPointError(
                self._diverged(f"its last loss is {loss}, and {len(broken)} of its tensors are not finite")
            )

    def _diverged(self, reason: str) -> str:
        return (
            f"training of {self} diverged within max_steps={self.max_steps}, {reason}: lower learning_rate "
            f"({self.learning_rate})"
        )
