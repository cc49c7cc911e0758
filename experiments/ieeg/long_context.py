"""One forward pass of MVPFormer-S over more than 10,000 tokens, on a CPU.

The paper states contexts of over 10,000 tokens, such as 100 segments of 100 channels, on one A100 of 80 GB. This runs
MVPFormer-S with random weights over a window of 100 segments and 101 channels, and keeps time and peak memory.

    python experiments/ieeg/long_context.py            # results/attention/long_context.json and .md; minutes
    python experiments/ieeg/long_context.py --quick    # the tiny model on a small window, written elsewhere
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.tables import hardware, results_folder, write_record

from mvpa_ts.ieeg import MVPFormer, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES


def main() -> None:
    """Run, check that the output is finite, and write."""
    quick = script_parser(__doc__, "the tiny model on a small window, written elsewhere").parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config, T, C = (mvpformer_tiny(), 6, 5) if quick else (mvpformer_s(), 100, 101)
    model = MVPFormer(config).eval()
    for block in model.stack.blocks:
        block.attention.impl = "separable"
    signal = 50 * torch.randn(1, C, T * SEGMENT_SAMPLES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, worked = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        prediction = model.predict(model(signal))
    record = {
        "model": "MVPFormer-tiny" if quick else "MVPFormer-S",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "segments": T,
        "channels": C,
        "tokens": T * C,
        "finite": bool(torch.isfinite(prediction).all()),
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(time.process_time() - worked, 1),
        "peak_gib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20, 3),
        "machine": f"{hardware()}; 1 thread, torch {torch.__version__}",
    }
    write_record(results_folder("attention", quick=quick), "long_context", record, markdown(record))


def markdown(record: dict[str, object]) -> str:
    """One sentence."""
    state = "every output is finite" if record["finite"] else "SOME OUTPUTS ARE NOT FINITE"
    return (
        f"A forward pass of {record['model']} ({record['parameters']:,} parameters, random weights, float32) over "
        f"{record['segments']} segments × {record['channels']} channels, {record['tokens']:,} tokens: "
        f"{record['processor_seconds']} s of processor time, {record['peak_gib']} GiB beyond model and signal; {state}."
        f"\n\nMeasured on {record['machine']}.\n"
    )


if __name__ == "__main__":
    main()
