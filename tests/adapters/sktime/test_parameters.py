"""Every parameter reaches the network or its training."""

import dataclasses
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.made_up_series import SMALL, fitted, waves

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor
from mvpa_ts.adapters.sktime.panels import HOST_NAMES as PANEL_NAMES
from mvpa_ts.classification import ClassificationConfig, ClassificationTraining
from mvpa_ts.forecasting import LEVELS, ForecasterTraining, ForecastingConfig


def test_every_parameter_arrives(monkeypatch):
    told: dict[str, Any] = {}

    def catch(series, config, training, **rest):
        told.update(dataclasses.asdict(config) | dataclasses.asdict(training) | rest)
        raise InterruptedError

    monkeypatch.setattr("mvpa_ts.forecasting.fitted.fit_forecaster", catch)
    changes = {
        "input_size": 13, "patch_length": 7, "dim": 6, "num_heads": 3, "num_layers": 2, "components": ("content",),
        "channel_window": 1, "dropout": 0.01, "sp": 11, "quantiles": (0.2, 0.5), "max_steps": 17,
        "learning_rate": 0.04, "device": "meta",
    }  # fmt: skip
    network = {
        "patch_stride": 3, "mlp_dim": 5, "channel_distance": "signed", "attention_dropout": 0.02,
        "head_dropout": 0.03, "mixing_heads": 4, "normalise": "reverting",
    }  # fmt: skip
    training = {
        "batch_size": 19, "linear_learning_rate": 0.3, "weight_decay": 0.05, "horizon_decay": 0.7,
        "frequency_weight": 0.8, "ridge": 0.9, "cycle_strength": 0.11, "reversion_strength": 0.12,
        "weight_averaging": 0.6, "validation_fraction": 0.7, "patience": 23,
    }  # fmt: skip
    with pytest.raises(InterruptedError):
        MVPAForecaster(
            **changes, individual=True, bounded=True, training=training,
            network={**network, "per_channel": ["vectors"]},
            channel_order=["c1", "c0"], channel_positions={"c0": (0.0, 1.0), "c1": (2.0, 1.0)},
        ).fit(waves(), fh=[3])  # fmt: skip
    renamed = {"input_size": "lookback", "sp": "cycle_length", "quantiles": "levels", "max_steps": "steps"}
    assert {name: told[renamed.get(name, name)] for name in changes} == changes
    assert {name: told[name] for name in (*network, *training)} == {**network, **training}
    others = {
        "individual", "bounded", "network", "training", "channel_order", "channel_positions", "pretrained",
        "finetune_steps", "random_state", "verbose",
    }  # fmt: skip
    assert set(changes) | others == set(MVPAForecaster.get_param_names())
    assert told["horizon"] == 3
    assert (told["num_channels"], told["per_channel"]) == (2, ("vectors", "matrix", "bounds"))
    assert told["position_size"] == 2
    assert told["channel_inputs"]["positions"].tolist() == [[1.0, 0.0], [-1.0, 0.0]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"sp": 19, "input_size": 20}, []),
        ({"sp": 20}, [r"sp \(20\) should be smaller than the number of rows of y, got 20: .* leave sp out"]),
        ({"input_size": 21}, [r"input_size \(21\) should be at most the number of rows of y, got 20: .* missing"]),
        ({"sp": 24, "input_size": 48}, [r"sp \(24\)", r"input_size \(48\)"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", ["fit", "pretrain"])
def test_steps_that_a_short_series_lacks_are_said(changes, said, way, recwarn):
    y = waves()[:20]
    if way == "pretrain":  # the longest instance counts
        y = pd.concat({"short": y[:10], "long": y})
    getattr(MVPAForecaster(**{**SMALL, **changes}), way)(y, fh=[1, 2])
    messages = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    assert len(messages) == len(said)
    assert all(map(re.match, said, messages))


def test_positions_take_a_window_over_few_columns_only(monkeypatch):
    y = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 17)))
    window = {
        **SMALL, "channel_window": 2,
        "channel_positions": {column: column for column in y},
    }  # fmt: skip
    monkeypatch.setattr(ForecastingConfig, "max_channels", 2)
    MVPAForecaster(**window).fit(y[y.columns[:16]], fh=[1])
    with pytest.raises(ValueError, match=r"channel_positions with channel_window needs at most 16 channels, got 17"):
        MVPAForecaster(**window).fit(y, fh=[1])


