"""Loggers of a training run: its losses as a table and for TensorBoard."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lightning.pytorch.loggers import TensorBoardLogger


@contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """Delay a Ctrl-C until the block has ended.

    Python may handle a Ctrl-C between any two steps, also while a lock of another thread's queue is half taken. Then
    the program waits for that thread for ever.

    Examples
    --------
    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> try:
    ...     with interrupt_afterwards():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("the block ends")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    the block ends
    interrupted
    >>> _ = signal.signal(signal.SIGINT, before)
    """
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread is interrupted; a background job ignores the signal, which it goes on doing.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    # The signal is kept and handled after the block, so that it is late and not lost.
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


@contextmanager
def writing_errors_once() -> Iterator[None]:
    """Hide the error that a writing thread prints when the disk is full: the main thread raises the same error."""
    usual = threading.excepthook

    def unless_raised_again(error: threading.ExceptHookArgs) -> None:
        if not issubclass(error.exc_type, OSError):
            usual(error)

    threading.excepthook = unless_raised_again
    try:
        yield
    finally:
        threading.excepthook = usual


class InterruptibleTensorBoard(TensorBoardLogger):
    """TensorBoard's logger, made safe against Ctrl-C.

    Without this, some interrupted runs on a busy machine hung at their end for up to two minutes: the queue of
    TensorBoard had lost the signal to its thread.
    """

    log_hyperparams = interrupt_afterwards()(TensorBoardLogger.log_hyperparams)
    log_metrics = interrupt_afterwards()(TensorBoardLogger.log_metrics)
    save = interrupt_afterwards()(TensorBoardLogger.save)
    finalize = interrupt_afterwards()(TensorBoardLogger.finalize)
