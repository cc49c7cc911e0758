"""MVPA as estimators of sktime."""

from __future__ import annotations

from mvpa_ts.adapters import host_library

with host_library("sktime"):
    from mvpa_ts.adapters.sktime.classifier import MVPAClassifier
    from mvpa_ts.adapters.sktime.forecaster import MVPAForecaster
    from mvpa_ts.adapters.sktime.regressor import MVPARegressor

__all__ = ["MVPAClassifier", "MVPAForecaster", "MVPARegressor"]
