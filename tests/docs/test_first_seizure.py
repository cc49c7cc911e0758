"""The page "Your first seizure in five minutes", executed: its commands, its code, and what they say is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("edfio")
from mvpa_ts.ieeg.commands.main import main

PAGE = Path(__file__).parents[2] / "docs" / "first_seizure.md"


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["bash", "bash", "python"]
    names: dict[str, Any] = {"__name__": "docs"}
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, str(PAGE), "exec"), names)
            continue
        for line in block.strip().splitlines():
            command, *arguments = shlex.split(line)
            assert command == "mvpformer"
            assert main(arguments) == 0, capsys.readouterr().err
    (report,) = (tmp_path / "results").rglob("report.html")
    assert "<svg" in report.read_text(encoding="utf-8") or "<img" in report.read_text(encoding="utf-8")
    assert (report.parent / "events.tsv").is_file()
    ((onset, offset),) = names["recording"].seizures
    assert any(first < offset and last > onset for first, last in names["detection"].events)
