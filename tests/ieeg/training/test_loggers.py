"""A Ctrl-C while losses are written: it arrives, and the writing thread is left in order."""

import signal
import threading
import time

import pytest

from mvpa_ts.ieeg.training.loggers import InterruptibleTensorBoard, interrupt_afterwards


@pytest.fixture(autouse=True)
def _interrupts_raise():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt_comes_after_the_block():
    done = []

    def block() -> None:
        with interrupt_afterwards():
            signal.raise_signal(signal.SIGINT)
            done.append("block")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_an_interrupt_nothing_happens():
    with interrupt_afterwards(), interrupt_afterwards():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_interrupts_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_afterwards():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_log_as_they_are():
    errors = []

    def log() -> None:
        try:
            with interrupt_afterwards():
                pass
        except ValueError as error:  # signals are set in the main thread only
            errors.append(error)

    thread = threading.Thread(target=log)
    thread.start()
    thread.join()
    assert errors == []


def test_interrupted_writing_does_not_hang_at_the_end(tmp_path):
    """The signal comes where it did harm: the thread has been woken, and the queue does not know it yet."""
    logger = InterruptibleTensorBoard(tmp_path, name="tensorboard")
    logger.log_metrics({"loss": 1.0}, 0)
    waiting = logger.experiment.file_writer.event_writer._async_writer._byte_queue.not_empty
    notify = waiting.notify
    reached = []

    def interrupted_notify(n: int = 1) -> None:
        if reached or not waiting._waiters:
            notify(n)
            return
        reached.append(True)
        waiter = waiting._waiters[0]
        waiter.release()
        signal.raise_signal(signal.SIGINT)
        waiting._waiters.remove(waiter)

    deadline = time.monotonic() + 10
    while not waiting._waiters and time.monotonic() < deadline:
        time.sleep(0.001)
    waiting.notify = interrupted_notify
    with pytest.raises(KeyboardInterrupt):
        logger.log_metrics({"loss": 0.5}, 1)
    assert reached
    ended = threading.Thread(target=logger.experiment.close, daemon=True)
    ended.start()
    ended.join(timeout=20)  # TensorBoard's thread looks again after 120 s
    assert not ended.is_alive()
