"""Names of before: every import of the pages as they were before the move, and every module that a pickle may name."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from mvpa_ts._moved import _MOVED

BEFORE = Path(__file__).parent / "fixtures" / "before_the_move"
# Imports of README.md and docs/ at the last commit before the move.
DOCUMENTED = (BEFORE / "documented_imports.txt").read_text().splitlines()
# Public names of every module at that commit.
NAMES = {
    module: set(names.split())
    for module, names in (line.split(":") for line in (BEFORE / "public_names.txt").read_text().splitlines())
}
# Names that were removed, by module; each stands in the changelog.
REMOVED: dict[str, set[str]] = {
    "mvpa_ts.adapters.neuralforecast.linear_rate": {"LinearRate"},
    "mvpa_ts.classification.training": {"Report"},
    "mvpa_ts.datasets": {"WindowSet"},
    "mvpa_ts.forecast_windows": {"Part"},
    "mvpa_ts.ieeg.agreement": {"NanPolicy"},
    "mvpa_ts.ieeg.command_line": {"command_parser"},
    "mvpa_ts.ieeg.events": {"SEGMENT"},
    "mvpa_ts.ieeg.noise": {"PAPER_SNR"},
    "mvpa_ts.ieeg.report": {"describe_run", "save_detection"},
    "mvpa_ts.ieeg.scoring": {"SCORE_NAMES"},
}


@pytest.mark.parametrize("statement", DOCUMENTED)
def test_documented_import_works(statement):
    names: dict[str, object] = {}
    exec(statement, names)
    (imported,) = ast.parse(statement).body
    assert isinstance(imported, ast.ImportFrom | ast.Import)
    if isinstance(imported, ast.ImportFrom):
        for alias in imported.names:
            value = names[alias.name]
            home = getattr(value, "__module__", None)
            # The same object as in its new module, not a second copy.
            if home:
                assert home not in _MOVED
                assert getattr(importlib.import_module(home), alias.name) is value


@pytest.mark.parametrize("module", NAMES)
def test_public_names_of_a_module_are_found_at_its_old_path(module):
    missing = {name for name in NAMES[module] if not hasattr(importlib.import_module(module), name)}
    assert missing == REMOVED.get(module, set())


def test_new_homes_exist():
    for homes in _MOVED.values():
        for home in homes.split():
            importlib.import_module(home)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)


def test_old_module_warns_once_and_names_the_new_one_and_the_caller():
    code = """
import warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import mvpa_ts.averaging
    from mvpa_ts.averaging import WeightAverage
    from mvpa_ts.ieeg.data import annotations
    from mvpa_ts.ieeg.data.annotations import read_events
messages = [str(warning.message) for warning in caught if warning.category is DeprecationWarning]
assert len(messages) == 2, messages
assert "mvpa_ts.averaging is now mvpa_ts.weight_averaging" in messages[0], messages
assert "mvpa_ts.ieeg.data.annotations is now mvpa_ts.ieeg.recordings.annotations" in messages[1], messages
assert [warning.filename for warning in caught] == ["<string>"] * 2, caught
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_unknown_names_stay_errors():
    result = run_python("import mvpa_ts.averages")
    assert "No module named 'mvpa_ts.averages'" in result.stderr
    with pytest.raises(ImportError, match="nothing_such"):
        from mvpa_ts.averaging import nothing_such  # type: ignore[import-not-found]  # noqa: F401
    with pytest.raises(ImportError, match="nothing_such"):
        from mvpa_ts.ieeg.scoring import nothing_such as _  # noqa: F401


def test_import_of_the_library_loads_no_old_module():
    result = run_python(f"import sys, mvpa_ts, mvpa_ts.ieeg; assert not set({list(_MOVED)!r}) & set(sys.modules)")
    assert result.returncode == 0, result.stderr
