"""A model of neuralforecast that reads all series of a panel together: fit, forecasts, and training on other panels."""

from __future__ import annotations

import inspect
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from neuralforecast.common._base_model import pl
from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import HuberIQLoss, IQLoss
from torch import Tensor, nn

from mvpa_ts.adapters.neuralforecast.dates import FrameIndex, inferred_frequency, on_grid
from mvpa_ts.adapters.neuralforecast.frames import check_freq, check_twice, checked_frame
from mvpa_ts.adapters.neuralforecast.host_overrides import HostOverrides, quiet_in_pipes
from mvpa_ts.adapters.neuralforecast.panel import Panel
from mvpa_ts.adapters.options import check_objects, check_whole, temporarily
from mvpa_ts.checks import listed, warn
from mvpa_ts.forecasting.effects import effects_table
from mvpa_ts.forecasting.pretrained.seasons import season_of
from mvpa_ts.forecasting.series import CORRELATION, SeriesBook, Words, plain, rows_of
from mvpa_ts.random_state import OwnRandomState

SERIES = Words(remedy="add them, or give those of another panel to finetune(channel_positions=…)")
_SEEDING = threading.Lock()
_LEAST_SERIES = 3  # that show what is usual
_ALIKE = 2.0  # a panel whose values are so many times larger or smaller is of another kind


@dataclass(frozen=True)
class FittedSeries:
    """The series of the last fit, as the host sorts them; saved with the model."""

    names: list[Any] | None  # None where the data set was made without a frame
    units: list[list[float]]  # mean and deviation of each over its training rows; NaN where they are not known
    order: list[int]  # in which attention sees the series
    # Mean and deviation by which exogenous columns are scaled, and least and largest value of the training; a forecast
    # reads them at most half of that range beyond.
    features: dict[str, list[float]] = field(default_factory=dict)
    scaled: bool = False  # whether the host scaled each of them (local_scaler_type)
    last_date: Any = None  # that was trained on

    def rows(self, names: list[Any] | None, count: int) -> list[int]:
        """Which series of the fit each of `count` series is, −1 for a new one; without names the number decides."""
        if names is None or self.names is None:
            return list(range(count)) if count == len(self.order) else [-1] * count
        return rows_of(self.names, names)

    def units_of_new(self, here: np.ndarray) -> np.ndarray:
        """Units [N, 2] of series that were not in training, from those that their rows at hand show.

        Few rows show a mean and a deviation badly. Where the new series could be of the training's kind, both are drawn
        to what is usual there, as far as they vary more than those of the training do (James and Stein, 1961).
        """
        trained, shown = (units[np.isfinite(units).all(1)] for units in (np.array(self.units), here))
        if len(trained) < _LEAST_SERIES or not len(shown):
            return here
        usual, spread = trained[:, 0].mean(), np.exp(np.log(trained[:, 1]).mean())
        size = np.sqrt(np.mean(shown[:, 1] ** 2 + (shown[:, 0] - usual) ** 2)) / spread
        if not 1.0 / _ALIKE <= size <= _ALIKE:
            return here
        location = usual + _kept(trained[:, 0], shown[:, 0] - usual) * (here[:, 0] - usual)
        logs, usual_log = np.log(trained[:, 1]), np.log(spread)
        deviation = usual_log + _kept(logs, np.log(shown[:, 1]) - usual_log) * (np.log(here[:, 1]) - usual_log)
        return np.stack([location, np.exp(deviation)], axis=1)


def _kept(trained: np.ndarray, distances: np.ndarray) -> float:
    """Share of distances from what is usual that is not by chance, from how much they vary in training and here."""
    return float(trained.var() / max(np.mean(distances**2), trained.var(), 1e-30))


@dataclass(frozen=True)
class PanelView:
    """The series of the panel at hand, with what the network reads of each."""

    names: list[Any] | None  # as the host sorts them; None where nobody tells them
    order: Tensor  # in which the network sees them
    # A row a series: `positions`, `series` and `units`, as `ForecastingNetwork.forward` has them.
    inputs: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> PanelView:
        """The same on a device."""
        inputs = {name: rows.to(device) for name, rows in self.inputs.items()}
        return PanelView(self.names, self.order.to(device), inputs)


