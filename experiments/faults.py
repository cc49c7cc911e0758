"""Kill tasks at random moments or fill their disk, and check that nothing is lost that they reported as saved.

Each run begins a task, kills it with signal 9 at a random moment, begins it again, and so on until it has ended by
itself. After each kill everything that the task had reported as saved must be in its folder, once. At the end every
byte of the result must be that of an undisturbed run. Then the same with files that cannot grow past some bytes, as on
a full disk, and with a folder that may not be written to. Tasks: detection of seizures, pretraining, finetuning, rows
of an experiment's table, a search for hyperparameters in a database.

    python experiments/faults.py            # 200 kills; results/robustness/faults.csv and .md; goes on where it stopped
    python experiments/faults.py --quick    # one fault of each kind on two tasks, written nowhere
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.command_line import script_parser
from harness.faults.processes import attempt, without_room, without_root_rights
from harness.faults.workloads import WORKLOADS, doubled, prepare, temporary, warm
from harness.tables import append_row, hardware, read_rows, results_folder, write_page

if TYPE_CHECKING:
    import pandas as pd

KILLS, OTHERS = 200, 10
_MOST_KILLS = 5  # of one run


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = script_parser(__doc__, "one fault of each kind on two tasks")
    parser.add_argument("--kills", type=int, default=KILLS, help="kills in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    return parser.parse_args()


def main() -> None:
    """Disturb each task until it has its share of kills, and write the table."""
    options = arguments()
    table = results_folder("robustness", quick=options.quick) / "faults.csv"
    names = ("detect", "tables") if options.quick else tuple(WORKLOADS)
    warm()
    with tempfile.TemporaryDirectory(prefix="mvpa-ts-faults-") as name:
        folder = Path(name)
        prepare(folder / "inputs")
        for task in names:
            runs = Runs(task, folder, table, options.seed)
            runs.kill(1 if options.quick else -(-options.kills // len(names)))
            runs.fill_the_disk(1 if options.quick else OTHERS)
            runs.forbid_writing(1 if options.quick else OTHERS)
    write_page(table, markdown(read_rows(table)))
    rows = read_rows(table)
    if rows[["lost", "doubled", "different", "unnamed"]].to_numpy().sum():
        raise SystemExit("something was lost: see the table")


class Runs:
    """Disturbed runs of one task, each a row of the table."""

    def __init__(self, task: str, folder: Path, table: Path, seed: int) -> None:
        self.task, self.workload, self.folder, self.table = task, WORKLOADS[task], folder, table
        self.inputs = folder / "inputs"
        rows = read_rows(table)
        self.done = rows[rows["task"] == task] if len(rows) else rows
        self.moments = random.Random(f"{seed} {task} {len(self.done)}")
        undisturbed = attempt(self.workload, self.inputs, folder / f"{task}-whole")
        if undisturbed.status:
            raise SystemExit(f"{task} fails undisturbed: {undisturbed.printed}")
        self.seconds = undisturbed.seconds
        self.expected = self.workload.result(folder / f"{task}-whole")
        self.sizes = [file.stat().st_size for file in (folder / f"{task}-whole").rglob("*") if file.is_file()]

    def kill(self, count: int) -> None:
        """Runs until so many kills have come before the task's end."""
        while self._count("kill -9") < count:
            run = Run(self)
            for _ in range(min(_MOST_KILLS, count - self._count("kill -9"))):
                run.attempt(kill_after=self.moments.uniform(0.0, self.seconds))
                if run.ended:
                    break
            run.finish("kill -9")

    def fill_the_disk(self, count: int) -> None:
        """Runs whose files cannot grow past a random size."""
        while self._count("disk full") < count:
            run = Run(self)
            limit = round(10 ** self.moments.uniform(1.0, len(str(max(self.sizes)))))
            run.attempt(before=without_room(min(limit, max(self.sizes) - 1)))
            run.finish("disk full")

    def forbid_writing(self, count: int) -> None:
        """Runs that are killed, and begun again where the folder may only be read."""
        while self._count("read-only folder") < count:
            run = Run(self)
            run.attempt(kill_after=self.moments.uniform(0.0, self.seconds))
            run.faults = 0
            if run.ended:
                continue
            run.output.mkdir(exist_ok=True)
            folders = [run.output, *(path for path in run.output.rglob("*") if path.is_dir())]
            files = [path for path in run.output.rglob("*") if path.is_file()]
            for path, mode in [*((path, 0o444) for path in files), *((path, 0o555) for path in folders)]:
                path.chmod(mode)
            run.attempt(before=without_root_rights)
            for path, mode in [*((path, 0o755) for path in folders), *((path, 0o644) for path in files)]:
                path.chmod(mode)
            run.finish("read-only folder")

    def _count(self, fault: str) -> int:
        return 0 if not len(self.done) else int(self.done[self.done["fault"] == fault]["faults"].sum())


