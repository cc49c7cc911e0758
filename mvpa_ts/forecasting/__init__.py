"""The forecasting network, its training and its files."""
