"""The audit of dropped batches counts what a loader with `drop_last` would."""

from __future__ import annotations

import drop_last
import pandas as pd
import pytest
import torch
from harness.tables import RESULTS
from torch import Tensor, nn

from mvpa_ts.forecasting.errors import evaluate
from mvpa_ts.windows import Windows


class _LastValue(nn.Module):
    def forward(self, x: Tensor, **inputs: Tensor | None) -> Tensor:
        return x[:, -1:].expand(-1, 3, -1)[..., None]


@pytest.mark.parametrize(("batch_size", "kept"), [(1, 37), (8, 32), (37, 37), (38, 0)])
def test_kept_windows_are_those_of_a_loader(batch_size: int, kept: int) -> None:
    loader = torch.utils.data.DataLoader(range(37), batch_size=batch_size, drop_last=True)
    assert drop_last.kept_windows(37, batch_size) == kept == sum(len(batch) for batch in loader)


def test_errors_of_windows_average_to_the_error_of_the_set() -> None:
    values = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    windows = Windows(values, torch.arange(280), lookback=5, horizon=3)
    squared, absolute = drop_last.window_errors(_LastValue(), windows)
    assert len(squared) == 280
    assert (squared.mean().item(), absolute.mean().item()) == pytest.approx(evaluate(_LastValue(), windows), rel=1e-6)
    assert squared[7].item() == pytest.approx((values[12:15] - values[11]).square().mean().item(), rel=1e-6)


def test_committed_table_is_that_of_its_rows() -> None:
    rows = pd.read_csv(RESULTS / "forecasting" / "drop_last.csv")
    assert drop_last.markdown(rows) == (RESULTS / "forecasting" / "drop_last.md").read_text()
    full = rows[rows["batch_size"] == 1]
    assert (full["kept"] == full["windows"]).all()
    assert (rows["windows"] - rows["kept"] < rows["batch_size"]).all()


def test_without_dropping_the_errors_are_those_of_the_forecasting_table() -> None:
    key, errors = ["dataset", "horizon"], ["test_mse", "test_mae"]
    rows = pd.read_csv(RESULTS / "forecasting" / "drop_last.csv").query("batch_size == 1").set_index(key)[errors]
    runs = pd.read_csv(RESULTS / "forecasting" / "forecasting.csv").query(f"model == '{drop_last.MODEL}' and seed == 1")
    pd.testing.assert_frame_equal(rows, runs.set_index(key)[errors].loc[rows.index], rtol=1e-6)
