"""The forecaster's parameters in the words of the core: the sizes of its network and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sklearn.utils import check_random_state
from sktime.base import BaseEstimator

from mvpa_ts.adapters.options import MOVED, Group, forecasting_config, host_words, refuse_fields
from mvpa_ts.adapters.sktime.columns import book_of
from mvpa_ts.checks import check_switches, keep_whole, listed, warn

if TYPE_CHECKING:
    import pandas as pd

    from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    from mvpa_ts.forecasting.training import ForecasterTraining
    from mvpa_ts.windows import Series

_HOST_NAMES = {
    "lookback": "input_size", "cycle_length": "sp", "levels": "quantiles", "position_size": "channel_positions",
}  # fmt: skip
_GROUPS = ("network", "training")
# Fields of ForecastingConfig that are parameters of their own or follow from one.
_NETWORK_ARGUMENTS = (
    "patch_length", "dim", "num_heads", "num_layers", "dropout", "components", "channel_window",
)  # fmt: skip
NETWORK_ELSEWHERE = (
    {name: f"it is the parameter {name}" for name in _NETWORK_ARGUMENTS}
    | {
        "horizon": "it follows from fh",
        "lookback": "it is the parameter input_size",
        "cycle_length": "it is the parameter sp",
        "position_size": "it follows from channel_positions",
        "num_channels": "it follows from y",
        "num_outputs": "it follows from quantiles",
        "feature_sizes": "it follows from X, whose columns are known ahead",
    }
    | MOVED
)
TRAINING_ELSEWHERE = {
    "steps": "it is the parameter max_steps",
    "epochs": "the training is counted in steps, by max_steps",
    "learning_rate": "it is the parameter learning_rate",
    "loss": "quantiles are trained by the pinball loss",
}
# On four of Beijing's stations, after a training on eight others, 50 steps at these shares of the learning rates had
# an error of .609 (.1), .545 (.3) and .541 (.6); without them it was .621. On the airline panel's earlier years the
# shipped forecaster gains with .6, too.
FINETUNING = 0.6
"""Share of the learning rates for weights that are good already."""


class DictOptions(BaseEstimator):
    """An estimator with options in dicts, which grids and `set_params` reach as `network__mixing_heads`."""

    _tags: ClassVar[dict[str, Any]] = {  # of all estimators
        "authors": "mvpa-ts developers",
        "maintainers": "mvpa-ts developers",
        "python_dependencies": ["mvpa-ts", "torch"],
        "capability:multivariate": True,
        "capability:missing_values": True,
        "capability:categorical_in_X": False,
        "capability:random_state": True,
        "property:randomness": "derandomized",
    }
    _groups: ClassVar[Callable[[], tuple[Group, Group]]]  # what `network` and `training` may hold
    _renamed: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: Any, **parameters: Any) -> Self:
        """Say where an option of the core stands; Python would only call it an unexpected argument."""
        cls._refuse_fields(parameters)
        return super().__new__(cls)

    def _keep(self, given: Mapping[str, Any]) -> None:
        """Keep what a constructor was given, its `locals()`, under the names of its parameters: hosts look there."""
        self.__dict__.update({name: value for name, value in given.items() if name != "self"})
        super().__init__()

    @classmethod
    def _refuse_fields(cls, parameters: Mapping[str, Any]) -> None:
        # The core is imported only where a name is wrong.
        if strange := {name.partition("__")[0] for name in parameters} - {*cls.get_param_names()}:
            refuse_fields(strange, cls._groups(), cls._renamed)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters as sktime has them; if `deep`, the options within dicts too."""
        parameters: dict[str, Any] = super().get_params(deep=deep)
        # Searches ask for these names before they set them.
        if deep:
            for group in _GROUPS:
                options = parameters[group] if isinstance(parameters[group], Mapping) else {}
                parameters |= {f"{group}__{name}": value for name, value in options.items()}
        return parameters

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters as sktime does; ``network__mixing_heads=4`` sets one option of a dict."""
        self._refuse_fields(parameters)
        plain = {name: value for name, value in parameters.items() if name.partition("__")[0] not in _GROUPS}
        for group in _GROUPS:
            options = {name.partition("__")[2]: value for name, value in parameters.items() if name.startswith(group)}
            whole = options.pop("", getattr(self, group))
            # A dict of its own: clones share the one that they were made with.
            plain[group] = {**(whole or {}), **options} if options else whole
        return super().set_params(**plain)


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn takes for a random state; raises ValueError for anything else."""
    try:
        return int(check_random_state(random_state).randint(2**31))
    except ValueError as error:
        kinds = "None, a whole number from 0 to 2**32 - 1 or a numpy.random.RandomState"
        raise ValueError(f"random_state must be {kinds}, got {random_state!r}") from error


