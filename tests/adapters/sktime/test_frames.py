"""Time indices as grids, and their position in a cycle."""

from __future__ import annotations

import pandas as pd
import pytest

pytest.importorskip("sktime")

from mvpa_ts.adapters.sktime.frames import frequency_of, position_of, regular


class TestTimeline:
    def test_grids(self):
        dates = pd.DatetimeIndex(["2024-01-01", "2024-02-01", "2024-05-01"])
        month = frequency_of(pd.date_range("2024-01-01", periods=3, freq="MS"))
        assert len(regular(dates, dates[-1], month)) == 5
        assert regular(dates, dates[-1], None) is dates
        assert regular(dates, dates[-1], pd.offsets.MonthEnd()) is dates  # on another grid
        assert regular(pd.Index([3, 5, 6]), 8, None).tolist() == [3, 4, 5, 6, 7, 8]

    @pytest.mark.parametrize(("freq", "rows"), [("D", 20), ("2D", 20), ("h", 100), ("W-SUN", 9)])
    @pytest.mark.parametrize("begin", ["2024-03-24", "2024-10-20"])
    def test_days_with_gaps_are_counted_by_the_clock(self, freq, rows, begin):
        """Clocks change on 31 March and on 27 October."""
        dates = pd.date_range(begin, periods=rows, freq=freq, tz="Europe/Zurich")
        for absent in ([3, 4], [6]):
            index = pd.DatetimeIndex(dates.delete(absent), freq=None)
            assert regular(index, index[-1], frequency_of(index)).equals(dates)

    @pytest.mark.parametrize(
        ("index", "phase"),
        [
            (pd.period_range("1970-03", periods=2, freq="M"), 2),
            (pd.date_range("1970-03-01", periods=2, freq="MS"), 2),
            (pd.date_range("1970-01-02 05:00", periods=2, freq="h"), 29),
            (pd.period_range("1970-01-01 01:00", periods=2, freq="15min"), 4),
            (pd.RangeIndex(7, 9), 7),
            (pd.bdate_range("1970-01-12", periods=4), 7),
            (pd.bdate_range("1970-01-12", periods=4, tz="Pacific/Auckland"), 7),
            (pd.DatetimeIndex(["1970-01-11", "1970-01-15", "1970-01-16"]), 10),
            (pd.DatetimeIndex(["2024-01-01", "2024-01-05 05:00", "2024-01-06"]), 0),
        ],
    )
    def test_position(self, index, phase):
        assert position_of(index, frequency_of(index)) == phase
