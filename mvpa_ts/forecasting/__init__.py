"""Forecasting of multivariate series: the network, its training, and what training returns."""

from mvpa_ts.forecasting.fitted import FittedForecaster, fit_forecaster
from mvpa_ts.forecasting.network.closed_form import least_squares_start
from mvpa_ts.forecasting.network.configuration import FeatureSizes, ForecastingConfig
from mvpa_ts.forecasting.network.network import ForecastingNetwork
from mvpa_ts.forecasting.network.patches import PatchEncoder
from mvpa_ts.forecasting.quantiles import LEVELS
from mvpa_ts.forecasting.streaming import ForecastStream
from mvpa_ts.forecasting.training import ForecasterTraining
from mvpa_ts.windows import Scaling, Series

__all__ = [
    "LEVELS",
    "FeatureSizes",
    "FittedForecaster",
    "ForecastStream",
    "ForecasterTraining",
    "ForecastingConfig",
    "ForecastingNetwork",
    "PatchEncoder",
    "Scaling",
    "Series",
    "fit_forecaster",
    "least_squares_start",
]
