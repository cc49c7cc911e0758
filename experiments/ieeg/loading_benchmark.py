"""Reading windows from HDF5: throughput against the plain sequential read of the same file, and peak memory.

Recordings of 8 and of 32 channels at 512 Hz in the SWEC layout are simulated. Every way opens the file, reads all of it
and gives all its windows; a window is one more 5 s segment, at stride 5 s. Ways are interleaved, round by round, in one
process and one thread, from the page cache, so that seconds of the processor are what reading costs. Shares are medians
over rounds: the plain read's seconds over a way's own, for the same file; the plain read is the one that needs no fresh
memory. An hour has fewer windows than segments, by T − 1, so a second share goes by windows.
Peak memory is that of a process of its own that reads a whole recording.

    python experiments/ieeg/loading_benchmark.py  # results/pretraining/loading.json and .md; 1.5 GB of scratch
    python experiments/ieeg/loading_benchmark.py --quick    # 6 and 12 minutes of signal, written nowhere
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import torch
from harness.command_line import script_parser
from harness.tables import hardware, results_folder
from torch.utils.data import DataLoader

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import Segments, read_recording, simulate_recording
from mvpa_ts.ieeg.simulation.writing import write_swec
from mvpa_ts.ieeg.training.spans import SpanDataset, collate

CHANNELS, CHUNK = (8, 32), 180 * 512


Reader = Callable[[], int]
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


def plain(folder: Path, fresh: bool = False) -> Reader:
    """The file chunk by chunk, nothing done with it: into the same memory, or each into an array of its own."""

    def read() -> int:
        windows = 0
        for part in sorted(folder.glob("*_part_*.h5")):
            with h5py.File(part) as file:
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

    return read


def segments(folder: Path) -> Reader:
    """One segment after the other, with masks."""
    every = Segments(read_recording(folder))

    def read() -> int:
        every.recording.close()
        return sum(1 for _ in every)

    return read


def batches(folder: Path, length: int, window: int = 1) -> Reader:
    """Collated spans through a DataLoader, overlapping so that all windows are in one of them."""
    every = Segments(read_recording(folder))
    loader = DataLoader(SpanDataset([every], length, window), collate_fn=collate)

    def read() -> int:
        every.recording.close()
        return sum(max(batch["segment_mask"].shape[1] - window + 1, 0) for batch in loader)

    return read


WAYS: dict[str, tuple[str, Callable[[Path], Reader]]] = {
    "plain": ("plain sequential read, whole chunks into the same memory", plain),
    "arrays": ("plain sequential read, whole chunks as arrays", lambda folder: plain(folder, fresh=True)),
    "segments": ("segments one by one", segments),
    "spans 36": ("batches, spans of 36 segments side by side", lambda folder: batches(folder, 36)),
    "spans 144": ("batches, spans of 144 segments side by side", lambda folder: batches(folder, 144)),
    "windows 25": ("batches, windows of 25 at stride 1, spans of 144", lambda folder: batches(folder, 144, 25)),
    "windows 100": ("batches, windows of 100 at stride 1, spans of 400", lambda folder: batches(folder, 400, 100)),
}


def main() -> None:
    """Measure and write the table."""
    parser = script_parser(__doc__, "6 and 12 minutes instead of 1 and 24 hours")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hours = (0.1, 0.2) if arguments.quick else (1.0, 24.0)
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory(prefix="loading-") as scratch:
        short = {channels: _write(scratch, channels, hours[0]) for channels in CHANNELS}
        times = {channels: _times(folder, rounds) for channels, folder in short.items()}
        folders = [short[CHANNELS[0]], _write(scratch, CHANNELS[0], hours[1])]
        peaks = [_peak(folder) for folder in folders]
    rows = [
        {
            "channels": channels,
            "way": text,
            "windows": own[name][0],
            "windows_per_s": own[name][0] / statistics.median(own[name][1]),
            "share_of_plain": (share := _share(own["plain"][1], own[name][1])),
            "share_by_windows": share * own[name][0] / own["plain"][0],
        }
        for channels, own in times.items()
        for name, (text, _) in WAYS.items()
    ]
    machine = f"{hardware()}; one thread, h5py {h5py.__version__}, {rounds} rounds"
    table = "\n".join(
        [
            f"Recordings of {hours[0]:.3g} h at 512 Hz, SWEC layout, from the page cache.",
            "",
            "| channels | way | windows | windows per second of processor time | of plain | of plain, by windows |",
            "|---|---|---|---|---|---|",
            *(
                f"| {row['channels']} | {row['way']} | {row['windows']} | {row['windows_per_s']:.0f} | "
                f"{row['share_of_plain']:.2f} | {row['share_by_windows']:.2f} |"
                for row in rows
            ),
            "",
            f"Peak memory of a process that reads a whole recording of {CHANNELS[0]} channels segment by segment: "
            + ", ".join(
                f"{after / 2**20:.0f} MiB for {length:.3g} h ({before / 2**20:.0f} MiB when it was opened)"
                for (before, after), length in zip(peaks, hours, strict=True)
            )
            + ".",
            "",
            f"Measured on {machine}, beside other work.",
            "",
        ]
    )
    print(table)
    if not arguments.quick:
        memory = {
            f"{length:g} h": {"opened": peak[0], "read": peak[1]} for length, peak in zip(hours, peaks, strict=True)
        }
        result = {"machine": machine, "rows": rows, "peak_bytes": memory}
        write_text(results_folder("pretraining") / "loading.json", json.dumps(result, indent=1) + "\n")
        write_text(results_folder("pretraining") / "loading.md", table)


def _write(scratch: str, channels: int, hours: float) -> Path:
    name = f"H{hours:.3g}C{channels}"
    return write_swec(simulate_recording(name, num_channels=channels, duration=3600 * hours, seed=1), scratch)


def _times(folder: Path, rounds: int) -> dict[str, tuple[int, list[float]]]:
    """Windows that every way gives, and its seconds of processor time round by round."""
    readers = {name: prepare(folder) for name, (_, prepare) in WAYS.items()}
    windows: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    order, shuffled = [*readers], random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)  # what one way leaves in caches and heap, the next one finds
        for name in order:
            started = time.process_time()
            windows[name] = readers[name]()
            seconds[name].append(time.process_time() - started)
    return {name: (windows[name], seconds[name]) for name in WAYS}


def _share(plain: list[float], own: list[float]) -> float:
    return statistics.median(base / x for base, x in zip(plain, own, strict=True))


def _peak(folder: Path) -> tuple[int, int]:
    """Bytes of resident memory, at most, of a new process before and after it reads a recording (Linux)."""
    command = [sys.executable, "-P", "-c", PEAK, str(folder)]
    before, after = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(before), int(after)


if __name__ == "__main__":
    main()
