"""The command lines of docs/pretraining.md are understood, and the formula of docs/scaling.md gives its table."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.model.configuration import mvpformer_m, mvpformer_s

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


@pytest.mark.parametrize(("column", "config"), enumerate([mvpformer_s(), mvpformer_m()], 2))
def test_the_formula_of_scaling_gives_the_table(column, config):
    """Operations of a training step by docs/scaling.md, pairs counted one by one."""
    table = (DOCS.parent / "experiments/results/scaling/scaling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) × (\d+) \| [\d,]+ \|.*MFLOP.*$", table, re.MULTILINE)
    assert len(rows) == 5
    D, kv = config.dim, config.num_kv_heads * config.dim // config.num_heads
    for T, C in ((int(T), int(C)) for T, C in rows):
        pairs = [q - k <= config.window or q == T - 1 for q in range(T) for k in range(q + 1)]
        near, far = C * C * sum(pairs), C * C * (len(pairs) - sum(pairs))
        layer = T * C * 6 * D * (2 * D + 2 * kv + 3 * config.mlp_dim) + D * (14 * near + 6 * far)
        total = T * C * D * (4 * 2610 + 6 * D) + config.num_layers * layer
        cells = re.search(rf"^\| {T} × {C} \|(.*)$", table, re.MULTILINE)[1].split("|")
        assert cells[column - 1].split()[0] == f"{total / (T * C) / 1e6:,.0f}"
