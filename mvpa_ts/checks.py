"""Checks of numbers in configurations. These are frozen dataclasses, which may be written as JSON."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


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
        field = getattr(config, "__dataclass_fields__", {}).get(name)
        if value is None and (field is None or "None" in str(field.type)):
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
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} must be in [0, 1), got {getattr(config, name)}")
        object.__setattr__(config, name, float(getattr(config, name)))
