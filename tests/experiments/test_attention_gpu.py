"""The GPU benchmark as far as a CPU can run it: its peers, its plan, what it does with processes that fail."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attention_gpu
import pytest
import torch
from attention_gpu import FLASH, Lane, Record, checks, clocks, page, tiny, title
from harness.attention.accuracy import Part, error_ratios, options
from harness.attention.gpu_work import SMALL_MODEL, measure, work
from harness.attention.peers import Case, _nystrom_attention, _pseudo_inverse, contenders, tokens_first

from mvpa_ts.ieeg import mvpformer_s

CPU = torch.device("cpu")
SMALL = Case(6, 5, batch=2, heads=4, kv_heads=2, head_dim=16, window=2)


@pytest.mark.parametrize(
    "name", ["MVPA separable", "MVPA sdpa", "MVPA sdpa, rounded once, flash", "MVPA FlexAttention"]
)
@pytest.mark.parametrize("dense_last_segment", [True, False])
def test_peers_that_are_mvpa_equal_the_reference(name, dense_last_segment):
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
def test_faster_peers_are_in_the_list_and_named_where_they_are_missing(name, reason):
    assert reason in measure(name, SMALL, torch.float32, CPU, 0.01)["failed"]


def test_flash_attention_packages_are_called_with_tokens_before_heads(monkeypatch):
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> tuple[torch.Tensor, None]:
        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True)
        return found.transpose(1, 2), None

    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=attend))
    every, inputs = contenders(SMALL), SMALL.inputs(CPU, torch.float32)
    actual = every["FlashAttention-3 causal"](inputs).transpose(1, 2)
    torch.testing.assert_close(actual, every["flash SDPA causal"](inputs))


def test_softmax_attention_equals_causal_sdpa():
    attend, inputs = contenders(SMALL), SMALL.inputs(CPU, torch.float32)
    torch.testing.assert_close(attend["softmax attention"](inputs), attend["flash SDPA causal"](inputs))


def test_nystromformer_adds_a_convolution_of_the_values_over_the_tokens():
    case = Case(5, 8, batch=1, heads=2, kv_heads=2, head_dim=4)
    inputs = {name: tensor.detach() for name, tensor in case.inputs(torch.device("cpu"), torch.float32).items()}
    added = contenders(case)["Nyströmformer"](inputs) - _nystrom_attention(inputs)
    value = tokens_first(inputs)[2]
    expected = value[:, :, 20 - 16 : 20 + 17].sum(2) / 33  # of token 20; 33 tokens wide
    torch.testing.assert_close(added[:, :, 20], expected)
    torch.testing.assert_close(added[:, :, 2], value[:, :, :19].sum(2) / 33)  # zeros before the first token


def test_nystrom_attention_is_exact_with_as_many_landmarks_as_tokens_and_close_with_fewer():
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


def test_work_is_that_of_the_pairs_that_exist():
    case = Case(50, 50)
    bias_products = 2 * 64 * 64 * 12 * 2500 * 100
    assert work(case, False) - bias_products == pytest.approx(445e9, rel=0.005)
    assert work(case, True) - 3 * bias_products == pytest.approx(445e9 + 1.02e12, rel=0.005)
    # Without a far field: 4·d for each causal pair.
    near = Case(5, 3, batch=1, heads=1, kv_heads=1, head_dim=16, window=10)
    assert work(near, False) == 15 * 9 * 4 * 16 + 2 * 16 * 15 * 8


@pytest.mark.parametrize("part", [None, Part([1], [0])], ids=["all", "a sample and a head"])
def test_error_ratios_tell_a_wrong_kernel(part, monkeypatch):
    some = options(SMALL, "channels masked, dropout", CPU)
    right = error_ratios(SMALL, "separable", CPU, torch.bfloat16, some, part=part)
    assert max(right.values()) < 2
    from harness.attention import accuracy

    def wrong(*inputs: torch.Tensor, impl: str, **others: object) -> torch.Tensor:
        return attend(*inputs, impl=impl, **others) * (1.05 if impl == "separable" else 1.0)

    attend = accuracy.mvpa_attention
    monkeypatch.setattr(accuracy, "mvpa_attention", wrong)
    assert max(error_ratios(SMALL, "separable", CPU, torch.bfloat16, some, part=part).values()) > 2


def test_the_trained_stack_has_the_sizes_of_mvpformer_s():
    config = mvpformer_s()
    assert {name: getattr(config, name) for name in SMALL_MODEL} == SMALL_MODEL


def test_the_plan_begins_with_the_telling_sizes_and_checks_every_block_that_it_times():
    items = clocks()
    assert [items[0]["mechanism"], items[1]["mechanism"]] == [FLASH, "FlashMVPA"]
    assert len({json.dumps(item) for item in items}) >= len(items) - 1  # flash attention at T = C = 50 twice
    kinds = [item["kind"] for item in items]
    assert kinds.index("repeat") < kinds.index("train") < kinds.index("profile")
    launch = pytest.importorskip("mvpa_ts.attention.triton.launch")

    def blocks(some: list[dict[str, Any]]) -> set[object]:
        sizes = [Case(**item["case"]) for item in some if item.get("mechanism", item.get("impl")) in MVPA_KERNELS]
        queries = [torch.empty(size.shapes["query"], dtype=torch.bfloat16, device="meta") for size in sizes]
        kernels = ("forward", "query_gradient", "far_gradient", "key_gradient")
        return {launch.choose_blocks(kernel, query, False) for query in queries for kernel in kernels}

    large = [item for item in items if item.get("case", {}).get("channels", 0) >= 25]
    checked = [item for lane in checks() for item in lane.items if item["kind"] == "check"]
    assert blocks(large) <= blocks(checked)
    assert {item["dtype"] for item in checked} == {"bfloat16", "float16", "float32"}
    assert {item["position"] for item in checked if item["impl"] == "triton"} == {0, 1, 2}


MVPA_KERNELS = ("FlashMVPA", "triton")
WORKER = """
import sys, time, json
for line in sys.stdin:
    kind = json.loads(line)["kind"]
    if kind == "hang":
        time.sleep(600)
    if kind == "die":
        print("a last word", file=sys.stderr, flush=True)
        sys.exit(7)
    print("noise of a library")
    print("@@" + json.dumps({"seconds": 0.1}), flush=True)
