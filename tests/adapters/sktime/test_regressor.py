"""MVPARegressor, and what it shares with MVPAClassifier, beyond sktime's conformance suite."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import get_tags
from support.made_up_series import SMALL_PANEL

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPARegressor


def waves(n: int = 24) -> tuple[list[pd.DataFrame], np.ndarray]:
    """Series of unequal length in two channels, one with gaps; the number is a frequency."""
    generator = np.random.default_rng(0)
    rates = generator.uniform(0.3, 1.5, n)
    series = []
    for rate in rates:
        steps = np.arange(generator.integers(18, 31))
        wave = np.sin(steps * rate + generator.uniform(0, 6))
        frame = pd.DataFrame({"a": wave, "b": generator.normal(size=len(steps))})
        frame.iloc[3:5, 1] = np.nan
        series.append(frame)
    return series, 60.0 + 40.0 * rates


def test_numbers_are_found():
    X, y = waves(60)
    regressor = MVPARegressor(**{**SMALL_PANEL, "max_steps": 60}).fit(X[:45], y[:45])
    assert regressor.score(X[45:], y[45:]) > 0.5
    assert regressor.embed(X[:3]).shape == (3, 2 * 2 * 2 * 8)  # two networks, mean and most of two channels


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize(("estimator", "fit"), [(MVPAClassifier, "fit_classifier"), (MVPARegressor, "fit_regressor")])
def test_every_parameter_arrives(monkeypatch, estimator, fit, augment):
    told: dict[str, Any] = {}

    def catch(series, targets, config, training, **rest):
        told.update(dataclasses.asdict(config) | dataclasses.asdict(training) | rest)
        raise InterruptedError

    monkeypatch.setattr(f"mvpa_ts.classification.{fit}", catch)
    changes = {
        "dim": 6, "num_layers": 7, "components": ("time",), "dropout": 0.01, "kernel_features": 17, "max_steps": 19,
        "learning_rate": 0.05, "validation_fraction": 0.09, "num_networks": 37, "device": "meta",
    }  # fmt: skip
    network = {"num_heads": 3, "mlp_dim": 5, "width": 9, "attention_dropout": 0.02, "head_dropout": 0.04}
    training = {"batch_size": 23, "label_smoothing": 0.07, "mixup": 0.08, "evaluate_every": 29, "refit": False}
    of_classes = {"class_weight": {1: 2.0}} if estimator is MVPAClassifier else {}
    X, y = waves()
    with pytest.raises(InterruptedError):
        estimator(**changes, **of_classes, network=network, training=training, augment=augment).fit(
            X, (y > 90.0).astype(int)
        )
    renamed = {"max_steps": "steps", "validation_fraction": "validation"}
    assert {name: told[renamed.get(name, name)] for name in changes} == changes
    assert {name: told[name] for name in (*network, *training)} == {**network, **training}
    assert any(told["augmentation"].values()) == (told["kernel_copies"] > 0) == augment
    if of_classes:
        assert told["class_weights"] == (1.0, 2.0)
    others = {"augment", "network", "training", "random_state", "verbose", *of_classes}
    assert set(changes) | others == set(estimator.get_param_names())


def test_files_come_back(tmp_path):
    X, y = waves()
    regressor = MVPARegressor(**SMALL_PANEL).fit(X, y)
    regressor.to_files(tmp_path)
    again = MVPARegressor.from_files(tmp_path)
    np.testing.assert_array_equal(again.predict(X), regressor.predict(X))
    np.testing.assert_array_equal(again.embed(X), regressor.embed(X))
    with pytest.raises(ValueError, match=r"holds a regressor: use MVPARegressor\.from_files"):
        MVPAClassifier.from_files(tmp_path)


@pytest.mark.parametrize("kind", [MVPARegressor, MVPAClassifier])
def test_names_of_channels_come_back_from_files(tmp_path, kind):
    X, y = waves()
    estimator = kind(**SMALL_PANEL).fit(X, y > 90.0)
    estimator.to_files(tmp_path)
    turned = [one[["b", "a"]] for one in X]
    again = kind.from_files(tmp_path)
    np.testing.assert_array_equal(again.embed(turned), estimator.embed(X))
    np.testing.assert_array_equal(again.predict(turned), estimator.predict(X))
    (tmp_path / "channels.json").write_text('{"names": ["a"]}')
    with pytest.raises(ValueError, match=r"channels\.json must hold the names of 2 channels, got \['a'\]"):
        kind.from_files(tmp_path)


def test_bad_input_is_named():
    X, y = waves(8)
    with pytest.raises(ValueError, match="y must be finite, got nan for series 2"):
        MVPARegressor(**SMALL_PANEL).fit(X, np.where(np.arange(8) == 2, np.nan, y))
    with pytest.raises(ValueError, match="y must hold a number for each series, got 'a' for series 0: MVPAClassifier"):
        MVPARegressor(**SMALL_PANEL).fit(X, np.array(["a", "b"] * 4))


def test_needs_a_network(tmp_path):
    X, y = waves(8)
    # One network for each column.
    regressor = MVPARegressor(**{**SMALL_PANEL, "max_steps": 1}).fit(X, np.stack([y, -y], axis=1))
    for method, argument in (("embed", X), ("to_files", tmp_path)):
        with pytest.raises(ValueError, match=f"{method} needs a regressor that was fitted on one column y: this one"):
            getattr(regressor, method)(argument)


@pytest.mark.parametrize("estimator", [MVPARegressor, MVPAClassifier])
def test_scikit_learn_takes_it(estimator):
    """Its searches and scores ask for tags, which sktime's estimators lack, and reach options of dicts."""
    kind = "regressor" if estimator is MVPARegressor else "classifier"
    assert get_tags(estimator()).estimator_type == kind
    X = np.sin(np.linspace(0.4, 1.6, 12)[:, None, None] * np.arange(20))
    y = np.linspace(0.4, 1.6, 12) if kind == "regressor" else np.arange(12) // 6
    small = estimator(**{**SMALL_PANEL, "max_steps": 1, "num_networks": 1})
    assert np.isfinite(cross_val_score(small, X, y, cv=2)).all()
    grid = {"dim": [4, 8], "network__width": [2, 4], "training__batch_size": [3]}
    search = GridSearchCV(small, grid, cv=2).fit(X, y)
    config = search.best_estimator_.fitted_.config
    assert (config.dim, config.width) == (search.best_params_["dim"], search.best_params_["network__width"])
    assert search.predict(X).shape == (12,)
