"""The code in docs/detection.md runs as printed, and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "detection.md"


def test_the_page_runs_as_printed(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {"__name__": "docs"}
    with torch.random.fork_rng(devices=[]):
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    for line in (
        "63 [305. 307.] ()",
        "[(0.0, 75.0), (275.0, 280.0)]",
        "[(0.0, 10.0)]",
        "(5.0, 10.0)",
        "0.0 0.0",
        "5.0 0.0",
        "[7.0]",
        "0.5 0.5 1.0",
        "substantial 0",
    ):
        assert line in printed


def test_every_command_and_script_on_the_page_exists():
    text = PAGE.read_text(encoding="utf-8")
    root = PAGE.parents[1]
    for script in re.findall(r"experiments/[\w/]+\.py", text):
        assert (root / script).is_file(), script
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.MULTILINE), target
    for command in re.findall(r"mvpformer (\w+)", text):
        assert (root / "ieeg" / "commands" / f"{command}.py").is_file(), command
