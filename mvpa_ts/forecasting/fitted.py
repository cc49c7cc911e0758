"""A forecaster fitted to series: its training, its network, quantiles and scaling of features, and its files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mvpa_ts.checks import check_numbers, read_fields, warn
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.forecasting.quantiles import LEVELS, checked_levels, start_in_order
from mvpa_ts.forecasting.training import ForecasterTraining, train
from mvpa_ts.random_state import OwnRandomState
from mvpa_ts.weights import built_for, check_sizes, read_description, read_weights, save_model
from mvpa_ts.windows import FeatureScaling, Scaling, Series, Windows, last_window, observed_range, series_windows

_FORMAT = "mvpa-ts forecaster 1"
_PARTS = {"train": "training", "validation": "validation"}
_NAMES = ("feature_names", "channel_names")
_FILES = ("forecaster.json", "forecaster.safetensors")


@dataclass(frozen=True)
class FittedForecaster:
    """A trained network, its quantiles and its scaling.

    Attributes
    ----------
    network : ForecastingNetwork
    levels : tuple of float
        Quantiles that the network gives.
    feature_scaling : FeatureScaling or None
        Scaling of the features, from training.
    feature_names : tuple or None
        Names of the features, in the network's order, if they have names.
    channel_names : tuple or None
        Names of the channels in training, in the network's order, if they have names.
    channel_scales : tuple or None
        Deviations of the channels of a training on one series, in which the effects of features are counted.

    Examples
    --------
    >>> import tempfile
    >>> from mvpa_ts.forecasting import ForecasterTraining, fit_forecaster
    >>> series = Series(np.sin(np.arange(200) / 4)[:, None])
    >>> config = ForecastingConfig(horizon=12, lookback=48, num_outputs=9)
    >>> fitted = fit_forecaster([series], config, ForecasterTraining(steps=5))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fitted.to_files(folder)
    ...     again = FittedForecaster.from_files(folder)
    >>> bool((again.predict(series) == fitted.predict(series)).all())
    True
    """

    network: ForecastingNetwork
    levels: tuple[float, ...]
    feature_scaling: FeatureScaling | None = None
    feature_names: tuple[Any, ...] | None = None
    channel_names: tuple[Any, ...] | None = None
    channel_scales: tuple[float, ...] | None = None

    @property
    def config(self) -> ForecastingConfig:
        """Sizes of the network."""
        return self.network.config

    @property
    def horizon(self) -> int:
        """Steps that the network forecasts."""
        return self.network.config.horizon

    @property
    def lookback(self) -> int:
        """Steps that a forecast reads."""
        return self.network.config.lookback

    @torch.no_grad()
    def predict(
        self, series: Series, scaling: Scaling | None = None, channel_inputs: Mapping[str, Tensor] | None = None
    ) -> np.ndarray:
        """Quantiles of the steps after the series' last row, shape (h, C, Q).

        Parameters
        ----------
        series : Series
            If the network reads features, they must reach `horizon` rows past the values. Rows before the look-back
            are not used; missing ones are masked.
        scaling : Scaling, optional
            Of the series in training; by default that of the series itself.
        channel_inputs : mapping of str to Tensor, optional
            `positions` and `series` of the channels, as `ForecastingNetwork.forward` has them.

        Raises
        ------
        ValueError
            Features are missing, too short or too many, or the series does not fit the network.
        """
        config = self.config
        if config.feature_sizes.future:
            needed = len(series.values) + config.horizon
            rows, columns = (0, 0) if series.features is None else series.features.shape
            if rows < needed:
                raise ValueError(
                    f"features must reach horizon ({config.horizon}) rows past the values, which makes {needed} rows, "
                    f"got {rows}"
                )
            if columns != (wanted := config.feature_sizes.future):
                raise ValueError(f"features must have {wanted} columns (feature_sizes.future), got {columns}")
        if self.feature_scaling is not None and series.features is not None:
            read = series.features[max(0, len(series.values) - config.lookback) : len(series.values) + config.horizon]
            for words in self.feature_scaling.far_words(read, self.feature_names or range(read.shape[1])):
                warn(words)
        scaling = Scaling.of(series.values) if scaling is None else scaling
        window = last_window(
            series,
            scaling,
            lookback=config.lookback,
            horizon=config.horizon,
            feature_scaling=self.feature_scaling,
        )
        inputs, _, _ = next(replace(window, channel_inputs=channel_inputs or {}).batches(1))
        quantiles = self.network(**inputs)[0]
        return quantiles.double().numpy() * scaling.scale[:, None] + scaling.location[:, None]

    def to_files(self, folder: str | Path, beside: Mapping[str, str] | None = None) -> None:
        """Write `forecaster.json` and `forecaster.safetensors` into a folder, which is made if needed.

        `beside` names further files and their texts, which are replaced together with these.
        """
        scaling, names = self.feature_scaling, self.feature_names
        description = {
            "format": _FORMAT,
            "config": asdict(self.config),
            "levels": self.levels,
            "feature_scaling": scaling and {name: values.tolist() for name, values in asdict(scaling).items()},
            "feature_names": names,
            "channel_names": self.channel_names,
            "channel_scales": self.channel_scales,
        }
        save_model(self.network, description, folder, names=_FILES, beside=beside or {})

    @classmethod
    def from_files(cls, folder: str | Path) -> FittedForecaster:
        """Read what `to_files` wrote; nothing in the files is executed.

        Raises
        ------
        OSError
            A file is missing.
        ValueError
            The folder holds something else, or weights that do not fit the description; every tensor that is missing,
            unexpected or of another shape is named.
        """
        path, weights = (Path(folder) / name for name in _FILES)
        description = read_description(path, _FORMAT, "config", "levels", *_NAMES, "feature_scaling")
        tensors = read_weights(weights)
        config = read_fields(ForecastingConfig, description["config"], path)
        check_sizes(asdict(config), tensors, path)
        network = built_for(lambda: ForecastingNetwork(config), tensors, weights)
        check_numbers(description["levels"], None, f"{path}: levels")
        levels = checked_levels(description["levels"])
        if config.num_outputs != len(levels):
            raise ValueError(f"{path}: levels must be {config.num_outputs}, as num_outputs says, got {len(levels)}")
        scaling, source = None, f"{path}: feature_scaling"
        if description["feature_scaling"] is not None:
            numbers = vars(read_fields(FeatureScaling, description["feature_scaling"], source)).values()
            for values in numbers:
                check_numbers(values, config.feature_sizes.future, source)
            scaling = FeatureScaling(*map(np.array, numbers))
        if (scales := description.get("channel_scales")) is not None:
            check_numbers(scales, None, f"{path}: channel_scales")
        features, channels = (_names(description, field, path) for field in _NAMES)
        return cls(network.eval(), levels, scaling, features, channels, scales)


def _names(description: Mapping[str, Any], field: str, path: Path) -> tuple[Any, ...] | None:
    names = description[field]
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, (str, int, float)) for name in names):
        raise ValueError(f"{path}: {field} must be a list of names, got {names!r:.100}")
    return tuple(names)


def fit_forecaster(
    series: Sequence[Series],
    config: ForecastingConfig,
    training: ForecasterTraining,
    *,
    levels: Sequence[float] = LEVELS,
    scalings: Sequence[Scaling] | None = None,
    start: FittedForecaster | None = None,
    channel_inputs: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int, float], None] | None = None,
) -> FittedForecaster:
    """Train a network on all windows of the series by the pinball loss.

    Parameters
    ----------
    series : sequence of Series
        All with the same number of channels and of features.
    config : ForecastingConfig
        `num_outputs` must be the number of levels, `feature_sizes.future` that of features. With "bounds" in
        `per_channel`, they are the range of the series. For several series it is the range of all, in scaled units.
    training : ForecasterTraining
    levels : sequence of float
        Quantiles to learn, increasing, with the median.
    scalings : sequence of Scaling, optional
        One for each series. By default each series is scaled by itself.
    start : FittedForecaster, optional
        Train a copy of this network further, instead of a new one. It keeps its scaling of the features, and in units
        of the series what they do, if it has `channel_scales`.
    channel_inputs : mapping of str to Tensor, optional
        `positions` and `series` of the channels, as `ForecastingNetwork.forward` has them.
    seed : int
        Two runs on the CPU with the same seed and number of threads agree to the bit. Global random generators
        are not touched.
    device : str, default "cpu"
        Where to train. The network that is returned is on the CPU.
    progress : callable, optional
        Called with the number of steps done and the last loss.

    Raises
    ------
    ValueError
        Series, levels or features do not fit the configuration, or there is nothing to learn from.
    FloatingPointError
        Training diverged, see `train`.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.forecasting import LEVELS, ForecasterTraining, ForecastingConfig, Series, fit_forecaster
    >>> series = Series(np.sin(np.arange(200) / 4)[:, None])
    >>> config = ForecastingConfig(12, 48, num_outputs=len(LEVELS))
    >>> fitted = fit_forecaster([series], config, ForecasterTraining(steps=5))
    >>> fitted.predict(series).shape
    (12, 1, 9)
    """
    levels = checked_levels(levels)
    _check(series, config, levels)
    if start is not None and (start.config != config or start.levels != levels):
        raise ValueError(
            "start must have the same config and levels as the new fit: leave out start, or leave out config and levels"
        )
    scalings = [Scaling.of(panel.values) for panel in series] if scalings is None else scalings
    if len(scalings) != len(series):
        raise ValueError(f"scalings must be {len(series)}, one for each series, got {len(scalings)}")
    features = [panel.features for panel in series if panel.features is not None]
    feature_scaling = FeatureScaling.of(np.concatenate(features)) if features else None
    if start is not None and start.feature_scaling is not None and feature_scaling is not None:
        feature_scaling = start.feature_scaling.wider(feature_scaling)
    windows = series_windows(
        series,
        scalings,
        lookback=config.lookback,
        horizon=config.horizon,
        feature_scaling=feature_scaling,
        validation_fraction=training.validation_fraction,
    )
    trained = training.steps or training.epochs
    if not training.validation_fraction:
        del windows["validation"]
    for name, chosen in windows.items():
        windows[name] = replace(chosen, channel_inputs=channel_inputs or {})
        if trained and not len(chosen):
            rows = [len(panel.values) for panel in series]
            raise ValueError(
                f"series ({rows} rows) hold no {_PARTS[name]} window with an observed target: give more rows, or "
                "shorten horizon"
            )
    if trained:
        _warn_of_untaught_steps(windows["train"])
    with OwnRandomState(seed):
        if start is None:
            network = ForecastingNetwork(config)
            start_in_order(network.linear, torch.tensor(levels))
        else:
            network = copy.deepcopy(start.network)
            if network.reads_effects and start.channel_scales and len(scalings) == 1:
                changes = np.log(np.array(start.channel_scales) / scalings[0].scale)
                network.future_effects.data *= float(np.exp(changes.mean()))
        if "bounds" in config.per_channel:
            values = [scaling.apply(panel.values) for panel, scaling in zip(series, scalings, strict=True)]
            stacked = torch.tensor(np.concatenate(values), dtype=torch.float32)
            network.set_bounds(*observed_range(stacked, ~stacked.isnan()))
        if trained:
            training = training if start is None else replace(training, ridge=None)
            windows = {name: chosen.to(device) for name, chosen in windows.items()}
            train(network.to(device), windows, training, seed=seed, levels=levels, progress=progress)
            network.to("cpu")
    scales = tuple(scalings[0].scale.tolist()) if len(scalings) == 1 else None
    return FittedForecaster(network.eval(), levels, feature_scaling, channel_scales=scales)


def _warn_of_untaught_steps(windows: Windows) -> None:
    rows = torch.ones(len(windows.values), dtype=torch.bool) if windows.observed is None else windows.observed.any(1)
    ends = torch.full_like(windows.starts, len(rows)) if windows.limits is None else windows.limits[:, 1]
    first = windows.starts + windows.lookback
    targets = (first + step for step in range(windows.horizon))
    taught = [bool((rows[target.clamp(max=len(rows) - 1)] & (target < ends)).any()) for target in targets]
    if not all(taught):
        untaught = [step + 1 for step, is_taught in enumerate(taught) if not is_taught]
        warn(
            f"steps {untaught[0]} to {untaught[-1]} of the horizon have no target in any of the {len(windows)} windows "
            "to train on: their forecasts are little more than a mean. Give more rows, or a shorter horizon"
        )


def _check(series: Sequence[Series], config: ForecastingConfig, levels: tuple[float, ...]) -> None:
    if not series:
        raise ValueError("series must hold at least one series, got none")
    if len(channels := {panel.values.shape[1] for panel in series}) > 1:
        raise ValueError(f"series must all have the same number of channels, got {sorted(channels)}")
    sizes = {0 if panel.features is None else panel.features.shape[1] for panel in series}
    if sizes != {wanted := config.feature_sizes.future}:
        raise ValueError(f"features must have {wanted} columns (feature_sizes.future), got {sorted(sizes)}")
    if config.num_outputs != len(levels):
        raise ValueError(f"num_outputs ({config.num_outputs}) must be the number of levels ({len(levels)})")
