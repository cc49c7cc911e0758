"""Run interpreted.py in its own process: what is set when a kernel is imported decides whether it is interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def run(marker: str, timeout: float) -> None:
    file = Path(__file__).parents[2] / "support" / "interpreted.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-cov", "-m", marker, str(file)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=file.parents[2], timeout=timeout
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


@pytest.mark.timeout(900)
def test_kernels_under_the_interpreter() -> None:
    run("not slow", 900)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_kernels_under_the_interpreter_in_more_cases() -> None:
    run("slow", 7200)
