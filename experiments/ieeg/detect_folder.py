"""`mvpformer detect` with the shipped model on a folder of recordings: time and memory, in three ways.

EDF files of noise, 64 channels at 512 Hz, are scored one after the other, with `--jobs 2`, and on a local
dask.distributed cluster of two workers. Each way is a process of its own with one thread (and those that it starts);
its memory is the highest sum over these processes, looked at five times a second. Goal: 100 times real time.

    python experiments/ieeg/detect_folder.py                                # 20 recordings of 1 h: 4.7 GB for a while
    python experiments/ieeg/detect_folder.py --recordings 4 --hours 0.25    # a smaller folder; the table says how large
    python experiments/ieeg/detect_folder.py --quick                        # 2 recordings of 20 s, written nowhere
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import psutil
import torch
from harness.command_line import script_parser
from harness.detection.noise_file import write_noise
from harness.tables import append_row, hardware, read_rows, results_folder, write_page

from mvpa_ts.ieeg.scoring.cohort import markdown_table

CHANNELS, RATE = 64, 512
CLUSTER = """
import sys
from distributed import LocalCluster
from mvpa_ts.ieeg.commands.main import main
if __name__ == "__main__":
    with LocalCluster(2, processes=True, threads_per_worker=1, dashboard_address=None) as cluster:
        sys.exit(main([*sys.argv[1:], "--scheduler", cluster.scheduler_address]))
"""
WAYS = ("alone", "--jobs 2", "dask cluster, 2 workers")


def main() -> None:
    """Write the files, measure what is missing, write the table."""
    parser = script_parser(__doc__, "2 recordings of 20 s with 4 channels; write nothing")
    parser.add_argument("--recordings", type=int, default=20)
    parser.add_argument("--hours", type=float, default=1.0, help="of each recording")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    arguments = parser.parse_args()
    quick = arguments.quick
    count, seconds, channels = (2, 20, 4) if quick else (arguments.recordings, round(arguments.hours * 3600), CHANNELS)
    table = results_folder("detection", quick=quick) / "detect_folder.csv"
    with tempfile.TemporaryDirectory(prefix="mvpa-ts-folder-") as temporary:
        folder = Path(temporary)
        (folder / "in").mkdir()
        for number in range(count):
            write_noise(folder / "in" / f"recording{number:02d}.edf", seconds, channels, RATE)
        for way in arguments.ways:
            facts = {"way": way, "recordings": count, "hours": seconds * count / 3600, "channels": channels}
            facts |= measure(way, folder / "in", folder / way.replace(" ", "-"))
            append_row(table, facts | {"hardware": hardware(), "torch": torch.__version__})
            print(facts, flush=True)
    write_page(table, report(read_rows(table)))


def measure(way: str, recordings: Path, output: Path) -> dict[str, Any]:
    """Seconds, processor seconds and peak memory of one way; all recordings must have a result."""
    detect = ["detect", str(recordings), "-o", str(output), "--channels", "all"]
    command = [sys.executable, "-P", "-m", "mvpa_ts.ieeg.commands.main", *detect]
    if way.startswith("--jobs"):
        command += way.split()
    elif way.startswith("dask"):
        script = output.parent / "cluster.py"
        script.write_text(CLUSTER)
        command = [sys.executable, "-P", str(script), *detect]
    load, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with (recordings.parent / "messages.txt").open("w+") as messages:
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=messages, stdout=messages)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory_of(process.pid))
            time.sleep(0.2)
        wall = time.perf_counter() - started
        messages.seek(0)
        if process.returncode or len([*output.glob("*/events.tsv")]) < len([*recordings.iterdir()]):
            raise SystemExit(messages.read())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 1), "cpu_s": round(spent, 1), "peak_bytes": peak, "load": round(load, 1)}


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


def report(rows: pd.DataFrame) -> str:
    """The table as Markdown."""
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
        f"the clock say little, and those of the processor are to be read.\n\n{markdown_table(pd.DataFrame(lines))}\n"
        f"{', '.join(rows['hardware'].unique())}, one thread a process.\n"
    )


if __name__ == "__main__":
    main()
