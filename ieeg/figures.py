"""Figures to files and pages."""

from __future__ import annotations

import base64
import io
import os
from typing import TYPE_CHECKING

from mvpa_ts.files import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def literal(text: object) -> str:
    """Text for a figure that matplotlib draws as it is, where two dollars would make it a formula.

    Examples
    --------
    >>> print(literal("a$1$"))
    a\\$1\\$
    """
    return str(text).replace("$", r"\$")


def embedded(figure: Figure) -> str:
    """A figure as PNG in base64; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of the file's ending, and close it."""
    import matplotlib.pyplot as plt

    with replaced(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)
