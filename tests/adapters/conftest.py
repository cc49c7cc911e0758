"""Small panels and models for the tests of the adapters."""

import logging
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.made_up_networks import SMALL

# Where a host is not installed, its folder is left out.
collect_ignore = [host for host in ("neuralforecast", "sktime") if find_spec(host) is None]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    for family in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(f"{family}.utilities.rank_zero").setLevel(logging.ERROR)
        logging.getLogger(family).setLevel(logging.ERROR)
    logging.getLogger("optuna").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore",
            message=".*(num_workers|log_every_n_steps|val_check_steps|LeafSpec|cannot be pickled|arg_constraints).*",
        )
        yield


@pytest.fixture
def panel() -> Callable[..., pd.DataFrame]:
    """A panel of n series; series i waves around 100·(i + 1)."""

    def make(n: int = 4, rows: int = 60, *, names: list[Any] | None = None, integer: bool = False) -> pd.DataFrame:
        steps = np.arange(rows)
        noise = np.random.default_rng(0).normal(size=(n, rows))
        names = [f"s{i:02d}" for i in range(n)] if names is None else names
        return pd.concat(
            pd.DataFrame(
                {
                    "unique_id": name,
                    "ds": steps if integer else pd.date_range("2024-01-01", periods=rows, freq="h"),
                    "y": 100.0 * (i + 1) + 5 * np.sin(2 * np.pi * (steps + 3 * i) / 12) + noise[i],
                }
            )
            for i, name in enumerate(names)
        ).reset_index(drop=True)

    return make


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """A model of 12 steps look-back and 6 steps ahead that trains for two steps."""
    from mvpa_ts.adapters.neuralforecast import MVPA

    def make(n_series: int = 4, model: type = MVPA, **options: Any) -> MVPA:
        defaults = SMALL | {"h": 6, "n_series": n_series, "patch_len": 4, "max_steps": 2, "dropout": 0.0}
        network = {"mlp_dim": 8, "head_dropout": 0.0, **options.pop("network", {})}
        return model(**{**defaults, **options, "network": network})

    return make


@pytest.fixture
def forecaster() -> Callable[..., Any]:
    """A NeuralForecast of one model."""
    from neuralforecast import NeuralForecast

    return lambda model, freq="h", **options: NeuralForecast(models=[model], freq=freq, **options)


@pytest.fixture
def fit(forecaster: Callable) -> Callable[..., Any]:
    """A NeuralForecast of one model that is fitted to a frame."""

    def run(model: Any, frame: Any, freq: Any = "h", *, local_scaler_type: str | None = None, **options: Any) -> Any:
        host = forecaster(model, freq, local_scaler_type=local_scaler_type)
        host.fit(frame, **options)
        return host

    return run


@pytest.fixture
def reloaded(tmp_path: Path) -> Callable[..., Any]:
    """A NeuralForecast as it comes back from its files."""
    from neuralforecast import NeuralForecast

    def load(host: Any, **options: Any) -> Any:
        host.save(str(tmp_path / "saved"), overwrite=True, **options)
        return NeuralForecast.load(str(tmp_path / "saved"))

    return load


@pytest.fixture
def dataset() -> Callable[..., Any]:
    """A panel as models get it."""
    from neuralforecast.tsdataset import TimeSeriesDataset

    return lambda frame, **options: TimeSeriesDataset.from_df(frame, **options)[0]


@pytest.fixture
def awaken() -> Callable[..., Any]:
    """Give a model random weights everywhere: a head that starts at zero would hide what attention does."""

    def fill(model: Any, scale: float = 1.0) -> Any:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in model.network.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
        return model

    return fill


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The database of a search."""
    return f"sqlite:///{tmp_path}/sweep.db"


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A minute passes between two looks at the clock of training, whose module this is."""
    from mvpa_ts import training

    moments = iter(range(0, 1000, 60))
    monkeypatch.setattr(training.time, "perf_counter", lambda: float(next(moments)))
    return training


@pytest.fixture
def told() -> Callable[..., list[dict[str, Any]]]:
    """Notes what the network of a model is told in each call."""

    def note(model: Any) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        forward = model.network.forward

        def noted(x: torch.Tensor, *rest: Any, **inputs: Any) -> torch.Tensor:
            calls.append({"x": x, **inputs})
            return forward(x, *rest, **inputs)

        model.network.forward = noted
        return calls

    return note
