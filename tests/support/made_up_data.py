"""Write made-up sets of the layout of the benchmark's, for quick runs on machines that do not have the real ones."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd

_ETT = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
# File: its rows, channels and the time between two rows.
SETS: dict[str, tuple[int, tuple[str, ...], str]] = {
    "ETT-small/ETTh1.csv": (14400, _ETT, "h"),
    "ETT-small/ETTh2.csv": (14400, _ETT, "h"),
    "weather/weather.csv": (12000, tuple(f"w{index:02d}" for index in range(21)), "10min"),
}


def write(folder: Path) -> list[Path]:
    """Channels that share a daily cycle, each with its own random walk."""
    paths = []
    for seed, (name, (rows, channels, freq)) in enumerate(SETS.items()):
        generator = np.random.default_rng(seed)
        dates = pd.date_range("2016-07-01", periods=rows, freq=freq)
        days = (dates - dates[0]) / pd.Timedelta(days=1)
        day = np.sin(2 * np.pi * (days.to_numpy()[:, None] + generator.uniform(size=len(channels))))
        noise = generator.normal(size=(rows, len(channels)))
        frame = pd.DataFrame(3 * day + noise + 0.05 * noise.cumsum(0), columns=list(channels)).round(3)
        frame.insert(0, "date", dates)
        paths.append(folder / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(paths[-1], index=False)
    # They are not the published files, and this says that it is meant so.
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}" for path in paths]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    return paths


if __name__ == "__main__":
    print(*write(Path(sys.argv[1])), sep="\n")
