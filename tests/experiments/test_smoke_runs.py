"""Every script that has a quick form is run by `make test`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_quick_runs_are_those_of_the_scripts_that_have_one() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    demos = re.search(r"^DEMOS := (.*?)\)\)$", makefile, re.DOTALL | re.MULTILINE)
    assert demos
    quick = {path.name for path in (ROOT / "experiments").glob("*.py") if '"--quick"' in path.read_text("utf-8")}
    assert set(re.findall(r"\w+\.py", demos[1])) == quick
