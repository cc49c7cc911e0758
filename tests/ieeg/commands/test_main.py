"""The entry point itself."""

import os
import subprocess
import sys
import warnings
from functools import partial

import pytest

from mvpa_ts.ieeg.commands import evaluate
from mvpa_ts.ieeg.commands.main import CommandError, _show_warning, check_model, k_of_n
from mvpa_ts.ieeg.constants import RESEARCH_USE


def test_as_a_module_errors_are_one_line_too():
    """Run by ``python -m``, the module is there twice; commands raise the error of the other one."""
    command = [sys.executable, "-P", "-m", "mvpa_ts.ieeg.commands.main", "detect", "nowhere.edf"]
    command += ["--model", "m", "-o", "x"]
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
        evaluate.main(["nowhere", "--output", "scores", "--alarm", text])


def test_a_reader_that_has_enough_is_no_error():
    """As in ``mvpformer --help | head -1``: the reader closes the pipe before the command writes."""
    command = [sys.executable, "-P", "-m", "mvpa_ts.ieeg.commands.main", "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_reader_that_leaves_in_the_middle_is_no_error():
    """As in ``mvpformer evaluate … | head``: Python forgets what it could not write, and a flush says nothing of it."""
    program = (
        "import sys, types; from mvpa_ts.ieeg.commands import main; module = types.ModuleType('many');"
        "module.main = lambda words: [print('x' * 100) for _ in range(5000)]; main.COMMANDS['many'] = '';"
        "sys.modules['mvpa_ts.ieeg.commands.many'] = module; sys.argv = ['mvpformer', 'many']; sys.exit(main.main())"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-P", "-c", program], **pipes) as process:
        assert process.stdout.readline() == "x" * 100 + "\n"
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, f"{RESEARCH_USE}\n")


def test_a_warning_is_shown_once_whatever_libraries_do_to_filters(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", partial(_show_warning, shown=set()))
    for _ in range(3):
        with warnings.catch_warnings():  # makes Python forget what it showed
            warnings.simplefilter("always")
            warnings.warn("a low rate", stacklevel=1)
    assert capsys.readouterr().err == "mvpformer: a low rate\n"


def test_a_model_that_is_no_folder_is_named_with_what_there_is():
    with pytest.raises(CommandError, match=r"no folder finetuned; .* in DIR/model; .* has demo and demo-base$"):
        check_model("finetuned")
