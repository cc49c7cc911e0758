"""How fast: reading windows from files, a training step of forecasters, a stream of segments, `mvpformer detect`.

- loading: every way of reading an hour of SWEC's layout, against the plain sequential read of the same file, from the
  page cache; and the peak memory of a process that reads a day.
- training: forward, backward and optimizer on 32 windows of ETTh1's shape, MVPA beside models of neuralforecast with
  their published settings.
- streaming: one new segment of 5 s with the whole context behind it. Random weights cost what trained ones do.
- detect: the small detector on EDF files of noise, 64 channels at 512 Hz: 20 files of an hour in three ways, and one
  file of 1, 6 and 24 hours (5.7 GB for a while).

What is compared is interleaved in one thread, so that load falls on all alike, and shares are medians over rounds.

    python experiments/ieeg/throughput.py loading training streaming detect  # writes results/, hours in all
    python experiments/ieeg/throughput.py --quick                            # small forms of all, written elsewhere
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import pandas as pd
import psutil
import torch
from harness.command_line import script_parser
from harness.detection.noise_file import write_noise
from harness.forecasting.models import LOOKBACK, build
from harness.processes import interleaved
from harness.study import Study, grid, paragraphs
from harness.tables import hardware, results_folder, write_record
from torch.utils.data import DataLoader

from mvpa_ts.ieeg import MVPFormer, Segments, mvpformer_s, mvpformer_tiny, read_recording, simulate_recording
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.simulation.writing import write_swec
from mvpa_ts.ieeg.training.spans import SpanDataset, collate

CHUNK = 180 * 512
FORECASTERS = ("MVPA", "Linear", "PatchTST", "iTransformer", "TimeMixer", "TimeXer", "VanillaTransformer")
CHANNELS, HORIZON = 7, 96  # of ETTh1
LONG = "one long recording"
WAYS = ("alone", "--jobs 2", "dask cluster, 2 workers")
# A process that imports no more than reading needs. What getrusage gives a new process begins with the memory of the
# one that started it, so the kernel is asked for its own.
PEAK = """
import re, sys
from mvpa_ts.ieeg import Segments, read_recording
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
recording = Segments(read_recording(sys.argv[1]))
before = peak()
for _ in recording:
    pass
print(before, peak())
"""
CLUSTER = """
import sys
from distributed import LocalCluster
from mvpa_ts.ieeg.commands.main import main
if __name__ == "__main__":
    with LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster:
        sys.exit(main([*sys.argv[1:], "--scheduler", cluster.scheduler_address]))