class Run:
    """One run of a task from its beginning to its end, and what it lost on the way."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.workload = runs, runs.workload
        self.output = Path(tempfile.mkdtemp(prefix=f"{runs.task}-", dir=runs.folder)) / f"{runs.task}-whole"
        self.reported: set[str] = set()
        self.faults = self.lost = self.doubled = self.unnamed = 0
        self.ended = False
        self.start = time.monotonic()

    def attempt(self, **options: Any) -> None:
        """One attempt, and a look into the folder."""
        result = attempt(self.workload, self.runs.inputs, self.output, **options)
        self.ended = not result.killed and result.status == 0
        self.reported |= set(result.reported)
        if not self.ended:
            self.faults += 1
        if not self.ended and not result.killed and not _named(result.printed):
            self.unnamed += 1
            print(f"{self.runs.task}: {result.printed[-2000:]}", flush=True)
        held = list(self.workload.held(self.output))
        self.lost += len(self.reported - set(held))
        self.doubled += doubled(held)

    def finish(self, fault: str) -> None:
        """Let the task end, compare its result and write the row; a run that met no fault has none."""
        if not self.ended:
            faults = self.faults
            self.attempt()
            self.faults = faults
            if not self.ended:
                self.unnamed += 1
        result = self.workload.result(self.output) if self.ended else {}
        expected = self.runs.expected
        different = [name for name in {*result, *expected} if result.get(name) != expected.get(name)]
        if different:
            print(f"{self.runs.task}, {fault}: different are {different}", flush=True)
        row = {
            "task": self.runs.task,
            "fault": fault,
            "faults": self.faults,
            "reported": len(self.reported),
            "lost": self.lost,
            "doubled": self.doubled,
            "different": len(different),
            "unnamed": self.unnamed,
            "left": sum(temporary(file) for file in self.output.rglob("*") if file.is_file()),
            "seconds": round(time.monotonic() - self.start, 1),
            "hardware": hardware(),
        }
        if self.faults:
            append_row(self.runs.table, row)
            rows = read_rows(self.runs.table)
            self.runs.done = rows[rows["task"] == self.runs.task]
        shutil.rmtree(self.output.parent)


def _named(printed: str) -> bool:
    """Whether a failure was an error that names what could not be written, and no traceback."""
    words = ("too large", "Permission denied", "cannot write", "read-only", "readonly", "disk", "unable to open")
    return "Traceback" not in printed and any(word in printed for word in words)


def markdown(rows: pd.DataFrame) -> str:
    """The table of all runs."""
    lines = [
        "| task | fault | runs | faults | reported as saved | lost | doubled | different results "
        "| errors without a name | temporary files left |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    columns = ["faults", "reported", "lost", "doubled", "different", "unnamed", "left"]
    for (task, fault), group in rows.groupby(["task", "fault"], sort=False):
        counts = [len(group), *(int(group[name].sum()) for name in columns)]
        lines.append(f"| {task} | {fault} | {' | '.join(map(str, counts))} |")
    names = " and ".join(sorted(set(rows["hardware"])))
    lines += [
        "",
        "A fault is a kill, or an attempt that had no room or no right to write. After each, everything reported as "
        "saved by then is looked for. Results are compared byte by byte with those of an undisturbed run: of detection "
        "all files; of training the models, the tensors of the checkpoint and of the optimiser, and the last loss; of "
        "the search all finished trials. A kill within a write leaves a hidden temporary file, which nothing reads.",
        "",
        f"{int(rows['seconds'].sum())} s on {names}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
