"""One look for the figures of all experiments: that of the library and of the gallery."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from mvpa_ts.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By its path: a script on a GPU's machine imports mvpa_ts from the repository, which holds no mvpa_ts.ieeg.
STYLE = Path(__file__).parents[3] / "ieeg" / "figures.mplstyle"
# Colours of the style, in its order.
BLUE, RED, GREEN, PURPLE, ORANGE, SKY = "C0", "C1", "C2", "C3", "C4", "C5"
GREY = "#9a9a9a"
REFERENCE_COLOURS = {"true": BLUE, "two_step": RED, "random": GREY}


def apply() -> None:
    """Set the look for all figures that follow; nothing is shown on a screen."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    plt.style.use(STYLE)


def label_beside(axis: Axes, labels: list[tuple[float, float, str]]) -> None:
    """Write each label (x, y, text) right of the axes, at its point's height, where no other label lies.

    A thin line leads from the point to its label. Call it after the limits are set.
    """
    low, high = axis.get_ylim()
    gap = 0.055
    ranked = sorted(labels, key=lambda label: -label[1])
    places: list[float] = []
    for _, y, _ in ranked:
        height = (y - low) / (high - low)
        places.append(min(height, places[-1] - gap) if places else height)
    bottom = 0.0
    for index in reversed(range(len(places))):
        places[index] = max(places[index], bottom)
        bottom = places[index] + gap
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
    for (x, y, text), place in zip(ranked, places, strict=True):
        axis.annotate(text, (x, y), (1.05, place), textcoords="axes fraction", va="center", fontsize=8, arrowprops=line)


def save(figure: Figure, folder: Path, name: str) -> Path:
    """Write a figure as PNG of 128 colours, which are enough and a third of the size; return its path."""
    import matplotlib.pyplot as plt
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    plt.close(figure)
    few = Image.open(drawn).convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE)
    few.save(small, format="png", optimize=True)
    path = folder / f"{name}.png"
    write_bytes(path, small.getvalue())
    return path
