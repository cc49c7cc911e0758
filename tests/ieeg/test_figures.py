"""The style of figures leaves the settings of a caller alone."""

import matplotlib.pyplot as plt

from mvpa_ts.ieeg import figures


def test_a_styled_function_leaves_the_settings_of_its_caller():
    @figures.styled
    def size() -> float:
        return float(plt.rcParams["axes.titlesize"])

    before = dict(plt.rcParams)
    assert size() == 10.0
    assert dict(plt.rcParams) == before