def checked_device(name: str) -> str:
    """The name of a device that torch has; raises ValueError where it knows none of this name or sees none."""
    import torch

    try:
        kind = torch.device(name).type
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be a name that torch knows, such as 'cpu' or 'cuda', got {name!r}") from error
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(kind, True):
        raise ValueError(f"device is {name!r}, but torch finds no such device on this machine: set device='cpu'")
    return name


def check_folder(folder: str | Path, owner: str) -> None:
    """Raise an error that says what a folder holds, if it is not of that kind of estimator, such as "forecaster"."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    holds = [kind for kind in ("forecaster", "classifier", "regressor") if (folder / f"{kind}.json").is_file()]
    if holds and owner not in holds:
        raise ValueError(f"{folder} holds a {holds[0]}: use MVPA{holds[0].title()}.from_files")


def forecaster_groups() -> tuple[Group, Group]:
    """What `network` and `training` of the forecaster may hold."""
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    from mvpa_ts.forecasting.training import ForecasterTraining

    return (
        Group("network", ForecastingConfig, NETWORK_ELSEWHERE),
        Group("training", ForecasterTraining, TRAINING_ELSEWHERE),
    )


def network_config(parameters: Mapping[str, Any], series: list[Series], horizon: int) -> ForecastingConfig:
    """The network for these series; what the parameters leave open follows from their length."""
    from mvpa_ts.forecasting.quantiles import checked_levels

    check_switches(individual=parameters["individual"], bounded=parameters["bounded"])
    options = forecaster_groups()[0].checked(parameters["network"])
    # The longest instance of a panel decides, because windows are cut from each.
    rows, channels = max(len(panel.values) for panel in series), series[0].values.shape[1]
    lookback, sp, features = parameters["input_size"], parameters["sp"], series[0].features
    if lookback is None:
        lookback = max(1, min(max(96, 2 * horizon), (rows - horizon) * 2 // 3))
    with host_words(_HOST_NAMES):
        num_outputs = len(checked_levels(parameters["quantiles"]))
    config = forecasting_config(
        options, channels, _HOST_NAMES, f"{channels - 1}, one less than the columns of y",
        horizon=horizon, lookback=lookback, cycle_length=sp,
        position_size=book_of(parameters).position_size,
        individual=parameters["individual"], bounded=parameters["bounded"],
        num_outputs=num_outputs,
        feature_sizes=(0 if features is None else features.shape[1],),
        **{name: parameters[name] for name in _NETWORK_ARGUMENTS},
    )  # fmt: skip
    if sp is not None and rows <= sp:
        warn(
            f"sp ({sp}) should be smaller than the number of rows of y, got {rows}: no step of the cycle comes twice, "
            "so it cannot be learnt. Give more rows, a shorter sp, or leave sp out"
        )
    if parameters["input_size"] is not None and rows < lookback:
        warn(
            f"input_size ({lookback}) should be at most the number of rows of y, got {rows}: steps before the first "
            "row count as missing. Give more rows, a smaller input_size, or leave input_size out"
        )
    return config


def warn_of_short_history(y: pd.DataFrame, lookback: int, horizon: int) -> None:
    """Warn of columns with values in less than half of the rows that a network reads, or with none in the last ones."""
    observed = y.tail(lookback).count()
    if len(late := observed[(y.tail(horizon + 1).count() == 0) & (2 * observed >= lookback)]):
        warn(
            f"y should lack values in at most the last {horizon} rows (the largest fh), got more in "
            f"{listed([repr(name) for name in late.index])}: the network forecasts {horizon} steps from the last value "
            "and takes the next ones to stay as they are. Give the rows, or fit with a larger fh"
        )
    if len(short := observed[2 * observed < lookback]):
        warn(
            f"y should have values in the last {lookback} rows, which the network was trained to read, got "
            f"{short.min()} in {listed([repr(name) for name in short.index])}: its forecast rests on little. Give more "
            "rows, or fit a forecaster with a smaller input_size"
        )


def training_of(parameters: Mapping[str, Any], steps: int, *, from_scratch: bool) -> ForecasterTraining:
    """How a new network is trained, or, at lower learning rates, one that is trained already."""
    from mvpa_ts.forecasting.training import ForecasterTraining

    options = forecaster_groups()[1].checked(parameters["training"])
    if from_scratch:
        keep_whole(SimpleNamespace(max_steps=steps), 1, "max_steps")
    with host_words({"steps": "max_steps" if from_scratch else "finetune_steps"}):
        training = ForecasterTraining(steps=steps, learning_rate=parameters["learning_rate"], **options)
    if from_scratch:
        return training
    # A rule for few windows would leave next to nothing of rates that are low already.
    linear = training.linear_learning_rate
    return replace(
        training,
        learning_rate=FINETUNING * training.learning_rate,
        linear_learning_rate=None if linear is None else FINETUNING * linear,
        full_rate_steps=None,
    )
