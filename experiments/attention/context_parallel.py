"""Bytes that processes exchange if each holds some segments of a sample, measured with gloo.

Each setting runs forward and backward in 2 to 4 processes. What `context_parallel_attention` hands to torch.distributed
for other processes is added up as it is sent, over all processes, and stands beside what sending all keys and values to
all would take. Outputs and gradients are compared with those of one process.

    python experiments/attention/context_parallel.py            # results/attention/context_parallel.{json,md}; a minute
    python experiments/attention/context_parallel.py --quick    # one small setting, written elsewhere
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
import torch.multiprocessing as mp
from harness.command_line import script_parser
from harness.processes import join, leave
from harness.tables import hardware, results_folder, write_page
from torch import Tensor, distributed

from mvpa_ts import mvpa_attention
from mvpa_ts.attention import context_parallel
from mvpa_ts.files import write_text


@dataclass(frozen=True)
class Setting:
    """One sample and how its segments are shared out."""

    processes: int = 4
    segments: int = 96
    channels: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    window: int | None = 10
    causal: bool = True
    dense_last_segment: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the attention."""
        return {"causal": self.causal, "window": self.window, "dense_last_segment": self.dense_last_segment}

    def inputs(self) -> list[Tensor]:
        """The eight tensors, the same in every process."""
        generator = torch.Generator().manual_seed(0)
        T, C, K, d = self.segments, self.channels, self.kv_heads, self.head_dim
        shapes = [(1, T, C, self.heads, d), *2 * [(1, T, C, K, d)]]
        shapes += [(T if self.causal else 2 * T - 1, K, d), (C, K, d), *3 * [(K, d)]]
        return [torch.randn(shape, generator=generator) for shape in shapes]

    @property
    def everything(self) -> int:
        """Bytes of all keys and values at all other processes, and of their gradients on the way back."""
        numbers = self.segments * self.channels * self.kv_heads * self.head_dim
        return 2 * 2 * 4 * numbers * (self.processes - 1)


BASE = Setting()
SETTINGS = (
    *(replace(BASE, processes=processes) for processes in (2, 3, 4)),
    replace(BASE, window=2),
    replace(BASE, window=None),
    replace(BASE, dense_last_segment=True),
    replace(BASE, causal=False),
    replace(BASE, causal=False, window=None),
)


def main() -> None:
    """Run every setting and write the table."""
    parser = script_parser(__doc__, "one small setting, written elsewhere")
    quick = parser.parse_args().quick
    settings = (Setting(2, segments=8, channels=3, window=1),) if quick else SETTINGS
    rows = [asdict(setting) | measured(setting) for setting in settings]
    path = results_folder("attention", quick=quick) / "context_parallel.json"
    record = {"machine": f"{hardware()}; torch {torch.__version__}, gloo, one thread a process", "rows": rows}
    write_text(path, json.dumps(record, indent=1) + "\n")
    write_page(path, markdown(record))


def measured(setting: Setting) -> dict[str, Any]:
    """Bytes sent forward and backward by all processes together, and the largest difference from one process."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (setting, folder), nprocs=setting.processes)
        parts = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(setting.processes)]
    inputs = [tensor.requires_grad_() for tensor in setting.inputs()]
    output = mvpa_attention(*inputs, impl="separable", **setting.options)
    alone = [output.detach(), *torch.autograd.grad(output.square().sum(), inputs)]
    difference = 0.0
    for number, whole in enumerate(alone):
        pieces = [part["results"][number] for part in parts]
        joined = torch.cat(pieces, 1) if number < 4 else torch.stack(pieces).sum(0)  # tables and biases are sums
        difference = max(difference, float((joined - whole).abs().max() / whole.abs().max()))
    sent = [sum(part["sent"][number] for part in parts) for number in range(2)]
    return {"forward": sent[0], "backward": sent[1], "everything": setting.everything, "difference": difference}


def _process(rank: int, setting: Setting, folder: str) -> None:
    join(rank, setting.processes, folder)
    sent = 0

    def counted(found: Tensor, x: Tensor, incoming: list[int], counts: list[int], group: Any = None) -> None:
        nonlocal sent
        sent += x[0].nbytes * (sum(counts) - counts[rank]) if len(x) else 0
        exchange(found, x, incoming, counts, group=group)

    exchange = distributed.all_to_all_single
    share = setting.segments // setting.processes
    own = slice(rank * share, (rank + 1) * share)
    inputs = [(x[:, own] if number < 3 else x).requires_grad_() for number, x in enumerate(setting.inputs())]
    with mock.patch.object(distributed, "all_to_all_single", counted):
        output = context_parallel.context_parallel_attention(*inputs, **setting.options)
        forward, sent = sent, 0
        gradients = torch.autograd.grad(output.square().sum(), inputs)
    torch.save({"sent": [forward, sent], "results": [output.detach(), *gradients]}, Path(folder) / f"{rank}.pt")
    leave()


def markdown(record: dict[str, Any]) -> str:
    """The table."""
    first = record["rows"][0]
    lines = [
        f"One sample of T = {first['segments']} segments and C = {first['channels']} channels, {first['heads']} heads, "
        f"{first['kv_heads']} for keys and values, {first['head_dim']} wide, float32. KiB that all processes together "
        "sent to others, and the part of what sending all keys and values to all processes, and their gradients "
        "back, would take. Difference: the largest of output and gradients from one process, over the largest number "
        "there.",
        "",
        "| processes | content within | dense last segment | causal | forward | backward | of all | difference |",
        "|--:|--:|---|---|--:|--:|--:|--:|",
    ]
    for row in record["rows"]:
        share = (row["forward"] + row["backward"]) / row["everything"]
        window = "all segments" if row["window"] is None else f"{row['window']} segments"
        words = ["yes" if row[name] else "no" for name in ("dense_last_segment", "causal")]
        lines.append(
            f"| {row['processes']} | {window} | {words[0]} | {words[1]} | {row['forward'] / 1024:.0f} "
            f"| {row['backward'] / 1024:.0f} | {share:.0%} | {row['difference']:.0e} |"
        )
    return "\n".join([*lines, "", f"Measured on {record['machine']}.", ""])


if __name__ == "__main__":
    main()
