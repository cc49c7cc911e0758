"""Training: reproducible, honest about what it sees, and clear about bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.made_up_networks import SMALL_CLASSIFIER, damage
from torch import Tensor, nn

from mvpa_ts.classification import (
    Augmentation,
    ClassificationConfig,
    ClassificationTraining,
    FittedClassifier,
    Progress,
    fit_classifier,
)
from mvpa_ts.classification.loop import Part, train_network
from mvpa_ts.classification.panel import Scaler
from mvpa_ts.classification.training import kernel_share, stratified_split

QUICK = ClassificationTraining(steps=6, evaluate_every=3, kernel_copies=1)


def panel(n: int = 24, num_classes: int = 3, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Two channels of unequal length; classes differ in frequency and in the level of the second channel."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % num_classes
    series = []
    for label in labels:
        steps = np.arange(generator.integers(18, 31))
        wave = np.sin(steps * (0.4 + 0.4 * label) + generator.uniform(0, 6))
        series.append(np.stack([wave, label + wave]) + 0.3 * generator.normal(size=(2, len(steps))))
    return series, labels


def config(series: list[np.ndarray], num_classes: int = 3) -> ClassificationConfig:
    return ClassificationConfig(len(series[0]), num_classes, max(one.shape[1] for one in series), **SMALL_CLASSIFIER)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fitted() -> FittedClassifier:
    series, labels = panel()
    return fit_classifier(series, labels, config=config(series), training=QUICK, seed=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scaler": None}, "must hold a JSON object with the fields of Scaler"),
        ({"scaler": {"location": [1.0]}}, "does not hold the fields of Scaler"),
        ({"scaler": {"location": [0.0, None], "scale": [1.0, 1.0]}}, "scaler must hold 2 finite numbers"),
        ({"scaler": {"location": [0.0], "scale": [1.0]}}, "scaler must hold 2 finite numbers"),
        ({"num_networks": 10**9}, "num_networks must lie between 0 and"),
        ({"num_networks": "2"}, "num_networks must be a whole number"),
        ({"num_networks": 0}, "num_networks must be a whole number of at least 1"),
        ({"config": []}, "must hold a JSON object with the fields of ClassificationConfig"),
        ({"config.dim": 10**9}, "dim must lie between 0 and"),
        ({"config.dim": None}, "ClassificationConfig|dim"),
        ({"-scaler": 0}, "has no scaler: it is damaged"),
        ({"-config": 0}, "has no config: it is damaged"),
        ({"config.num_layers": 1}, "does not fit"),
        ({"format": "other"}, "must have format"),
    ],
)
def test_a_damaged_description_is_named(fitted, tmp_path, change, message):
    fitted.to_files(tmp_path)
    damage(tmp_path / "classifier.json", change)
    with pytest.raises(ValueError, match=message):
        FittedClassifier.from_files(tmp_path)


def test_same_seed_same_bits_and_the_callers_random_state_stays(fitted):
    series, labels = panel()
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    again = fit_classifier(series, labels, config=config(series), training=QUICK, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(again.predict_proba(series), fitted.predict_proba(series))
    other = fit_classifier(series, labels, config=config(series), training=QUICK, seed=5)
    assert not np.array_equal(other.predict_proba(series), fitted.predict_proba(series))


def test_it_learns():
    series, labels = panel(48)
    others, other_labels = panel(60, seed=1)
    model = fit_classifier(
        series, labels, config=config(series), training=ClassificationTraining(steps=60, num_networks=1)
    )
    probabilities = model.predict_proba(others)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=0, atol=1e-14)  # scikit-learn warns from 1e-8
    assert (probabilities.argmax(1) == other_labels).mean() > 0.85


def test_a_series_is_read_alike_alone_and_beside_longer_ones(fitted):
    series, _ = panel()
    together = fitted.predict_proba(series)
    alone = np.concatenate([fitted.predict_proba([one]) for one in series])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    longer = fitted.predict_proba([series[0], np.zeros((2, 200))])
    np.testing.assert_allclose(longer[0], together[0], atol=1e-5)


def test_missing_values_and_steps_missing_at_the_end(fitted):
    series, _ = panel()
    ended = [np.concatenate([one, np.full((2, 9), np.nan)], 1) for one in series]
    np.testing.assert_allclose(fitted.predict_proba(ended), fitted.predict_proba(series), atol=1e-5)
    holed = [one.copy() for one in series]
    for one in holed:
        one[0, 3:9] = np.nan
    assert np.isfinite(fitted.predict_proba(holed)).all()
    series[0][1] = np.nan  # a whole channel
    assert np.isfinite(fitted.predict_proba(series)).all()


def test_training_with_missing_values():
    series, labels = panel()
    for one in series[::2]:
        one[1, ::3] = np.nan
    model = fit_classifier(series, labels, config=config(series), training=QUICK)
    assert np.isfinite(model.predict_proba(series)).all()
    assert np.isfinite(model.embed(series)).all()


def test_embeddings_stand_side_by_side(fitted):
    series, _ = panel()
    one = fitted.networks[0].attention.encoder.embedding_size
    assert fitted.embed(series[:5]).shape == (5, 2 * one)


def test_files_hold_everything(fitted, tmp_path):
    series, _ = panel()
    fitted.to_files(tmp_path / "model")
    again = FittedClassifier.from_files(tmp_path / "model")
    assert again.config == fitted.config
    assert again.scaler == fitted.scaler
    assert np.array_equal(again.predict_proba(series), fitted.predict_proba(series))
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["classifier.json", "classifier.safetensors"]

    path = tmp_path / "model" / "classifier.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"classifier\.json is not readable as JSON"):
        FittedClassifier.from_files(tmp_path / "model")
    path.unlink()
    with pytest.raises(OSError, match=r"classifier\.json"):
        FittedClassifier.from_files(tmp_path / "model")


def test_damaged_weights_are_named(fitted, tmp_path):
    fitted.to_files(tmp_path)
    weights = tmp_path / "classifier.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"classifier\.safetensors is damaged"):
        FittedClassifier.from_files(tmp_path)


def test_progress_and_stages():
    series, labels = panel()
    told: list[Progress] = []
    fit_classifier(series, labels, config=config(series), training=QUICK, progress=told.append)
    first = [one for one in told if one.stage == "validation"]
    best = min(first, key=lambda one: one.validation_loss or 0.0).step
    assert [(one.network, one.step) for one in first] == [(1, 3), (1, 6)]
    assert [(one.network, one.step) for one in told if one.stage == "final"] == [(2, s) for s in (3, 6) if s <= best]
    assert all((one.validation_loss is None) == (one.stage == "final") for one in told)
    told.clear()
    every = ClassificationTraining(steps=3, evaluate_every=3, kernel_copies=0, refit=False)
    fit_classifier(series, labels, config=config(series), training=every, progress=told.append)
    assert [one.stage for one in told] == ["validation", "validation"]
    told.clear()
    nothing = ClassificationTraining(steps=3, evaluate_every=3, kernel_copies=0, validation=0.0)
    fit_classifier(series, labels, config=config(series), training=nothing, progress=told.append)
    assert [one.stage for one in told] == ["final", "final"]


class _Constant(nn.Module):
    """Gives each series the same probability of the first of two classes; every step moves it further."""

    def __init__(self, first: float = 0.5) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([first, 1 - first]).log())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.bias.expand(len(x), 2)


def part(labels: list[int]) -> Part:
    x = torch.zeros(len(labels), 4, 1)
    return Part(x, torch.ones_like(x, dtype=torch.bool), torch.tensor(labels), 2)


def test_the_best_step_is_kept_and_training_stops():
    # Trained on class 0 alone and validated where both are equally frequent: every step is worse than the one before.
    training = ClassificationTraining(
        steps=100, evaluate_every=5, patience=3, learning_rate=0.1, label_smoothing=0.0, weight_averaging=0.0
    )
    seen: list[tuple[int, float]] = []
    network = _Constant()
    best = train_network(
        network, part([0] * 8), part([0, 1]), training, steps=100, seed=0,
        report=lambda step, _, __, loss, ___, ____: seen.append((step, loss or 0.0)),
    )  # fmt: skip
    assert best == 5
    assert [step for step, _ in seen] == [5, 10, 15, 20]  # the first is the best, three more are waited for
    kept = torch.nn.functional.cross_entropy(network.bias.expand(2, 2), torch.tensor([0, 1])).item()
    assert kept == pytest.approx(seen[0][1])


def test_balanced_weights_count_classes_alike():
    training = ClassificationTraining(
        steps=150, learning_rate=0.05, label_smoothing=0.0, weight_decay=0.0, class_weights="balanced",
        evaluate_every=150, batch_size=60,
    )  # fmt: skip
    network = _Constant()
    train_network(network, part([0] * 50 + [1] * 10), None, training, steps=150, seed=0)
    assert network.bias.softmax(0)[0].item() == pytest.approx(0.5, abs=0.05)
    given = _Constant()
    numbers = replace(training, class_weights=(1, 5))
    train_network(given, part([0] * 50 + [1] * 10), part([0, 1]), numbers, steps=150, seed=0)
    torch.testing.assert_close(given.bias, network.bias, atol=0.05, rtol=0)
    for scale in (100, 0.01):  # only ratios count
        scaled = _Constant()
        times = replace(training, class_weights=(scale, 5 * scale))
        train_network(scaled, part([0] * 50 + [1] * 10), part([0, 1]), times, steps=150, seed=0)
        torch.testing.assert_close(scaled.bias, given.bias)
    plain = _Constant()
    unweighted = replace(training, class_weights=None)
    train_network(plain, part([0] * 50 + [1] * 10), None, unweighted, steps=150, seed=0)
    assert plain.bias.softmax(0)[0].item() == pytest.approx(5 / 6, abs=0.05)


def test_the_scaler_and_the_first_network_do_not_see_what_is_held_out():
    series, labels = panel()
    rows, held = stratified_split(labels, QUICK.validation, seed=0)
    first = fit_classifier(series, labels, config=config(series), training=QUICK, seed=0)
    changed = [one * 1000 if row in held else one for row, one in enumerate(series)]
    second = fit_classifier(changed, labels, config=config(series), training=QUICK, seed=0)
    assert first.scaler == second.scaler == Scaler.fit([series[row] for row in rows])


def test_the_better_path_gets_the_larger_share():
    held = part([0] * 40)
    for attended, convolved, expected in ((0.9, 0.5, 0.05), (0.5, 0.9, 0.95), (0.7, 0.7, 0.5)):
        left_out = torch.tensor([convolved, 1 - convolved]).log().expand(40, 2)
        share = kernel_share(_Constant(attended), left_out, held, QUICK)  # type: ignore[arg-type]
        assert share == pytest.approx(expected, abs=0.11)
    few = kernel_share(_Constant(0.9), torch.zeros(1, 2), part([0]), QUICK)  # type: ignore[arg-type]
    assert 0.4 <= few <= 0.5


def test_networks_have_one_share(fitted):
    assert fitted.networks[0].kernel_share == fitted.networks[1].kernel_share


def test_split_takes_from_every_class():
    labels = np.array([0] * 10 + [1] * 2 + [2])
    rows, held = stratified_split(labels, 0.2, seed=1)
    assert sorted([*rows, *held]) == list(range(13))
    assert np.bincount(labels[held], minlength=3).tolist() == [2, 1, 0]  # the only one of its class is trained on
    assert len(stratified_split(labels, 0.0, seed=1)[1]) == 0


def test_scaler_against_numpy():
    series, _ = panel()
    series[0][0, 2:5] = np.nan
    series = [np.concatenate([one, np.full((1, one.shape[1]), 7.0)]) for one in series]  # a constant channel
    found = Scaler.fit(series)
    for channel in range(2):
        values = np.concatenate([one[channel] for one in series])
        assert found.location[channel] == pytest.approx(np.nanmean(values))
        assert found.scale[channel] == pytest.approx(np.nanstd(values))
    assert (found.location[2], found.scale[2]) == (7.0, 1.0)


def test_small_units_are_not_constant():
    series, _ = panel(4)
    plain, tiny = Scaler.fit(series), Scaler.fit([1e-13 * one for one in series])  # magnetic fields in tesla
    assert tiny.scale == pytest.approx([1e-13 * scale for scale in plain.scale])


def test_large_offsets_survive_float32():
    series, _ = panel(12)
    shifted = [one + 1e9 for one in series]
    x, _ = Scaler.fit(series).padded(series)
    y, _ = Scaler.fit(shifted).padded(shifted)
    torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_large_panels_take_more_steps():
    default = ClassificationTraining()
    assert default.for_panel(270).steps == 300
    assert default.for_panel(6400).steps == 1600
    assert default.for_panel(6400).evaluate_every == 133
    assert ClassificationTraining(steps=7).for_panel(6400) == ClassificationTraining(steps=7)


@pytest.mark.parametrize("warp", [0.0, 0.4])
def test_augmentation_keeps_masks_and_lengths(warp):
    augmentation = Augmentation(warp=warp, crop=warp, cut=0.0, channel_dropout=0.0)
    x, mask = Scaler.fit(panel()[0]).padded(panel()[0])
    mask[0, 3:6, 1] = False
    poisoned = x.masked_fill(~mask, 1e6)
    changed, seen = augmentation(poisoned, mask, torch.Generator().manual_seed(0))
    assert changed.abs().max() < 100  # nothing came from where nothing was observed
    assert torch.equal(seen[1:].any(2), mask[1:].any(2))
    assert changed[~seen].abs().sum() == 0
    assert not torch.equal(changed, x)


def test_augmentation_turned_off_changes_nothing():
    off = Augmentation(warp=0.0, crop=0.0, scale=0.0, noise=0.0, cut=0.0, channel_dropout=0.0)
    x, mask = Scaler.fit(panel()[0]).padded(panel()[0])
    changed, seen = off(x, mask, torch.Generator())
    assert torch.equal(changed, x)
    assert torch.equal(seen, mask)


def test_hidden_channels_and_stretches():
    x, mask = torch.ones(200, 40, 3), torch.ones(200, 40, 3, dtype=torch.bool)
    off = {"warp": 0.0, "crop": 0.0, "scale": 0.0, "noise": 0.0}
    _, seen = Augmentation(**off, cut=0.0, channel_dropout=0.6)(x, mask, torch.Generator().manual_seed(0))
    assert seen.any(2).all()  # one channel is always left
    assert (~seen.any(1)).float().mean() == pytest.approx(0.4, abs=0.07)
    _, seen = Augmentation(**off, cut=0.5, channel_dropout=0.0)(x, mask, torch.Generator().manual_seed(0))
    assert (~seen).float().mean() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("series", "labels", "message"),
    [
        ([], [], "series is empty"),
        ([np.zeros((2, 5))] * 4, [0, 0, 0, 0], "at least two classes"),
        ([np.zeros((2, 5))] * 4, [0, 2, 0, 2], r"0 … K−1 without gaps, got \[0, 2\]: give np\.unique"),
        ([np.zeros((2, 5))] * 4, [0, 1], "labels must be 4 integers"),
        ([np.zeros((2, 5))] * 2, [0.0, 1.0], "labels must be 2 integers"),
        (
            [np.zeros((2, 5))] * 2,
            ["b", "a"],
            r"labels must be 2 integers.* got <U1 .*: give np\.unique\(labels, return_inv",
        ),
        ([np.zeros((2, 5)), np.zeros((3, 5))], [0, 1], r"series\[1\] must have the 2 channels that series.*got 3"),
        ([np.zeros((2, 5)), np.zeros(5)], [0, 1], r"series\[1\] must be a matrix"),
        ([np.zeros((2, 5)), np.zeros((2, 0))], [0, 1], "at least one step"),
        ([np.zeros((2, 5)), np.full((2, 5), np.inf)], [0, 1], r"series\[1\] holds infinite values"),
        ([np.zeros((2, 5)), np.full((2, 5), np.nan)], [0, 1], r"series\[1\] must hold at least one value"),
    ],
)
def test_bad_panels(series, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_classifier(series, np.array(labels), training=QUICK)


def test_a_configuration_for_other_data(fitted):
    series, labels = panel()
    with pytest.raises(ValueError, match=r"config.num_classes \(4\) must be that of labels \(3\)"):
        fit_classifier(series, labels, config=config(series, 4))
    with pytest.raises(ValueError, match=r"series\[0\] must have the 2 channels that the training had, got 3"):
        fitted.predict_proba([np.zeros((3, 20))])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"validation": 1.0}, r"validation must be in \[0, 1\), got 1.0"),
        ({"validation": "half"}, r"validation must be in \[0, 1\), got 'half'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"clip": "1"}, "clip must be positive, got '1'"),
        ({"mixup": -1.0}, "mixup must be at least 0, got -1.0"),
        ({"weight_decay": None}, "weight_decay must be at least 0, got None"),
        ({"class_weights": "even"}, "class_weights must be"),
    ],
)
def test_bad_training(changes, message):
    with pytest.raises(ValueError, match=message):
        ClassificationTraining(**changes)  # type: ignore[arg-type]