def check_columns(argument: str, names: Any) -> None:
    """Raise ValueError for a text or a set in place of a list of columns, and for a column that is named twice."""
    if isinstance(names, str):  # a text is a list of letters
        raise ValueError(f"{argument} must be a list of columns, got the text {names!r}: write [{names!r}]")
    if isinstance(names, (set, frozenset)):  # its order differs between processes
        raise ValueError(f"{argument} must be a list of columns, got a set: write {sorted(names)!r}")
    names = list(names or ())
    if other := [name for name in names if not isinstance(name, str)]:  # which the host takes for lists of names
        raise ValueError(f"{argument} must hold names that are text, got {other[0]!r}: rename the column")
    if twice := [name for row, name in enumerate(names) if name in names[:row]]:
        raise ValueError(f"{argument} must name each column once, got {twice[0]!r} more than once")


def check_categories(names: Any, sizes: Any) -> None:
    """Raise ValueError for a column of categories whose number of values is not given, or is none."""
    check_objects(Mapping, '{"weekday": 7}', categorical_cardinalities=sizes)
    for name in names or ():
        size = (sizes or {}).get(name)
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(
                f"categorical_cardinalities must hold how many values each column of cat_exog_list has, got {size!r} "
                f"for {name!r}: give {{{name!r}: df[{name!r}].nunique()}}, of all values that may ever come"
            )


