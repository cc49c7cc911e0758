"""MVPAClassifier beyond sktime's conformance suite."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sktime.datatypes import convert
from sktime.exceptions import NotFittedError
from support.made_up_series import SMALL_PANEL, changed

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor


def waves(instances: int = 24, channels: int = 3, steps: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Two classes of different frequency, [instances, channels, steps]."""
    labels = np.array(["slow", "quick"])[np.arange(instances) % 2]
    speed = np.where(labels == "slow", 0.3, 1.1)[:, None, None]
    phase = np.random.default_rng(0).uniform(0, 6, size=(instances, channels, 1))
    return np.sin(speed * np.arange(steps) + phase), labels


def frames(X: np.ndarray) -> list[pd.DataFrame]:
    return [pd.DataFrame(one.T) for one in X]


def fitted(X: Any, y: np.ndarray, **changes: Any) -> MVPAClassifier:
    return MVPAClassifier(**changed(SMALL_PANEL, changes)).fit(X, y)


@pytest.fixture(scope="module")
def learnt() -> MVPAClassifier:
    """A classifier that was trained until it tells the two classes apart."""
    return fitted(*waves(), max_steps=30)


def test_every_kind_of_panel_gives_the_same():
    X, y = waves()
    expected = fitted(X, y).predict_proba(X)
    for kind in ("nested_univ", "df-list", "pd-multiindex"):
        same = convert(X, "numpy3D", kind, as_scitype="Panel")
        np.testing.assert_array_equal(fitted(same, y).predict_proba(same), expected)
    np.testing.assert_allclose(expected.sum(1), 1.0, rtol=1e-6)


def test_learns_and_keeps_the_kind_of_label(learnt):
    X, y = waves()
    assert learnt.score(X, y) == 1.0
    numbers = np.where(y == "slow", 7, -2)
    found = fitted(X, numbers, max_steps=30).predict(X)
    assert found.dtype == numbers.dtype
    assert np.array_equal(found, numbers)


@pytest.mark.parametrize("steps", range(1, 7))
def test_any_number_of_steps(steps):
    X, y = waves(6)
    assert np.isfinite(fitted(X, y, max_steps=steps, kernel_features=0).predict_proba(X)).all()


class TestLengthsAndGaps:
    def test_a_series_alone_gets_what_it_gets_among_others(self):
        X, y = waves()
        ragged = [frame[: 12 + row % 19] for row, frame in enumerate(frames(X))]
        classifier = fitted(ragged, y)
        together = classifier.predict_proba(ragged)
        alone = np.concatenate([classifier.predict_proba([frame]) for frame in ragged])
        np.testing.assert_allclose(alone, together, atol=2e-6)

    def test_shorter_and_longer_series_than_in_fit(self, learnt):
        _, y = waves()
        longer = frames(waves(steps=75)[0])
        for panel in (longer, [frame[:1] for frame in longer], [longer[0][:2], longer[1]]):
            probabilities = learnt.predict_proba(panel)
            assert np.isfinite(probabilities).all()
            assert len(probabilities) == len(panel)
        assert np.isfinite(fitted([frame[:2] for frame in longer], y).predict_proba(longer)).all()

    def test_missing_values_in_fit_and_predict(self):
        X, y = waves()
        X[::3, 1, 5:9] = np.nan
        X[4, 2] = np.nan  # a whole channel of one series
        classifier = fitted(X, y, max_steps=30)
        assert np.isfinite(classifier.predict_proba(X)).all()
        assert classifier.score(X, y) > 0.9


def test_channels_go_by_their_names():
    X, y = waves()
    named = [frame.set_axis(["a", "b", "c"], axis=1) for frame in frames(X)]
    turned = [frame[["c", "a", "b"]] for frame in named]
    classifier = fitted(named, y)
    expected = classifier.predict_proba(named)
    np.testing.assert_array_equal(classifier.predict_proba(turned), expected)
    np.testing.assert_array_equal(classifier.predict_proba(X), expected)  # an array has no names: by order
    mixed = [turned[row] if row % 2 else frame for row, frame in enumerate(named)]
    np.testing.assert_array_equal(fitted(mixed, y).predict_proba(named), expected)