def test_defaults_are_those_of_the_core():
    """They are written out, for a signature must not import torch."""
    for estimator, kinds, renamed, own in (
        (MVPAForecaster, (ForecastingConfig(1, 48), ForecasterTraining()), {"steps": "max_steps", "cycle_length": "sp"},
         {"patch_length"}),
        (MVPAClassifier, (ClassificationConfig(1, 2, 1), ClassificationTraining()), PANEL_NAMES, set()),
        (MVPARegressor, (ClassificationConfig(1, 2, 1), ClassificationTraining()), PANEL_NAMES, set()),
    ):  # fmt: skip
        defaults = estimator.get_param_defaults()
        core = {renamed.get(name, name): value for kind in kinds for name, value in vars(kind).items()}
        shared = (core.keys() & defaults.keys()) - own
        assert len(shared) >= 8
        assert {name: defaults[name] for name in shared} == {name: core[name] for name in shared}
    assert MVPAForecaster.get_param_defaults()["quantiles"] == LEVELS
    # A subclass may have a constructor of its own.
    assert type("Own", (MVPAForecaster,), {"__init__": lambda self: MVPAForecaster.__init__(self, sp=12)})().sp == 12


def test_update_keeps_the_scaling_and_trains_gently(monkeypatch):
    y = waves()
    forecaster = fitted(y[:-5], training={"linear_learning_rate": 0.2})
    told: dict[str, Any] = {}

    def catch(series, config, training, **rest):
        told.update(dataclasses.asdict(training) | rest)
        return rest["start"]

    monkeypatch.setattr("mvpa_ts.forecasting.fitted.fit_forecaster", catch)
    forecaster.update(y[-5:])
    assert told["learning_rate"] == pytest.approx(0.6 * forecaster.learning_rate)
    assert told["linear_learning_rate"] == pytest.approx(0.12)
    assert told["steps"] == SMALL["finetune_steps"]
    assert told["scalings"] == [forecaster._scaling]
    assert told["start"].network is forecaster.fitted_.network


def test_rows_that_a_look_back_lacks_are_said_after_an_update():
    """Rows that the index lacks count too: the last twelve steps have one value."""
    y = waves(columns=1)
    forecaster = MVPAForecaster(**SMALL).fit(y[:40], fh=[1])
    with pytest.warns(UserWarning, match="y should have values in the last 12 rows, .* got 1 in"):
        forecaster.update(y[55:56], update_params=False)


@pytest.mark.parametrize(
    ("estimator", "moved"),
    [
        (MVPAForecaster, {"mixing_heads": ("network", "mixing_heads"), "ridge": ("training", "ridge")}),
        (MVPAClassifier, {"width": ("network", "width"), "validate_every": ("training", "evaluate_every")}),
        (MVPARegressor, {"tokens": ("network", "tokens"), "patience": ("training", "patience")}),
    ],
)
def test_a_name_of_before_says_where_it_went(estimator, moved: dict[str, tuple[str, str]]):
    for name, (group, field) in moved.items():
        message = rf"{name} is no argument of its own: give {group}=\{{\"{field}\": …\}}"
        with pytest.raises(TypeError, match=message):
            estimator(**{name: 3})
        with pytest.raises(TypeError, match=message):
            estimator().set_params(**{name: 3})


