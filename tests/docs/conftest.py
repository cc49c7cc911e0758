"""What tests of pages share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable:
    """Run the commands and the code of a page in an empty folder; gives the names that the code made."""

    def run(page: Path) -> dict[str, Any]:
        from mvpa_ts.ieeg.commands.main import main

        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"__name__": "docs"}
        for kind, block in re.findall(r"```(bash|python)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            if kind == "python":
                exec(compile(block, str(page), "exec"), names)
                continue
            for line in block.strip().splitlines():
                command, *arguments = shlex.split(line)
                assert command == "mvpformer"
                assert main(arguments) == 0, capsys.readouterr().err
        return names

    return run
