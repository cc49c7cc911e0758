"""Time and memory as the number of channels grows: the attention alone, and a training step of forecasting networks.

The attention: forward and backward at T = 8, batch 1, 4 heads of 16, 32 rows of channel keys, channel window 16, beside
the same call without the window. Calls of all sizes take turns, and the median counts. Times are
those of the processor, on one thread. Before anything is timed, the
linear path is compared with the reference in float64.

The networks: one step of Adam on two windows, look-back 96, horizon 96. MVPA has its default size, with and without
`channel_window`; iTransformer and TSMixer are neuralforecast's, with its default sizes. Every network and size has a
process of its own, which ends when it asks for more memory than the limit.

Writes results/attention/many_channels.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.processes import answer, interleaved, peak_gib
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_record
from torch import Tensor, nn

from mvpa_ts import ForecastingConfig, ForecastingNetwork, mvpa_attention

SEGMENTS, HEADS, HEAD_DIM, ROWS, WINDOW = 8, 4, 16, 32, 16
SIZES = (100, 300, 1000, 3000, 10_000)
LOOKBACK = HORIZON = 96
BATCH = 2  # TSMixer normalises over the batch
# Not run beyond: the time grows with the square.
MOST_WITHOUT_WINDOW = 3000
LIMIT_GIB = 6.0
NETWORKS = ("MVPA, channel_window=16", "MVPA", "iTransformer", "TSMixer")


def main() -> None:
    """Check, time, measure memory, and write the results."""
    arguments = parse_arguments()
    if arguments.case:
        name, C = arguments.case
        print(json.dumps(attention_case(int(C)) if name == "attention" else network_case(name, int(C))))
        return
    torch.set_num_threads(1)
    check_correctness()
    # Each case imports a library in a process of its own.
    sizes, networks = ((30,), NETWORKS[::2]) if arguments.quick else (SIZES, NETWORKS)
    timed = (50, 100) if arguments.quick else (250, 500, 1000)
    results = {
        "hardware": hardware(),
        "attention": attention_times(timed, turns=3 if arguments.quick else 5),
        "memory": answer(__file__, "--case", "attention", sizes[-1]),
        "networks": [
            answer(__file__, "--case", name, C)
            for C in sizes
            for name in networks
            if name != "MVPA" or C <= MOST_WITHOUT_WINDOW
        ],
    }
    output = arguments.output or results_folder("attention", quick=arguments.quick)
    write_record(output, "many_channels", results, markdown(results))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = script_parser(__doc__, "small sizes, few turns: seconds")
    parser.add_argument("--output", type=Path, help="folder for the results (default: experiments/results/attention)")
    parser.add_argument("--case", nargs=2, metavar=("NAME", "C"), help=argparse.SUPPRESS)
    return parser.parse_args()


def attention_call(
    C: int, dtype: torch.dtype = torch.float32, window: int | None = WINDOW, impl: Any = "separable", **options: Any
) -> Callable[[], list[Tensor]]:
    """A function that runs the attention of C channels, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    shapes = [*3 * [(1, SEGMENTS, C, HEADS, HEAD_DIM)], (2 * SEGMENTS - 1, HEADS, HEAD_DIM), (ROWS, HEADS, HEAD_DIM)]
    shapes += 3 * [(HEADS, HEAD_DIM)]
    inputs = [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]
    cotangent = torch.randn(shapes[0], generator=generator, dtype=dtype)
    options = {"causal": False, "channel_window": window, "channel_beyond": "clamp", "impl": impl} | options

    def run() -> list[Tensor]:
        output = mvpa_attention(*inputs, **options)
        return [output, *torch.autograd.grad(output, inputs, cotangent)]

    return run


def check_correctness() -> None:
    """Compare output and all gradients with the reference in float64, for as many channels as make several blocks."""
    mask = torch.rand(1, SEGMENTS, 200, generator=torch.Generator().manual_seed(1)) > 0.1
    for options in ({}, {"token_mask": mask}):
        expected, actual = (
            attention_call(200, torch.float64, impl=impl, **options)() for impl in ("reference", "separable")
        )
        for right, found in zip(expected, actual, strict=True):
            torch.testing.assert_close(found, right, atol=1e-9, rtol=1e-9)


