"""Seizure detection on recordings of an hour to a day: seconds and peak memory, 64 channels, the smallest model.

An EDF file of noise is written in pieces to a temporary folder (5.7 GB for a day at 512 Hz) and goes through
`mvpformer detect` in a process of its own, all channels at once. The model's weights are random, which cost what
trained ones do. Peak memory is the kernel's count for that process; what its imports alone take stands beside it.

    python experiments/ieeg/long_recording.py  # 1, 6 and 24 hours: results/detection/long_recording.json and .md
    python experiments/ieeg/long_recording.py --quick  # 3 minutes of 4 channels, written nowhere
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import torch
from harness.command_line import script_parser
from harness.detection.noise_file import write_noise
from harness.tables import hardware, results_folder

from mvpa_ts.files import write_text
from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny

HOURS, CHANNELS, RATE = (1.0, 6.0, 24.0), 64, 512

DETECT = """
import re, sys, time
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
import matplotlib.pyplot, mne, scipy.signal, torch
import mvpa_ts.ieeg.detection.detector, mvpa_ts.ieeg.detection.report, mvpa_ts.ieeg.recordings.reading
import mvpa_ts.ieeg.commands.detect, mvpa_ts.ieeg.model.mvpformer, mvpa_ts.ieeg.preprocessing.segments
from mvpa_ts.ieeg.commands.main import main
imports, start = peak(), time.perf_counter()
status = main(["detect", *sys.argv[1:]])
print("\\n", imports, peak(), time.perf_counter() - start)
sys.exit(status)
"""


def measure(folder: Path, seconds: int, channels: int, rate: int) -> dict[str, Any]:
    """Write the file, detect in it, delete it."""
    path, model = folder / "recording.edf", folder / "model"
    torch.manual_seed(0)
    MVPFormer(mvpformer_tiny(num_classes=2)).save_pretrained(model)
    write_noise(path, seconds, channels, rate)
    size = path.stat().st_size
    command = [sys.executable, "-P", "-c", DETECT, str(path), "--model", str(model), "-o", str(folder / "found")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = os.times()
    result = subprocess.run(
        [*command, "--channels", "all"], capture_output=True, text=True, check=False, env=environment
    )
    after = os.times()
    path.unlink()
    if result.returncode:
        raise SystemExit(result.stderr)
    imports, peak, passed = result.stdout.split()[-3:]
    return {
        "hours": seconds / 3600,
        "channels": channels,
        "rate": rate,
        "file_bytes": size,
        "seconds": float(passed),
        "processor_seconds": sum(after[2:4]) - sum(before[2:4]),
        "peak_bytes": int(peak),
        "import_bytes": int(imports),
    }


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    lines = [
        "| hours | channels | Hz | file, GB | seconds | of the processor | × real time | peak memory, GiB "
        "| of its imports |",
        "|" + "---|" * 9,
    ]
    for row in record["rows"]:
        lines.append(
            f"| {row['hours']:g} | {row['channels']} | {row['rate']} | {row['file_bytes'] / 1e9:.2f} | "
            f"{row['seconds']:.0f} | {row['processor_seconds']:.0f} | {row['hours'] * 3600 / row['seconds']:.0f} | "
            f"{row['peak_bytes'] / 2**30:.2f} | {row['import_bytes'] / 2**30:.2f} |"
        )
    lines += [
        "",
        f"`mvpformer detect` with MVPFormer-tiny on EDF files of noise, all channels, one thread; "
        f"{record['hardware']}, torch {record['torch']}. Seconds are by the clock, beside other work (load "
        f"average at the start {record['load']:.1f}); those of the processor hold the process's start too.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write unless --quick."""
    parser = script_parser(__doc__, "3 minutes of 4 channels; write nothing")
    parser.add_argument("--hours", type=float, nargs="+", default=HOURS, help="lengths (default: 1 6 24)")
    options = parser.parse_args()
    record: dict[str, Any] = {"hardware": hardware(), "torch": torch.__version__, "load": os.getloadavg()[0]}
    cases = [(180, 4, 256)] if options.quick else [(round(hours * 3600), CHANNELS, RATE) for hours in options.hours]
    record["rows"] = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="mvpa-ts-long-") as folder:
            record["rows"].append(measure(Path(folder), *case))
        print(record["rows"][-1], flush=True)
    print(table(record))
    if not options.quick:
        folder = results_folder("detection")
        write_text(folder / "long_recording.json", json.dumps(record, indent=1) + "\n")
        write_text(folder / "long_recording.md", table(record))


if __name__ == "__main__":
    main()