"""


def test_a_process_that_hangs_or_dies_is_replaced_and_the_rest_is_done(tmp_path):
    lane = Lane("one", [], command=(sys.executable, "-c", WORKER))
    answers = [lane.do({"kind": kind}, seconds, tmp_path) for kind, seconds in SEQUENCE]
    lane.stop()
    assert [answer.get("failed") for answer in answers] == [None, "no answer within 1 s", None, DIED, None]
    assert "a last word" in answers[3]["log"]


SEQUENCE = (("right", 60.0), ("hang", 1.0), ("right", 60.0), ("die", 60.0), ("right", 60.0))
DIED = "the process ended with 7"


def test_a_mechanism_that_loses_two_processes_is_left_out_and_time_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(attention_gpu, "WORKER", (sys.executable, "-c", WORKER))
    items = [{"kind": kind, "mechanism": name} for kind, name in (*[("die", "bad")] * 3, ("right", "good"))]
    lanes = [Lane("checks", [{"kind": "right", "impl": "x"}, {"kind": "hang", "impl": "x"}])]
    monkeypatch.setattr(attention_gpu, "CHECKING", 0.005)  # of 10 minutes: 3 s for a check that hangs
    record = Record(tmp_path)
    attention_gpu.run(lanes, items, record, minutes=10, limit=60, together=2)
    failed = [row["answer"].get("failed", "") for row in record.rows if row["item"]["kind"] != "device"]
    assert [text.partition(" within")[0] for text in failed] == [
        "", "no answer", DIED, DIED, "left out: two processes were lost with it", "",
    ]  # fmt: skip
    lines = (tmp_path / "attention_gpu.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == record.rows
    assert "a last word" in (tmp_path / "attention_gpu.log").read_text()
    last = Record(tmp_path / "late")
    attention_gpu.run([], items[-1:], last, minutes=0.01, limit=60, together=1)
    assert last.rows[-1]["answer"] == {"failed": "time was over"}


@pytest.mark.slow  # 20 s of the interpreter; in small: the quick run of `make test`, and a page of made-up answers
def test_one_item_of_every_kind_runs_with_interpreted_kernels(tmp_path):
    """As on a GPU machine: the tree's root on the path, and nothing of pandas or PyWavelets."""
    root = Path(attention_gpu.__file__).parents[2]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "experiments/attention/attention_gpu.py", "--quick", "--output", str(tmp_path)]
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, timeout=280)
    rows = [json.loads(line) for line in (tmp_path / "attention_gpu.jsonl").read_text().splitlines()]
    lanes, items = tiny()
    assert len(rows) == 1 + sum(len(lane.items) for lane in lanes) + len(items)
    failed = {title(row["item"]).partition(" T=")[0] for row in rows if "failed" in row["answer"]}
    assert failed == {"time cuDNN SDPA causal"}, [row["answer"] for row in rows if "failed" in row["answer"]]
    assert all(row["answer"]["passes"] for row in rows if row["item"]["kind"] == "check")
    text = (tmp_path / "attention_gpu.md").read_text()
    assert all(f"## {name}" in text for name in ("Checks", "Times", "train", "repeat"))
    assert "| FlashMVPA |" in text


def test_a_page_says_which_timed_kernels_failed_their_check():
    size = {"segments": 5, "channels": 3}
    check = {"kind": "check", "impl": "triton", "case": size, "dtype": "bfloat16"}
    wrong = {"passes": False, "wrong": ["key"], "ratios": {"output": 1.0, "key": 9.0}}
    answer = {"forward": {"ms": 2.0, "GiB": 0.5}, "failed": "out of memory"}
    rows = [{"item": check, "answer": wrong}]
    rows += [
        {"item": {"kind": "time", "mechanism": name, "case": size}, "answer": answer} for name in ("FlashMVPA", FLASH)
    ]
    text = page(rows)
    assert "WRONG in key, at most 9.00×" in text
    assert "| T=5 C=3 | FlashMVPA | 2.000 | 1.00 | 0.50 |  |  |  | a check is above its limit, out of memory |" in text
    assert f"| T=5 C=3 | {FLASH} | 2.000 | 1.00 | 0.50 |  |  |  | out of memory |" in text
