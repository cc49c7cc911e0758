"""The kernels compiled for GPUs that need not be there: they compile, fit, spill nothing, and use the tensor cores.

Compiled code is taken from Triton's cache when nothing changed.
"""

import dataclasses
import math
from unittest import mock

import pytest
import torch
from _pytest.mark import ParameterSet

pytest.importorskip("triton")
from support.compiled import (
    KERNELS,
    SCORE_KERNELS,
    SHARED_LIMIT,
    Compiled,
    Setting,
    compiled_kernels,
    inner_loops,
    serialised,
    waits_and_products,
)

from mvpa_ts.attention.triton import launch

SMALL = Setting()
WIDE = Setting(segments=100, channels=32, head_dim=128, groups=2, kv_heads=8)
# What the largest MVPFormer meets, several tiles of channels, few channels, and what else changes the code.
MORE = {
    "masked": Setting(masked=True),
    "tiles": Setting(segments=100, channels=100),
    "tiles-masked": Setting(segments=100, channels=100, masked=True),
    "grouped": Setting(groups=2, kv_heads=6),
    "few_channels": Setting(segments=100, channels=7),
    "few_channels-masked": Setting(segments=100, channels=7, masked=True),
    "bidirectional": Setting(causal=False, dense_last_segment=False),
    "bidirectional-tiles": Setting(segments=100, channels=100, causal=False, dense_last_segment=False),
    "bidirectional-masked": Setting(causal=False, dense_last_segment=False, masked=True),
    "no_window": Setting(window=None),
    "no_content": Setting(components=("time", "channel")),
    "wide-masked": dataclasses.replace(WIDE, masked=True),
    "wide-tiles": dataclasses.replace(WIDE, channels=88),
    "wide-tiles-masked": dataclasses.replace(WIDE, channels=88, masked=True),
    "wide-few_channels": dataclasses.replace(WIDE, channels=7),
    "narrow": Setting(head_dim=16),
    "float16": Setting(dtype=torch.float16),
    "tiny-masked": Setting(segments=8, channels=8, window=1, masked=True),
}
TILES, BOTH_WAYS = MORE["tiles"], MORE["bidirectional"]


def slow(*values: object) -> ParameterSet:
    """Compiling takes seconds a kernel. What the H200 runs at T = C = 50 is compiled by default, the others not."""
    return pytest.param(*values, marks=pytest.mark.slow)


def check(kernel: Compiled) -> None:
    assert kernel.stack_bytes == 0, f"{kernel.name} spills {kernel.stack_bytes} bytes"
    assert kernel.shared_bytes <= SHARED_LIMIT[kernel.capability] * 1024
    assert kernel.registers * 32 * kernel.num_warps <= 65536
    instruction = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}[kernel.capability]
    if kernel.capability == 90:
        assert "mma.sync" not in kernel.ptx
        assert serialised(kernel) == []
        waits, products = waits_and_products(kernel)
        # Narrow heads take one product for a tile of scores, and there is nothing else to run beside it.
        single = kernel.name == "score" and kernel.arguments["BLOCK_D"] == 16
        assert waits < products or single, f"{kernel.name} waits {waits} times for {products} products"
    assert instruction in kernel.ptx


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("setting", "capability"), [(SMALL, 90), *(slow(*more) for more in ((SMALL, 80), (SMALL, 100), (WIDE, 90)))]
)
def test_kernels_compile_fit_and_use_tensor_cores(setting, capability, name):
    (kernel,) = compiled_kernels(setting, capability, (name,))
    check(kernel)


