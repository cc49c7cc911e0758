"""The committed Markdown tables are those of the committed rows, and the README's numbers those of the tables."""

import json
import re
from collections.abc import Callable
from typing import Any

import attention_cpu
import attention_gpu
import corrections
import demo_detect
import first_seizure
import generation
import many_channels
import numpy as np
import onsets
import pandas as pd
import patient_drift
import pretraining_comparison
import promised_alarms
import pytest
import readme
import real_seizures
import short_runs
import sktime_forecasting
import throughput
import treebank
from harness.attention import grids
from harness.board import report as board_report
from harness.classification import report as classification_report
from harness.forecasting import report as forecasting_report
from harness.forecasting import zero_shot_report
from harness.forecasting.models import MODELS, build
from harness.tables import RESULTS, read_rows

FROM_ROWS: dict[str, Callable] = {
    "forecasting/forecasting": forecasting_report.markdown_report,
    "forecasting/forecasting_terms": forecasting_report.markdown_report,
    "forecasting/forecasting_336": forecasting_report.markdown_report,
    "forecasting/forecasting_720": forecasting_report.markdown_report,
    "classification/classification": classification_report.markdown_report,
    "detection/detect_folder": throughput.detect_page,
    "detection/hard_cohort": demo_detect.report,
    "detection/few_seizures": demo_detect.few_report,
    "detection/first_seizure": first_seizure.report,
    "detection/generation": generation.report,
    "detection/corrections": corrections.report,
    "detection/onsets": onsets.report,
    "detection/patient_drift": patient_drift.report,
    "detection/promised_alarms": promised_alarms.report,
    "detection/real_seizures": real_seizures.report,
    "forecasting/pretrained": lambda rows: zero_shot_report.markdown(
        rows, json.loads((RESULTS / "forecasting" / "pretrained.json").read_text(encoding="utf-8"))
    ),
    "forecasting/short_runs": short_runs.markdown,
    "forecasting/sktime_forecasting": sktime_forecasting.report,
    "board/panels": board_report.markdown,
    "treebank/treebank_simulated": lambda rows: treebank.report(rows.to_dict("records"), simulated=True),
}
FROM_RECORDS: dict[str, Callable] = {
    "attention/attention_cpu": attention_cpu.markdown,
    "attention/attention_grids": grids.markdown,
    "attention/many_channels": many_channels.markdown,
    "detection/streaming": throughput.streaming_page,
    "forecasting/training_step": throughput.training_page,
    "pretraining/loading": throughput.loading_page,
    "pretraining/pretraining_comparison": pretraining_comparison.markdown,
}


@pytest.mark.parametrize("name", FROM_ROWS)
def test_table_of_rows(name):
    rows = read_rows(RESULTS / f"{name}.csv")
    assert FROM_ROWS[name](rows) == (RESULTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FROM_RECORDS)
def test_table_of_a_record(name):
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert FROM_RECORDS[name](record) == (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_page_of_the_gpu():
    path = RESULTS / "attention" / "attention_gpu.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert attention_gpu.page(rows) == path.with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(
            (f"forecasting/forecasting{length}", ["model", "dataset", "horizon", "seed"])
            for length in ("", "_336", "_720")
        ),
        ("classification/classification", ["model", "dataset", "seed"]),
        ("forecasting/sktime_forecasting", ["case", "horizon", "model", "seed"]),
        ("detection/hard_cohort", ["configuration", "rules", "seed"]),
        ("detection/few_seizures", ["subject", "seizures", "detector"]),
        ("detection/detect_folder", ["way", "recordings", "hours"]),
        ("detection/first_seizure", ["detector", "seed"]),
        ("detection/generation", ["model", "seed", "subject", "seconds"]),
        ("detection/corrections", ["cohort", "subject"]),
        ("detection/onsets", ["subject"]),
        ("detection/promised_alarms", ["subject", "detector", "promised"]),
        ("detection/patient_drift", ["animal"]),
        ("detection/real_seizures", ["pairing", "model", "seed", "fold"]),
        ("treebank/treebank_simulated", ["model", "subject", "task", "protocol", "split", "channels"]),
    ],
)
def test_no_run_is_there_twice(name, key):
    assert not read_rows(RESULTS / f"{name}.csv").duplicated(key).any()


