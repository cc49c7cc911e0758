"""Memory that is used again."""

from __future__ import annotations

import math
import weakref

import numpy as np
from numpy.typing import NDArray

KEPT = 2
"""Arrays whose memory is kept: while one is worked on, the next is read."""


class Memory:
    """Empty arrays, in the memory of earlier ones that nobody holds any more.

    The system fills fresh pages with zeros when they are first touched. For arrays of many megabytes, which the C
    library hands back at once, that takes up to a quarter of the time of reading a compressed file into them.

    Examples
    --------
    >>> memory = Memory()
    >>> first = memory.empty((2, 3))
    >>> place = first.ctypes.data
    >>> memory.empty((2, 3)).ctypes.data == place
    False
    >>> del first
    >>> memory.empty((3, 2)).ctypes.data == place
    True
    """

    def __init__(self) -> None:
        self._lent: list[tuple[memoryview, weakref.ref[NDArray[np.float32]]]] = []

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """An array of float32 with arbitrary values."""
        count = math.prod(shape)
        free = [place for place, (_, array) in enumerate(self._lent) if array() is None]
        place = next((p for p in free if len(self._lent[p][0]) >= count), None)
        if place is None:
            buffer = np.empty(count, np.float32).data
            del self._lent[: max(len(self._lent) - KEPT + 1, 0)]
        else:
            buffer, _ = self._lent.pop(place)
        # Views of views refer to the array that numpy makes of a buffer, however short they live themselves.
        array = np.frombuffer(buffer, np.float32, count)
        self._lent.append((buffer, weakref.ref(array)))
        return array.reshape(shape)
