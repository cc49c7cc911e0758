"""Segments shared out among processes against one process with all of them."""

import pytest
import torch
import torch.multiprocessing as mp
from support.attention_checks import INPUTS
from support.distributed_attention import CASES, cotangent, process
from torch import distributed

from mvpa_ts import mvpa_attention
from mvpa_ts.attention.context_parallel import segments_read


@pytest.mark.skipif(not distributed.is_available(), reason="this torch is built without distributed training")
@pytest.mark.parametrize("processes", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4))])
def test_outputs_and_gradients_are_those_of_one_process(processes, tmp_path):
    mp.spawn(process, (processes, str(tmp_path)), nprocs=processes)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(processes)]
    for number, case in enumerate(CASES):
        inputs = case.inputs()
        output = mvpa_attention(*inputs, impl="reference", **case.options())
        gradients = torch.autograd.grad(output, inputs, cotangent(case))
        for name, expected in zip(("output", *INPUTS), (output, *gradients), strict=True):
            pieces = [part[f"{number} {name}"] for part in parts]
            whole = torch.cat(pieces, 1) if name in ("output", *INPUTS[:3]) else torch.stack(pieces).sum(0)
            torch.testing.assert_close(whole, expected.detach(), atol=1e-10, rtol=1e-9, msg=f"{case} {name}")


@pytest.mark.parametrize(
    ("options", "keys", "values"),
    [
        ({"causal": True, "window": 10}, 3 * 10, 25 * (1 + 2 + 3)),
        ({"causal": False, "window": 10}, 6 * 10, 25 * 12),
        ({"causal": True, "window": None}, 25 * 6, 25 * 6),
        ({"causal": True, "window": 10, "dense_last_segment": True}, 2 * 10 + 75, 25 * 6),
    ],
    ids=str,
)
def test_what_travels_among_four_processes(options, keys, values):
    """100 segments: keys of the window's edge alone, values to all that see them."""
    assert received(segments_read(25, 4, **options)) == keys
    assert received(segments_read(25, 4, causal=options["causal"])) == values


def received(reads: list[tuple[int, int]]) -> int:
    """Segments that four processes of 25 get from each other."""
    return sum(
        len({*range(start, stop)} - {*range(25 * rank, 25 * rank + 25)}) for rank, (start, stop) in enumerate(reads)
    )
