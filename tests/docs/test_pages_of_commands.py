"""Pages of commands: what they name exists, and their commands and code run from top to bottom."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("edfio")
import demo_model
import first_seizure

from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.detection.calibration import load_calibration
from mvpa_ts.ieeg.detection.detection import read_detection

DOCS = Path(__file__).parents[2] / "docs"
FIRST_SEIZURE = DOCS / "first_seizure.md"


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable:
    """Run the commands and the code of a page in an empty folder; gives the names that the code made."""

    def run(page: Path) -> dict[str, Any]:
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


def test_the_first_seizure_is_found_as_printed(tmp_path, run_page):
    text = FIRST_SEIZURE.read_text(encoding="utf-8")
    assert re.findall(r"```(bash|python)\n", text) == ["bash", "bash", "python"]
    names = run_page(FIRST_SEIZURE)
    (report,) = (tmp_path / "results").rglob("report.html")
    assert "<svg" in report.read_text(encoding="utf-8") or "<img" in report.read_text(encoding="utf-8")
    assert (report.parent / "events.tsv").is_file()
    ((onset, offset),) = names["recording"].seizures
    assert any(first < offset and last > onset for first, last in names["detection"].events)


def test_no_model_was_trained_on_the_pages_recordings():
    text = FIRST_SEIZURE.read_text(encoding="utf-8")
    seeds = [int(seed) for seed in re.findall(r"(?:--seed |seed=)(\d+)", text)]
    assert seeds == [first_seizure.PAGE_SEED] * 2 + [seeds[-1]]
    assert seeds[-1] in first_seizure.SEEDS  # the weak one is from the table
    assert demo_model.SEED not in {first_seizure.PAGE_SEED, *first_seizure.SEEDS}
    assert first_seizure.PAGE_SEED not in first_seizure.SEEDS
    assert "S101" in text
    assert demo_model.SUBJECTS < 101


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_the_guide_to_a_detector_of_ones_own_runs_on_made_up_data(tmp_path, run_page):
    page = DOCS / "guides" / "own_detector.md"
    assert len(page.read_text(encoding="utf-8").split()) <= 600
    run_page(page)
    board = (tmp_path / "board" / "board.csv").read_text(encoding="utf-8")
    assert all(name in board for name in ("demo", "line-length", "runs/mine/model", "runs/mine/model: regression"))
    detection = read_detection(tmp_path / "new" / "new")
    assert detection.rules == load_calibration("calibration.json").rules
    assert (tmp_path / "new" / "new" / "onsets.tsv").is_file()


def test_the_classes_of_the_lab_are_told_apart(tmp_path, run_page):
    run_page(DOCS / "lab.md")
    confusion = pd.read_csv(tmp_path / "scores" / "confusion.csv", index_col="true class")
    assert confusion.to_numpy().tolist() == [[12, 0], [0, 12]]
