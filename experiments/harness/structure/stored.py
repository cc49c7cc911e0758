"""Real panels, read from the folder of the data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np


def file(name: str) -> Path:
    """Where a file or folder of real data lies."""
    return Path(os.environ.get("MVPA_TS_DATA", "")) / name


def panel(name: str) -> np.ndarray:
    """A real panel, [rows, C] or with a last axis of variables."""
    return np.load(file(f"panels/{name}.npz"))["x"]


def tide_gauges() -> tuple[np.ndarray, np.ndarray]:
    """Months of tide gauges, [rows, C], and the places of the gauges on the unit sphere, [C, 3]."""
    stored = np.load(file("panels/tide_gauges.npz"))
    latitude, longitude = np.radians(stored["lat"]), np.radians(stored["lon"])
    place = np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], 1)
    return stored["x"], place


def sea_level(latitude: float, months: int, west: float = 0.0, east: float = 360.0) -> np.ndarray:
    """Monthly sea level (mm) along a latitude, [rows, C], less the season and trend of the first months."""
    stored = np.load(file("sea_level/sea_level_1deg.npz"))
    level = stored["sla_mm"][:, int(np.abs(stored["lat"] - latitude).argmin())].astype(np.float64)
    level = level[:, (stored["lon"] > west) & (stored["lon"] < east) & (level != stored["missing"]).all(0)]
    month = np.arange(len(level))
    seasons = [wave(2 * np.pi * k * month / 12) for k in (1, 2) for wave in (np.sin, np.cos)]
    design = np.column_stack([np.ones(len(level)), month / len(level), *seasons])
    return level - design @ np.linalg.lstsq(design[:months], level[:months], rcond=None)[0]
