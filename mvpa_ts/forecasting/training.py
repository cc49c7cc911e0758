"""Training a `ForecastingNetwork` on a few series or on many, and forecasting with what came out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mvpa_ts.checks import keep_shares, keep_whole
from mvpa_ts.files import read_config, write_bytes
from mvpa_ts.forecasting.configuration import ForecastingConfig
from mvpa_ts.forecasting.network import ForecastingNetwork, parameter_groups
from mvpa_ts.forecasting.quantiles import checked_levels, in_order, pinball_loss, start_in_order
from mvpa_ts.forecasting.windows import Part, Scaling, Series, Windows
from mvpa_ts.weight_averaging import WeightAverage
from mvpa_ts.weights import read_weights

_FORMAT = "mvpa-ts forecaster 1"
_VALIDATIONS = 20  # in a run
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)


@dataclass(frozen=True)
class ForecasterTraining:
    """How a network is trained; the defaults are those that `docs/forecasting.md` rests on.

    Attributes
    ----------
    steps : int
        Optimiser steps, one cycle of the learning rate.
    batch_size : int
        Windows in a step; all windows where there are fewer.
    learning_rate : float
        Peak of the cycle.
    linear_learning_rate : float or None
        That of the linear path and the learnable cycle; None: the same.
    weight_decay : float
    weight_averaging : float or None
        Decay of the averaged weights, which are validated and kept.
    validation_fraction : float
        Share of each series, at its end, that is kept out of training to choose among the weights on the way;
        0 trains on everything and keeps the last weights.
    patience : int or None
        Stop after that many validations (of 20 a run) without a better one.
    """

    steps: int = 500
    batch_size: int = 256
    learning_rate: float = 6e-3
    linear_learning_rate: float | None = None
    weight_decay: float = 0.0
    weight_averaging: float | None = 0.99
    validation_fraction: float = 0.0
    patience: int | None = None

    def __post_init__(self) -> None:
        keep_whole(self, 0, "steps")
        keep_whole(self, 1, "batch_size", "patience")
        if not self.learning_rate > 0.0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.linear_learning_rate is not None and not self.linear_learning_rate > 0.0:
            raise ValueError(f"linear_learning_rate must be positive or None, got {self.linear_learning_rate}")
        if not self.weight_decay >= 0.0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if self.weight_averaging is not None and not 0.0 < self.weight_averaging < 1.0:
            raise ValueError(f"weight_averaging must be in (0, 1) or None, got {self.weight_averaging}")
        keep_shares(self, "validation_fraction")
        if self.patience is not None and not self.validation_fraction:
            raise ValueError(f"patience ({self.patience}) needs a validation_fraction above 0")


@dataclass(frozen=True)
class FittedForecaster:
    """A trained network and what it needs to know about its numbers.

    Attributes
    ----------
    network : ForecastingNetwork
    levels : tuple of float
        Quantiles that the network gives.
    feature_scaling : Scaling or None
        Of the features, from training.
    feature_names : tuple or None
        Of the features, in the network's order, where whoever trained it says so.
    """

    network: ForecastingNetwork
    levels: tuple[float, ...]
    feature_scaling: Scaling | None = None
    feature_names: tuple[Any, ...] | None = None

    @property
    def config(self) -> ForecastingConfig:
        """Sizes of the network."""
        return self.network.config

    @torch.no_grad()
    def predict(self, series: Series, scaling: Scaling | None = None) -> np.ndarray:
        """Quantiles of the steps after the series' last row, shape (h, C, Q).

        Parameters
        ----------
        series : Series
            Features, where the network has any, must reach `horizon` rows past the values. Rows before the look-back
            are not used; missing ones are masked.
        scaling : Scaling, optional
            Of the series in training; by default that of the series itself.
        """
        config = self.config
        if config.future_size and (
            series.features is None or len(series.features) < len(series.values) + config.horizon
        ):
            raise ValueError(f"features must reach horizon ({config.horizon}) rows past the values")
        scaling = Scaling.of(series.values) if scaling is None else scaling
        past = max(0, len(series.values) - config.lookback)
        features = None if series.features is None else series.features[past:]
        tail = Series(series.values[past:], features, series.position + past)
        windows = Windows([tail], [scaling], config, self.feature_scaling)
        inputs, _, _ = windows.at(torch.tensor([len(tail.values)]))  # rows are padded by a look-back
        quantiles = in_order(self.network(**inputs), torch.tensor(self.levels))[0]
        return quantiles.double().numpy() * scaling.scale[:, None] + scaling.location[:, None]

    def to_files(self, folder: str | Path) -> None:
        """Write `forecaster.json` and `forecaster.safetensors` into a folder, which is made if need be."""
        from safetensors.torch import save

        description = {
            "format": _FORMAT,
            "config": asdict(self.config),
            "levels": self.levels,
            "feature_scaling": None
            if self.feature_scaling is None
            else {name: values.tolist() for name, values in asdict(self.feature_scaling).items()},
            "feature_names": self.feature_names,
        }
        weights = {name: tensor.contiguous().cpu() for name, tensor in self.network.state_dict().items()}
        write_bytes(Path(folder) / "forecaster.safetensors", save(weights))
        write_bytes(Path(folder) / "forecaster.json", json.dumps(description, indent=1).encode())

    @classmethod
    def from_files(cls, folder: str | Path) -> FittedForecaster:
        """Read what `to_files` wrote; nothing in the files is executed.

        Raises
        ------
        OSError
            A file is missing.
        ValueError
            The folder holds something else, or weights that do not fit the description.
        """
        path = Path(folder) / "forecaster.json"
        description = read_config(path)
        if description.get("format") != _FORMAT:
            raise ValueError(f"{path} must have format {_FORMAT!r}, got {description.get('format')!r}")
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in description["config"].items()
        }
        network = ForecastingNetwork(ForecastingConfig(**config))
        weights = read_weights(Path(folder) / "forecaster.safetensors")
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"the weights in {folder} do not fit its forecaster.json: {error}") from error
        scaling = description["feature_scaling"]
        if scaling is not None:
            scaling = Scaling(**{name: np.array(values) for name, values in scaling.items()})
        names = description["feature_names"]
        return cls(
            network.eval(), checked_levels(description["levels"]), scaling, None if names is None else tuple(names)
        )


def fit_forecaster(
    series: Sequence[Series],
    config: ForecastingConfig,
    training: ForecasterTraining,
    *,
    levels: Sequence[float] = LEVELS,
    scalings: Sequence[Scaling] | None = None,
    start: FittedForecaster | None = None,
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
        `num_outputs` and `future_size` must be the numbers of levels and of features. With `bounded_channels`, the
        bounds are the range of the series; of several, that of all in their scaled units.
    training : ForecasterTraining
    levels : sequence of float
        Quantiles to learn, increasing, with the median.
    scalings : sequence of Scaling, optional
        One a series; by default each series is scaled by itself.
    start : FittedForecaster, optional
        Go on from a copy of this network instead of a new one; it keeps its scaling of the features.
    seed : int
        Two runs on the CPU with the same seed and number of threads agree to the bit. The global generators are left
        as they were.
    progress : callable, optional
        Told the steps done and the last loss.

    Raises
    ------
    ValueError
        Series, levels or features do not fit the configuration, or there is nothing to learn from.

    Examples
    --------
    >>> import numpy as np
    >>> from mvpa_ts.forecasting.training import LEVELS, ForecasterTraining, Series, fit_forecaster
    >>> from mvpa_ts import ForecastingConfig
    >>> series = Series(np.sin(np.arange(200) / 4)[:, None])
    >>> config = ForecastingConfig(12, 48, num_outputs=len(LEVELS))
    >>> fitted = fit_forecaster([series], config, ForecasterTraining(steps=5))
    >>> fitted.predict(series).shape
    (12, 1, 9)
    """
    levels = checked_levels(levels)
    _check(series, config, levels)
    if start is not None and (start.config != config or start.levels != levels):
        raise ValueError("start must have the same config and levels")
    scalings = [Scaling.of(one.values) for one in series] if scalings is None else scalings
    feature_scaling = start.feature_scaling if start is not None else _feature_scaling(series)
    windows = Windows(series, scalings, config, feature_scaling)
    with torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []):
        torch.manual_seed(seed)
        if start is None:
            network = ForecastingNetwork(config)
            start_in_order(network.linear, torch.tensor(levels))
        else:
            network = copy.deepcopy(start.network)
        if config.bounded_channels is not None:
            network.set_bounds(*windows.value_range())
        if training.steps:
            network.to(device)
            generator = torch.Generator().manual_seed(seed)
            _train(network, windows.to(device), training, torch.tensor(levels, device=device), generator, progress)
            network.to("cpu")
    return FittedForecaster(network.eval(), levels, feature_scaling)


