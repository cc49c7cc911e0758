"""MVPA as models of neuralforecast; importing this lets `NeuralForecast` save and load them."""

from __future__ import annotations

from mvpa_ts.adapters import host_library

with host_library("neuralforecast"):
    from mvpa_ts.adapters.neuralforecast.model import MVPA
    from mvpa_ts.adapters.neuralforecast.pretrained import PretrainedMVPA
    from mvpa_ts.adapters.neuralforecast.search import AutoMVPA

__all__ = ["MVPA", "AutoMVPA", "PretrainedMVPA"]
