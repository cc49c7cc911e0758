"""The look of figures, and figures to files and pages."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from mvpa_ts.files import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fonts, lines and colours of all figures; for your own: ``matplotlib.pyplot.style.use(STYLE)``.
STYLE = Path(__file__).with_name("figures.mplstyle")
# The first colours of the style, which colour-blind readers can tell apart.
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"

_Arguments = ParamSpec("_Arguments")
_Drawn = TypeVar("_Drawn")


def styled(draw: Callable[_Arguments, _Drawn]) -> Callable[_Arguments, _Drawn]:
    """Make a function draw in `STYLE`, and leave matplotlib's settings as they are."""

    @wraps(draw)
    def in_style(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Drawn:
        import matplotlib.pyplot as plt

        # In a context, because a user's own figures must not change their look by importing this library.
        with plt.style.context(STYLE):
            return draw(*arguments, **options)

    return in_style


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

    # The page holds its figures, so that a report can be mailed as one file.
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def save_figure(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a figure in the format of the file's ending, and close it."""
    import matplotlib.pyplot as plt

    # A figure that cannot be written, as on a full disk, must not stay open: matplotlib keeps each until it is closed.
    try:
        with replaced(path) as temporary:
            figure.savefig(temporary, dpi=dpi)
    finally:
        plt.close(figure)
