"""The entry point itself."""

from __future__ import annotations

import subprocess
import sys


def test_as_a_module_errors_are_one_line_too():
    """Run by ``python -m``, the module is there twice; commands raise the error of the other one."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "mvpa_ts.ieeg.commands.main",
        "detect",
        "nowhere.edf",
        "--model",
        "m",
        "-o",
        "x",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "mvpformer detect: no file or folder nowhere.edf"
    assert "Traceback" not in result.stderr
