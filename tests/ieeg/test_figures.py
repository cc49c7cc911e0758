"""One look for all figures: the library, the gallery and the experiments draw in it, and it leaves a caller's alone."""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

from mvpa_ts.ieeg import figures

ROOT = Path(__file__).parents[2]
DRAWS = sorted(
    path
    for folder in ("experiments", "ieeg")
    for path in (ROOT / folder).rglob("*.py")
    if "subplots(" in path.read_text(encoding="utf-8") or "Figure(" in path.read_text(encoding="utf-8")
)


def test_named_colours_are_those_of_the_style():
    colours = matplotlib.rc_params_from_file(figures.STYLE, use_default_template=False)["axes.prop_cycle"]
    assert colours.by_key()["color"][:3] == [figures.BLUE, figures.RED, figures.GREEN]


def test_a_styled_function_leaves_the_settings_of_its_caller():
    @figures.styled
    def size() -> float:
        return float(plt.rcParams["axes.titlesize"])

    before = dict(plt.rcParams)
    assert size() == 10.0
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("path", DRAWS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_whatever_draws_uses_the_style(path):
    text = path.read_text(encoding="utf-8")
    drawings = ROOT / "experiments" / "harness" / "figures"  # whose caller, experiments/ieeg/figures.py, sets the style
    assert "style.apply()" in text or "@styled" in text or path.parent == drawings
