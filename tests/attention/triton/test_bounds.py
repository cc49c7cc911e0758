"""The formulas of bounds against counts step by step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.attention.bounds import Launch
from harness.attention.compiled import KERNELS, SCORE_KERNELS
from harness.tables import RESULTS

SMALL = {
    "batch": 2, "segments": 3, "channels": 4, "heads": 2, "kv_heads": 1, "head_dim": 8, "query_tokens": 4, "keys": 2,
    "tiles_held": 1, "num_warps": 4, "registers": 255, "shared_bytes": 60_000, "far_barriers": 1, "near_barriers": 2.0,
}  # fmt: skip


def walked(near_window: int) -> tuple[int, int]:
    """Far and near steps of one sample and head: each block of queries is one segment, two tiles of two channels."""
    far = sum(2 for query in range(3) for key in range(query + 1) if query - key > near_window)
    return far, 2 * 6 - far


@pytest.mark.parametrize("channels", [4, 3])
def test_bytes_of_the_forward_kernel_are_those_of_a_walk(channels: int) -> None:
    far, near = walked(0)
    sizes = SMALL | {"channels": channels, "query_tokens": channels}
    launch = Launch(name="forward", far=far * 4, near=near * 4, **sizes)
    assert launch.mean_segments == 2
    expected = 0
    for query in range(3):
        expected += 2 * channels * 8 * 2  # query and output
        expected += channels * 8  # residual of the output
        expected += channels * 4 * (query + 1 + 8)  # scores of the prologue; channels are padded to 8
        for tile in range(2):
            expected += channels * 2 * 4
            real = min(2, channels - 2 * tile)
            for key in range(query + 1):
                expected += real * 8 * 2 * (2 if query == key else 1) + channels * 4
    assert launch.l2_bytes == expected * 4
    assert launch.waste == pytest.approx((12 * channels * 2) / (6 * channels**2))


def test_bytes_of_the_kernels_over_keys_are_those_of_a_walk() -> None:
    """Two segments of keys to a program; blocks of queries are segments, each loads its scores of four channels."""
    sizes = SMALL | {"tiles_held": 2, "keys": 4}
    # Two statistics for each query: the log-sum-exp, and the largest time score (far pairs) or Δ (near ones).
    for name, rows, kept in (("far_gradient", 1, 4), ("key_gradient", 2, 3 * 2 + 2 + 4)):
        steps = 5
        launch = Launch(name=name, far=steps, near=steps, **sizes)
        expected = launch.programs * 2 * 4 * 8 * kept  # of each key, head_dim numbers
        expected += steps * 4 * (rows * 8 * 2 + 4 * 4 + 2 * 4 + 2 * 4)  # rows, tile and cross scores
        assert launch.l2_bytes == expected


def test_programs_and_what_a_multiprocessor_holds() -> None:
    key = Launch(name="key_gradient", far=0, near=0, **(SMALL | {"tiles_held": 2}))
    assert key.programs == 2 * 2 * 2 * 1  # tiles, pairs of segments, samples, key/value heads
    assert key.resident == 2  # registers: 65536 / (255 · 128)
    assert Launch(name="forward", far=0, near=0, **(SMALL | {"shared_bytes": 200_000})).resident == 1


def test_bytes_of_the_query_kernel_are_those_of_a_walk() -> None:
    """Two tiles of two channels add up the gradients of time in float32: the second also reads what the first wrote."""
    far, near = walked(0)
    launch = Launch(name="query_gradient", far=far * 4, near=near * 4, **SMALL)
    expected = 0
    for query in range(3):
        expected += 4 * 8 * (4 * 2 + 1)  # query, output, their gradients, and the residual
        for tile in range(2):
            expected += 4 * 2 * (4 + 2)  # scores of the tile's channels and their gradients
            for key in range(query + 1):
                expected += 2 * 8 * 2 * (2 if query == key else 1)  # value, and for near pairs key
                expected += 4 * 4 + 4 * (4 if tile == 0 else 8)  # scores of time; gradients written, then read too
    assert launch.l2_bytes == expected * 4


def test_bytes_of_the_kernel_of_the_scores_are_those_of_a_walk() -> None:
    """Four segments to a program: of three segments of two samples there are six, so two programs for each head."""
    launch = Launch(name="score", far=0, near=0, **SMALL)
    queries = 2 * 3 * 4 * 2 * 8 * 2
    scores = 2 * 4 * 2 * sum(query + 1 + 8 for query in range(3)) * 4
    tables = 2 * 2 * 8 * (2 + 8) * 8 * 2  # for each of eight channels the lags of a mean query, and the channels
    assert launch.hbm_bytes == queries + scores
    assert launch.l2_bytes == 2 * queries + scores + tables


def test_scores_dominate_the_bytes_of_a_long_sample() -> None:
    scores = 2 * 1000 * 4 * 2 * 1000 * 4 / 2  # float32, each query and head, each lag that exists
    for name in ("score", "forward"):
        long = Launch(name=name, far=0, near=0, **(SMALL | {"segments": 1000}))
        assert scores < long.hbm_bytes < 1.2 * scores  # written, and read
        assert long.milliseconds()["HBM"] == pytest.approx(long.hbm_bytes / 3.35e12 * 1e3)


def test_gradients_of_scores_are_read_once_where_their_sums_fit() -> None:
    sizes = SMALL | {"keys": 4, "query_tokens": 4}
    once, by_torch = (
        Launch(name="score_gradient", far=0, near=0, read_once=(fits, fits), **sizes).hbm_bytes
        for fits in (True, False)
    )
    # Of each query and head, in 16 bits: the lags (3, 2 on average) are filled with zeros and read twice more, and so
    # are the 8 columns of channels, without the zeros. What does not exist is read, too: a third of the lags.
    saved = 2 * 3 * 4 * 2 * 2 * ((3 + 3 * 3 - 2) + 2 * 8)
    assert by_torch - once == saved


@pytest.fixture(scope="module")
def calls() -> list[dict[str, Any]]:
    """The committed bounds, one row for each kernel of each case."""
    return json.loads((RESULTS / "attention" / "attention_kernel_code.json").read_text())["calls"]


def test_the_committed_table_names_the_largest_bound(calls: list[dict[str, Any]]) -> None:
    for row in calls:
        names = ("tensor cores", "exponentials", "issue", "L2", "HBM", "prologue", "barriers")
        bounds = {name: row[name] for name in names}
        assert bounds[row["largest"]] == max(bounds.values())


@pytest.mark.parametrize(("size", "forward", "both"), [(50, 1.1, 3.6), (100, 10.0, 36.0)])
def test_the_committed_bounds_of_the_attention_kernels(
    calls: list[dict[str, Any]], size: int, forward: float, both: float
) -> None:
    largest = {row["kernel"]: row[row["largest"]] for row in calls if row["case"].startswith(f"T = C = {size},")}
    assert set(largest) == {*KERNELS, *SCORE_KERNELS}
    assert largest["forward"] <= forward
    assert sum(largest[name] for name in KERNELS) <= both
