"""The code in docs/mvpformer.md runs as printed, and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "mvpformer.md"


def test_the_page_runs_as_printed(capsys):
    pytest.importorskip("peft")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "docs"}
    expected = []
    with torch.random.fork_rng(devices=[]):
        for block in blocks:
            expected += re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
            exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(expected) == 7
    assert [line for line in expected if line not in printed] == []
