"""Public benchmark data: forecasting series and the UEA archive."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.datasets.forecasting": "FORECASTING_DATASETS Borders dataset_path forecasting_windows"
        " load_forecasting_frame",
    },
)