def test_options_of_dicts_are_set_one_by_one():
    options = {"mixing_heads": 4}
    first = MVPAForecaster(network=options)
    second = first.clone().set_params(network__mlp_dim=8, training__ridge=0.1, dim=8)
    assert second.network == {"mixing_heads": 4, "mlp_dim": 8}
    assert (second.training, second.dim) == ({"ridge": 0.1}, 8)
    assert second.get_params()["network__mlp_dim"] == 8
    assert first.network == options == {"mixing_heads": 4}
    assert second.set_params(network=None).get_params()["network"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": {"mixing_head": 4}}, "network has no option 'mixing_head' of ForecastingConfig: did you mean 'mi"),
        ({"network": {"dim": 4}}, "network must not hold 'dim': it is the parameter dim"),
        ({"training": {"steps": 4}}, "training must not hold 'steps': it is the parameter max_steps"),
        ({"training": [1]}, "training must be None or a dict of options of ForecasterTraining, got \\[1\\]"),
        ({"individual": "no"}, "individual must be True or False, got 'no'"),
        ({"bounded": "no"}, "bounded must be True or False, got 'no'"),
        ({"network": {"normalise": "no"}}, "normalise must be True or False, got 'no'"),
        ({"random_state": "a"}, "random_state must be None, a whole number .* got 'a'"),
        ({"random_state": -1}, "random_state must be None, a whole number .* got -1"),
        ({"random_state": 1.5}, "random_state must be None, a whole number .* got 1.5"),
        ({"quantiles": (0.1, 0.9)}, "quantiles must hold 0.5"),
        ({"quantiles": ()}, "quantiles must be increasing numbers"),
        ({"quantiles": 0.5}, r"quantiles must be increasing numbers within \(0, 1\), got 0\.5"),
        ({"input_size": "12"}, "input_size must be a whole number, got '12'"),
        ({"learning_rate": "1e-3"}, "learning_rate must be positive, got '1e-3'"),
        ({"training": {"horizon_decay": None}}, "horizon_decay must be at least 0, got None"),
        ({"training": {"weight_averaging": "no"}}, "weight_averaging must be positive or None, got 'no'"),
        ({"input_size": 10, "patch_length": 11}, r"patch_length \(11\) must not exceed input_size \(10\)"),
        ({"sp": 0}, "sp must be at least 1, got 0"),
        ({"network": {"per_channel": ["cycle"]}}, "cycle in per_channel needs sp, the number of steps in a cycle"),
        ({"dim": 9}, r"dim \(9\) must be a multiple of num_heads"),
        ({"training": {"patience": 2}}, "needs a validation_fraction"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"device": None}, "device must be a name that torch knows, .* got None"),
        ({"device": "gpu"}, "device must be a name that torch knows, such as 'cpu' or 'cuda', got 'gpu'"),
        pytest.param(
            {"device": "cuda"},
            "device is 'cuda', but torch finds no such device on this machine: set device='cpu'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
        ),
        ({"max_steps": 2.0}, r"max_steps must be a whole number, got 2\.0"),
        ({"max_steps": None}, "max_steps must be a whole number, got None"),
        ({"dim": None}, "dim must be a whole number, got None"),
        # Of later training, checked by fit.
        ({"finetune_steps": -3}, "finetune_steps must be at least 0, got -3"),
        ({"finetune_steps": 2.5}, "finetune_steps must be a whole number, got 2.5"),
        ({"pretrained": "base", "finetune_steps": -3}, "finetune_steps must be at least 0, got -3"),
        ({"pretrained": "base", "finetune_steps": 2.5}, "finetune_steps must be a whole number, got 2.5"),
    ],
)
def test_wrong_parameters_are_named_by_fit(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        MVPAForecaster(**({"max_steps": 1} | options)).fit(waves(), fh=[3])


def test_the_rate_of_later_training_is_checked():
    with pytest.raises(ValueError, match="learning_rate must be positive, got -1"):
        MVPAForecaster(pretrained="small", finetune_steps=1, learning_rate=-1).fit(waves(), fh=[3])


def test_grids_reach_options_of_dicts():
    from sktime.forecasting.model_selection import ForecastingGridSearchCV
    from sktime.split import SingleWindowSplitter

    grid = {"network__mixing_heads": [0, 2], "training__ridge": [1.0], "dim": [8]}
    search = ForecastingGridSearchCV(MVPAForecaster(**SMALL), SingleWindowSplitter([1, 2]), param_grid=grid)
    search.fit(waves(), fh=[1, 2])
    best = search.best_forecaster_
    assert best.fitted_.config.mixing_heads == search.best_params_["network__mixing_heads"]
    assert (best.network["mlp_dim"], best.training) == (8, {"ridge": 1.0})
