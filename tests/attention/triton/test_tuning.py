"""The choice among block sizes, with a made-up clock and a made-up GPU."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
import triton
from harness.attention.accuracy import MOST_CANDIDATES

from mvpa_ts.attention.triton import batch, launch, tuning
from mvpa_ts.attention.triton.launch import Blocks, choose_blocks

CANDIDATES = (Blocks(64, 64, 4), Blocks(128, 64, 8), Blocks(32, 64, 4))
KERNEL = SimpleNamespace(cache_key="source")
ARGUMENTS = {"p_query": torch.zeros(1), "batch": 3, "segments": 50, "channels": 50, "heads": 12, "CAUSAL": True}
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Blocks]:
    """The candidates that were timed; the second is the fastest."""
    launched: list[Blocks] = []
    milliseconds = dict(zip(CANDIDATES, (3.0, 1.0, 2.0), strict=True))

    def clock(run):
        run()
        return milliseconds[launched[-1]]

    monkeypatch.setattr(tuning, "milliseconds", clock)
    monkeypatch.setattr(tuning, "may_choose", lambda _: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "made-up GPU")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(tuning, "_chosen", {})
    return launched


def choose(launched: list[Blocks], **changes: object) -> Blocks:
    return tuning.fastest(KERNEL, CANDIDATES, ARGUMENTS | changes, DEVICE, launched.append)


def test_the_fastest_is_taken_and_timed_once(timed):
    assert choose(timed) == CANDIDATES[1]
    assert timed == [*CANDIDATES]
    assert choose(timed) == choose(timed, channels=51) == CANDIDATES[1]
    assert len(timed) == 3


@pytest.mark.parametrize("changes", [{"channels": 65}, {"CAUSAL": False}, {"p_query": torch.zeros(1).half()}])
def test_another_kind_of_call_is_timed_again(timed, changes):
    choose(timed)
    choose(timed, **changes)
    assert len(timed) == 6


@pytest.mark.parametrize("shape", [(50, 50, 64), (100, 32, 128)])
def test_a_call_times_all_of_its_kernels_once(shape, timed, monkeypatch):
    """From the launch code down: what it hands over is what the choice is remembered under."""
    launched: list[str] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.cache_key = name

        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda **arguments: launched.append(self.cache_key)

    names = ("forward_kernel", "query_gradient_kernel", "far_gradient_kernel", "key_gradient_kernel")
    for name in names:
        monkeypatch.setattr(launch, name, Kernel(name))
    monkeypatch.setattr(tuning, "milliseconds", lambda run: run() or 1.0)
    T, C, d = shape
    query, bias = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((64, T, C, 12, d), (12, d)))
    tables, options = batch.Tables(None, None, None, None), launch.Options(True, 10, True)

    def call() -> int:
        launched.clear()
        results = batch.attend(query, query, query, bias, tables, None, options)
        batch.gradients(query, query, query, query, bias, tables, None, results, None, options)
        return len(launched)

    parts = len(list(batch.parts(query)))
    assert parts > 1
    candidates = [choose_blocks(name.removesuffix("_kernel"), query, False) for name in names]
    assert call() == len(names) * parts + sum(len(found) for found in candidates if len(found) > 1)
    assert call() == len(names) * parts
    assert {name: launched.count(name) for name in names} == dict.fromkeys(names, parts)


def test_the_choice_outlives_the_process(timed, tmp_path):
    choose(timed)
    tuning._chosen.clear()
    assert choose(timed) == CANDIDATES[1]
    assert len(timed) == 3
    for damage in ("{", "7", '"1"'):
        (file,) = tmp_path.rglob("blocks.json")
        file.write_text(damage)
        tuning._chosen.clear()
        timed.clear()
        assert choose(timed) == CANDIDATES[1]
        assert len(timed) == 3


def test_what_the_gpu_cannot_hold_is_left_out(timed):
    def run(blocks: Blocks) -> None:
        timed.append(blocks)
        if blocks == CANDIDATES[1]:
            raise triton.runtime.errors.OutOfResources(300, 227, "shared memory")

    assert tuning.fastest(KERNEL, CANDIDATES, ARGUMENTS, DEVICE, run) == CANDIDATES[2]


def test_without_memory_for_timing_nothing_is_remembered(timed, tmp_path):
    def run(blocks: Blocks) -> None:
        raise torch.OutOfMemoryError

    assert tuning.fastest(KERNEL, CANDIDATES, ARGUMENTS, DEVICE, run) == CANDIDATES[0]
    assert not list(tmp_path.rglob("blocks.json"))
    assert choose(timed) == CANDIDATES[1]


def test_a_graph_capture_takes_what_was_chosen_before(timed, monkeypatch):
    """The kernel that ran before the capture is loaded; another could not be."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert choose(timed) == CANDIDATES[0]
    assert timed == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    choose(timed)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert choose(timed) == CANDIDATES[1]


def test_the_clock_decides_only_where_it_may(monkeypatch):
    assert tuning.may_choose(DEVICE)
    assert not tuning.may_choose(torch.device("cpu"))
    for name, value in ((tuning.SWITCH, "0"), ("TRITON_INTERPRET", "1")):
        monkeypatch.setenv(name, value)
        assert not tuning.may_choose(DEVICE)
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not tuning.may_choose(DEVICE)


@pytest.mark.parametrize("shape", [(50, 50, 64), (100, 100, 64), (100, 7, 64), (100, 32, 128), (100, 88, 128)])
def test_candidates_are_few_and_the_query_kernels_agree_on_keys(shape):
    T, C, d = shape
    query = torch.empty((1, T, C, 1, d), dtype=torch.bfloat16, device="meta")
    for masked in (False, True):
        for kernel in ("forward", "query_gradient", "far_gradient", "key_gradient"):
            candidates = choose_blocks(kernel, query, masked)
            assert 1 <= len(candidates) <= MOST_CANDIDATES
            assert len(set(candidates)) == len(candidates)
            if kernel == "query_gradient":
                assert len({blocks.keys for blocks in candidates}) == 1
