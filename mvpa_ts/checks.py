"""Checks of numbers in configurations, which are frozen dataclasses that may be written as JSON."""

from __future__ import annotations

import operator
from typing import Any


def keep_whole(config: Any, least: int, *names: str) -> None:
    """Make these fields plain ints, numpy's among them; None stays.

    Raises ValueError where a field is no whole number or below `least`.
    """
    for name in names:
        if (value := getattr(config, name)) is None:
            continue
        try:
            number = operator.index(value)
        except TypeError as error:
            raise ValueError(f"{name} must be a whole number, got {value!r}") from error
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
        object.__setattr__(config, name, number)


def keep_shares(config: Any, *names: str) -> None:
    """Make these fields plain floats; raises ValueError where one is not in [0, 1)."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"{name} must be in [0, 1), got {getattr(config, name)}")
        object.__setattr__(config, name, float(getattr(config, name)))
