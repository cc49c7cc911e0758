"""Write a made-up ETTh1 of the right layout, for quick runs on machines that do not have the real one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

ROWS, CHANNELS = 14400, ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")


def write(folder: Path) -> Path:
    """Channels that share a daily cycle, each with its own random walk."""
    generator = np.random.default_rng(0)
    hours = np.arange(ROWS)[:, None]
    day = np.sin(2 * np.pi * (hours / 24 + generator.uniform(size=len(CHANNELS))))
    noise = generator.normal(size=(ROWS, len(CHANNELS)))
    frame = pd.DataFrame(3 * day + noise + 0.05 * noise.cumsum(0), columns=list(CHANNELS)).round(3)
    frame.insert(0, "date", pd.date_range("2016-07-01", periods=ROWS, freq="h"))
    path = folder / "ETT-small" / "ETTh1.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
