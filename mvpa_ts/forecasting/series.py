"""Series by name: in which order a network sees them, where they lie, and which learnt vector is whose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from mvpa_ts.checks import grouped, listed, warn
from mvpa_ts.forecasting.channel_order import correlation_order

CORRELATION = "correlation"
_LARGEST = 1e18  # of a coordinate: distances are squared in float32


class Words(NamedTuple):
    """What a host calls a series, the table that holds them, and what to do where positions lack one."""

    series: str = "series"
    many: str = "series"
    table: str = "df"
    remedy: str = "add them"


SERIES = Words()


@dataclass(frozen=True)
class SeriesBook:
    """What a forecaster is told of single series, looked up by name.

    Attributes
    ----------
    order : list, "correlation" or None
        All names in an order in which neighbours belong together, or the way to find one.
    positions : dict of name to list of float, or None
        Coordinates of each series.
    words : Words
        For messages.

    Examples
    --------
    >>> book = SeriesBook.checked(None, {"deep": 30, "top": 1, "middle": 12})
    >>> book.arranged(["deep", "middle", "top"])
    [2, 1, 0]
    """

    order: list[Any] | str | None = None
    positions: dict[Any, list[float]] | None = None
    words: Words = SERIES

    @classmethod
    def checked(
        cls, channel_order: Any, channel_positions: Any, *, words: Words = SERIES, id_column: str | None = None
    ) -> SeriesBook:
        """The book of these options of a host, as plain values that can be saved.

        Parameters
        ----------
        channel_order : sequence, "correlation" or None
        channel_positions : dict, table, pairs of a name and its coordinates, or None
        words : Words
        id_column : str, optional
            Column of a table that holds the names. Without it they are the table's index.

        Raises
        ------
        ValueError
            A series is named twice, its coordinates are not finite or not as many as those of others, or all are equal.
        """
        return cls(_checked_order(channel_order, words), _checked_positions(channel_positions, words, id_column), words)

    @property
    def position_size(self) -> int:
        """Number of coordinates of a series; 0 without positions."""
        return len(next(iter(self.positions.values()))) if self.positions else 0

    @property
    def pairs(self) -> list[list[Any]] | None:
        """Positions as JSON can hold them: the keys of a JSON object are always text."""
        return None if self.positions is None else [[name, point] for name, point in self.positions.items()]

    def arranged(self, names: Sequence[Any], values: np.ndarray | None = None) -> list[int]:
        """Rows of `names` in the order that the network shall see.

        Parameters
        ----------
        names : sequence
            Of the panel at hand, in the host's order.
        values : array, shape (n, N), optional
            Rows to find an order by correlation in. Without them the host's order stays.

        Raises
        ------
        ValueError
            The order does not name the series of the panel, or the positions lack one.
        """
        names = [plain(name) for name in names]
        # The order is looked up by name, so that it holds in whatever order a host sorts its series.
        if isinstance(self.order, list):
            if Counter(self.order) != Counter(names):
                strange = sorted(map(repr, {*self.order} ^ {*names}))
                raise ValueError(
                    f"channel_order must name each {self.words.series} of {self.words.table} once, these are in only "
                    f"one of them: {listed(strange)}"
                )
            row_of = {name: row for row, name in enumerate(names)}
            return [row_of[name] for name in self.order]
        if self.order == CORRELATION:
            return list(range(len(names))) if values is None else correlation_order(values)
        # Only along a line do places give an order; on a map attention keeps the host's.
        if self.position_size == 1:
            return self.coordinates(names)[:, 0].argsort(kind="stable").tolist()
        return list(range(len(names)))

    def coordinates(self, names: Sequence[Any]) -> np.ndarray:
        """Coordinates of series [N, k], counted from their middle.

        In double precision, because metres of a map grid are too long for float32 before the middle is subtracted.
        """
        positions = self.positions or {}
        names = [plain(name) for name in names]
        if missing := [repr(name) for name in names if name not in positions]:
            raise ValueError(
                f"channel_positions must hold every {self.words.series} of {self.words.table}, got none of "
                f"{listed(missing)}: {self.words.remedy}"
            )
        coordinates = np.array([positions[name] for name in names], dtype=float)
        return coordinates - coordinates.mean(0)


def rows_of(trained: Sequence[Any], names: Sequence[Any]) -> list[int]:
    """Which series of the training each of `names` is; −1 for a new one, which has no learnt vector."""
    row_of = {name: row for row, name in enumerate(trained)}
    return [row_of.get(plain(name), -1) for name in names]


def plain(name: Any) -> Any:
    """A name as it is saved: a number or a text."""
    name = name.item() if isinstance(name, np.generic) else name
    if isinstance(name, datetime) and name.tzinfo is not None:
        name = name.astimezone(UTC).replace(tzinfo=None)  # hosts save the moment without its zone
    return name if isinstance(name, (str, int, float)) else str(name)


def check_names(names: Sequence[Any], argument: str, advice: str) -> None:
    """Raise ValueError for names of a kind that a file could not give back, and for two that would be saved alike."""
    kinds = str, int, float, np.str_, np.bool_, np.integer, np.floating, np.datetime64, datetime
    for name in names:
        large = isinstance(name, int) and not -(2**63) <= name < 2**64
        if large or not isinstance(name, kinds):
            raise ValueError(
                f"{argument} must be text, numbers or dates with times, which can be saved, got {name!r} of type "
                f"{type(name).__name__}: {advice}"
            )
        if isinstance(name, str) and name.endswith("\0"):  # numpy, by which hosts save them, cuts it off
            raise ValueError(f"{argument} must not end in a zero character, got {name!r}: take it off")
    _check_once(argument, [plain(name) for name in names], SERIES)


def _checked_order(order: Any, words: Words) -> list[Any] | str | None:
    if order is None or (isinstance(order, str) and order == CORRELATION):
        return order
    listing = not isinstance(order, str) and isinstance(order, Iterable)
    if not listing or any(not isinstance(name, Hashable) for name in order):
        raise ValueError(f'channel_order must be None, "correlation" or the names of all {words.many}, got {order!r}')
    # As plain values, for numpy's are no JSON.
    names = [plain(name) for name in order]
    _check_once("channel_order", names, words)
    return names


def _checked_positions(positions: Any, words: Words, id_column: str | None) -> dict[Any, list[float]] | None:
    if positions is None:
        return None
    pairs = _pairs(positions, words, id_column)
    names = [plain(name) for name, _ in pairs]
    _check_once("channel_positions", names, words)
    try:
        rows = [np.atleast_1d(np.asarray(point, dtype=float)) for _, point in pairs]
    except (TypeError, ValueError) as error:
        raise ValueError(f"channel_positions must hold numbers beside the names: {error}") from error
    shapes = {row.shape: name for name, row in zip(names, rows, strict=True)}
    if len(shapes) != 1 or rows[0].ndim != 1 or not len(rows[0]):
        got = ", ".join(f"shape {shape} of {name!r}" for shape, name in shapes.items()) or f"no {words.series}"
        raise ValueError(
            f"channel_positions must hold as many coordinates, at least one, for each {words.series}, got {got}"
        )
    places = grouped((tuple(row.tolist()), repr(name)) for name, row in zip(names, rows, strict=True))
    if len(rows) > 1 and len(places) == 1:
        raise ValueError(f"channel_positions must differ; got the same place for all {words.many}: leave them out")
    for name, row in zip(names, rows, strict=True):
        if not (np.abs(row) < _LARGEST).all():
            raise ValueError(f"channel_positions must be finite, up to {_LARGEST:g}, got {row.tolist()} of {name!r}")
    if alike := [f"{listed(group)} at {list(place)}" for place, group in places.items() if len(group) > 1]:
        warn(f"channel_positions puts several {words.many} at one place, {listed(alike)}: is one of them mistyped?")
    return {name: row.tolist() for name, row in zip(names, rows, strict=True)}


def _pairs(positions: Any, words: Words, id_column: str | None) -> list[Any]:
    """Names with their coordinates, from whatever form a host takes."""
    # Tables of pandas and polars alike, without importing either.
    if hasattr(positions, "columns"):
        if id_column is None:
            return list(zip(positions.index, positions.to_numpy(), strict=True))
        if getattr(getattr(positions, "index", None), "name", None) == id_column:
            positions = positions.reset_index()
        if id_column not in positions.columns:
            raise ValueError(f"channel_positions must have a column {id_column!r}, got {list(positions.columns)}")
        others = [column for column in positions.columns if column != id_column]
        points = zip(*(positions[column].to_list() for column in others), strict=True)
        return list(zip(positions[id_column].to_list(), points, strict=True)) if others else []
    if isinstance(positions, Mapping) or hasattr(positions, "items"):
        return list(positions.items())
    pairs = list(positions) if isinstance(positions, Iterable) and not isinstance(positions, (str, np.ndarray)) else []
    if pairs and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        return pairs
    kind = f"a table with a column {id_column!r}" if id_column else f"a table with a row for each {words.series}"
    raise ValueError(
        f"channel_positions must be a dict of coordinates by {words.series}, pairs of both, or {kind}, got "
        f"{type(positions).__name__}"
    )


def _check_once(argument: str, names: Sequence[Any], words: Words) -> None:
    if twice := [repr(name) for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{argument} must name each {words.series} once, got {listed(twice)} more than once")
