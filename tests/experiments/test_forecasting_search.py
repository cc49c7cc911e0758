"""The search of settings: what it compares, that it goes on where it stopped, and that it never reads the test part."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import forecasting_search
import numpy as np
import pandas as pd
import pytest
import torch
from forecasting_search import REFERENCE, change, markdown, ranked, search, suggested, two_digits
from harness.forecasting import blocks as harness_blocks
from harness.forecasting.models import configured
from harness.forecasting.settings import SEARCHED_SETTINGS, SETTINGS_OF_A_HORIZON, SETTINGS_OF_BLOCKS
from harness.tables import RESULTS, read_rows
from optuna.trial import FixedTrial

FORECASTING = RESULTS / "forecasting"


def test_every_channel_counts_the_same() -> None:
    reference = torch.tensor([[1.0, 100.0], [1.0, 10.0]])  # MSE, MAE; two channels
    errors = torch.tensor([[1.1, 100.0], [1.0, 9.0]])
    assert change(errors, reference, (96, None)) == pytest.approx((10.0 + 0.0 + 0.0 - 10.0) / 4, abs=1e-4)
    assert change(torch.tensor([[1.0, 102.0], [1.0, 10.0]]), reference, (96, None)) == pytest.approx(0.5, abs=1e-4)


def test_in_a_block_the_errors_are_those_of_the_benchmark() -> None:
    reference = torch.tensor([[1.0, 99.0], [1.0, 9.0]])
    errors = torch.tensor([[2.0, 99.0], [1.0, 8.0]])
    assert change(errors, reference, (96, 0)) == pytest.approx((1.0 - 10.0) / 2, abs=1e-4)


@pytest.mark.parametrize(("in_blocks", "horizon"), [(False, None), (True, None), (True, 192)])
def test_goes_on_where_it_stopped_and_never_reads_test(
    in_blocks: bool, horizon: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dates = pd.date_range("2016", periods=17420, freq="h")
    values = np.random.default_rng(0).standard_normal((len(dates), 2))
    values[11520:] = np.nan  # the test part
    frame = pd.DataFrame(values, columns=["a", "b"]).assign(date=dates)[["date", "a", "b"]]
    whole, train = forecasting_search.forecasting_windows, forecasting_search.train
    trained: list[int] = []

    def without_test(*arguments, **options):
        windows = whole(*arguments, **options)
        del windows["test"]
        return windows

    def counted(*arguments, **options):
        trained.append(1)
        return train(*arguments, **options)

    for module in (forecasting_search, harness_blocks):
        monkeypatch.setattr(module, "load_forecasting_frame", lambda name: frame)
    monkeypatch.setattr(forecasting_search, "forecasting_windows", without_test)
    monkeypatch.setattr(forecasting_search, "train", counted)
    table = tmp_path / "search.csv"
    first = search(table, "ETTh1", 2, in_blocks=in_blocks, horizon=horizon, quick=True)
    rows = read_rows(table)
    assert list(rows["trial"]) == [REFERENCE, 0, 1]
    assert ("block" in rows) == in_blocks
    assert rows["mse"].notna().all()
    assert f"{horizon or 96}, seed" in markdown(rows)
    assert len(trained) == 3
    second = search(table, "ETTh1", 3, in_blocks=in_blocks, horizon=horizon, quick=True)
    pd.testing.assert_frame_equal(read_rows(table).iloc[:3], rows)
    assert len(trained) == 4
    assert [trial.params for trial in second.trials[:2]] == [trial.params for trial in first.trials[:2]]
    assert [trial.value for trial in second.trials[:2]] == [trial.value for trial in first.trials[:2]]
    assert second.trials[2].params != second.trials[1].params
    third = search(table, "ETTh1", 5, in_blocks=in_blocks, horizon=horizon, quick=True)
    assert len({json.dumps(trial.params) for trial in third.trials}) == 5


def test_rates_are_short_numbers() -> None:
    assert two_digits(0.0123456) == 0.012


@pytest.mark.parametrize("table", sorted(FORECASTING.glob("forecasting_search_*.csv")), ids=lambda path: path.stem)
def test_committed_tables_are_made_of_the_committed_rows(table: Path) -> None:
    assert markdown(read_rows(table)) == table.with_suffix(".md").read_text()


SEARCHES = [(dataset, "", known) for dataset, known in SEARCHED_SETTINGS.items()]
SEARCHES += [(dataset, "_blocks", known) for dataset, known in SETTINGS_OF_BLOCKS.items()]
SEARCHES += [
    (dataset, f"_{horizon}", known)
    for dataset, of_each in SETTINGS_OF_A_HORIZON.items()
    for horizon, known in of_each.items()
]


@pytest.mark.parametrize(("dataset", "suffix", "known"), SEARCHES)
def test_the_best_of_the_search_is_that_of_the_table(dataset: str, suffix: str, known: dict[str, Any]) -> None:
    best = ranked(read_rows(FORECASTING / f"forecasting_search_{dataset}{suffix}.csv"))[0][1]
    arguments = json.loads(best["arguments"].iloc[0])
    settings = suggested(FixedTrial(arguments), dataset, in_blocks=bool(suffix))
    frames: list[dict[str, Any]] = []
    for whole in (known, settings):
        _, training, network = configured(dataset, 96, 7, whole)
        frames.append({**asdict(training), **network})
    for name, value in frames[0].items():
        assert value == (pytest.approx(frames[1][name], rel=1e-2) if isinstance(value, float) else frames[1][name])
