"""Public benchmark data: forecasting series and the UEA archive."""
