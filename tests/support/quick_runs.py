"""Run the quick form of scripts, two at a time: `make smoke` names all of them.

Most of these runs take less time than the import of the large packages. So these are loaded once, and each script runs
in a fork of the process that holds them. What a script prints is shown if it fails.
"""

import multiprocessing
import os
import runpy
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

PACKAGES = [
    "neuralforecast",
    "lightning.pytorch",
    "torchmetrics",
    "peft",
    "mne",
    "sktime.forecasting.base",
    "matplotlib.pyplot",
]
RESULTS = Path("experiments/results")
LOGS = Path("build/quick")


def run(script: str, log: Path) -> float:
    """Run a script as `python SCRIPT --quick` would, and say how long it took."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    started = time.perf_counter()
    sys.argv, sys.path[0] = [script, "--quick"], str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            print(ended.code, file=sys.stderr)
            raise RuntimeError(f"it ended with {ended.code}") from None
    except BaseException:
        traceback.print_exc()
        raise RuntimeError("it failed") from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return time.perf_counter() - started


def main(scripts: list[str]) -> None:
    """Run the scripts, and fail where one failed or wrote results."""
    LOGS.mkdir(parents=True, exist_ok=True)
    logs = {script: LOGS / f"{script.replace('/', '-')}.log" for script in scripts}
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(PACKAGES)
    begun, failed = time.time(), []
    with ProcessPoolExecutor(2, processes, max_tasks_per_child=1) as pool:
        runs = {pool.submit(run, script, log): script for script, log in logs.items()}
        for ended in as_completed(runs):
            script = runs[ended]
            if error := ended.exception():
                failed.append(script)
                print(logs[script].read_text(), f"{script} --quick: {error}", sep="\n", file=sys.stderr)
            else:
                print(f"{script} --quick: {ended.result():.0f} s", flush=True)
    written = [path for path in RESULTS.rglob("*") if path.is_file() and path.stat().st_mtime > begun]
    if written:
        print(f"A quick run must leave the results alone, one wrote {', '.join(map(str, written))}", file=sys.stderr)
    sys.exit(1 if failed or written else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
