"""The command lines of docs/pretraining.md are understood, and the formula of scaling is right by hand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from harness.scaling import formulas as scaling_formulas

from mvpa_ts.ieeg.commands.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pretraining.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (mvpformer pretrain .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_command_lines_are_understood(line, capsys):
    _, *arguments = shlex.split(line)
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--print_config"])
    assert not stopped.value.code
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["output"].startswith("runs/")
    assert (config["data"]["simulation"] is None) == ("recordings" in line)


def test_scaling_formula_for_one_token():
    """By hand: MVPFormer-S, one segment and one channel, every layer sees one pair with content."""
    config = scaling_formulas.SIZES["S"]()
    linear = 768 * (768 + 768 + 256 + 256) + 3 * 768 * 1728
    expected = 12 * (6 * linear + 14 * 768) + 6 * 768 * 768 + 4 * 2610 * 768
    assert scaling_formulas.training_flop(config, 1, 1) == pytest.approx(expected)


def test_pairs_are_those_of_the_mask():
    T, C, window = 13, 3, 4
    near = far = 0
    for query in range(T):
        for key in range(query + 1):
            if query - key <= window or query == T - 1:
                near += C * C
            else:
                far += C * C
    assert scaling_formulas.pairs(T, C, window) == (near, far)
