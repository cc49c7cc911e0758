"""Canaries: what the adapter relies on in the host without a promise. If one fails, the host has changed."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from neuralforecast import NeuralForecast, core
from neuralforecast.common import _base_model, _scalers
from neuralforecast.common._base_auto import BaseAuto
from neuralforecast.common._base_model import BaseModel
from neuralforecast.models import TSMixerx, iTransformer
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset
from support.made_up_networks import QUIET

from mvpa_ts.adapters.neuralforecast import MVPA
from mvpa_ts.adapters.neuralforecast.search import _METRICS

ADAPTER = Path(__file__).parents[3] / "adapters" / "neuralforecast"


def test_mvpa_takes_every_argument_of_its_peers():
    ours = set(inspect.signature(MVPA.__init__).parameters)
    peers = set(inspect.signature(iTransformer.__init__).parameters)
    layers = {"e_layers", "d_layers", "d_ff", "factor", "use_norm"}  # of the network, and so in `network`
    assert peers - layers <= ours
    assert set(inspect.signature(BaseModel.__init__).parameters) - ours <= {
        "n_samples", "h_train", "inference_input_size"
    }, "an argument of recurrent models, or a new one"  # fmt: skip


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("_create_windows", ["self", "batch", "step"]),
        (
            "_sample_windows",
            ["self", "windows_temporal", "static", "static_cols", "temporal_cols", "w_idxs", "final_condition",
             "sample_weight"],
        ),
        ("_parse_windows", ["self", "batch", "windows"]),
        ("_get_temporal_exogenous_cols", ["self", "temporal_cols"]),
        ("_get_loc_scale", ["self", "y_idx", "add_channel_dim"]),
        ("_inv_normalization", ["self", "y_hat", "y_idx"]),
        ("_check_exog", ["self", "dataset"]),
        ("simulate", ["self", "dataset", "n_paths", "random_seed", "quantiles", "method", "data_module_kwargs"]),
        ("fit", ["self", "dataset", "val_size", "test_size", "random_seed", "distributed_config"]),
    ],
)  # fmt: skip
def test_overridden_methods(method, arguments):
    assert list(inspect.signature(getattr(BaseModel, method)).parameters) == arguments


def test_what_a_search_overrides():
    assert list(inspect.signature(BaseAuto._optuna_tune_model).parameters) == [
        "self", "cls_model", "dataset", "val_size", "test_size", "verbose", "num_samples", "search_alg", "config",
        "distributed_config", "time_budget",
    ]  # fmt: skip
    source = inspect.getsource(BaseAuto._optuna_tune_model)
    assert re.findall(r'set_user_attr\(\s*"(\w+)"', source) == ["ALL_PARAMS", "METRICS"]
    assert re.findall(r'"(\w+)": float\(metrics\["([\w/]+)"\]\)', source) == list(_METRICS.items())


def test_load_refuses_what_finetune_takes(panel, tmp_path, fit):
    """Once this fails, `MVPA.load` may go."""
    options = {"max_steps": 1, **QUIET}
    fit(iTransformer(6, 12, 4, hidden_size=8, n_heads=2, **options), panel(4)).save(str(tmp_path / "saved"))
    with pytest.raises(TypeError, match="max_steps"):
        NeuralForecast.load(str(tmp_path / "saved"), max_steps=2)


def test_fit_lets_the_loader_be_told_not_to_shuffle():
    assert "shuffle_train" in inspect.signature(BaseModel._fit).parameters
    assert inspect.signature(TimeSeriesDataModule.__init__).parameters["shuffle_train"].default is True, "fixed there?"


def test_the_registry_of_saved_models():
    assert core.MODEL_FILENAME_DICT["mvpa"] is MVPA
    assert core.MODEL_FILENAME_DICT["itransformer"] is iTransformer


def test_the_host_still_has_its_traps(panel, fit):
    """Once these fail, the fixes in the adapter may go."""
    data = TimeSeriesDataset.from_df(panel(40))[0]
    loader = TimeSeriesDataModule(data, batch_size=40).train_dataloader()
    levels = next(iter(loader))["temporal"][:, 0].mean(1)
    assert not torch.equal(levels, levels.sort().values), "training batches hold the series in order"

    options = {"max_steps": 1, **QUIET}
    peer = fit(iTransformer(6, 12, 4, hidden_size=8, n_heads=2, **options), panel(4))
    mixed = peer.predict(panel(64)).groupby("unique_id")["iTransformer"].mean()
    assert (mixed - [100.0 * (i + 1) for i in range(64)]).abs().max() > 100, (
        "more series than the batch keep their rows"
    )

    gaps = panel(4).assign(available_mask=1.0)
    gaps.loc[5::7, ["y", "available_mask"]] = [float("nan"), 0.0]
    with pytest.raises(Exception, match="Loss is NaN"):
        NeuralForecast([iTransformer(6, 12, 4, hidden_size=8, n_heads=2, **options)], freq="h").fit(gaps)

    repeated = pd.concat([panel(4), panel(4).iloc[[5]]])
    NeuralForecast([TSMixerx(6, 12, 4, ff_dim=4, **options)], freq="h").fit(repeated)  # no word of it


def test_what_is_wrapped_to_keep_ids_and_dates():
    def arguments(method: Callable) -> list[str]:
        return list(inspect.signature(method).parameters)

    assert arguments(TimeSeriesDataset.from_df) == ["df", "static_df", "id_col", "time_col", "target_col"]
    assert arguments(TimeSeriesDataset.append) == ["self", "futr_dataset"]
    assert arguments(NeuralForecast._encode_categoricals) == ["self", "df"]
    assert arguments(NeuralForecast._check_nan) == ["self", "df", "static_df", "id_col", "time_col", "target_col"]
    assert arguments(NeuralForecast._prepare_fit) == ["self", "df", "static_df", "id_col", "time_col", "target_col"]


def test_what_the_panel_checks_read(panel):
    data, ids, _, dates = TimeSeriesDataset.from_df(panel(3))
    assert data.temporal.shape == (180, 2)
    assert list(data.temporal_cols) == ["y", "available_mask"]
    assert (data.indptr == [0, 60, 120, 180]).all()
    assert (len(data), list(ids), len(dates)) == (3, ["s00", "s01", "s02"], 180)


def test_the_scaler_is_built_as_the_host_does():
    source = inspect.getsource(BaseModel.__init__)
    assert "self.scaler = TemporalNorm(" in source
    assert list(inspect.signature(_scalers.TemporalNorm.__init__).parameters)[1:] == [
        "scaler_type", "dim", "eps", "num_features"
    ]  # fmt: skip


def test_trainer_arguments_survive_loading():
    assert {"precision", "gradient_clip_val", "logger", "enable_progress_bar"} <= _base_model._RESTORABLE_TRAINER_KWARGS
