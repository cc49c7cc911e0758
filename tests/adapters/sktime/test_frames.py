"""Time indices as grids, and their position in a cycle."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from pandas.tseries import frequencies, offsets

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.adapters.sktime.frames import frequency_of, index_ahead, position_of, positions_of, regular


def _has(alias: str) -> bool:
    """Whether this pandas has the alias: half years came with 3.0."""
    try:
        frequencies.to_offset(alias)
    except ValueError:
        return False
    return True


_ALIASES = [
    *("YS", "YE", "BYS", "BYE", "HYS", "HYE", "BHYS", "BHYE", "QS", "QE", "BQS", "BQE", "QS-FEB", "YE-JUN", "MS", "ME"),
    *("BMS", "BME", "CBMS", "CBME", "SMS", "SME", "W", "W-WED", "WOM-2TUE", "B", "C", "D", "h", "min", "s", "ms", "us"),
    *("ns", "bh", "cbh"),
]
_OFFSETS = {name: lambda n, name=name: frequencies.to_offset(f"{n}{name}") for name in _ALIASES if _has(name)} | {
    "LastWeekOfMonth": partial(offsets.LastWeekOfMonth, weekday=2),
    "FY5253": partial(offsets.FY5253, weekday=4, startingMonth=8, variation="nearest"),
    "FY5253, last": partial(offsets.FY5253, weekday=4, startingMonth=12, variation="last"),
    "FY5253Quarter": partial(offsets.FY5253Quarter, weekday=4, startingMonth=1, qtr_with_extra_week=4),
    "Easter": offsets.Easter,
    "Week": offsets.Week,
    "holidays": partial(offsets.CustomBusinessDay, holidays=["2020-01-01"], weekmask="Mon Tue Wed Sat"),
    "two shifts": partial(offsets.BusinessHour, start=["09:30", "13:00"], end=["12:30", "17:00"]),
    "nights": partial(offsets.BusinessHour, start="20:00", end="04:00"),
    "DateOffset": pd.DateOffset,
    "DateOffset of months": partial(pd.DateOffset, months=3),
    "DateOffset of years": partial(pd.DateOffset, years=1),
    "DateOffset of weeks": partial(pd.DateOffset, weeks=2),
    "DateOffset of hours": partial(pd.DateOffset, hours=6),
}


class TestTimeline:
    def test_grids(self):
        dates = pd.DatetimeIndex(["2024-01-01", "2024-02-01", "2024-05-01"])
        month = frequency_of(pd.date_range("2024-01-01", periods=3, freq="MS"))
        assert len(regular(dates, dates[-1], month)) == 5
        assert regular(dates, dates[-1], None) is dates
        assert regular(dates, dates[-1], pd.offsets.MonthEnd()) is dates  # on another grid
        assert regular(pd.Index([3, 5, 6]), 8, None).tolist() == [3, 4, 5, 6, 7, 8]

    @pytest.mark.parametrize("months", [1, 3, 12])
    def test_months_from_any_day(self, months):
        dates = pd.date_range("2024-01-15", periods=9, freq=pd.DateOffset(months=months))
        for index in (dates, dates.delete(4)):
            index = pd.DatetimeIndex(index, freq=None)
            assert regular(index, index[-1], frequency_of(index)).equals(dates)

    @pytest.mark.parametrize("freq", ["2B", "3B", "2MS", "2QE", "2YS", "W-TUE", "2D", "D", "2h"])
    def test_every_nth_step(self, freq):
        """Of dates alone and with gaps; right are the dates that pandas goes on to."""
        dates = pd.date_range("2021-01-05" if freq == "W-TUE" else "2021-01-01", periods=45, freq=freq)
        for index in (pd.DatetimeIndex(dates[:40], freq=None), dates[:40].delete([5, 17, 18])):
            assert regular(index, index[-1], frequency_of(index)).equals(dates[:40])
            assert index_ahead(index[-1:], frequency_of(index), 5).equals(dates[40:])

    def test_months_with_days(self):
        """Of which pandas counts one too few ahead where a month ends."""
        step, dates = pd.DateOffset(months=1, days=1), [pd.Timestamp("2005-05-27")]
        for _ in range(14):
            dates.append(dates[-1] + step)
        assert [*index_ahead(pd.DatetimeIndex(dates[:1]), step, 14)] == dates[1:]

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
            (pd.DatetimeIndex(["2024-01-01", "2024-01-05 05:00", "2024-01-06"]), None),
        ],
    )
    def test_position(self, index, phase):
        assert position_of(index, frequency_of(index)) == phase

    @pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
    @pytest.mark.parametrize("multiple", [1, 3])
    @pytest.mark.parametrize("kind", _OFFSETS)
    def test_each_step_of_each_offset_of_pandas_is_one_position(self, kind, multiple, zone):
        """The grids are those of pandas."""
        offset = _OFFSETS[kind](multiple)
        starts = ["1965-05-03 05:00", "2019-12-30"] if zone is None else ["2025-05-01"]  # no clock changes in a summer
        for start in starts:
            rows = 16 if zone is None or not isinstance(offset, pd.offsets.Tick) else 8
            index = pd.date_range(start, periods=rows, freq=offset, tz=zone)
            positions = [position_of(index[row:], offset) for row in range(rows)]
            assert np.diff(positions).tolist() == [1] * (rows - 1)

    @pytest.mark.parametrize("freq", ["Y", "Q-FEB", "M", "W-WED", "B", "D", "h", "15min", "s", "3M", "2W", "6h"])
    def test_each_step_of_periods_is_one_position(self, freq):
        index = pd.period_range("1969-11-03", periods=30, freq=freq)
        assert np.diff([position_of(index[row:], None) for row in range(30)]).tolist() == [1] * 29

    def test_what_has_no_position_is_refused_with_a_cycle(self):
        index = pd.date_range("2024-01-01", periods=30, freq=pd.DateOffset(months=1, days=1))
        assert position_of(index, index.freq) is None
        assert positions_of(index, None, index.freq, None) == 0
        with pytest.raises(ValueError, match=r"sp \(12\) needs an index whose steps can be counted, got DatetimeIndex"):
            positions_of(index, None, index.freq, 12)

    def test_hours_of_a_local_clock(self):
        """Clocks go back on 27 October 2024: 02:00 comes twice."""
        index = pd.date_range("2024-10-26", periods=48, freq="h", tz="Europe/Zurich")
        positions = positions_of(index[:30], index[30:], index.freq, None)
        assert (positions % 24).tolist() == index.hour.tolist()


def test_a_long_table_is_told_to_pivot():
    dates = pd.date_range("2024-01-01", periods=30)
    table = pd.DataFrame({"date": [*dates, *dates], "store": ["a"] * 30 + ["b"] * 30, "sales": np.arange(60.0)})
    with pytest.raises(TypeError, match=r"column 'date'.*y\.pivot\(index='date', columns=…, values=…\)"):
        MVPAForecaster(max_steps=1).fit(table, fh=[1])
    wide = table.pivot(index="date", columns="store", values="sales")
    assert MVPAForecaster(max_steps=1).fit(wide, fh=[1]).predict().shape == (1, 2)


def test_new_rows_that_would_be_misplaced_are_refused():
    y = pd.Series(np.arange(40.0), index=pd.period_range("2020-01", periods=40, freq="M"))
    forecaster = MVPAForecaster(max_steps=1).fit(y[:30], fh=[1])
    for rows, message in (
        (y[30:].reset_index(drop=True), "y must have an index of the kind that y had in fit, period such as 2022-06"),
        (y.iloc[[30, 31, 31]], "y must have each date once, got 2022-08 more than once"),
        (y[:29:-1], "y must have its rows in order of time"),
    ):
        with pytest.raises(ValueError, match=message):
            forecaster.update(rows)