def attention_times(sizes: tuple[int, ...], turns: int) -> list[dict[str, Any]]:
    """Median milliseconds of forward and backward, sizes and both kinds in turns."""
    calls = {(C, window): attention_call(C, window=window) for C in sizes for window in (WINDOW, None)}
    times = interleaved(calls, turns + 1, time.process_time)
    # The first turn warms up.
    ms = {case: round(1e3 * statistics.median(seconds[1:]), 1) for case, seconds in times.items()}
    return [{"channels": C, "window_ms": ms[C, WINDOW], "all_ms": ms[C, None]} for C in sizes]


def attention_case(C: int) -> dict[str, Any]:
    """Peak memory and time of one forward and backward pass of the attention with a window."""
    attention_call(20)()  # load the libraries
    return {"channels": C} | measured(attention_call(C))


def network_case(name: str, C: int) -> dict[str, Any]:
    """Time and peak memory of a training step, after one of 20 channels that loads the libraries."""
    network_step(name, 20)()
    return {"network": name, "channels": C} | measured(network_step(name, C))


def measured(run: Callable[[], Any]) -> dict[str, Any]:
    """Seconds of a run, and the peak of memory beyond what the process held before it."""
    torch.set_num_threads(1)
    start = time.process_time()
    peak = peak_gib(run, LIMIT_GIB)
    return {"seconds": None if peak is None else round(time.process_time() - start, 3), "peak_gib": peak}


def network_step(name: str, C: int) -> Callable[[], None]:
    """A training step on windows of C channels."""
    torch.manual_seed(0)
    x, target = torch.randn(BATCH, LOOKBACK, C), torch.randn(BATCH, HORIZON, C)
    network, forecast = build(name, C, x)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.mse_loss(forecast(), target).backward()
        optimiser.step()

    return step


def build(name: str, C: int, x: Tensor) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A network, and a function that gives its forecast [1, h, C] of x."""
    if name.startswith("MVPA"):
        # At 20 channels, where the libraries are loaded, the window is one too.
        window = WINDOW if "window" in name else None
        network = ForecastingNetwork(ForecastingConfig(HORIZON, LOOKBACK, channel_window=window, regressions=False))
        return network, lambda: network(x)[..., 0]
    from harness.quiet import silence
    from neuralforecast.models import TSMixer, iTransformer

    silence()
    peer = {"iTransformer": iTransformer, "TSMixer": TSMixer}[name](h=HORIZON, input_size=LOOKBACK, n_series=C)
    return peer, lambda: peer({"insample_y": x})


def markdown(results: dict[str, Any]) -> str:
    """The results as two tables."""
    memory = results["memory"]
    first = results["attention"][0]
    table = []
    for C in dict.fromkeys(row["channels"] for row in results["networks"]):
        rows = {row["network"]: row for row in results["networks"] if row["channels"] == C}
        cells = []
        for name in NETWORKS:
            row = rows.get(name)
            text = "not run" if row is None else "–"
            if row is not None and row["seconds"] is not None:
                text = f"{row['seconds']:.2f} s, {row['peak_gib']:.2f}"
            cells.append(text)
        table.append([C, *cells])
    return paragraphs(
        "# Many channels",
        f"{results['hardware']}; one thread. `experiments/attention/many_channels.py`.",
        f"## The attention: forward and backward, T = {SEGMENTS}, batch 1, {HEADS} heads of {HEAD_DIM}, {ROWS} rows of "
        "channel keys",
        grid(
            ["channels", f"channel window {WINDOW}, ms", f"over that of {first['channels']}",
             "content of all channels, ms"],
            ([row["channels"], f"{row['window_ms']:.0f}", f"{row['window_ms'] / first['window_ms']:.2f}",
              f"{row['all_ms']:.0f}"] for row in results["attention"]),
        ),
        f"{memory['channels']} channels with the window: {memory['seconds']:.1f} s, peak memory "
        f"{memory['peak_gib']:.2f} GiB.",
        f"## A training step: {BATCH} windows, look-back {LOOKBACK}, horizon {HORIZON}",
        f"Seconds of the processor and peak memory in GiB; – where it would need more than {LIMIT_GIB:.0f} GiB.",
        grid(["channels", *NETWORKS], table),
    )  # fmt: skip


if __name__ == "__main__":
    main()
