"""Sets on which a pretrained forecaster is tested, with what was fixed before the first look: season, horizon, origins.

All but the first group are shipped by sktime and statsmodels. The first group is what other work tunes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from harness.structure import stored


@dataclass(frozen=True)
class EvaluationSet:
    """A panel and how it is forecast.

    Attributes
    ----------
    frequency : str
    season : int
        Steps of the season of the seasonal naive forecast and of the scaled error (MASE).
    horizon : int
    origins : int
        Forecasts, the last one ending with the data; they lie `stride` steps apart.
    stride : int
    tuned : bool
        Whether other work tunes on it; such sets are reported apart.
    read : callable
        Gives a table, a column a series.
    """

    frequency: str
    season: int
    horizon: int
    origins: int
    stride: int
    tuned: bool
    read: Callable[[], pd.DataFrame]


def _statsmodels(name: str, columns: list[str] | None = None) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        import statsmodels.api as sm

        frame = getattr(sm.datasets, name).load_pandas().data
        return (frame if columns is None else frame[columns]).reset_index(drop=True)

    return read


def _sktime(name: str) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        import sktime.datasets

        loaded = getattr(sktime.datasets, f"load_{name}")()
        tables = loaded if isinstance(loaded, tuple) else (loaded,)
        return pd.concat([pd.DataFrame(table) for table in tables], axis=1).reset_index(drop=True)

    return read


def _sktime_file(name: str, columns: list[str]) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        import sktime.datasets

        path = Path(sktime.datasets.__file__).parent / "data" / name / f"{name}.csv"
        return pd.read_csv(path)[columns]

    return read


def _elnino() -> pd.DataFrame:
    frame = _statsmodels("elnino")()
    return pd.DataFrame({"sea temperature": frame.drop(columns="YEAR").to_numpy().ravel()})


def _electrical_equipment() -> pd.DataFrame:
    from statsmodels.datasets.elec_equip.data import load_pandas

    return load_pandas().data.reset_index(drop=True)


def _fertility() -> pd.DataFrame:
    frame = _statsmodels("fertility")()
    rows = frame.loc[:, "1960":"2011"].T.reset_index(drop=True).astype(float)
    return rows.loc[:, rows.notna().all()]  # countries without a missing year


def _benchmark(name: str) -> Callable[[], pd.DataFrame]:
    def read() -> pd.DataFrame:
        from mvpa_ts.datasets.forecasting import load_forecasting_frame

        frame = load_forecasting_frame(name).drop(columns="date")
        return frame.mask(frame == -9999.0) if name == "Weather" else frame

    return read


def _traffic_week() -> pd.DataFrame:
    frame = pd.read_csv(stored.file("metr_la/los_speed.csv"))
    return frame.mask(frame == 0.0)


def _air_passengers() -> pd.DataFrame:
    from neuralforecast.utils import AirPassengersPanel

    return AirPassengersPanel.pivot(index="ds", columns="unique_id", values="y").reset_index(drop=True)


SETS = {
    "ETTh1": EvaluationSet("hourly", 24, 96, 20, 120, True, _benchmark("ETTh1")),
    "ETTh2": EvaluationSet("hourly", 24, 96, 20, 120, True, _benchmark("ETTh2")),
    "Weather": EvaluationSet("10 minutes", 144, 96, 20, 500, True, _benchmark("Weather")),
    "METR-LA week": EvaluationSet("5 minutes", 288, 48, 8, 60, True, _traffic_week),
    "AirPassengers panel": EvaluationSet("monthly", 12, 12, 4, 12, True, _air_passengers),
    "US macroeconomics": EvaluationSet(
        "quarterly", 4, 8, 8, 4, False, lambda: _statsmodels("macrodata")().drop(columns=["year", "quarter"])
    ),
    "US changes": EvaluationSet("quarterly", 4, 8, 8, 4, False, _sktime("uschange")),
    "PBS": EvaluationSet("monthly", 12, 12, 6, 12, False, _sktime("PBS_dataset")),
    "lynx": EvaluationSet("yearly", 1, 8, 8, 4, False, _sktime("lynx")),
    "shampoo": EvaluationSet("monthly", 12, 6, 2, 3, False, _sktime("shampoo_sales")),
    "seat belts": EvaluationSet("monthly", 12, 12, 5, 12, False, _sktime_file("seatbelts", ["KSI"])),
    "CO2": EvaluationSet("weekly", 52, 52, 8, 52, False, _statsmodels("co2")),
    "sunspots": EvaluationSet("yearly", 11, 11, 8, 11, False, _statsmodels("sunspots", ["SUNACTIVITY"])),
    "Nile": EvaluationSet("yearly", 1, 8, 6, 5, False, _statsmodels("nile", ["volume"])),
    "El Niño": EvaluationSet("monthly", 12, 12, 10, 12, False, _elnino),
    "electrical equipment": EvaluationSet("monthly", 12, 12, 6, 12, False, _electrical_equipment),
    "solar power": EvaluationSet("half-hourly", 48, 48, 3, 48, False, _sktime_file("solar", ["solar_gen"])),
    "fertility": EvaluationSet("yearly", 1, 5, 3, 3, False, _fertility),
    "interest and inflation": EvaluationSet(
        "quarterly", 4, 8, 5, 4, False, _statsmodels("interest_inflation", ["Dp", "R"])
    ),
    "Danish money": EvaluationSet(
        "quarterly", 4, 4, 4, 4, False, _statsmodels("danish_data", ["lrm", "lry", "lpy", "ibo", "ide"])
    ),
}  # fmt: skip
"""Evaluation sets by name; fixed before a pretrained forecaster saw any but ETTh1, on which it is developed."""
CONTEXT = 512
"""Steps of history that every model reads at most."""


def windows(of: EvaluationSet) -> list[tuple[np.ndarray, np.ndarray]]:
    """History [n, C] and truth [h, C] of every origin, in the order of time; NaN is missing."""
    values = of.read().to_numpy(dtype=np.float64)
    ends = [len(values) - of.horizon - index * of.stride for index in range(of.origins)][::-1]
    if ends[0] < of.season + 8:
        raise ValueError(f"{len(values)} rows are too few for {of.origins} origins of {of.horizon} steps")
    return [(values[max(0, end - 10 * CONTEXT) : end], values[end : end + of.horizon]) for end in ends]