@pytest.mark.parametrize(
    ("name", "lookback"), [("forecasting", 96), ("forecasting_336", 336), ("forecasting_720", 720)]
)
def test_rows_were_run_with_the_present_settings(name, lookback):
    """What a row does not state was not there yet and changed nothing."""
    rows = read_rows(RESULTS / "forecasting" / f"{name}.csv")
    assert set(rows["model"]) <= set(MODELS)
    for (model, dataset, horizon), own in rows.groupby(["model", "dataset", "horizon"]):
        channels = 21 if dataset == "Weather" else 7
        network, training, settings = build(model, dataset, horizon, channels, seed=1, lookback=lookback)
        present = json.loads(json.dumps({**settings, "training": vars(training)}))
        for text in own["settings"].unique():
            stated = json.loads(text)
            trained = of_today(stated.pop("training"))
            assert not stated.pop("shuffle_channels", False)  # gone; no row used it
            ways = [stated.pop(f"covariate_{name}", None) for name in ("maps", "heads", "effects")]
            if ways[0] is not None:  # one field stands for what were three; without maps nothing was read
                read = [name for name, on in zip(("maps", "channels", "effects"), ways, strict=True) if on and ways[0]]
                stated["covariates"] = read
            stated = in_present_fields(stated)
            where = f"{model}, {dataset}, {horizon}"
            assert stated == {key: present[key] for key in stated}, where
            for key, value in trained.items():
                assert present["training"][key] == (pytest.approx(value) if isinstance(value, float) else value), where
        assert set(own["parameters"]) == {sum(parameter.numel() for parameter in network.parameters())}


def in_present_fields(stated: dict[str, Any]) -> dict[str, Any]:
    """Options of the network as rows state them, by the fields that took their place."""
    gone = {"phase_weights": False, "max_channels": 32, "location_outputs": None}
    assert all(stated.get(name, value) == value for name, value in gone.items())
    counts = {
        "vectors": "channel_vectors", "cycle": "cycle_channels", "matrix": "individual_channels",
        "bounds": "bounded_channels",
    }  # fmt: skip
    sizes = ("future_size", "historic_size", "static_size")
    replaced = {*gone, *counts.values(), *sizes, "level_reversion"}
    present = {name: value for name, value in stated.items() if name not in replaced}
    if "individual_channels" in stated:
        assert not any(stated[name] for name in sizes)
        present["per_channel"] = [name for name, count in counts.items() if stated.get(count)]
        present["num_channels"] = next((stated[counts[name]] for name in present["per_channel"]), None)
        present["normalise"] = "reverting" if stated["level_reversion"] else stated["normalise"]
    return present


def of_today(trained: dict[str, Any]) -> dict[str, Any]:
    """Settings of training as rows state them, by their present names.

    The rate of the linear path was stated as a multiple of the other one; two kinds of augmentation that no row used
    are gone.
    """
    trained = dict(trained)
    assert not trained.pop("frequency_masking", 0.0)
    assert not trained.pop("frequency_mixing", 0.0)
    multiple = trained.pop("linear_rate", 1.0)
    if multiple != 1.0:
        trained["linear_learning_rate"] = multiple * trained["learning_rate"]
    return trained


def test_explanations_find_the_channels_that_lead():
    """As docs/guides/explanations.md says."""
    table = read_rows(RESULTS / "structure" / "explanations.csv").set_index("channel")
    read = table.loc[2:5]
    assert (read["found"] == read["true"]).all()
    assert set(read.index) == set(table.loc[:5].nlargest(4, "share").index)
    assert (table.loc[:1, "share"] <= 0.02).all()


def test_the_bootstrap_interval_is_that_of_a_mean():
    """Of the logarithm's mean: its standard error times 1.96 each way, for many sets."""
    ratios = np.exp(np.random.default_rng(1).normal(-0.3, 0.4, 400))
    low, high = zero_shot_report.bootstrap_interval(ratios)
    error = np.log(ratios).std() / 20
    assert np.log([low, high]) == pytest.approx(np.log(ratios).mean() + 1.96 * error * np.array([-1, 1]), abs=0.004)


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
