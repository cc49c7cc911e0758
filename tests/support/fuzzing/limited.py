"""Reading in a process of its own, forked from a warmed one, with limits on memory and time."""

import faulthandler
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.fuzzing.formats import DOCUMENTED

MEMORY = 2 * 2**30
"""Bytes of address space beyond those of the warmed process."""


@dataclass(frozen=True)
class Outcome:
    """How reading ended: "read", "refused", "undocumented", "memory", "hang" or "crash"; and what was said."""

    kind: str
    text: str = ""


def read_within_limits(read: Callable[[Path], object], folder: Path, seconds: float = 30.0) -> Outcome:
    """The outcome of reading a folder in a fork of this process.

    A child beyond its time is killed; one that the system kills, such as by a segmentation fault, has crashed.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        outcome = _in_child(read, folder)
        os.write(sending, f"{outcome.kind}\n{outcome.text}".encode(errors="replace")[:60_000])
        os._exit(0)
    os.close(sending)
    said, deadline, late = b"", time.monotonic() + seconds, False
    while not late:
        ready, _, _ = select.select([receiving], [], [], max(deadline - time.monotonic(), 0.0))
        block = os.read(receiving, 65536) if ready else b""
        late = not ready
        if not block:
            break
        said += block
    os.close(receiving)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return Outcome("hang", f"{seconds:g} s")
    kind, _, text = said.decode(errors="replace").partition("\n")
    return Outcome(kind, text) if kind else Outcome("crash", f"status {status}")


def _in_child(read: Callable[[Path], object], folder: Path) -> Outcome:
    faulthandler.disable()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        read(folder)
    except DOCUMENTED as error:
        return Outcome("refused", f"{type(error).__name__}: {error}")
    except MemoryError:
        return Outcome("memory", traceback.format_exc())
    except BaseException:
        return Outcome("undocumented", traceback.format_exc())
    return Outcome("read")
