"""The GPU benchmark as far as a CPU can run it: its peers, its arithmetic, its records."""

import json
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from attention_gpu import (
    OUT_OF_MEMORY,
    PASSES,
    cases,
    describe,
    draw,
    floors,
    measure,
    save,
    start_record,
    table,
    work,
)
from harness.attention import accuracy
from harness.attention.accuracy import FULL_SIZES, check, configurations, error_ratios
from harness.attention.peers import Case, _nystrom_attention, _pseudo_inverse, contenders, tokens_first

CPU = torch.device("cpu")
SMALL = Case(6, 5, batch=2, heads=4, kv_heads=2, head_dim=16, window=2)


@pytest.mark.parametrize("name", ["MVPA separable", "MVPA FlexAttention"])
@pytest.mark.parametrize("dense_last_segment", [True, False])
def test_peers_that_are_mvpa_equal_the_reference(name: str, dense_last_segment: bool) -> None:
    case = Case(6, 5, batch=2, heads=4, kv_heads=2, head_dim=16, window=2, dense_last_segment=dense_last_segment)
    attend = contenders(case)
    inputs = {key: x.detach() for key, x in case.inputs(CPU, torch.float32).items()}
    expected = attend["MVPA reference"](inputs)
    actual = attend[name](inputs)
    if name == "MVPA FlexAttention":
        actual = actual.unflatten(2, (6, 5)).permute(0, 2, 3, 1, 4)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cuDNN SDPA causal", "RuntimeError"),
        ("FlashAttention-3 causal", "flash_attn_interface is not installed"),
        ("FlashAttention-4 causal", "flash_attn.cute is not installed"),
    ],
)
def test_faster_peers_are_in_the_list_and_named_where_they_are_missing(name: str, reason: str) -> None:
    assert reason in measure(contenders(SMALL)[name], SMALL, CPU, torch.float32, 0.01)["failed"]


def test_flash_attention_packages_are_called_with_tokens_before_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> tuple[torch.Tensor, None]:
        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True)
        return found.transpose(1, 2), None

    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=attend))
    every, inputs = contenders(SMALL), SMALL.inputs(CPU, torch.float32)
    actual = every["FlashAttention-3 causal"](inputs).transpose(1, 2)
    torch.testing.assert_close(actual, every["flash SDPA causal"](inputs))


def test_softmax_attention_equals_causal_sdpa() -> None:
    attend, inputs = contenders(SMALL), SMALL.inputs(CPU, torch.float32)
    torch.testing.assert_close(attend["softmax attention"](inputs), attend["flash SDPA causal"](inputs))


def test_nystromformer_adds_a_convolution_of_the_values_over_the_tokens() -> None:
    case = Case(5, 8, batch=1, heads=2, kv_heads=2, head_dim=4)
    inputs = {name: tensor.detach() for name, tensor in case.inputs(torch.device("cpu"), torch.float32).items()}
    added = contenders(case)["Nyströmformer"](inputs) - _nystrom_attention(inputs)
    value = tokens_first(inputs)[2]
    expected = value[:, :, 20 - 16 : 20 + 17].sum(2) / 33  # of token 20; 33 tokens wide
    torch.testing.assert_close(added[:, :, 20], expected)
    torch.testing.assert_close(added[:, :, 2], value[:, :, :19].sum(2) / 33)  # zeros before the first token


def test_nystrom_attention_is_exact_with_as_many_landmarks_as_tokens_and_close_with_fewer() -> None:
    matrix = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)).softmax(-1)
    inverse = _pseudo_inverse(matrix, 30)
    torch.testing.assert_close(matrix @ inverse, torch.eye(16).expand_as(matrix), atol=0.02, rtol=0)
    attend, inputs = contenders(SMALL), SMALL.inputs(CPU, torch.float32)
    torch.testing.assert_close(_nystrom_attention(inputs), attend["flash SDPA"](inputs))
    # Queries and keys that hardly change from token to token are what landmarks summarise well.
    large = Case(50, 4, batch=1, heads=2, kv_heads=2, head_dim=16)
    slow = {key: x.detach() * (1.0 if key == "value" else 0.1) for key, x in large.inputs(CPU, torch.float32).items()}
    attend = contenders(large)
    torch.testing.assert_close(_nystrom_attention(slow), attend["flash SDPA"](slow), atol=0.05, rtol=0.05)


def test_work_is_that_of_the_pairs_that_exist() -> None:
    case = Case(50, 50)
    bias_products = 2 * 64 * 64 * 12 * 2500 * 100
    assert work(case, False).flop - bias_products == pytest.approx(445e9, rel=0.005)
    both = work(case, True).flop - 3 * bias_products
    assert both == pytest.approx(445e9 + 1.02e12, rel=0.005)
    # Without a far field: 4·d for each causal pair.
    near = Case(5, 3, batch=1, heads=1, kv_heads=1, head_dim=16, window=10)
    assert work(near, False).flop == 15 * 9 * 4 * 16 + 2 * 16 * 15 * 8