class PanelModel(HostOverrides):
    """Base of `MVPA` and `PretrainedMVPA`.

    A subclass sets `network`, `_training` and `_book`, and overrides `_prepare`, which runs before training begins.
    """

    MULTIVARIATE = True
    EXOGENOUS_CAT = True  # as are the other kinds of columns by the host's default

    network: Any
    bytes_ahead = 100  # of memory for each row of a forecast, at the least
    _book: SeriesBook
    _own_units = True  # whether windows reach the network in the units of the series
    _fitted_series: FittedSeries | None = None
    _fitted_index: FrameIndex | None = None  # of the frame whose dates the last fit has checked
    _view: PanelView | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for argument in ("futr_exog_list", "hist_exog_list", "stat_exog_list", "cat_exog_list"):
            check_columns(argument, kwargs.get(argument))
        check_categories(kwargs.get("cat_exog_list"), kwargs.get("categorical_cardinalities"))
        check_objects(str, '"mine"', alias=kwargs.get("alias"))
        check_objects(type, "torch.optim.AdamW", **{name: kwargs.get(name) for name in ("optimizer", "lr_scheduler")})
        for argument, least in (("random_seed", 0), ("num_lr_decays", -1), ("early_stop_patience_steps", -1)):
            if kwargs.get(argument) is not None:
                check_whole(least, **{argument: kwargs[argument]})
        size = kwargs.get("inference_windows_batch_size", 1)
        check_whole(inference_windows_batch_size=abs(size) if isinstance(size, int) else size)  # the host's −1 is all
        # The host would seed the whole process.
        seed = kwargs.get("random_seed", 1)
        with _SEEDING, temporarily(pl, seed_everything=lambda *_, **__: None), OwnRandomState(seed):
            # Torch and Lightning take no whole numbers of numpy.
            super().__init__(*args, **{k: v.item() if isinstance(v, np.integer) else v for k, v in kwargs.items()})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls.__name__, cls)

    @classmethod
    def load(cls, path: Any, allow_pickle: bool = False, trust_remote: bool = False, **options: Any) -> Any:
        """As the host loads a model; what `finetune` takes, such as `max_steps`, may be given here too.

        `NeuralForecast.load` hands its options on to this.
        """
        # The host would hand them to the constructor beside the saved ones, which Python refuses.
        changes = {name: options.pop(name) for name in inspect.signature(cls.finetune).parameters if name in options}
        return super().load(path, allow_pickle, trust_remote, **options).finetune(**changes)

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

        Series of the next panel that were in the last one keep their vectors ("vectors"); others get new ones.

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
        n_series = None if n_series == self.n_series else n_series
        if n_series is not None:
            check_whole(n_series=n_series)
            self._check_shared(n_series, "make a model without it to train on other panels")
            if isinstance(self._book.order, list) and channel_order is None:
                raise ValueError(
                    "channel_order names the series of the first panel: give finetune the channel_order of the next one"
                )
        if max_steps is not None:
            check_whole(max_steps=max_steps)
        if learning_rate is not None and not (isinstance(learning_rate, Real) and learning_rate > 0.0):
            raise ValueError(f"learning_rate must be positive, got {learning_rate!r}")
        self._set_book(channel_order, channel_positions, n_series or self.n_series)
        settings = self._training.settings
        if learning_rate is not None and settings.linear_learning_rate is not None:
            linear_rate = settings.linear_learning_rate * learning_rate / self.learning_rate
            self._training.settings = replace(settings, linear_learning_rate=linear_rate)
            self.hparams["training"] = {**self.hparams["training"], "linear_learning_rate": linear_rate}
        if max_steps is not None:
            self.trainer_kwargs["max_steps"] = max_steps
        for name, value in {"n_series": n_series, "max_steps": max_steps, "learning_rate": learning_rate}.items():
            if value is not None:
                setattr(self, name, value)
                self.hparams[name] = value
        return self

    def fit(self, dataset: Any, val_size: int = 0, test_size: int = 0, **options: Any) -> Any:
        """Check the panel and train; called by `NeuralForecast.fit`.

        Raises ValueError where the panel does not fit the model, and FloatingPointError where training diverged: a
        weight or the last loss is no finite number.
        """
        # All that can be wrong with the data is said here, before a minute of training.
        panel = self._checked_panel(dataset, val_size + test_size, fitting=True)
        panel.check_count(self.n_series)
        panel.check_dates()
        # There is nothing to finetune before the first fit.
        if self._fitted_series is None and self._book.positions is not None:
            replace(self._book, words=Words()).coordinates(self._names(panel.names, len(panel)))
        panel.warn_of_size(trained=self.max_steps > 0)
        if self.max_steps == 0:  # which only a pretrained model can
            return self._read(panel, val_size, test_size)
        self.network.train()  # a pretrained one was loaded for forecasts
        lookback = 1 if self.start_padding_enabled else self.input_size
        panel.check_length(val_size, test_size, lookback, self.h)
        last_date = panel.warn_of_rows_seen(test_size, self._fitted_series)
        with OwnRandomState(self.random_seed):
            self._prepare(panel, lookback, last_date)
        if isinstance(self.loss, (IQLoss, HuberIQLoss)):
            self.loss.has_predicted = False  # else it would train on the quantile of the last prediction alone
        try:
            with OwnRandomState(self.random_seed):
                super().fit(dataset, val_size, test_size, **options)
        except Exception as error:  # the host raises this very type
            if not str(error).startswith("Loss is NaN"):
                raise
            raise FloatingPointError(self._diverged("its loss became NaN")) from error
        if isinstance(mean := getattr(self.loss, "distr_mean", None), Tensor):
            self.loss.distr_mean = mean.detach()  # else the last step's graph stands in the way of saving
        self._check_training()
        if math.isfinite(self._training.best_loss):
            # Of the weights that were kept.
            self.metrics["ptl/val_loss"] = torch.tensor(self._training.best_loss)
        return self

    def predict(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the panel and forecast; called by `NeuralForecast.predict`."""
        # The host has appended the rows to forecast, as many as test_size.
        panel = self._checked_panel(dataset, self.test_size, fitting=False)
        panel.check_dates(self.input_size, self._fitted_index)
        if len(panel) != self.n_series:
            self._check_shared(len(panel), "fit another model to forecast others")
        self._check_familiar(panel)
        if self._fitted_series is not None:
            panel.warn_of_features(self._fitted_series.features, self.input_size)
        if (kwargs.get("h") or 0) > self.h and self.loss.outputsize_multiplier > 1:
            warn(
                f"intervals of {self} beyond its h ({self.h}) are too narrow, got h={kwargs['h']}: neuralforecast "
                "reads forecasts of earlier steps as if they were values. Fit a model with this h"
            )
        self._view = self._view_of(panel)
        # Several processes would each forecast a part, and give none back. A forecast logs nothing, and Lightning's own
        # logger would leave a folder.
        kept = {name: value for name, value in self.trainer_kwargs.items() if name not in ("strategy", "num_nodes")}
        alone = {"logger": False, **quiet_in_pipes(kept), "devices": 1}
        with temporarily(self, trainer_kwargs=alone), OwnRandomState(self.random_seed):
            return super().predict(dataset, *args, **kwargs)

    def effects(self, df: Any, freq: Any = None, coverage: float = 0.8) -> Any:
        """By how much each series changes where a column of `futr_exog_list` is one unit larger, with intervals.

        It is a regression on the rows of `df`, whose errors are autoregressive (`effects_table`): what the data say,
        from which a trained network starts, also for a pretrained model. No fit is needed.

        Parameters
        ----------
        df : DataFrame of pandas or polars
            Columns unique_id, ds, y and those of futr_exog_list, as in `fit`.
        freq : str, optional
            Of the host; it tells the season that is held the same. By default that of the dates.
        coverage : float, default 0.8
            Share of the intervals that shall hold the effect.

        Returns
        -------
        pandas.DataFrame
            Columns unique_id, covariate, effect, lower, upper. Of a category, such as ``"kind=b"``, against the first.

        Raises
        ------
        ValueError
            The model has no column that is known ahead, or `df` lacks one.
        """
        names, categories = self._known_numbers, self.futr_cat_exog_list
        if not [*names, *categories]:
            raise ValueError(f"effects needs covariates: {self} has none in futr_exog_list")
        df = checked_frame(
            "df", df, id_col="unique_id", time_col="ds", target_col="y", exogenous=[*names, *categories],
            categories=categories, others=False,
        )  # fmt: skip
        check_twice("df", df, ["unique_id", "ds"])
        if freq is not None:
            check_freq(df["ds"], freq)
        df = df if isinstance(df, pd.DataFrame) else pd.DataFrame(df.to_dict(as_series=False))
        for column in categories:
            others = sorted(df[column].dropna().unique(), key=str)[1:]
            df = df.assign(**{f"{column}={kind}": (df[column] == kind).where(df[column].notna()) for kind in others})
            names = [*names, *(f"{column}={kind}" for kind in others)]
        if "available_mask" in df.columns:
            df = df.assign(y=df["y"].where(df["available_mask"] > 0))
        tables = df.pivot(index="ds", columns="unique_id", values=["y", *names])
        if not pd.api.types.is_integer_dtype(tables.index):
            tables.index = pd.DatetimeIndex(tables.index)  # days of polars
            freq = inferred_frequency(tables.index) if freq is None else freq
        tables = on_grid(tables, freq)  # so that a gap is no step
        features, series = np.stack([tables[name].to_numpy(float) for name in names], 2), list(tables["y"].columns)
        season, values = season_of(freq), tables["y"].to_numpy(float)
        return effects_table(values, features, series, names, season=season, coverage=coverage)

    @property
    def _known_numbers(self) -> list[str]:
        """Columns that are known ahead, without categories, which have no size, and without positions in a cycle."""
        return [name for name in self.futr_exog_list if name not in (*self.cat_exog_list, self.cycle_column)]

    def _prepare(self, panel: Panel, lookback: int, last_date: Any) -> None:
        """Note the series of a panel to train on, and its last date, and get the network ready for them."""
        order = self._order_of(panel.names, len(panel), panel)
        features = self._feature_scales(panel)
        names = None if panel.names is None else [plain(name) for name in panel.names]
        units = panel.units().tolist()
        scaled = panel.index is not None and panel.index.scaled
        self._fitted_series = FittedSeries(names, units, order, features, scaled, last_date)
        self._fitted_index = panel.index
        self._view = self._view_of(panel)
        # Of a loss in the units of the series.
        deviations = [deviation for _, deviation in units if math.isfinite(deviation)] if self._own_units else []
        windows = panel.windows_count(lookback=lookback, horizon=self.h)
        self._training.prepare(windows, max(deviations, default=None))

    def _feature_scales(self, panel: Panel) -> dict[str, list[float]]:
        """Mean, deviation, least and largest value of the exogenous columns that the model bounds."""
        return {}

    def view(self, count: int, device: torch.device) -> PanelView:
        """The view of `count` series; of a panel that no call announced, what follows from the model's own names."""
        if self._view is None or len(self._view.order) != count:
            self._view = self._view_of(None, count)  # hosts of hosts, such as darts, call `forward` alone
            if self._view.names is None and (isinstance(self._book.order, list) or self._book.positions):
                warn(
                    "channel_order and channel_positions go to series in the order of their names, "
                    f"{listed(list(map(repr, self._names(None, count))))}, since this host hands on no names: give it "
                    "series in that order, in darts series[sorted(series.components)]"
                )
        self._view = self._view.to(device)
        return self._view

    def _view_of(self, panel: Panel | None, count: int = 0) -> PanelView:
        """Look up the series of a panel by name; without one those of the last fit, if it had `count`, or as many."""
        if panel is not None:
            names, count = panel.names, len(panel)
        else:
            names = None if self._fitted_series is None else self._fitted_series.names
            names = names if names is not None and len(names) == count else None
        view = PanelView(names, torch.tensor(self._order_of(names, count, panel)))
        if self._book.positions is not None:
            coordinates = torch.from_numpy(self._book.coordinates(self._names(names, count)))
            view.inputs["positions"] = coordinates[view.order].float()
        return view

    def _order_of(self, names: list[Any] | None, count: int, panel: Panel | None) -> list[int]:
        """The host's series in the order that the network shall see."""
        book, fitted = self._book, None if panel is not None and panel.fitting else self._fitted_series
        # Attention was trained in that order, and rows to forecast from may be too few to find it again.
        if book.order == CORRELATION and fitted and fitted.rows(names, count) == list(range(len(fitted.order))):
            return fitted.order
        names = self._names(names, count)
        if isinstance(book.order, list) and len(book.order) != count:
            raise ValueError(
                f"channel_order names {len(book.order)} series, the panel has {count}: give its order to "
                "finetune(channel_order=…)"
            )
        return book.arranged(names, panel.rows(weighed=True) if panel and book.order == CORRELATION else None)

    def _names(self, names: list[Any] | None, count: int) -> list[Any]:
        """Names of the panel at hand; without any, those of the model's order or positions as the host sorts them."""
        if names is not None:
            return names
        book = self._book
        expected = sorted(book.order if isinstance(book.order, list) else book.positions or range(count))
        if book.positions is not None and len(expected) != count:
            raise ValueError(f"channel_positions must hold the {count} series of the panel, got {len(expected)}")
        return expected

    def _set_book(self, channel_order: Any, channel_positions: Any, n_series: int | None) -> None:
        """Check and keep an order and positions, as plain values that are saved; None keeps those of before."""
        book = SeriesBook.checked(channel_order, channel_positions, words=SERIES, id_column="unique_id")
        if isinstance(book.order, list) and n_series is not None and len(book.order) != n_series:
            raise ValueError(
                f"channel_order must name each of the {n_series} series (n_series) once, got {len(book.order)}: "
                f"{book.order}"
            )
        before: SeriesBook | None = getattr(self, "_book", None)
        if before is not None and book.positions is not None and book.position_size != before.position_size:
            raise ValueError(
                f"channel_positions must have {before.position_size} coordinates for each series, like those of the "
                f"model, got {book.position_size}"
            )
        before = before or book
        order = before.order if book.order is None else book.order
        positions = before.positions if book.positions is None else book.positions
        self._book = SeriesBook(order, positions, SERIES)
        self.hparams.update(channel_order=self._book.order, channel_positions=self._book.pairs)

    @property
    def _kept_series(self) -> list[str]:
        """Options of this model with parameters of single series, which no other series has."""
        return []

    def _check_shared(self, n_series: int, advice: str) -> None:
        for option in self._kept_series:
            raise ValueError(
                f"{option} keeps the model to the {self.n_series} series (n_series) of its fit, got {n_series}: "
                f"{advice}"
            )

    def _check_familiar(self, panel: Panel) -> None:
        fitted, options = self._fitted_series, self._kept_series
        if not options or fitted is None or fitted.names is None:
            return
        if panel.names is None:
            raise ValueError(
                f"{options[0]} keeps the model to the series of its fit, and the data set has no ids: make it by "
                "TimeSeriesDataset.from_df, as NeuralForecast does"
            )
        rows = fitted.rows(panel.names, len(panel))
        if strange := [repr(name) for name, row in zip(panel.names, rows, strict=True) if row < 0]:
            raise ValueError(
                f"{options[0]} keeps the model to the series of its fit, got {listed(strange)}, which were not there: "
                "fit another model to forecast others"
            )

    def _checked_panel(self, dataset: Any, unseen: int, *, fitting: bool) -> Panel:
        panel = Panel(dataset, unseen, fitting=fitting)
        self._check_exog(dataset)
        panel.check_values(self.cycle_column)
        # The host cuts more series than this into separate batches and then mixes up their rows.
        self.batch_size = self.valid_batch_size = len(panel)
        return panel

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

    def get_extra_state(self) -> Tensor:
        """What is saved beside the weights: the series of the last fit, as JSON."""
        # A tensor of bytes, because the host saves tensors alone beside the arguments.
        fitted = None if self._fitted_series is None else asdict(self._fitted_series)
        return torch.frombuffer(bytearray(json.dumps(fitted).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Read what `get_extra_state` gave."""
        try:
            fitted = json.loads(bytes(state.tolist()))
            self._fitted_series = None if fitted is None else FittedSeries(**fitted)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the file's series of the last fit (_extra_state) cannot be read: {error}") from error
        self._view = None

    # Hooks of Lightning, in the order in which they are called.

    def configure_optimizers(self) -> Any:
        """See `HostTraining.optimizers`."""
        return self._training.optimizers(self, super().configure_optimizers)

    def on_train_start(self) -> None:
        """Start a new average of the weights."""
        self._training.begin(self)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The host's step; the loss over frequencies is added to what it returns, of all processes together."""
        loss = self._training.with_frequencies(super().training_step(batch, batch_idx), self.loss)
        return self._training.over_processes(loss, self.trainer)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the weights after an optimiser step into the average."""
        self._training.after_step(self.trainer.global_step, self.max_steps)

    def on_validation_start(self) -> None:
        """Validate the average."""
        self._training.average.exchange()

    def on_validation_end(self) -> None:
        """Go on training the weights."""
        self._training.after_validation(self)

    def on_train_end(self) -> None:
        """Keep the average, or that of the best validation."""
        self._training.end(self)


def inputs_of(batch: dict[str, Any], order: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Values and what is observed of the host's windows, [B, L, N], and covariates of the past and ahead, [B, …, N, F].

    Series come in the order given. Covariates are None where there are none.
    """
    x, observed = batch["insample_y"], batch["insample_mask"] > 0
    if observed.ndim == 2:  # darts has one mask for all series
        observed = observed[..., None].expand_as(x)
    historic, future = (
        None if batch[name] is None else rearrange(batch[name][..., order], "b f l n -> b l n f")
        for name in ("hist_exog", "futr_exog")
    )
    if (x.isnan() & observed).any():  # neuralforecast refuses such rows itself
        raise ValueError(
            "series must have no NaN, which this host does not mark as missing: in darts fill_missing_values"
        )
    return x[..., order], observed[..., order], historic, future


def arguments_of(host: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a class of the host takes by name, among the arguments that a class of ours was made with."""
    names = inspect.signature(host.__init__).parameters.keys() - {"self", "trainer_kwargs"}  # type: ignore[misc]
    return {name: value for name, value in given.items() if name in names}


def register(name: str, model: type[nn.Module]) -> None:
    """Let the host save and load models of that class name as `model`."""
    # The host refuses to save a class that is not in this table, and looks models up in it by lower-case name.
    if not issubclass(MODEL_FILENAME_DICT.setdefault(name.lower(), model), PanelModel):
        raise ValueError(f"neuralforecast has a model {name!r} already; give the subclass another name")
    MODEL_FILENAME_DICT[name.lower()] = model
