"""Kill tasks at random moments or fill their disk: nothing is lost that they reported as saved (`make faults`).

Each run begins a task, kills it with signal 9 at a random moment, begins it again, and so on until it has ended by
itself. After each fault everything that the task had reported as saved must be in its folder, once. At the end every
byte of the result must be that of an undisturbed run. A kill within a write may leave a hidden temporary file, which
nothing reads. MVPA_TS_KILLS says how often each task is killed: 5 times by default, 40 in `make faults`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("lightning")
pytest.importorskip("neuralforecast")

from faults.processes import Ended, attempt, without_room, without_root_rights
from faults.workloads import WORKLOADS, Workload, doubled, prepare, warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("MVPA_TS_KILLS", "5"))
OTHERS = max(1, KILLS // 4)
MOST_KILLS = 5  # of one run
NAMING = ("too large", "Permission denied", "cannot write", "read-only", "readonly", "disk", "unable to open")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warm()
    folder = tmp_path_factory.mktemp("inputs")
    prepare(folder)
    return folder


class Task:
    """A task, how long it takes undisturbed, and what it then leaves."""

    def __init__(self, name: str, inputs: Path, folder: Path) -> None:
        self.workload: Workload = WORKLOADS[name]
        self.inputs, self.folder, self.runs = inputs, folder, 0
        self.moments = random.Random(name)
        whole = folder / "undisturbed" / "output"
        ended = attempt(self.workload, inputs, whole)
        assert ended.status == 0, ended.printed
        self.seconds, self.expected = ended.seconds, self.workload.result(whole)
        self.largest = max(file.stat().st_size for file in whole.rglob("*") if file.is_file())

    def run(self) -> Run:
        """A new run in a folder of its own."""
        self.runs += 1
        return Run(self, self.folder / f"run{self.runs}" / "output")


class Run:
    """One run of a task from its beginning to its end."""

    def __init__(self, task: Task, output: Path) -> None:
        self.task, self.output = task, output
        self.reported: set[str] = set()
        self.ended = False

    def attempt(self, **disturbance: object) -> Ended:
        """One attempt, and a look for all that was reported as saved so far."""
        ended = attempt(self.task.workload, self.task.inputs, self.output, **disturbance)  # type: ignore[arg-type]
        self.ended = not ended.killed and ended.status == 0
        if not self.ended and not ended.killed:
            assert "Traceback" not in ended.printed
            assert any(word in ended.printed for word in NAMING), ended.printed
        self.reported |= set(ended.reported)
        held = list(self.task.workload.held(self.output))
        assert self.reported <= set(held), "something that was reported as saved is lost"
        assert not doubled(held), "something is there twice"
        return ended

    def finish(self) -> None:
        """Let the task end; its result must be that of an undisturbed run."""
        if not self.ended:
            ended = self.attempt()
            assert self.ended, ended.printed
        assert self.task.workload.result(self.output) == self.task.expected


@pytest.fixture(scope="module", params=WORKLOADS)
def task(request: pytest.FixtureRequest, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Task:
    return Task(request.param, inputs, tmp_path_factory.mktemp(request.param))


def test_kills(task):
    kills = 0
    while kills < KILLS:
        run = task.run()
        for _ in range(min(MOST_KILLS, KILLS - kills)):
            run.attempt(kill_after=task.moments.uniform(0.0, task.seconds))
            if run.ended:
                break
            kills += 1
        run.finish()


def test_a_full_disk(task):
    for _ in range(OTHERS):
        run = task.run()
        limit = round(10 ** task.moments.uniform(1.0, len(str(task.largest))))
        run.attempt(before=without_room(min(limit, task.largest - 1)))
        run.finish()


def test_a_folder_that_may_not_be_written_to(task):
    refused = 0
    while refused < OTHERS:
        run = task.run()
        run.attempt(kill_after=task.moments.uniform(0.0, task.seconds))
        if run.ended:
            continue
        run.output.mkdir(exist_ok=True, parents=True)
        folders = [run.output, *(path for path in run.output.rglob("*") if path.is_dir())]
        files = [path for path in run.output.rglob("*") if path.is_file()]
        for path in (*files, *folders):
            path.chmod(0o555 if path in folders else 0o444)
        run.attempt(before=without_root_rights)
        for path in (*folders, *files):
            path.chmod(0o755 if path in folders else 0o644)
        run.finish()
        refused += 1
