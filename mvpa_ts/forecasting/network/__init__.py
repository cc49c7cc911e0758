"""The forecasting network, its options, and its start in closed form."""

from mvpa_ts.forecasting.network.closed_form import least_squares_start
from mvpa_ts.forecasting.network.configuration import ForecastingConfig
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.forecasting.network.patches import PatchEncoder

__all__ = ["ForecastingConfig", "ForecastingNetwork", "PatchEncoder", "least_squares_start"]
