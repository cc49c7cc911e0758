"""One look for the figures of the paper's counterparts: small, sans serif, the same colours for the same things."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from PIL import Image

from mvpa_ts.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, RED, GREEN = "#1b6ca8", "#e08e45", "#9a9a9a", "#b5403a", "#3f8f5f"
REFERENCE_COLOURS = {"true": BLUE, "two_step": ORANGE, "random": GREY}


def apply() -> None:
    """Set the look for all figures that follow."""
    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": False,
            "legend.frameon": False,
            "legend.fontsize": 8,
            "lines.linewidth": 1.2,
        }
    )


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a figure as PNG of 128 colours, which are enough and a third of the size; return its path."""
    import matplotlib.pyplot as plt

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(128).save(small, format="png", optimize=True)
    path = folder / f"{name}.png"
    write_bytes(path, small.getvalue())
    return path
