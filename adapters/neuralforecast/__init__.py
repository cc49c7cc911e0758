"""MVPA as models of neuralforecast; importing this registers them for `NeuralForecast.save` and `NeuralForecast.load`."""

from __future__ import annotations

from mvpa_ts.adapters.neuralforecast.model import MVPA

__all__ = ["MVPA"]
