"""Blocked cross-validation: no row of a block is trained on, none of the test part is touched."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from forecasting_choices import (
    AFTER_SEARCH,
    BASE,
    BEFORE,
    FOUND,
    changed,
    markdown,
    markdown_after_search,
)
from harness.forecasting import blocks as harness_blocks
from harness.forecasting.blocks import BLOCKS, blocks, thinned
from harness.forecasting.models import mvpa
from harness.tables import RESULTS, read_rows

from mvpa_ts.windows import Windows

FORECASTING = RESULTS / "forecasting"


@pytest.mark.parametrize(("dataset", "rows", "stop"), [("ETTh1", 17420, 11520), ("Weather", 5000, 4000)])
def test_blocks_are_forecast_by_what_lies_outside(
    monkeypatch: pytest.MonkeyPatch, dataset: str, rows: int, stop: int
) -> None:
    dates = pd.date_range("2016", periods=rows, freq="h")
    frame = pd.DataFrame({"date": dates, "x": np.random.default_rng(0).standard_normal(rows)})
    monkeypatch.setattr(harness_blocks, "load_forecasting_frame", lambda name: frame)
    folds = blocks(dataset, 24)
    assert len(folds) == BLOCKS
    forecast_rows: list[int] = []
    for fold in folds:
        forecast = {row for start in fold["validation"].starts.tolist() for row in range(start + 96, start + 120)}
        trained = {row for start in fold["train"].starts.tolist() for row in range(start, start + 120)}
        assert not forecast & trained
        assert max(forecast | trained) < stop
        assert max(forecast) - min(forecast) + 1 == len(forecast)
        mean = fold["train"].values[sorted(set(range(stop)) - set(range(min(forecast), max(forecast) + 1)))].mean()
        assert abs(mean) < 0.02  # but for the rows that the block's first window looks back on
        forecast_rows += sorted(forecast)
    assert forecast_rows == list(range(96, stop))  # every row that has a look-back, once


def test_thinning_keeps_every_so_many_th_window(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"date": pd.date_range("2016", periods=17420, freq="h"), "x": np.arange(17420.0)})
    monkeypatch.setattr(harness_blocks, "load_forecasting_frame", lambda name: frame)
    fold = blocks("ETTh2", 96)[1]
    thin = thinned(fold, (3, 12))
    assert thin["train"].starts.tolist() == fold["train"].starts.tolist()[::3]
    assert thin["validation"].starts.tolist() == fold["validation"].starts.tolist()[::12]


def test_table_gives_the_mean_change_in_percent() -> None:
    runs = [
        ("ETTh1", change, 96, block, mse, 1.0)
        for block, (base, other) in enumerate([(1.0, 1.1), (2.0, 1.8), (4.0, 4.0), (0.5, 0.55)])
        for change, mse in ((BASE, base), ("no change", other))
    ]
    rows = pd.DataFrame(runs, columns=["dataset", "change", "horizon", "block", "mse", "mae"])
    text = markdown(rows.assign(hardware="some"))
    assert "| no change | +2.50 / +0.00 |" in text  # (+10 − 10 + 0 + 10) / 4
    assert f"| {BASE} | +0.00 / +0.00 |" in text


def test_after_the_search_each_horizon_has_a_column() -> None:
    runs = [
        (name, horizon, block, mse * (1.0 + block), 2.0)
        for block in range(BLOCKS)
        for name, horizon, mse in ((BEFORE, 96, 1.0), (BEFORE, 336, 2.0), ("5 epochs", 96, 0.9), ("5 epochs", 336, 2.1))
    ]
    rows = pd.DataFrame(runs, columns=["change", "horizon", "block", "mse", "mae"])
    text = markdown_after_search(rows.assign(dataset="ETTh1", hardware="some"))
    assert "| change | 96 | 336 | mean |" in text
    assert "| 5 epochs | -10.00 / +0.00 | +5.00 / +0.00 | -2.50 / +0.00 |" in text


def test_committed_tables_are_made_of_the_committed_rows() -> None:
    after = read_rows(FORECASTING / "forecasting_choices_after_search.csv")
    assert markdown_after_search(after) == (FORECASTING / "forecasting_choices_after_search.md").read_text()
    assert (
        markdown(read_rows(FORECASTING / "forecasting_choices.csv"))
        == (FORECASTING / "forecasting_choices.md").read_text()
    )


@pytest.mark.parametrize(("dataset", "name"), [("ETTh1", "5 epochs, a quarter (chosen)"), ("ETTh2", BEFORE)])
def test_the_row_of_the_present_settings_has_them(dataset: str, name: str) -> None:
    windows = Windows(torch.zeros(10, 7), torch.arange(2), 4, 4)
    *_, training, settings = changed(dataset, 96, windows, FOUND[dataset], AFTER_SEARCH[dataset][name])
    _, present, network = mvpa(dataset, 96, 7, {})
    assert training == present
    assert settings == {**network, "masked": False}