def test_names_that_say_two_things_are_refused():
    X, y = waves(12)
    named = [frame.set_axis(["a", "b", "c"], axis=1) for frame in frames(X)]
    classifier = fitted(named, y)
    with pytest.raises(ValueError, match=r"channels of fit, \['a', 'b', 'c'\], got \['c', 'a', 'd'\] in series 1"):
        classifier.predict([named[0], named[1].set_axis(["c", "a", "d"], axis=1)])
    ids = [f"s{row:02}" for row in range(len(y))]
    table, labels = pd.concat(named, keys=ids), pd.Series(y, index=ids)
    with pytest.raises(ValueError, match=r"order of X, which begins with \['s00', .*, got \['s11', "):
        fitted(table, labels[::-1])
    expected = classifier.predict_proba(named)
    np.testing.assert_array_equal(fitted(table, labels).predict_proba(named), expected)
    np.testing.assert_array_equal(fitted(table, labels.reset_index(drop=True)).predict_proba(named), expected)


class TestClassWeight:
    def test_counts(self):
        X, y = waves()
        X = np.random.default_rng(0).normal(size=X.shape)  # nothing to learn but the weights
        changes = {"kernel_features": 0, "max_steps": 30, "validation_fraction": 0.0}
        share = [
            fitted(X, y, class_weight={"quick": weight, "slow": 1.0}, **changes).predict_proba(X)[:, 0].mean()
            for weight in (0.1, 10.0)
        ]
        assert share[0] < 0.4
        assert share[1] > 0.6


class TestEmbedding:
    def test_one_row_a_series_that_tells_the_classes_apart(self, learnt):
        X, y = waves()
        embedding = learnt.embed(frames(X))
        assert embedding.shape[0] == len(X)
        assert np.array_equal(embedding, learnt.embed(X))
        centres = np.stack([embedding[y == label].mean(0) for label in ("slow", "quick")])
        nearest = ((embedding[:, None] - centres) ** 2).sum(2).argmin(1)
        assert (np.array(["slow", "quick"])[nearest] == y).mean() > 0.9

    def test_needs_a_network(self):
        X, y = waves()
        with pytest.raises(NotFittedError):
            MVPAClassifier(**SMALL_PANEL).embed(X)
        with pytest.warns(UserWarning, match="single label"):
            classifier = fitted(X, np.full(len(y), "slow"))
        assert set(classifier.predict(X)) == {"slow"}
        needed = "embed needs a classifier that was fitted on one column y with two classes or more"
        with pytest.raises(ValueError, match=needed):
            classifier.embed(X)


class TestBadInput:
    def test_other_channels(self, learnt):
        X, _ = waves()
        with pytest.raises(ValueError, match="X must have the 3 channels of fit, got 2 in series 0"):
            learnt.predict(X[:, :2])

    def test_one_series_without_the_axis_of_series(self, learnt):
        X, _ = waves()
        message = r"got 1 in series 0; one series of 3 channels is an array \(1, 3, steps\)"
        with pytest.raises(ValueError, match=message):
            learnt.predict(X[0])

    @pytest.mark.parametrize("missing", [np.nan, None])
    def test_a_missing_label(self, missing):
        X, y = waves()
        labels = y.astype(object)
        labels[3] = missing
        with pytest.raises(ValueError, match=f"y must hold a label for each series, got {missing} for series 3"):
            fitted(X, labels)

    def test_infinite_values(self):
        X, y = waves()
        X[2, 1, 3] = np.inf
        with pytest.raises(ValueError, match=r"X\[2\] holds infinite values; mark missing values with NaN"):
            fitted(X, y)

    def test_a_series_without_a_value(self):
        X, y = waves()
        X[2] = np.nan
        with pytest.raises(ValueError, match=r"X\[2\] must hold at least one value, got only NaN: leave it out"):
            fitted(X, y)

    @pytest.mark.parametrize("empty", [np.zeros((0, 3, 30)), []], ids=["array", "list"])
    def test_empty_panel(self, empty, learnt):
        with pytest.raises(ValueError, match="X must hold at least one series, got none"):
            fitted(empty, np.array([]))
        with pytest.raises(ValueError, match="X must hold at least one series, got none"):
            learnt.predict(empty)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"dim": 9}, r"dim \(9\) must be a multiple of num_heads"),
            ({"max_steps": 0}, "max_steps must be at least 1"),
            ({"validation_fraction": 1.0}, r"validation_fraction must be in \[0, 1\)"),
            ({"training": {"evaluate_every": 0}}, "evaluate_every must be at least 1"),
            ({"augment": "no"}, "augment must be True or False, got 'no'"),
            ({"training": {"refit": None}}, "refit must be True or False, got None"),
            ({"network": {"width": 4.0}}, r"width must be a whole number, got 4\.0"),
            (
                {"class_weight": "fair"},
                "class_weight must be None, 'balanced' or a dict of .*got 'fair'",
            ),
            ({"class_weight": {"slow": -1.0}}, "class_weight must be finite, not negative"),
            ({"class_weight": {"fast": 2.0}}, r"class_weight must name classes of y.*got \['fast'\]"),
        ],
    )
    def test_parameters(self, changes, message):
        with pytest.raises(ValueError, match=message):
            fitted(*waves(), **changes)


