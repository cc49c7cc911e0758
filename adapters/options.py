"""Options of a host's estimator: checks that name the argument, and the dicts that go on to the core."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig


# Options of `network` that went, and where to.
MOVED = {
    "channel_vectors": 'say per_channel=["vectors"], or [] for none',
    "cycle_channels": 'say per_channel=["cycle"]',
    "level_reversion": 'say normalise="reverting"',
}


# Of the memory of a container: version 2 and version 1 of Linux's cgroups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@contextmanager
def host_words(words: Mapping[str, str]) -> Iterator[None]:
    """Let the message of a ValueError name arguments as the host does, in place of the core's `words`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"\w+", lambda word: words.get(word[0], word[0]), str(error))) from error


@contextmanager
def temporarily(owner: Any, **values: Any) -> Iterator[None]:
    """Let attributes of an object of the host have other values within a block."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def unchanged_if_refused(*owners: Any) -> Iterator[None]:
    """Give objects of the host their attributes back where a block ends in an error, or is interrupted."""
    before = [dict(vars(owner)) for owner in owners]
    try:
        yield
    except BaseException:
        for owner, attributes in zip(owners, before, strict=True):
            vars(owner).update(attributes)
        raise


def check_whole(least: int = 1, **numbers: Any) -> None:
    """Raise ValueError for an argument that is no whole number of at least `least`."""
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool) or number < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {number!r}")


def check_memory(name: str, number: int, each: int) -> None:
    """Raise ValueError for a number of things that do not fit into the memory, of so many bytes each, as measured."""
    if number * each > (memory := _memory()):
        advice = "Take fewer at a time, with another seed each time" if name == "n_paths" else "Take fewer"
        raise ValueError(
            f"{name} must be at most {memory // each:.0f} here, got {number}, which needs {number * each / 1e9:.0f} GB "
            f"of memory for all series together, and there are {memory / 1e9:.0f} GB. {advice}"
        )


def _memory() -> float:
    """Bytes of this machine, or of the container that a process may be in."""
    least = math.inf  # Windows does not say
    with suppress(AttributeError):
        least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or "max"
            least = min(least, int(Path(limit).read_text()))
    return least


def check_objects(kind: type | tuple[type, ...], example: str, **values: Any) -> None:
    """Raise ValueError for an argument that is neither None nor an object of this kind, such as `example`."""
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            got = f"the class {value.__name__}: call it" if isinstance(value, type) else repr(value)
            wanted = "a class" if kind is type else "an object"
            raise ValueError(f"{name} must be None or {wanted} such as {example}, got {got}")


def meant(name: Any, options: Iterable[str]) -> str:
    """What an unknown option may be meant for: the one of these that is alike, else all."""
    alike = difflib.get_close_matches(str(name), sorted(options), 1)
    return f"did you mean {alike[0]!r}?" if alike else f"it has {', '.join(sorted(options))}"


class Group(NamedTuple):
    """One of the dicts, and the dataclass of the core whose fields it may hold."""

    argument: str  # "network" or "training"
    kind: type
    elsewhere: Mapping[str, str]  # fields that are no options of this dict, and what to do instead

    @property
    def names(self) -> set[str]:
        """All fields of the dataclass."""
        return {field.name for field in fields(self.kind)}

    def checked(self, values: Any) -> dict[str, Any]:
        """Plain values for fields of the dataclass; raises ValueError for others, and for those set elsewhere."""
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{self.argument} must be None or a dict of options of {self.kind.__name__}, got {values!r:.100}"
            )
        # Names are checked here, values by the dataclass itself when it is made.
        options = self.names - self.elsewhere.keys()
        for name in values:
            if name in self.elsewhere:
                raise ValueError(f"{self.argument} must not hold {name!r}: {self.elsewhere[name]}")
            if name not in options:
                raise ValueError(
                    f"{self.argument} has no option {name!r} of {self.kind.__name__}: {meant(name, options)}"
                )
        return dict(values)


def refuse_fields(names: Iterable[str], groups: Iterable[Group], renamed: Mapping[str, str]) -> None:
    """Raise TypeError for a field of the core that is given as an argument, and say where it stands.

    The estimator has no arguments of these names; a field may be `renamed`, or have had another name as an argument.
    """
    for name in names:
        field = renamed.get(name, name)
        for group in groups:
            if field in group.names:
                instead = group.elsewhere.get(field, f'give {group.argument}={{"{field}": …}}')
                raise TypeError(f"{name} is no argument of its own: {instead}")


def forecasting_config(
    options: Mapping[str, Any], channels: int, words: Mapping[str, str], largest_window: str, **arguments: Any
) -> ForecastingConfig:
    """The network for so many series, from `network={…}` and from arguments by the names of the core's fields.

    `words` are the host's names of fields, and `largest_window` is how it calls the largest `channel_window`. Raises
    ValueError for an option that is out of range.
    """
    from mvpa_ts.forecasting.network.configuration import ForecastingConfig

    chosen, window, lookback = {**options, **arguments}, arguments["channel_window"], arguments["lookback"]
    # What is no number is named by the network.
    if isinstance(window, Integral) and int(window) >= channels:
        raise ValueError(f"channel_window must be None or from 1 to {largest_window}, got {window}")
    if chosen["patch_length"] is None:
        chosen["patch_length"] = min(ForecastingConfig.patch_length, lookback if isinstance(lookback, Integral) else 1)
    if chosen.get("patch_stride") is None:
        chosen["patch_stride"] = chosen["patch_length"]
    own = chosen.pop("per_channel", None)
    if not isinstance(own, (tuple, list, type(None))) or {"matrix", "bounds"} & {*(own or ())}:
        raise ValueError(f"per_channel must be None or hold vectors or cycle, got {own!r}; others are arguments here")
    per_channel = (*(own or ()), *["matrix"] * chosen.pop("individual"), *["bounds"] * chosen.pop("bounded"))
    with host_words(words):
        config = ForecastingConfig(**chosen, per_channel=per_channel, num_channels=channels if per_channel else None)
        config.check_cost("position_size", channels)
    return config.with_vectors(channels) if own is None else config