def test_cases_begin_with_the_telling_one_and_hold_the_whole_grid() -> None:
    every = list(cases(quick=False))
    assert every[0] == Case(50, 50)
    assert len(every) == len(set(every)) == 80
    assert {(c.segments, c.channels) for c in every} >= {(100, 100), (25, 128), (1, 1), (50, 1)}


def test_error_ratios_tell_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"window": 2, "dense_last_segment": True}
    right = error_ratios(SMALL, "separable", CPU, torch.bfloat16, options)
    assert max(right.values()) < 2
    from harness.attention import accuracy as attention_accuracy

    def wrong(*inputs: torch.Tensor, impl: str, **others: object) -> torch.Tensor:
        return attend(*inputs, impl=impl, **others) * (1.05 if impl == "separable" else 1.0)

    attend = attention_accuracy.mvpa_attention
    monkeypatch.setattr(attention_accuracy, "mvpa_attention", wrong)
    assert max(error_ratios(SMALL, "separable", CPU, torch.bfloat16, options).values()) > 2


def test_records_hold_times_failures_table_and_plot(tmp_path) -> None:
    attend = contenders(SMALL)
    names = ("FlashMVPA", "MVPA separable", "flash SDPA causal")
    measured = {name: measure(attend[name], SMALL, CPU, torch.float32, 0.01) for name in names}
    assert "impl='triton' cannot run here" in measured["FlashMVPA"]["failed"]
    assert measured["MVPA separable"][PASSES[1]]["ms"] > 0
    row = {"size": vars(SMALL), "measured": measured, "floor": floors(SMALL, (989.0, 3.35))}
    record = {"device": "CPU", "software": {"torch": "x"}, "data sheet": None, "cases": {str(SMALL): row}}
    assert "flash SDPA causal" in describe(str(SMALL), row)
    assert "| 1.00 |" in table(record)
    save(tmp_path / "attention_gpu.json", record, quick=False)
    assert json.loads((tmp_path / "attention_gpu.json").read_text())["cases"]
    draw(tmp_path / "attention_gpu.json", record, quick=False)
    assert (tmp_path / "attention_gpu.png").exists()


def test_what_is_checked_has_every_layout_of_the_kernels_and_every_precision() -> None:
    dtypes = (torch.bfloat16, torch.float32, torch.float16)
    checked = configurations(FULL_SIZES, dtypes)
    assert {entry.dtype for entry in checked} == set(dtypes)
    assert {entry.case for entry in checked if entry.dtype == torch.bfloat16} == set(FULL_SIZES)
    assert len({str(entry) for entry in checked}) == len(checked)
    launch = pytest.importorskip("mvpa_ts.attention.triton.launch")

    def blocks(some: Iterable[Case]) -> set[object]:
        queries = [torch.empty(case.shapes["query"], dtype=torch.bfloat16, device="meta") for case in some]
        kernels = ("forward", "query_gradient", "far_gradient", "key_gradient")
        return {launch.choose_blocks(kernel, query, False) for query in queries for kernel in kernels}

    assert blocks(cases(quick=False)) <= blocks(FULL_SIZES)


def test_a_precision_that_cannot_run_fails_alone_and_is_checked_again(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ratios(case: Case, impl: str, device: torch.device, dtype: torch.dtype, options: dict) -> dict[str, float]:
        if dtype == torch.float16:
            raise ValueError("out of registers")
        return {"output": 1.0}

    monkeypatch.setattr(accuracy, "error_ratios", ratios)
    path, arguments = tmp_path / "attention_gpu.json", SimpleNamespace(fresh=False, quick=False)
    record = start_record(path, CPU, arguments) | {"correct": True}
    for dtypes, is_kept in (((torch.bfloat16,), True), ((torch.bfloat16, torch.float16), False)):
        record["checks"] = check(configurations([SMALL], dtypes), CPU, "separable")
        path.write_text(json.dumps(record))
        assert ("checks" in start_record(path, CPU, arguments)) == is_kept
    assert sum(found["passes"] for found in record["checks"].values()) == len(record["checks"]) / 2
    assert "plain, float16: ValueError: out of registers.\n" in table(record)


def test_a_later_run_keeps_results_and_tries_failures_again(tmp_path) -> None:
    path = tmp_path / "attention_gpu.json"
    arguments = SimpleNamespace(fresh=False, quick=False)
    record = start_record(path, CPU, arguments)
    measured = {"one": {"forward": {"ms": 1.0, "GiB": 0.1}}, "two": {"failed": OUT_OF_MEMORY}, "three": {"failed": "x"}}
    record["cases"]["case"] = {"size": vars(SMALL), "measured": measured}
    path.write_text(json.dumps(record))
    assert set(start_record(path, CPU, arguments)["cases"]["case"]["measured"]) == {"one", "two"}
    record["software"]["torch"] = "another"
    path.write_text(json.dumps(record))
    assert start_record(path, CPU, arguments)["cases"] == {}
