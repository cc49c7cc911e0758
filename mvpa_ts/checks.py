"""Checks of numbers and switches in configurations, which are frozen dataclasses; and how this library warns."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
T = TypeVar("T")


# Modules between this library and the line that called it: a host calls a model through others.
_BETWEEN = ("mvpa_ts.", "torch.", "neuralforecast.", "pytorch_lightning.", "lightning.", "sktime.")


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this library, however deep inside it the warning is."""
    # A stacklevel written beside each warning is wrong as soon as another function leads to it.
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def listed(items: Iterable[object], most: int = 5) -> str:
    """Names or texts for a message, the first few of many and the number of the others.

    Examples
    --------
    >>> listed(["A1", "A2"]), listed(["A1", "A2", "A3"], 2)
    ('A1, A2', 'A1, A2 and 1 more')
    """
    texts = [*map(str, items)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if texts[most:] else "")


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """The second of all pairs by their first, in order.

    Examples
    --------
    >>> grouped([("bad", "A1"), ("flat", "A2"), ("bad", "A3")])
    {'bad': ['A1', 'A3'], 'flat': ['A2']}
    """
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def read_fields(kind: type[T], values: Mapping[str, Any], source: object) -> T:
    """Make a dataclass from the fields of a JSON object; lists become tuples, missing fields get their default.

    Raises ValueError if `values` is no object, has a field that the class does not have, lacks a field without a
    default, or holds a value of another kind.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{source} must hold a JSON object with the fields of {kind.__name__}, got {values!r:.100}")
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - names):
        raise ValueError(f"{source} has fields that {kind.__name__} does not know: {', '.join(unknown)}")
    try:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{source} does not hold the fields of {kind.__name__}: {error}") from error


def check_numbers(values: Any, length: int | None, source: object) -> None:
    """Raise a ValueError unless `values` is a list of finite numbers of this length (None: any length)."""
    numbers = isinstance(values, (list, tuple)) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not numbers or (length is not None and len(values) != length):
        size = "" if length is None else f"{length} "
        raise ValueError(f"{source} must hold {size}finite numbers, got {values!r:.100}")


def keep_whole(config: Any, least: int, *names: str) -> None:
    """Turn these fields into plain ints, also numpy's; None stays, but in a dataclass whose field cannot be None.

    Raises ValueError if a field is no whole number or below `least`.
    """
    for name in names:
        value = getattr(config, name)
        if value is None and _may_be_none(config, name):
            continue
        try:
            number = operator.index(value)
        except TypeError as error:
            raise ValueError(f"{name} must be a whole number, got {value!r}") from error
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
        object.__setattr__(config, name, number)


def keep_shares(config: Any, *names: str) -> None:
    """Turn these fields into plain floats; raises ValueError if one is not in [0, 1)."""
    for name in names:
        value = getattr(config, name)
        if not (isinstance(value, Real) and 0.0 <= float(value) < 1.0):
            raise ValueError(f"{name} must be in [0, 1), got {value!r}")
        object.__setattr__(config, name, float(value))


def check_flags(config: Any, *names: str) -> None:
    """Raise ValueError if a field is neither True nor False (or 1 or 0), nor None where the field can be None."""
    for name in names:
        if (value := getattr(config, name)) is not None or not _may_be_none(config, name):
            check_switches(**{name: value})


def check_switches(**switches: Any) -> None:
    """Raise ValueError for an argument that is neither True nor False (or 1 or 0)."""
    for name, value in switches.items():
        if not (isinstance(value, (int, np.bool_)) and value in (0, 1)):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_choices(config: Any, **choices: Sequence[str | None]) -> None:
    """Raise ValueError if a field is none of its choices."""
    for name, allowed in choices.items():
        if (value := getattr(config, name)) not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def check_positive(config: Any, *names: str) -> None:
    """Raise ValueError if a field is no number above 0, nor None in a dataclass whose field can be None."""
    _check_above(config, names, lambda value: value > 0, "positive")


def check_not_negative(config: Any, *names: str) -> None:
    """Raise ValueError if a field is no number of at least 0, nor None in a dataclass whose field can be None."""
    _check_above(config, names, lambda value: value >= 0, "at least 0")


def _check_above(config: Any, names: Sequence[str], fits: Callable[[Any], bool], wanted: str) -> None:
    for name in names:
        value, optional = getattr(config, name), _may_be_none(config, name)
        if not (value is None and optional) and not (isinstance(value, Real) and fits(value)):
            raise ValueError(f"{name} must be {wanted}{' or None' if optional else ''}, got {value!r}")


def _may_be_none(config: Any, name: str) -> bool:
    """Whether None is a value of this field; of what is no dataclass, it is one of every field."""
    field = getattr(config, "__dataclass_fields__", {}).get(name)
    return field is None or "None" in str(field.type)
