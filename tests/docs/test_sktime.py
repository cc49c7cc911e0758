"""The code in docs/sktime.md runs as printed: a part of the page in each test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sktime")

PAGE = Path(__file__).parents[2] / "docs" / "sktime.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FORECASTING = [block for block in BLOCKS if "orecaster" in block]
AFTER = [block for block in BLOCKS if block not in FORECASTING]
TUNING = [block for block in AFTER if "optuna" in block or "GridSearchCV" in block]
REGRESSION = [block for block in AFTER if "MVPARegressor" in block]
CLASSIFICATION = [block for block in AFTER if block not in TUNING + REGRESSION]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Runs blocks one after the other; returns all names. Each name of `results` must come from some block."""

    def names_after(blocks: list[str], results: set[str]) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {"__name__": "docs"}
        seen = set()
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
            for name in results & names.keys():
                seen.add(name)
                value = names.pop(name)
                assert len(value) > 1
                assert name in ("labels", "best") or np.isfinite(np.asarray(value, float)).all()
        assert seen == results
        return names

    return names_after


def test_every_block_is_run_once():
    assert len(BLOCKS) == 18
    assert sorted(FORECASTING + CLASSIFICATION + TUNING + REGRESSION) == sorted(BLOCKS)


@pytest.mark.filterwarnings("ignore")
def test_forecasting_runs_as_printed(run: Callable):
    names = run(FORECASTING, {"forecast", "intervals", "quantiles", "best"})
    assert np.isfinite(names["likelihood"]).all(axis=None)


@pytest.mark.filterwarnings("ignore")
def test_classification_runs_as_printed(run: Callable, tmp_path: Path):
    run(CLASSIFICATION, {"labels", "probabilities", "embedding"})
    files = sorted(path.name for path in (tmp_path / "vowels").iterdir())
    assert files == ["channels.json", "classes.json", "classifier.json", "classifier.safetensors"]


@pytest.mark.filterwarnings("ignore")
def test_tuning_runs_as_printed(run: Callable, tmp_path: Path):
    data, *_ = CLASSIFICATION[0].partition("classifier =")
    run([data, *TUNING], {"best", "labels"})
    assert (tmp_path / "classifier.db").exists()


@pytest.mark.filterwarnings("ignore")
def test_regression_runs_as_printed(run: Callable):
    run(["import numpy as np", *REGRESSION], {"numbers"})
