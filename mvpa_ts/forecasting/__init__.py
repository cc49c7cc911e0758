"""The forecasting network, its training and its files."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.forecasting.configuration": "ForecastingConfig",
        "mvpa_ts.forecasting.network": "ForecastingNetwork PatchEncoder location_scale observed_range parameter_groups",
    },
)
