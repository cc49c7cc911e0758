"""The code of every page and of the README runs from top to bottom, and prints what its comments promise."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
Names = dict[str, Any]


def nothing(names: Names) -> None:
    """For pages whose prints say it all."""


def finite_forecast(names: Names) -> None:
    """A page makes a forecast several times, under the same name: two series, twelve months."""
    if "forecast" in names:
        values = names.pop("forecast").drop(columns=["unique_id", "ds"]).to_numpy()
        assert len(values) == 24
        assert np.isfinite(values).all()


def attention(names: Names) -> None:
    assert names["tokens"].shape == (2, 6, 5, 32)


def classification(names: Names) -> None:
    assert names["probabilities"].shape == (3, 9)
    assert len(names["features"]) == 3
    assert np.isfinite(names["features"]).all()


def explanations(names: Names) -> None:
    assert names["share"].shape == (2,)
    assert (names["share"] > 0).all()
    assert Path("forecast.png").exists()
    assert Path("channels.png").exists()


def neuralforecast(names: Names) -> None:
    assert names["ahead"].values().shape == (12, 2)
    assert set(names["best"]) == {"input_size", "learning_rate"}
    assert Path("automvpa.db").exists()
    assert (names["effects"]["lower"] > 0.0).all()


def pretrained(names: Names) -> None:
    assert np.isfinite(names["months"]).all()
    assert names["intervals"].shape == (12, 2)
    assert names["quantiles"].shape == (1, 48, 3, 9)


def pretraining(names: Names) -> None:
    assert set(names["similarity"].segments["subject"]) == {"S03"}
    assert Path("similarity.png").exists()
    assert Path("model", "model.safetensors").exists()


def recordings(names: Names) -> None:
    assert names["signal"].shape == (12, 4 * 2560)
    assert names["labels"].shape == (24,)
    assert names["windows"].shape == (4, 12, 5, 6)


def recipes(names: Names) -> None:
    for name in ("forecast", "carried_on", "placed_forecast", "priced_forecast", "counted"):
        assert len(names[name]) == 48
        assert np.isfinite(names[name].drop(columns=["unique_id", "ds"]).to_numpy()).all()
    assert Path("forecast.png").exists()
    # The season repeated is what pandas gives when each series is shifted by a day.
    panel, tested = names["panel"], names["tested"].set_index(["unique_id", "ds"])
    shifted = panel.assign(naive=panel.groupby("unique_id")["y"].shift(24)).set_index(["unique_id", "ds"])
    np.testing.assert_allclose(tested["naive"], shifted["naive"].reindex(tested.index), rtol=1e-6)
    assert len(tested) == 48
    # What the price does is known, and what the panel does without it.
    change = names["priced_forecast"]["MVPA-median"] - names["forecast"]["MVPA-median"] + 2.0 * names["ahead"]["price"]
    assert change.abs().mean() < 0.5
    sold = names["sold"].merge(names["plan"])
    assert (sold["MVPA-median"] - 50.0 - 40.0 * sold["promotion"]).abs().max() < 5.0
    assert sold["promotion"].sum() >= 2
    assert (names["counted"].filter(like="MVPA") >= 0.0).all(axis=None)
    assert names["intervals"].shape == (12, 8)


SKTIME = {"forecast", "intervals", "quantiles", "best", "labels", "probabilities", "embedding", "numbers"}


def finite_results(names: Names) -> None:
    """What a block computes is finite; each name is made by several blocks."""
    names.setdefault("seen", set()).update(SKTIME & names.keys())
    for name in SKTIME & names.keys():
        value = names.pop(name)
        assert len(value) > 1
        assert name in ("labels", "best") or np.isfinite(np.asarray(value, float)).all()


def sktime(names: Names) -> None:
    assert names["seen"] == SKTIME
    assert np.isfinite(names["likelihood"]).all(axis=None)
    files = sorted(path.name for path in Path("vowels").iterdir())
    assert files == ["channels.json", "classes.json", "classifier.json", "classifier.safetensors"]
    assert Path("classifier.db").exists()


def sweeps(names: Names) -> None:
    assert len(names["forecaster"].predict()) == 24
    assert set(names["trials"]["state"]) <= {"COMPLETE", "PRUNED"}
    assert len(names["trials"]) == 4
    assert Path("sweep.sqlite").exists()


@dataclass(frozen=True)
class Page:
    """What a page needs, how many blocks it has, and what holds at its end and after each block.

    `prints` are lines of its output, where the comments behind a print are not all of them as they are printed.
    """

    blocks: int
    at_the_end: Callable[[Names], None] = nothing
    after_each: Callable[[Names], None] = nothing
    needs: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()


PAGES = {
    "attention.md": Page(2, attention),
    "classification.md": Page(1, classification, needs=("sktime",)),
    "detection.md": Page(
        5,
        needs=("edfio",),
        prints=(
            "63 [305. 307.] ()",
            "[(0.0, 75.0), (275.0, 280.0)]",
            "[(0.0, 10.0)]",
            "(5.0, 10.0)",
            "0.0 0.0",
            "5.0 0.0",
            "[7.0]",
            "0.5 0.5 1.0",
            "substantial 0",
        ),
    ),
    "forecasting.md": Page(3),
    "guides/explanations.md": Page(2, explanations, needs=("neuralforecast", "captum", "matplotlib")),
    "guides/recipes.md": Page(12, recipes, needs=("neuralforecast", "sktime", "mne", "matplotlib")),
    "guides/sweeps.md": Page(1, sweeps, needs=("neuralforecast",)),
    "mvpformer.md": Page(6, needs=("peft",)),
    "neuralforecast.md": Page(15, neuralforecast, finite_forecast, needs=("neuralforecast", "darts")),
    "pretrained.md": Page(5, pretrained, finite_forecast, needs=("neuralforecast",)),
    "pretraining.md": Page(2, pretraining, needs=("lightning",), prints=("interictal",)),
    "recordings.md": Page(
        5,
        recordings,
        needs=("mne",),
        prints=(
            "<Recording night: 12 channels, 120.0 s at 512 Hz, 1 seizure>",
            "ID20 (test) is the same recording as ID01 (train); pass allow_duplicates=True to split anyway",
            "('A1-A2', 'A2-A3')",
            "torch.Size([4, 6, 40960])",
        ),
    ),
    "sktime.md": Page(18, sktime, finite_results, needs=("sktime", "optuna")),
}
# Run by tests of their own, which also give their command lines; or on GPUs and clusters only.
ELSEWHERE = {"first_seizure.md", "guides/own_detector.md", "kernels_hub.md", "lab.md", "scaling.md"}


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PAGES)
def test_the_page_runs_as_printed(name, tmp_path, monkeypatch, capsys):
    page, blocks = PAGES[name], blocks_of(name)
    for package in page.needs:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert len(blocks) == page.blocks
    names: Names = {"__name__": "docs"}
    promised = list(page.prints)
    pattern = r"^ *print\(.*\)  # (.*)$"
    with torch.random.fork_rng(devices=[]):
        for block in blocks:
            if not page.prints:
                promised += re.findall(pattern, block, re.MULTILINE)
            exec(compile(block, name, "exec"), names)
            page.after_each(names)
    printed = capsys.readouterr().out
    assert [line for line in promised if line not in printed] == []
    page.at_the_end(names)


def test_every_page_with_code_is_run():
    # The site's own copies, and pages that it makes of the code, are no pages of ours.
    pages = [
        page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in ("tables", "api", "examples")
    ]
    with_code = {page.relative_to(DOCS).as_posix() for page in pages if blocks_of(str(page))}
    assert with_code == {*PAGES, *ELSEWHERE}


README = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def run_readme(tmp_path, monkeypatch, capsys):
    """What a block of the README prints, run in an empty folder."""
    names = {"__name__": "readme"}

    def printed(block: str) -> str:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        exec(compile(block, "README.md", "exec"), names)
        return capsys.readouterr().out

    return printed


def test_the_readme_forecasts(run_readme):
    pytest.importorskip("neuralforecast")
    with pd.option_context("display.max_columns", None):
        untrained, trained = run_readme(README[0]), run_readme(README[1])  # the second goes on from the first
    for printed in (untrained, trained):
        for column in ("MVPA-median", "MVPA-lo-80", "MVPA-hi-80"):
            assert column in printed
        assert "[24 rows" in printed or len(re.findall(r"Airline\d", printed)) == 24


def test_the_readme_detects(run_readme, tmp_path):
    pytest.importorskip("mne")
    (promised,) = re.findall(r"# (\[.*\])", README[2])
    assert run_readme(README[2]).splitlines()[-1] == promised
    assert (tmp_path / "seizure.png").stat().st_size > 1000
