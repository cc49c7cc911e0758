"""EDF files of noise of any length, written in pieces, to time the reading of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_LIMIT = 3276.7  # µV at the ends of 16 bits: 0.1 µV a step


def write_noise(path: Path, seconds: int, channels: int, rate: int) -> None:
    """An EDF file of noise, a minute at a time."""
    names = [f"A{number + 1}" for number in range(channels)]
    fields: list[tuple[int, list[str]]] = [
        (16, names),
        (80, [""] * channels),
        (8, ["uV"] * channels),
        (8, [f"-{_LIMIT}"] * channels),
        (8, [f"{_LIMIT}"] * channels),
        (8, ["-32767"] * channels),
        (8, ["32767"] * channels),
        (80, [""] * channels),
        (8, [str(rate)] * channels),
        (32, [""] * channels),
    ]
    size = 256 * (channels + 1)
    head = (
        f"{'0':8}{'X X X X':80}{'Startdate X X X X':80}01.01.8500.00.00{size:<8}{'':44}{seconds:<8}{'1':8}{channels:<4}"
    )
    head += "".join(f"{value:{width}}" for width, values in fields for value in values)
    generator = np.random.default_rng(0)
    # Slow waves under white noise, as in a recording; minutes are drawn from ten.
    drawn = 200.0 * generator.normal(size=(600, channels, rate)) + 600.0 * np.sin(
        np.arange(rate) / rate * 2 * np.pi * 3
    )
    records = np.clip(drawn, -32767, 32767).astype("<i2")
    with path.open("wb") as file:
        file.write(head.encode("ascii"))
        for start in range(0, seconds, 60):
            chosen = generator.integers(0, 600, min(60, seconds - start))
            file.write(records[chosen].tobytes())
