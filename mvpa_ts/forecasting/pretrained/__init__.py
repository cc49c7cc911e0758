"""The forecaster that is trained once and forecasts any panel, with the weights that the package ships."""

from mvpa_ts.forecasting.pretrained.anomalies import detect_anomalies
from mvpa_ts.forecasting.pretrained.base import BaseForecaster
from mvpa_ts.forecasting.pretrained.configuration import BaseConfig, mvpa_forecaster_base, mvpa_forecaster_small
from mvpa_ts.forecasting.pretrained.pretrained import finetuned, forecast_quantiles, load_base, save_base

__all__ = [
    "BaseConfig",
    "BaseForecaster",
    "detect_anomalies",
    "finetuned",
    "forecast_quantiles",
    "load_base",
    "mvpa_forecaster_base",
    "mvpa_forecaster_small",
    "save_base",
]
