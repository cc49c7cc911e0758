"""Errors of the Triton kernels in float16 over those of attention with logits in float32; no GPU is needed.

The kernels run under Triton's interpreter, which rounds float16 as a GPU does, and bfloat16 not. Errors are root mean
squares against float64, over several draws of the inputs. The gradient of a bias is few numbers, so that the ratio of
one draw is a matter of luck; the last column shows by how much. Seven minutes on one core.

    python experiments/attention_precision.py
"""

from __future__ import annotations

import os
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

import torch
from harness.attention import accuracy
from harness.attention.peers import Case
from harness.command_line import script_parser
from harness.tables import results_folder

from mvpa_ts.attention.triton import launch
from mvpa_ts.files import write_text

# Segments, channels, window; then the tile: query tokens, keys, segments of keys that share the queries.
SIZES = (
    (12, 40, 2, (64, 64, 4)),
    (12, 40, 2, (64, 32, 4)),
    (70, 6, 4, (64, 32, 2)),
    (50, 25, 10, (128, 32, 8)),
    (50, 50, 10, (128, 64, 8)),
    (30, 88, 10, (128, 64, 8)),
)
DRAWS = 5
CPU = torch.device("cpu")


def main() -> None:
    """Evaluate each size, and write the table."""
    quick = script_parser(__doc__, "a small size, and write nothing").parse_args().quick
    names = ("output", *Case(1, 1).shapes)
    lines = [
        f"float16 under Triton's interpreter, one head of 64 numbers, one sample, {DRAWS} draws. Error over that of",
        f"attention with logits in float32; allowed are {accuracy.LIMITS['float16']}.",
        "",
        f"| T, C, window | tile | {' | '.join(name.replace('_', ' ') for name in names)} | channel bias, one draw |",
        "|---|---|" + "--:|" * len(names) + "---|",
    ]
    for segments, channels, window, tile in [(4, 17, 1, (16, 16, 2))] if quick else SIZES:
        case = Case(segments, channels, batch=1, heads=1, kv_heads=1, window=window, dense_last_segment=False)
        blocks = launch.Blocks(tile[0], tile[1], num_warps=4, tiles=tile[2])
        with (
            mock.patch.object(launch, "choose_blocks", lambda *_, blocks=blocks: (blocks,)),
            mock.patch.object(accuracy, "MOST_CANDIDATES", 1),
        ):
            draws = [
                accuracy.squared_errors(case, "triton", CPU, torch.float16, {"window": window}, seed)
                for seed in range(DRAWS)
            ]
        allowed, found = (torch.stack(errors).reshape(DRAWS, -1) for errors in zip(*draws, strict=True))
        ratios = (found.sum(0) / allowed.sum(0)).sqrt()
        single = (found / allowed).sqrt()[:, names.index("channel_bias")]
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios.tolist())
        lines.append(
            f"| {segments}, {channels}, {window} | {' × '.join(map(str, tile))} | {cells} | "
            f"{single.min():.2f} to {single.max():.2f} |"
        )
        print(lines[-1], flush=True)
    if not quick:
        write_text(results_folder("attention") / "attention_precision.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