"""


def main() -> None:
    """Measure what is asked for, and write it."""
    parser = script_parser(__doc__, "small forms of all, written to a temporary folder")
    parser.add_argument("what", nargs="*", choices=[[], *MEASUREMENTS], help="default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.what or MEASUREMENTS:
        MEASUREMENTS[name](quick=arguments.quick)


def ratio(others: Sequence[float], base: Sequence[float]) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(other / x for other, x in zip(others, base, strict=True))


# Loading


def plain(folder: Path, *, fresh: bool = False) -> int:
    """The file chunk by chunk, nothing done with it: into the same memory, or each into an array of its own."""
    windows = 0
    for path in sorted(folder.glob("*_part_*.h5")):
        with h5py.File(path) as file:
            data = file["data/ieeg"]
            block = np.empty((data.shape[0], CHUNK), data.dtype)
            for start in range(0, data.shape[1], CHUNK):
                length = min(CHUNK, data.shape[1] - start)
                if fresh:
                    block = data[:, start : start + length]
                else:
                    data.read_direct(block, np.s_[:, start : start + length], np.s_[:, :length])
                windows += length // 2560
    return windows


def batches(folder: Path, length: int, window: int = 1) -> int:
    """Collated spans through a DataLoader, overlapping so that all windows are in one of them."""
    loader = DataLoader(SpanDataset([Segments(read_recording(folder))], length, window), collate_fn=collate)
    return sum(max(batch["segment_mask"].shape[1] - window + 1, 0) for batch in loader)


READERS: dict[str, Callable[[Path], int]] = {
    "plain sequential read, whole chunks into the same memory": plain,
    "plain sequential read, whole chunks as arrays": partial(plain, fresh=True),
    "segments one by one": lambda folder: sum(1 for _ in Segments(read_recording(folder))),
    "batches, spans of 36 segments side by side": partial(batches, length=36),
    "batches, spans of 144 segments side by side": partial(batches, length=144),
    "batches, windows of 25 at stride 1, spans of 144": partial(batches, length=144, window=25),
    "batches, windows of 100 at stride 1, spans of 400": partial(batches, length=400, window=100),
}


def loading(*, quick: bool) -> None:
    """Windows a second of processor time, shares of the plain read, and peak memory."""
    hours, rounds = ((0.1, 0.2), 1) if quick else ((1.0, 24.0), 41)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="loading-") as scratch:
        for channels in (8,) if quick else (8, 32):
            folder = recorded(scratch, channels, hours[0])
            windows = {name: read(folder) for name, read in READERS.items()}
            seconds = interleaved(
                {name: partial(read, folder) for name, read in READERS.items()}, rounds, time.process_time
            )
            base = next(iter(READERS))
            for name in READERS:
                share = ratio(seconds[base], seconds[name])
                row = {"channels": channels, "way": name, "windows": windows[name]}
                row |= {"windows_per_s": windows[name] / statistics.median(seconds[name]), "share_of_plain": share}
                rows.append(row | {"share_by_windows": share * windows[name] / windows[base]})
        peaks = {length: peak_of_reading(recorded(scratch, 8, length)) for length in hours}
    machine = f"{hardware()}; one thread, h5py {h5py.__version__}, {rounds} rounds"
    memory = {f"{length:g} h": {"opened": peak[0], "read": peak[1]} for length, peak in peaks.items()}
    record = {"machine": machine, "rows": rows, "peak_bytes": memory}
    write_record(results_folder("pretraining", quick=quick), "loading", record, loading_page(record))


def recorded(scratch: str, channels: int, hours: float) -> Path:
    """A simulated recording in SWEC's layout, written once."""
    name = f"H{hours:.3g}C{channels}"
    if (folder := Path(scratch, name)).is_dir():
        return folder
    return write_swec(simulate_recording(name, num_channels=channels, duration=3600 * hours, seed=1), scratch)


def peak_of_reading(folder: Path) -> tuple[int, int]:
    """Bytes of resident memory, at most, of a new process before and after it reads a recording (Linux)."""
    command = [sys.executable, "-P", "-c", PEAK, str(folder)]
    before, after = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(before), int(after)


