"""Every script has a quick form, which `make test` runs, on made-up data where there are no others."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.command_line import script_parser
from support import made_up_data
from support.library import ROOT, imported_packages

from mvpa_ts.datasets.forecasting import FORECASTING_DATASETS, forecasting_windows, load_forecasting_frame

ROOMS = ("attention", "forecasting", "ieeg", "shipped")
SCRIPTS = sorted(path for room in ("", *ROOMS) for path in (ROOT / "experiments" / room).glob("*.py"))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_runs_every_script_of_the_folder():
    command = ["make", "--dry-run", "smoke"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert {*re.findall(r"\S+\.py", shown.partition("quick_runs.py")[2])} == {
        str(path.relative_to(ROOT)) for path in SCRIPTS
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_runs_quickly_and_imports_no_other(path):
    text = path.read_text(encoding="utf-8")
    assert '"--quick"' in text or "script_parser(__doc__" in text
    assert 'if __name__ == "__main__":\n    main()\n' in text
    assert imported_packages(path).isdisjoint(script.stem for script in SCRIPTS)


def test_the_parser_of_the_scripts_has_a_quick_form(capsys):
    parser = script_parser("Measure.\n\n    python measure.py", "two steps")
    assert parser.parse_args(["--quick"]).quick
    assert not parser.parse_args([]).quick
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "Measure.\n\n    python measure.py" in shown
    assert "two steps" in shown


def test_scripts_that_import_each_other_are_seen(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def main():\n    import forecasting as f\n    from classification.report import x\n")
    assert imported_packages(script) == {"forecasting", "classification"}


def test_shared_code_has_no_main_and_imports_no_script():
    for path in (ROOT / "experiments" / "harness").rglob("*.py"):
        assert "__main__" not in path.read_text(encoding="utf-8"), path
        assert imported_packages(path).isdisjoint(script.stem for script in SCRIPTS), path


def test_results_lie_in_the_folder_of_their_subject():
    command = ["git", "ls-files", "experiments/results"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    paths = [Path(line).relative_to("experiments/results") for line in tracked.stdout.splitlines()]
    assert {len(path.parts) for path in paths if path.name != "README.md"} == {2}


def test_made_up_data_has_every_set(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)  # nothing is downloaded
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path))
    made_up_data.write(tmp_path)
    for name in FORECASTING_DATASETS:
        windows = forecasting_windows(load_forecasting_frame(name), name, lookback=96, horizon=720)
        assert all(len(part) for part in windows.values())
