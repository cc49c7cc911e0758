"""MVPA as models of neuralforecast; importing this lets `NeuralForecast` save and load them."""

from __future__ import annotations

from mvpa_ts._lazy import library_of

with library_of("neuralforecast", __name__):
    from mvpa_ts.adapters.neuralforecast.model import MVPA
    from mvpa_ts.adapters.neuralforecast.pretrained import PretrainedMVPA
    from mvpa_ts.adapters.neuralforecast.search import AutoMVPA

__all__ = ["MVPA", "AutoMVPA", "PretrainedMVPA"]
