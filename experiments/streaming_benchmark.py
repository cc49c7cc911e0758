"""How much faster than real time MVPFormer streams on this CPU: one new segment of 5 s at a time.

Random weights, which cost what trained ones do. The stream is filled to its whole context first, so that a step is as
dear as it gets; then steps are timed. The decoder's full pass over the encoded context is timed beside it.

    python experiments/streaming_benchmark.py            # S, 32 channels: results/detection/streaming.json and .md
    python experiments/streaming_benchmark.py --quick    # the tiny model, written nowhere
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
from harness.tables import hardware, results_folder

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import MVPFormer, MVPFormerConfig, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer

SECONDS = 5.0  # of a segment


def measure(config: MVPFormerConfig, channels: int, steps: int, threads: int) -> dict[str, float | int]:
    """Seconds of a step with the first segments, with the whole context, and of the decoder's full pass."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = MVPFormer(config).eval()
    stream = StreamingMVPFormer(model, channels)
    signal = torch.randn(channels, 2560) * 50

    def step() -> float:
        start = time.perf_counter()
        stream.step(signal)
        return time.perf_counter() - start

    taken = [step() for _ in range(config.context + steps)]
    whole = statistics.median(taken[config.context :])
    with torch.inference_mode():
        embeddings = model.encode(signal[None].repeat(1, 1, config.context))
        start = time.perf_counter()
        model.decode(embeddings)
        full = time.perf_counter() - start
    return {
        "channels": channels,
        "context": config.context,
        "threads": threads,
        "steps": steps,
        "first_step_seconds": statistics.median(taken[1:6]),
        "step_seconds": whole,
        "slowest_step_seconds": max(taken[config.context :]),
        "times_real_time": SECONDS / whole,
        "full_pass_seconds": full,
    }


def table(record: dict) -> str:
    """The record as Markdown."""
    lines = [
        f"One step of 5 s with the whole context behind it, {record['model']}, float32, {record['hardware']}, torch "
        f"{record['torch']}. Load average at the start {record['load']:.1f}.",
        "",
        "| channels | context | threads | a step, ms | slowest | with an empty past | × real time "
        "| decoder's full pass, ms |",
        "|" + "---|" * 8,
    ]
    for row in record["rows"]:
        times = [row[name] * 1e3 for name in ("step_seconds", "slowest_step_seconds", "first_step_seconds")]
        lines.append(
            f"| {row['channels']} | {row['context']} | {row['threads']} | "
            + " | ".join(f"{value:.0f}" for value in times)
            + f" | {row['times_real_time']:.1f} | {row['full_pass_seconds'] * 1e3:.0f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, print, and write unless --quick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tiny model and few steps; write nothing")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    config, name = (mvpformer_tiny(), "MVPFormer-tiny") if arguments.quick else (mvpformer_s(), "MVPFormer-S")
    rows = [
        measure(config, channels, 3 if arguments.quick else 10, threads)
        for threads in (1, 2)
        for channels in ((4,) if arguments.quick else (8, 32))
    ]
    record = {"model": name, "hardware": hardware(), "torch": torch.__version__, "load": load, "rows": rows}
    print(table(record))
    if not arguments.quick:
        write_text(results_folder("detection") / "streaming.json", json.dumps(record, indent=1) + "\n")
        write_text(results_folder("detection") / "streaming.md", table(record))


if __name__ == "__main__":
    main()
