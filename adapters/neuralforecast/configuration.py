"""Arguments of `MVPA` in the host's words, and the network that they make."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any

from mvpa_ts.adapters import host_words
from mvpa_ts.forecasting.network.configuration import ForecastingConfig

DEFAULT: dict[str, Any] = {field.name: field.default for field in fields(ForecastingConfig)}
_HOST_NAMES = {  # of ForecastingConfig's fields
    "horizon": "h",
    "lookback": "input_size",
    "patch_length": "patch_len",
    "patch_stride": "stride",
    "dim": "hidden_size",
    "num_heads": "n_heads",
    "mlp_dim": "linear_hidden_size",
    "num_layers": "encoder_layers",
    "attention_dropout": "attn_dropout",
    "position_size": "channel_positions",
}


def network_config(
    n_series: int, *, patch_length: int | None, patch_stride: int | None, lookback: int, **options: Any
) -> ForecastingConfig:
    """A `ForecastingConfig` for a panel; a patch length of None is the default's, shortened to the look-back.

    Raises
    ------
    ValueError
        An option is out of range; the message has the host's words.
    """
    if patch_length is None:
        patch_length = min(DEFAULT["patch_length"], lookback)
    if patch_stride is None:
        patch_stride = max(1, patch_length * DEFAULT["patch_stride"] // DEFAULT["patch_length"])
    with host_words(_HOST_NAMES):
        config = ForecastingConfig(lookback=lookback, patch_length=patch_length, patch_stride=patch_stride, **options)
        config.check_cost("position_size", n_series)
    return config


def check_whole(least: int = 1, **numbers: Any) -> None:
    """Raise ValueError for an argument that is no whole number of at least `least`."""
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool) or number < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {number!r}")


def check_objects(kind: type | tuple[type, ...], example: str, **values: Any) -> None:
    """Raise ValueError for an argument that is neither None nor an object of this kind, such as `example`."""
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            got = f"the class {value.__name__}: call it" if isinstance(value, type) else repr(value)
            raise ValueError(f"{name} must be None or an object such as {example}, got {got}")


def check_names(names: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Raise TypeError for an argument that none of these takes; the host would say so only when it trains."""
    known = {name for taker in takers for name in inspect.signature(taker).parameters}
    for name in names:
        if name not in known:
            alike = difflib.get_close_matches(name, sorted(known - {"self"}), 1)
            hint = f": did you mean {alike[0]}?" if alike else ""
            raise TypeError(f"{name} is neither an argument of MVPA nor of Lightning's Trainer{hint}")


def check_window(channel_window: int | None, n_series: int) -> None:
    """Raise ValueError for a window that holds all series."""
    if isinstance(channel_window, Integral) and channel_window >= n_series:  # others are named by the network
        raise ValueError(
            f"channel_window must be None or from 1 to n_series - 1 = {n_series - 1}, got {channel_window}"
        )


def check_units(wanted: Mapping[str, bool], loss: Any, scaler_type: str | None, exclude_insample_y: bool) -> None:
    """Raise ValueError if one of these options is wanted where windows are not in the units of the series."""
    for name in (name for name, value in wanted.items() if value):
        raise ValueError(
            f"{name} needs windows in the units of the series: leave out scaler_type and exclude_insample_y, "
            f"and take no loss of a distribution or of implicit quantiles; got scaler_type={scaler_type!r}, "
            f"exclude_insample_y={exclude_insample_y}, loss={type(loss).__name__}"
        )
