"""Commands and scripts that docs/detection.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "detection.md"


def test_every_command_and_script_on_the_page_exists():
    text = PAGE.read_text(encoding="utf-8")
    root = PAGE.parents[1]
    for script in re.findall(r"experiments/[\w/]+\.py", text):
        assert (root / script).is_file(), script
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.MULTILINE), target
    for command in re.findall(r"mvpformer (\w+)", text):
        assert (root / "ieeg" / "commands" / f"{command}.py").is_file(), command
