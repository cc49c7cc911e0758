"""MVPA as estimators of sktime."""

from __future__ import annotations

from mvpa_ts._lazy import library_of

with library_of("sktime", __name__):
    from mvpa_ts.adapters.sktime.classifier import MVPAClassifier
    from mvpa_ts.adapters.sktime.forecaster import MVPAForecaster
    from mvpa_ts.adapters.sktime.regressor import MVPARegressor

__all__ = ["MVPAClassifier", "MVPAForecaster", "MVPARegressor"]