def test_silent_unless_verbose(capfd):
    X, y = waves()
    fitted(X, y)
    assert capfd.readouterr() == ("", "")
    fitted(X, y, verbose=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "network 1/2" in shown.err
    assert "network 2/2: 100%" in shown.err


@pytest.mark.parametrize("kind", [str, int, object, "M8[D]"])
def test_files_come_back(kind, tmp_path):
    X, y = waves()
    labels = np.where(y == "slow", 3, 5).astype(kind)
    classifier = fitted(X, labels)
    classifier.to_files(tmp_path / "new")
    again = MVPAClassifier.from_files(tmp_path / "new")
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), classifier.predict(X))
    np.testing.assert_array_equal(again.embed(X), classifier.embed(X))
    assert again.predict(X).dtype == labels.dtype


def test_parameters_may_be_numbers_of_numpy(tmp_path):
    numbers = {"dim": np.int64(8), "max_steps": np.int64(2), "dropout": np.float32(0.5)}
    numbers["network"] = {"head_dropout": np.float32(0.5)}
    classifier = fitted(*waves(), **numbers)
    classifier.to_files(tmp_path)
    assert MVPAClassifier.from_files(tmp_path).fitted_.config == classifier.fitted_.config


def test_damaged_files_of_classes_are_named(tmp_path, learnt):
    learnt.to_files(tmp_path)
    for text, message in (
        ('{"classes": ["slow"], "dtype": "<U5"}', "must hold the 2 classes of the network"),
        ('{"classes": ["slow", "quick"], "dtype": "?5"}', "must hold classes of one numpy dtype"),
        ('{"classes": ["slow"', "is not readable as JSON"),
    ):
        (tmp_path / "classes.json").write_text(text)
        with pytest.raises(ValueError, match=rf"classes\.json {message}"):
            MVPAClassifier.from_files(tmp_path)


def test_labels_may_be_a_list():
    X, y = waves(8)
    assert (fitted(X, list(y)).predict(X) == fitted(X, y).predict(X)).all()


@pytest.mark.parametrize("estimator", [MVPAClassifier, MVPARegressor])
def test_complex_numbers_and_text_are_refused(estimator):
    X, y = np.random.default_rng(0).normal(size=(4, 2, 20)), np.arange(4) % 2
    for wrong in (X + 1j, X.astype(str)):
        with pytest.raises(ValueError, match="X must hold real numbers, got"):
            estimator().fit(wrong, y)
    with pytest.raises(ValueError, match="y must hold real numbers or labels, got complex128"):
        estimator().fit(X, y + 1j)


@pytest.mark.parametrize("kind", [list, tuple, partial(np.array, dtype=object)], ids=["list", "tuple", "array"])
def test_labels_that_cannot_be_sorted_are_named(kind):
    """Numpy makes texts of numbers beside texts, and predictions would be labels that nobody gave."""
    X = np.random.default_rng(0).normal(size=(4, 2, 20))
    with pytest.raises(ValueError, match="y must have labels of one kind, which can be sorted, got int, str: make"):
        MVPAClassifier().fit(X, kind([0, "1", 0, "1"]))


def test_swapped_axes_are_named_and_the_widest_public_set_is_not():
    made = {"max_steps": 1, "kernel_features": 0, "num_networks": 1, "dim": 4, "validation_fraction": 0}
    X, y = np.random.default_rng(0).normal(size=(4, 100, 6)), np.array(["a", "b"] * 2)
    with pytest.warns(UserWarning, match=r"X has 100 channels of 6 steps: .*\(series, channels, steps\).*transpose"):
        MVPAClassifier(**made).fit(X, y)
    with warnings.catch_warnings(action="error", category=UserWarning):
        MVPAClassifier(**made).fit(np.random.default_rng(0).normal(size=(4, 200, 22)), y)


@pytest.mark.parametrize("owner", [MVPAForecaster, MVPAClassifier, MVPARegressor])
def test_a_folder_of_another_estimator_is_named(owner, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        owner.from_files(tmp_path / "absent")
    other = MVPARegressor if owner is MVPAClassifier else MVPAClassifier
    kind = other.__name__.removeprefix("MVPA").lower()
    (tmp_path / f"{kind}.json").write_text("{}")
    with pytest.raises(ValueError, match=f"holds a {kind}: use {other.__name__}.from_files"):
        owner.from_files(tmp_path)
