"""The entry point itself."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from mvpa_ts.ieeg.commands import convert, detect, evaluate, plot, simulate, stream
from mvpa_ts.ieeg.commands.main import CommandError, k_of_n


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


@pytest.mark.parametrize("text", ["2of3", "2/3", "2 of 3"])
def test_k_of_n_is_written_either_way(text):
    assert k_of_n(text) == (2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [("1-2", "--alarm must look like 1of2, got '1-2'"), ("3/2", "--alarm: "), ("1/2/3", "--alarm must look like")],
)
def test_a_wrong_alarm_is_named(text, message):
    with pytest.raises(CommandError, match=message):
        evaluate._alarm(text)


@pytest.mark.parametrize("command", [convert, detect, evaluate, plot, simulate, stream])
def test_help_writes_options_with_dashes_and_names_no_class(command, capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = capsys.readouterr().out
    assert "<class" not in text
    assert not re.findall(r"--[\w.-]*_\w*", text)


def test_help_shows_no_empty_default():
    assert "(default: )" not in detect.command_line().format_help()
