"""Commands and scripts that the pages on detection name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["detection.md", "patient.md"])
def test_every_command_and_script_on_the_page_exists(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    root = DOCS.parent
    for script in re.findall(r"experiments/[\w/]+\.py", text):
        assert (root / script).is_file(), script
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.MULTILINE), target
    for command in re.findall(r"mvpformer (\w+)", text):
        assert (root / "ieeg" / "commands" / f"{command}.py").is_file(), command
