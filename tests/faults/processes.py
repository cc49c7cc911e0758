"""A task in a process of its own that is killed, has no room on the disk, or may not write."""

import ctypes
import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.workloads import Workload

_BYTES = 1 << 20  # of a pipe: what a task prints stays in it until the task has ended
_READ_OVERRIDE, _WRITE_OVERRIDE = 2, 1  # capabilities that let root ignore the modes of files


@dataclass(frozen=True)
class Ended:
    """How an attempt ended: killed or by itself, what it had reported as saved, and what it printed."""

    killed: bool
    status: int
    reported: list[str]
    printed: str
    seconds: float


def attempt(
    workload: Workload,
    inputs: Path,
    output: Path,
    *,
    kill_after: float | None = None,
    before: Callable[[], None] | None = None,
) -> Ended:
    """Fork, begin the task or go on with it, and kill it with signal 9 after so many seconds."""
    saved, printed = _pipe(), _pipe()
    start = time.monotonic()
    process = os.fork()
    if process == 0:
        _child(workload, inputs, output, saved[1], printed[1], before)
    os.setpgid(process, process)  # a group, so that its own processes are killed with it
    os.close(saved[1])
    os.close(printed[1])
    killed = False
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if kill_after is not None and time.monotonic() - start >= kill_after:
            os.killpg(process, signal.SIGKILL)
            killed = True
            break
        time.sleep(0.0005)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    seconds = time.monotonic() - start
    reported, text = _read(saved[0]), _read(printed[0])
    # What was cut within a line was not reported yet.
    return Ended(killed and status == -signal.SIGKILL, status, reported.split("\n")[:-1], text, seconds)


def without_room(limit: int) -> Callable[[], None]:
    """Let no file grow past `limit` bytes: what a full disk does, for one process."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def without_root_rights() -> None:
    """Let root mind the modes of files and folders as others do."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    data[0] &= ~(1 << _READ_OVERRIDE | 1 << _WRITE_OVERRIDE)
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def _child(
    workload: Workload, inputs: Path, output: Path, saved: int, printed: int, before: Callable[[], None] | None
) -> None:
    status = 99
    try:
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        # pytest has put files of its own in their place, and these would meet the limit of `without_room`.
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        if before is not None:
            before()
        status = workload.run(inputs, output, lambda text: os.write(saved, f"{text}\n".encode()) and None)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        os.write(printed, f"{type(error).__name__}: {error}\n".encode())
        status = 1
    finally:
        os._exit(status)


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _BYTES)
    return reading, writing


def _read(reading: int) -> str:
    with os.fdopen(reading, "rb") as file:
        return file.read().decode(errors="replace")