def loading_page(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    heads = ["channels", "way", "windows", "windows per second of processor time", "of plain", "of plain, by windows"]
    table = [
        [
            *(row[name] for name in ("channels", "way", "windows")),
            f"{row['windows_per_s']:.0f}",
            f"{row['share_of_plain']:.2f}",
            f"{row['share_by_windows']:.2f}",
        ]
        for row in record["rows"]
    ]
    memory = [
        f"{peak['read'] / 2**20:.0f} MiB for {length} ({peak['opened'] / 2**20:.0f} MiB when it was opened)"
        for length, peak in record["peak_bytes"].items()
    ]
    return paragraphs(
        f"Recordings of {next(iter(record['peak_bytes']))} at 512 Hz, SWEC layout, from the page cache.",
        grid(heads, table),
        f"Peak memory of a process that reads a whole recording of 8 channels segment by segment: {', '.join(memory)}.",
        f"Measured on {record['machine']}, beside other work.",
    )


# Training step


def training(*, quick: bool) -> None:
    """Milliseconds of a training step, as ratios to MVPA's within a round."""
    rounds, batch = (2, 2) if quick else (30, 32)
    names = ("MVPA", "Linear") if quick else FORECASTERS
    models = {name: build(name, "ETTh1", HORIZON, CHANNELS, seed=1)[0].train() for name in names}

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        x, y = torch.randn(batch, LOOKBACK, CHANNELS), torch.randn(batch, HORIZON, CHANNELS)
        optimizer.zero_grad(set_to_none=True)
        forecast = model(x, phase=torch.zeros(batch, dtype=torch.long))[..., 0]
        (forecast - y).square().mean().backward()
        optimizer.step()

    steps = {name: partial(step, model, torch.optim.Adam(model.parameters(), 1e-4)) for name, model in models.items()}
    interleaved(steps, 2)  # to warm up
    seconds = interleaved(steps, rounds)
    rows = [
        {
            "model": name,
            "milliseconds": 1e3 * statistics.median(seconds[name]),
            "times_mvpa": ratio(seconds[name], seconds["MVPA"]),
            "parameters": sum(parameter.numel() for parameter in models[name].parameters()),
        }
        for name in names
    ]
    machine = f"{hardware()}; 1 thread(s), torch {torch.__version__}, {rounds} rounds"
    record = {"machine": machine, "rows": rows}
    write_record(results_folder("forecasting", quick=quick), "training_step", record, training_page(record))


def training_page(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    table = [
        [row["model"], f"{row['milliseconds']:.1f}", f"{row['times_mvpa']:.2f}", f"{row['parameters']:,}"]
        for row in record["rows"]
    ]
    return paragraphs(
        "One training step on 32 windows of 96 × 7, horizon 96, float32; peers at their published settings.",
        grid(["model", "ms", "times MVPA", "parameters"], table),
        f"Measured on {record['machine']}.",
    )


# Streaming


def streaming(*, quick: bool) -> None:
    """Seconds of a step with the first segments, with the whole context, and of the decoder's full pass."""
    config, model, steps = (mvpformer_tiny(), "MVPFormer-tiny", 3) if quick else (mvpformer_s(), "MVPFormer-S", 10)
    record: dict[str, Any] = {"model": model, "hardware": hardware(), "torch": torch.__version__}
    record |= {"load": os.getloadavg()[0], "rows": []}
    for threads in (1, 2):
        for channels in (4,) if quick else (8, 32):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            network = MVPFormer(config).eval()
            stream, signal = StreamingMVPFormer(network, channels), torch.randn(channels, 2560) * 50
            taken = interleaved({"step": partial(stream.step, signal)}, config.context + steps)["step"]
            whole = statistics.median(taken[config.context :])
            with torch.inference_mode():
                embeddings = network.encode(signal[None].repeat(1, 1, config.context))
                started = time.perf_counter()
                network.decode(embeddings)
                full = time.perf_counter() - started
            row = {"channels": channels, "context": config.context, "threads": threads, "steps": steps}
            row |= {"first_step_seconds": statistics.median(taken[1:6]), "step_seconds": whole}
            row |= {"slowest_step_seconds": max(taken[config.context :]), "times_real_time": 5.0 / whole}
            record["rows"].append(row | {"full_pass_seconds": full})
    torch.set_num_threads(1)
    write_record(results_folder("detection", quick=quick), "streaming", record, streaming_page(record))


def streaming_page(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    times = ("step_seconds", "slowest_step_seconds", "first_step_seconds")
    heads = ["channels", "context", "threads", "a step, ms", "slowest", "with an empty past", "× real time"]
    table = [
        [
            *(row[name] for name in ("channels", "context", "threads")),
            *(f"{row[name] * 1e3:.0f}" for name in times),
            f"{row['times_real_time']:.1f}",
            f"{row['full_pass_seconds'] * 1e3:.0f}",
        ]
        for row in record["rows"]
    ]
    lead = (
        f"One step of 5 s with the whole context behind it, {record['model']}, float32, {record['hardware']}, torch "
        f"{record['torch']}. Load average at the start {record['load']:.1f}."
    )
    return paragraphs(lead, grid([*heads, "decoder's full pass, ms"], table))


# Detection


def detect(*, quick: bool) -> None:
    """Seconds and memory of `mvpformer detect` on a folder in three ways, and on one long file."""
    study = Study("detection", "detect_folder", ["way", "recordings", "hours"], detect_page, quick=quick)
    cases: list[tuple[str, int, float]] = [(way, 20, 20.0) for way in WAYS]
    cases += [(LONG, 1, hours) for hours in (1.0, 6.0, 24.0)]
    if quick:
        cases = [(way, 2, 40 / 3600) for way in WAYS[:1]]
    study.run(cases, partial(detected, channels=4 if quick else 64))


def detected(way: str, recordings: int, hours: float, *, channels: int) -> dict[str, Any]:
    """Seconds, processor seconds and peak memory of one way; all recordings must have a result."""
    with tempfile.TemporaryDirectory(prefix="mvpa-ts-folder-") as temporary:
        source, output = Path(temporary, "in"), Path(temporary, "out")
        source.mkdir()
        for number in range(recordings):
            write_noise(source / f"recording{number:02d}.edf", round(3600 * hours / recordings), channels, 512)
        options = ["detect", str(source), "-o", str(output), "--channels", "all"]
        command = [sys.executable, "-P", "-m", "mvpa_ts.ieeg.commands.main", *options]
        if way.startswith("--jobs"):
            command += way.split()
        elif way.startswith("dask"):
            script = Path(temporary, "cluster.py")
            script.write_text(CLUSTER)
            command = [sys.executable, "-P", str(script), *options]
        load, before, started, peak = os.getloadavg()[0], os.times(), time.perf_counter(), 0
        with Path(temporary, "messages.txt").open("w+") as messages:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, env=environment, stderr=messages, stdout=messages)
            while process.poll() is None:
                peak = max(peak, memory_of(process.pid))
                time.sleep(0.2)
            wall = time.perf_counter() - started
            messages.seek(0)
            if process.returncode or len([*output.glob("*/events.tsv")]) < recordings:
                raise SystemExit(messages.read())
        spent = sum(os.times()[2:4]) - sum(before[2:4])  # of children
    facts = {"channels": channels, "wall_s": round(wall, 1), "cpu_s": round(spent, 1)}
    return facts | {"peak_bytes": peak, "load": round(load, 1)}


def memory_of(pid: int) -> int:
    """Resident bytes of a process and all that it started, pages that they share counted in each."""
    total = 0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def detect_page(rows: pd.DataFrame) -> str:
    """The rows as Markdown."""
    lines = [
        {
            "": row.way,
            "recordings": row.recordings,
            "channels": row.channels,
            "hours in all": f"{row.hours:g}",
            "seconds": f"{row.wall_s:.0f}",
            "of the processor": f"{row.cpu_s:.0f}",
            "× real time": f"{3600 * row.hours / row.wall_s:.0f}",
            "× real time, a processor alone": f"{3600 * row.hours / row.cpu_s:.0f}",
            "peak memory, GiB": f"{row.peak_bytes / 2**30:.2f}",
            "load": row.load,
        }
        for row in rows.itertuples()
    ]
    return (
        "`mvpformer detect` with the model in the box on EDF files of noise at 512 Hz, all channels; the seconds hold "
        "the start of the processes. Load is that of the machine before the run: with other work on it, the seconds by "
        "the clock say little, and those of the processor are to be read.\n\n"
        f"{markdown_table(pd.DataFrame(lines))}\n{', '.join(rows['hardware'].unique())}, one thread a process.\n"
    )


MEASUREMENTS: dict[str, Callable[..., None]] = {
    "loading": loading,
    "training": training,
    "streaming": streaming,
    "detect": detect,
}

if __name__ == "__main__":
    main()
