"""The counted memory: the counter on known answers, and the bounds that FlashMVPA must keep."""

import pytest
import torch

pytest.importorskip("triton")
from attention_memory import STAGES, _Alive, counted, of_flash_attention, rows, table
from harness.attention.peers import Case

FORWARD, KEPT, BOTH = STAGES
LARGE = Case(100, 100)


def test_the_counter_knows_what_is_alive_and_what_was() -> None:
    with _Alive() as alive:
        x = torch.empty(100, dtype=torch.float32, device="meta")
        y = (x * 2).view(10, 10)[:5]  # a view keeps all of what it looks at
        assert alive.now() == 800
        z = x + 1
        del z
        assert (alive.now(), alive.peak) == (800, 1200)
        del y
        assert (alive.now(), alive.peak) == (400, 1200)


def test_flash_attention_is_counted_by_its_tensors() -> None:
    case = Case(3, 2, batch=5, heads=4, kv_heads=2, head_dim=8)
    assert of_flash_attention(case)[FORWARD] == 5 * 6 * ((2 * 4 + 2 * 2) * 8 * 2 + 4 * 4)
    assert of_flash_attention(case)[BOTH] == 2 * of_flash_attention(case)[KEPT]


def test_scores_are_let_go_part_by_part() -> None:
    ours, flash = counted(LARGE), of_flash_attention(LARGE)
    assert ours[BOTH] <= 1.3 * flash[BOTH]
    assert ours[FORWARD] <= 1.3 * flash[FORWARD]
    residual = LARGE.batch * LARGE.segments * LARGE.channels * LARGE.heads * LARGE.head_dim  # of the output, in bytes
    assert ours[KEPT] - residual <= 1.05 * flash[KEPT]
    # A single sample has its scores at one time.
    single = Case(100, 100, batch=1)
    assert counted(single)[BOTH] > 1.8 * of_flash_attention(single)[BOTH]


@pytest.mark.parametrize("options", [{"components": ("content",)}, {"window": None}], ids=str)
def test_other_options_are_counted_too(options: dict) -> None:
    case = Case(20, 17, batch=2, heads=4, kv_heads=2, head_dim=16)
    found = counted(case, **options)
    assert 0 < found[KEPT] <= found[FORWARD] < found[BOTH]


def test_the_table_has_a_line_for_each_case_and_stage() -> None:
    found = rows()
    assert table(found).count("\n| T=") == len(found)
    (row,) = (row for row in found if row["case"] == str(LARGE) and row["stage"] == BOTH)
    assert row["×"] <= 1.3
