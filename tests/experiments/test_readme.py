"""The README's numbers are those of the committed tables."""

import re

import pandas as pd
import readme


def test_readme_holds_what_the_tables_say():
    for page in readme.PAGES:
        text = page.read_text()
        assert "<!-- results:" in text
        assert readme.filled(text) == text, f"{page.name}: run python experiments/shipped/readme.py"


def test_every_number_of_readme_and_results_comes_from_a_table():
    assert [page.name for page in readme.TRACED] == ["README.md", "results.md"]
    for page in readme.TRACED:
        text = page.read_text()
        assert readme.orphans(text) == []
        planted = text.replace("\n## ", "\nAn error of .123, a share of 45 %.\n\n## ", 1)
        assert readme.orphans(planted) == [".123", "45 %"]
        inside = re.sub(r"(<!-- results:\w+ -->\n)", r"\g<1>0.123 ", text)
        assert readme.filled(inside) == text  # what is written by hand between the markers does not stay


def test_summary_averages_complete_models_only(monkeypatch):
    runs = [
        (model, dataset, horizon, 1, 0.1 * index, 0.2 * index)
        for model, count in (("MVPA", 4), ("Linear", 3))
        for dataset in ("ETTh1", "ETTh2")
        for index, horizon in list(enumerate((96, 192, 336, 720), start=1))[:count]
    ]
    rows = pd.DataFrame(runs, columns=["model", "dataset", "horizon", "seed", "test_mse", "test_mae"])
    summary = readme.forecasting_summary(rows.assign(hardware="some", threads=1, torch="2"))
    assert "| MVPA | 0.250 / 0.500 | 0.250 / 0.500 |" in summary
    assert "| Linear |" not in summary  # "CycleNet/Linear" and OLinear are cited


def test_classification_summary_leaves_the_ablation_out():
    runs = [("MVPA", 1, 0.5), ("MVPA", 2, 0.6), ("MVPA none", 1, 0.4), ("1NN-DTW", 1, 0.3)]
    rows = pd.DataFrame(runs, columns=["model", "seed", "accuracy"]).assign(dataset="Handwriting")
    summary = readme.classification_summary(rows.assign(hardware="some", threads=1, torch="2"))
    assert "| MVPA | 55.0 ± 7.1 |" in summary
    assert "| 1NN-DTW | 30.0 |" in summary
    assert "none" not in summary
    assert "| *MVPFormer, paper* | 21 |" in summary
    assert readme.classification_summary(pd.DataFrame()) == ""


def test_configurations_are_counted_and_not_held():
    rows = pd.DataFrame({"dataset": ["ETTh1", "ETTh1", "ETTh1"], "model": ["MVPA", "MVPA, made up", "Linear"]})
    before = readme.tested_summary(rows[:1], ["ETTh1"])
    after = readme.tested_summary(rows, ["ETTh1"])
    assert int(after.split(": ")[1].split()[0]) == int(before.split(": ")[1].split()[0]) + 1
