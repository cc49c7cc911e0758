"""The classification harness: the honest protocol, resumable tables, and peers against known answers."""

import sys

import classification
import numpy as np
import pandas as pd
import pytest
import torch
from harness.classification import models as classification_models
from harness.classification.models import MODELS, Problem, run
from harness.classification.peers import PatchTransformer, StepTransformer, dtw_neighbours
from torch.nn import functional as F


def problem(length: int = 24, unequal: bool = True) -> Problem:
    """Three frequencies in two channels."""
    generator = np.random.default_rng(0)

    def panel(labels: np.ndarray) -> list[np.ndarray]:
        series = []
        for label in labels:
            steps = np.arange(length - (generator.integers(0, 6) if unequal else 0))
            wave = np.sin(steps * (0.4 + 0.5 * label) + generator.uniform(0, 6))
            series.append(np.stack([wave, -wave]) + 0.2 * generator.normal(size=(2, len(steps))))
        return series

    train, test = np.arange(18) % 3, np.arange(12) % 3
    return Problem(panel(train), train, panel(test), test)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "MiniRocket"])
def test_every_model_gives_one_honest_number(model):
    outcome, seconds = run(model, problem(), 1, quick=True, report=lambda text: None)
    assert 0.0 <= outcome.accuracy <= 1.0
    assert seconds > 0
    if outcome.steps is not None:
        assert outcome.selected_on_test is not None
        assert outcome.selected_on_test >= outcome.accuracy - 1e-9 or model in classification_models.COMPONENTS
        assert outcome.validation is not None


def test_paths_of_mvpa_read_the_test_series_as_the_whole_does(monkeypatch):
    fit, look, fitted, seen = classification_models.fit_classifier, classification_models._probabilities, [], []
    monkeypatch.setattr(
        classification_models, "fit_classifier", lambda *a, **o: fitted.append(fit(*a, **o)) or fitted[0]
    )
    monkeypatch.setattr(classification_models, "_probabilities", lambda *a: seen.append(a[1].x) or look(*a))
    run("MVPA", problem(), 1, quick=True, report=lambda text: None)
    expected, _ = fitted[0].scaler.padded(problem().test)
    assert seen
    assert all(torch.equal(x, expected) for x in seen)


def test_test_labels_change_nothing_but_the_score():
    found = problem()
    accuracies = []
    for labels in range(3):
        shifted = Problem(found.train, found.train_labels, found.test, (found.test_labels + labels) % 3)
        accuracies.append(run("PatchTST-style", shifted, 1, quick=True, report=lambda text: None)[0].accuracy)
    # The predictions are the same each time, so each series is right under exactly one of the three labellings.
    assert sum(accuracies) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [PatchTransformer, StepTransformer])
def test_peers_ignore_padding(kind):
    torch.manual_seed(0)
    network = kind(3, 4, 50).eval()
    x = torch.randn(2, 40, 3)
    seen = torch.ones_like(x, dtype=torch.bool)
    alone = network(x, seen)
    padded = network(F.pad(x, (0, 0, 0, 17)), F.pad(seen, (0, 0, 0, 17)))
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)
    assert network(torch.randn(1, 1, 3), torch.ones(1, 1, 3, dtype=torch.bool)).isfinite().all()


def test_dtw_against_the_full_table():
    generator = np.random.default_rng(0)
    train = [generator.normal(size=(2, length)) for length in (7, 9, 12, 8)]
    test = [generator.normal(size=(2, length)) for length in (10, 6, 8)]

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        table = np.full((a.shape[1] + 1, b.shape[1] + 1), np.inf)
        table[0, 0] = 0.0
        for i in range(a.shape[1]):
            for j in range(b.shape[1]):
                cost = float(((a[:, i] - b[:, j]) ** 2).sum())
                table[i + 1, j + 1] = cost + min(table[i, j], table[i, j + 1], table[i + 1, j])
        return float(table[-1, -1])

    expected = [int(np.argmin([distance(query, reference) for reference in train])) for query in test]
    assert dtw_neighbours(train, test).tolist() == expected


def test_a_table_is_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(classification, "load_problem", lambda name: problem())
    table = tmp_path / "classification.csv"
    arguments = ["classification.py", "--quick", "--table", str(table), "--models", "Transformer"]
    monkeypatch.setattr(sys, "argv", arguments)
    classification.main()
    monkeypatch.setattr(sys, "argv", [*arguments, "1NN-DTW"])
    classification.main()
    assert "[1/1] 1NN-DTW" in capsys.readouterr().out  # the transformer was not run again
    assert list(pd.read_csv(table)["model"]) == ["Transformer", "1NN-DTW"]
    assert "| 1NN-DTW |" in table.with_suffix(".md").read_text()
    seeds = ["classification.py", "--table", str(table), "--models", "1NN-DTW", "--datasets", "BasicMotions"]
    monkeypatch.setattr(sys, "argv", [*seeds, "--seeds", "2", "3"])  # of which it is the same
    classification.main()
    assert len(pd.read_csv(table)) == 2
    assert table.with_suffix(".png").is_file()


def test_a_class_that_only_test_has_is_an_error(monkeypatch):
    parts = {"train": np.array(["a", "b"]), "test": np.array(["a", "c"])}
    monkeypatch.setattr(classification, "load_uea", lambda name, split: ([np.zeros((1, 4))] * 2, parts[split]))
    with pytest.raises(ValueError, match=r"TEST has classes that TRAIN has not: c"):
        classification.load_problem("some")
