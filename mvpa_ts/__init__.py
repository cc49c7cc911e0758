"""Multi-variate parallel attention (MVPA) for signals with many channels.

The core needs torch, numpy and einops. The adapters and `mvpa_ts.ieeg` are imported by name and need the extra of that
name, for example ``pip install ".[neuralforecast]"`` in the clone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvpa_ts._lazy import lazy_names

if TYPE_CHECKING:
    from mvpa_ts.attention import MVPAttention as MVPAttention
    from mvpa_ts.attention import mvpa_attention as mvpa_attention
    from mvpa_ts.classification import ClassificationConfig as ClassificationConfig
    from mvpa_ts.classification import ClassificationNetwork as ClassificationNetwork
    from mvpa_ts.classification import fit_classifier as fit_classifier
    from mvpa_ts.forecasting import ForecastingConfig as ForecastingConfig
    from mvpa_ts.forecasting import ForecastingNetwork as ForecastingNetwork
    from mvpa_ts.forecasting import least_squares_start as least_squares_start

__version__ = "0.2.0"

_LAZY = {
    **dict.fromkeys(("MVPAttention", "mvpa_attention"), "mvpa_ts.attention"),
    **dict.fromkeys(("ClassificationConfig", "ClassificationNetwork", "fit_classifier"), "mvpa_ts.classification"),
    **dict.fromkeys(("ForecastingConfig", "ForecastingNetwork", "least_squares_start"), "mvpa_ts.forecasting"),
}
_PACKAGES = {"adapters": "mvpa_ts.adapters", "ieeg": "mvpa_ts.ieeg"}
__all__ = [*_LAZY, "__version__"]
__getattr__ = lazy_names(__name__, _LAZY | _PACKAGES)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
