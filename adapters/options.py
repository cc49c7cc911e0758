"""Options of a host's estimator: checks that name the argument, and the dicts that go on to the core."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral
from typing import Any


@contextmanager
def host_words(words: Mapping[str, str]) -> Iterator[None]:
    """Let the message of a ValueError name arguments as the host does.

    Examples
    --------
    >>> with host_words({"steps": "max_steps"}):
    ...     raise ValueError("steps must be at least 1, got 0")
    Traceback (most recent call last):
    ValueError: max_steps must be at least 1, got 0
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"\w+", lambda word: words.get(word[0], word[0]), str(error))) from error


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


def checked_group(argument: str, values: Any, kind: type, elsewhere: Mapping[str, str]) -> dict[str, Any]:
    """Plain values for fields of a dataclass of the core, as ``network={…}`` and ``training={…}`` hold them.

    Parameters
    ----------
    argument : {"network", "training"}
    values : mapping or None
    kind : dataclass of the core
    elsewhere : mapping
        Fields that are no options of this dict, and what to do instead.

    Raises
    ------
    ValueError
        `values` is no dict, or names an option that the dataclass does not have or that is set elsewhere.

    Examples
    --------
    >>> from mvpa_ts.forecasting.network.configuration import ForecastingConfig
    >>> checked_group("network", {"mixing_head": 4}, ForecastingConfig, {})
    Traceback (most recent call last):
    ValueError: network has no option 'mixing_head' of ForecastingConfig: did you mean 'mixing_heads'?
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ValueError(f"{argument} must be None or a dict of options of {kind.__name__}, got {values!r:.100}")
    names = {field.name for field in fields(kind)} - elsewhere.keys()
    for name in values:
        if name in elsewhere:
            raise ValueError(f"{argument} must not hold {name!r}: {elsewhere[name]}")
        if name not in names:
            alike = difflib.get_close_matches(str(name), sorted(names), 1)
            hint = f"did you mean {alike[0]!r}?" if alike else f"it has {', '.join(sorted(names))}"
            raise ValueError(f"{argument} has no option {name!r} of {kind.__name__}: {hint}")
    return dict(values)


def refuse_moved(names: Iterable[str], moved: Mapping[str, tuple[str, str]]) -> None:
    """Raise TypeError for an option that went into a dict, by its old name; says where it is now.

    Examples
    --------
    >>> refuse_moved(["stride"], {"stride": ("network", "patch_stride")})
    Traceback (most recent call last):
    TypeError: stride is an option of the network now: give network={"patch_stride": …}
    """
    for name in names:
        if name in moved:
            group, field = moved[name]
            raise TypeError(f'{name} is an option of the {group} now: give {group}={{"{field}": …}}')