def _check(series: Sequence[Series], config: ForecastingConfig, levels: tuple[float, ...]) -> None:
    if not series:
        raise ValueError("series must hold at least one series, got none")
    channels = {one.values.shape[1] for one in series}
    if len(channels) > 1:
        raise ValueError(f"series must have one number of channels, got {sorted(channels)}")
    sizes = {0 if one.features is None else one.features.shape[1] for one in series}
    if sizes != {config.future_size}:
        raise ValueError(f"features must have future_size = {config.future_size} columns, got {sorted(sizes)}")
    if config.num_outputs != len(levels):
        raise ValueError(f"num_outputs ({config.num_outputs}) must be the number of levels ({len(levels)})")


def _feature_scaling(series: Sequence[Series]) -> Scaling | None:
    features = [one.features for one in series if one.features is not None]
    return Scaling.of(np.concatenate(features)) if features else None


def _train(
    network: ForecastingNetwork,
    windows: Windows,
    training: ForecasterTraining,
    levels: Tensor,
    generator: torch.Generator,
    progress: Callable[[int, float], None] | None,
) -> None:
    L, h = windows.config.lookback, windows.config.horizon
    train, validation = Part(windows), Part(windows)
    for i, n in enumerate(windows.lengths):
        end = n - round(n * training.validation_fraction)
        least = max(1, min(L, (end - h) // 2))  # a short series is looked back at from half of what there is
        train.add(i, least, end, 0, end)
        if end < n:
            validation.add(i, max(least, end - h + 1), n, end, n)
    for name, part in (("training", train), ("validation", validation)):
        if not len(part) and (part is train or training.validation_fraction):
            raise ValueError(f"series ({windows.lengths} rows) leave no {name} window with an observed target")

    def loss(inputs: dict[str, Tensor | None], target: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        errors = pinball_loss(in_order(network(**inputs), levels), target, levels).mean(-1)
        return (errors * counted).sum(), counted.sum().to(errors.dtype)

    @torch.no_grad()
    def validate() -> float:
        network.eval()
        sums = torch.stack([torch.stack(loss(*batch)) for batch in validation.batches(training.batch_size)]).sum(0)
        network.train()
        return float(sums[0] / sums[1])

    groups = parameter_groups(
        network,
        learning_rate=training.learning_rate,
        linear_rate=training.linear_learning_rate or training.learning_rate,
    )
    optimizer = torch.optim.AdamW(groups, weight_decay=training.weight_decay)
    schedule_steps = training.steps + 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in groups],
        total_steps=schedule_steps,
        pct_start=max(0.2, 1.5 / schedule_steps),  # torch divides by zero where the rise takes one step
    )
    average = WeightAverage(network, training.weight_averaging)
    best, best_state, worse, every = float("inf"), None, 0, max(1, training.steps // _VALIDATIONS)
    batches: Iterator[tuple[dict[str, Tensor | None], Tensor, Tensor]] = iter(())
    network.train()
    for step in range(1, training.steps + 1):
        batch = next(batches, None)
        if batch is None:
            batches = train.batches(training.batch_size, generator)
            batch = next(batches)
        optimizer.zero_grad(set_to_none=True)
        total, count = loss(*batch)
        (total / count).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update()
        if progress is not None:
            progress(step, float(total.detach() / count))
        if training.validation_fraction and (step % every == 0 or step == training.steps):
            with average.in_place():
                error = validate()
                if error < best:
                    best, worse, best_state = error, 0, copy.deepcopy(network.state_dict())
                else:
                    worse += 1
            if training.patience is not None and worse >= training.patience:
                break
    if best_state is not None:
        network.load_state_dict(best_state)
    else:
        average.keep()
