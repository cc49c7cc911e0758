"""The code in docs/recordings.md runs as printed, and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recordings.md"


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("mne")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    for line in (
        "<Recording night: 12 channels, 120.0 s at 512 Hz, 1 seizure>",
        "ID20 (test) is the same recording as ID01 (train); pass allow_duplicates=True to split anyway",
        "('A1-A2', 'A2-A3')",
        "torch.Size([4, 6, 40960])",
    ):
        assert line in printed
    assert names["signal"].shape == (12, 4 * 2560)
    assert names["labels"].shape == (24,)
    assert names["windows"].shape == (4, 12, 5, 6)
