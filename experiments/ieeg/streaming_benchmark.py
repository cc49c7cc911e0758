"""How much faster than real time MVPFormer streams on this CPU: one new segment of 5 s at a time.

Random weights, which cost what trained ones do. The stream is filled to its whole context first, so that a step is as
dear as it gets; then steps are timed. The decoder's full pass over the encoded context is timed beside it.

    python experiments/ieeg/streaming_benchmark.py            # S, 32 channels: results/detection/streaming.json and .md
    python experiments/ieeg/streaming_benchmark.py --quick    # the tiny model, written nowhere
    python experiments/ieeg/streaming_benchmark.py --before 42ca720  # with an older revision: streaming_before.json

With --before, two processes with one thread each step in turn, so that load falls on both alike.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
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


# Fills a stream of MVPFormer-S with 32 channels, then takes one timed step for each line it reads.
_WORKER = """
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
from mvpa_ts.ieeg import MVPFormer, mvpformer_s
try:
    from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer
except ImportError:  # its path before the move
    from mvpa_ts.ieeg.streaming import StreamingMVPFormer
config = mvpformer_s()
stream = StreamingMVPFormer(MVPFormer(config).eval(), 32)
signal = torch.randn(32, 2560) * 50
for _ in range(config.context):
    stream.step(signal)
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    stream.step(signal)
    print(time.perf_counter() - start, flush=True)
"""


def install(revision: str, folder: Path) -> str:
    """Install an older revision of the package into a folder; the folder to import it from."""
    archive = subprocess.run(["git", "archive", revision], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder / "source", filter="data")
    target = str(folder / "installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", target, str(folder / "source")], check=True)
    return target


def compare(before: str, steps: int = 20) -> dict:
    """Seconds of steps in turn, with the code in the folder `before` and with today's."""
    workers = {}
    for name in ("before", "now"):
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": before} if name == "before" else {})
        command = [sys.executable, "-P", "-c", _WORKER]  # -P: not the folder that this runs in
        workers[name] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for worker in workers.values():
        assert worker.stdout is not None
        worker.stdout.readline()
    for index in range(steps):
        for name, worker in sorted(workers.items(), reverse=bool(index % 2)):
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("\n")
            seconds[name].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    ratios = [now / then for now, then in zip(seconds["now"], seconds["before"], strict=True)]
    return {
        "model": "MVPFormer-S, 32 channels, one thread",
        "hardware": hardware(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "median_seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "median_ratio": statistics.median(ratios),
        "seconds": seconds,
    }


def main() -> None:
    """Measure, print, and write unless --quick."""
    parser = script_parser(__doc__, "the tiny model and few steps; write nothing")
    parser.add_argument("--before", metavar="REVISION", help="compare with an older revision of this repository")
    arguments = parser.parse_args()
    if arguments.before:
        with tempfile.TemporaryDirectory() as folder:
            comparison = compare(install(arguments.before, Path(folder)))
        today = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE, text=True)
        comparison = {"revisions": {"before": arguments.before, "now": today.stdout.strip()}} | comparison
        print(json.dumps(comparison, indent=1))
        write_text(results_folder("detection") / "streaming_before.json", json.dumps(comparison, indent=1) + "\n")
        return
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
