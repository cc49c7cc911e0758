"""Watch what kernels read and write under Triton's interpreter, which runs programs one by one, with one thread each.

On a GPU programs run in any order and their threads side by side. So a kernel must do none of these:

- write a number that another program writes or reads;
- read or write a number again that the same program wrote, with no barrier between: another thread may have written it;
- write two values to one number at one time;
- leave its tensors, where the interpreter finds whatever lies in memory.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime import interpreter


class Watch:
    """What the programs of one launch read and wrote; `launches` counts those that were found good."""

    def __init__(self) -> None:
        self.launches = 0
        self.tensors: list[Tensor] = []

    def begin(self, arguments: dict[str, Any]) -> None:
        self.tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
        self.written: dict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)
        self.read: dict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)

    def enter(self, program: tuple[int, ...]) -> None:
        self.program = program
        self.pass_barrier()

    def pass_barrier(self) -> None:
        self.since_barrier = np.empty(0, np.uint64)

    def load(self, addresses: np.ndarray) -> None:
        self._check(addresses, "reads")
        self.read[self.program].append(addresses)

    def store(self, addresses: np.ndarray, values: np.ndarray) -> None:
        self._check(addresses, "writes")
        places, first, inverse = np.unique(addresses, return_index=True, return_inverse=True)
        repeated = values[first][inverse.ravel()]
        assert _equal_but_for_rounding(repeated, values), "two values for one number"
        self.since_barrier = np.union1d(self.since_barrier, places)
        self.written[self.program].append(places)

    def _check(self, addresses: np.ndarray, does: str) -> None:
        inside = np.zeros(addresses.shape, bool)
        for tensor in self.tensors:
            inside |= (addresses >= tensor.data_ptr()) & (addresses < tensor.data_ptr() + tensor.nbytes)
        assert inside.all(), f"program {self.program} {does} what is in no tensor"
        again = np.isin(addresses, self.since_barrier)
        assert not again.any(), f"program {self.program} {does} again what it wrote, with no barrier between"

    def end(self) -> None:
        written = [np.unique(np.concatenate(places)) for places in self.written.values()]
        places, writers = np.concatenate(written), np.repeat(np.arange(len(written)), [len(x) for x in written])
        order = np.argsort(places)
        places, writers = places[order], writers[order]
        assert (places[1:] != places[:-1]).all(), "two programs write one number"
        for program, found in self.read.items():
            addresses = np.unique(np.concatenate(found))
            at = np.searchsorted(places, addresses).clip(max=len(places) - 1)
            by = writers[at[places[at] == addresses]]
            own = [*self.written].index(program) if program in self.written else -1
            assert (by == own).all(), f"program {program} reads what another writes"
        self.launches += 1


def _equal_but_for_rounding(first: np.ndarray, second: np.ndarray) -> bool:
    """Rows past the end repeat the last one, and a processor's matrix product may round equal rows differently.

    Numbers in 8 bits are what such a rounding has left, so they may have any difference.
    """
    if first.dtype == np.int8:
        return True
    rounding = 64 * float(np.finfo(np.float32).eps)
    if first.dtype == np.uint16:  # bfloat16, whose bits are the first half of a float32
        first, second = ((values.astype(np.uint32) << 16).view(np.float32) for values in (first, second))
        rounding += 2**-6
    elif first.dtype == np.float16:
        rounding += 2 * float(np.finfo(np.float16).eps)
    if first.dtype.kind != "f":
        return np.array_equal(first, second)
    finite = np.abs(first[np.isfinite(first)])
    # The inputs are of order one, so a sum that cancels has lost some 1e-7.
    atol = 1e-6 + rounding * finite.max(initial=0.0)
    return np.allclose(first, second, rtol=0.0, atol=atol, equal_nan=True)


def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Check each launch from here on."""
    seen, builder, call = Watch(), interpreter.InterpreterBuilder, interpreter.GridExecutor.__call__
    load, store, enter = builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx

    def watched_call(self: Any, *arguments: Any, **named: Any) -> None:
        seen.begin(named)
        call(self, *arguments, **named)
        seen.end()

    def watched_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        seen.load(pointers.data[mask.data])
        return load(self, pointers, mask, *others)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        seen.store(pointers.data[mask.data], value.data[mask.data])
        return store(self, pointers, value, mask, *others)

    def watched_program(self: Any, *program: int) -> None:
        seen.enter(program)
        enter(self, *program)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", watched_call)
    monkeypatch.setattr(builder, "create_masked_load", watched_load)
    monkeypatch.setattr(builder, "create_masked_store", watched_store)
    monkeypatch.setattr(builder, "set_grid_idx", watched_program)
    monkeypatch.setattr(builder, "create_barrier", lambda _: seen.pass_barrier())
    return seen