def test_far_pairs_take_fewer_products_and_next_to_no_exponentials():
    """The kernels over queries have a far and a near loop; those over keys have one of the two each."""
    forward, query, far, key = (
        [(loop, kernel) for loop in inner_loops(kernel)] for kernel in compiled_kernels(SMALL, 90)
    )
    for loops in (forward, query, far + key):
        assert len(loops) == 2
        assert all(loop.count("HGMMA") for loop, _ in loops)
        (products_far, exponentials_far), (products_near, exponentials_near) = (
            (loop.tensor_products / pairs, loop.count("MUFU") * kernel.num_warps * 32 / pairs)
            for loop, kernel in loops
            for pairs in [math.prod(kernel.arguments.get(name, 1) for name in ("BLOCK_M", "BLOCK_N", "TILES"))]
        )
        assert products_far <= products_near / 2
        assert exponentials_far < exponentials_near / 4


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("forward", {"BAR": 7, "STS": 3, "LDSM": 8}),
        ("query_gradient", {"BAR": 8, "STS": 6, "LDSM": 4}),
        ("far_gradient", {"BAR": 4, "STS": 6, "LDSM": 0}),
        ("key_gradient", {"BAR": 9, "STS": 8, "LDSM": 0}),
    ],
)
def test_barriers_and_traffic_of_shared_memory_in_a_step(name, most):
    (kernel,) = compiled_kernels(SMALL, 90, (name,))
    for loop in inner_loops(kernel):
        assert {part: loop.count(part) for part in most} == {part: min(loop.count(part), most[part]) for part in most}


@pytest.mark.parametrize(
    ("setting", "capability"),
    [(SMALL, 90), *(slow(*more) for more in ((SMALL, 80), (SMALL, 100), (WIDE, 90), (TILES, 90), (BOTH_WAYS, 90)))],
)
def test_one_kernel_makes_both_scores(setting, capability):
    (kernel,) = compiled_kernels(setting, capability, ("score",))
    assert kernel.arguments["HAS_TIME"]
    assert kernel.arguments["HAS_CHANNEL"]
    check(kernel)


@pytest.mark.parametrize("setting", [SMALL, *(slow(setting) for setting in (WIDE, TILES, BOTH_WAYS))])
def test_the_kernel_of_the_score_gradients(setting):
    """Sums over rows of 128 lags and 128 numbers a head do not fit: those are products of torch."""
    kernels = list(compiled_kernels(setting, 90, ("score_gradient",)))
    assert [kernel.arguments["OF_CHANNEL"] for kernel in kernels] == ([True] if setting == WIDE else [False, True])
    for kernel in kernels:
        check(kernel)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("setting", MORE.values(), ids=MORE)
def test_kernels_with_other_switches(setting, capability):
    for kernel in compiled_kernels(setting, capability, (*KERNELS, *SCORE_KERNELS)):
        if capability == 90:
            check(kernel)
        else:
            assert kernel.shared_bytes <= SHARED_LIMIT[capability] * 1024


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 50), (50, 1), (2, 1)], ids=str)
def test_sizes_of_one_are_constants_and_compile(sizes):
    """A launch makes constants of them, the interpreter does not; one of the settings has a time_center of 1."""
    T, C = sizes
    setting = Setting(T, C, batch=1, kv_heads=1, window=1, causal=T != 2, dense_last_segment=False, masked=C == 1)
    for kernel in compiled_kernels(setting, 90, (*KERNELS, *SCORE_KERNELS)):
        assert kernel.shared_bytes <= SHARED_LIMIT[90] * 1024


CANDIDATES = {"one_tile": SMALL, "wide": WIDE, **MORE}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("position", [1, 2])
@pytest.mark.parametrize("setting", CANDIDATES.values(), ids=CANDIDATES)
def test_what_is_timed_on_a_gpu_spills_nothing_either(setting, position):
    def take(_kernel: object, candidates: tuple[launch.Blocks, ...], *_: object) -> launch.Blocks:
        return candidates[min(position, len(candidates) - 1)]

    with mock.patch.object(launch, "fastest", take):
        for kernel in compiled_kernels(setting, 90):
            check(kernel)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_float32_compiles_and_fits(head_dim):
    for capability, limit in SHARED_LIMIT.items():
        for kernel in compiled_kernels(Setting(dtype=torch.float32, head_dim=head_dim), capability):
            assert kernel.shared_bytes <= limit * 1024
