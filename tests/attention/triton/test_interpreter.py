"""Run interpreted.py in its own process: what is set when a kernel is imported decides whether it is interpreted."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

# So many that each takes a few seconds.
SHARES = 29
Run = Callable[[str, int, int], str]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Get what pytest prints for a share of the tests, all of which must pass."""
    file = Path(__file__).parents[2] / "support" / "interpreter_worker.py"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        cwd=file.parents[2],
    ) as worker:  # fmt: skip
        assert worker.stdin is not None
        assert worker.stdout is not None

        def ask(marker: str, number: int, shares: int) -> str:
            print(json.dumps([marker, number, shares]), file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
            assert answer, f"the worker ended with status {worker.poll()}"
            status, printed = json.loads(answer)
            assert status == 0, printed[-8000:]
            return printed

        yield ask
        worker.stdin.close()


@pytest.mark.parametrize("share", range(SHARES))
def test_kernels_under_the_interpreter(share, run):
    assert " passed" in run("not slow", share, SHARES)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_kernels_under_the_interpreter_in_more_cases(run):
    assert " passed" in run("slow", 0, 1)
