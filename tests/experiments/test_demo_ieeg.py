"""The demo's loss curve of a run with stops, and what its committed results say."""

from __future__ import annotations

import json

import demo_ieeg
import pandas as pd
import pretraining_comparison
from harness.tables import RESULTS

from mvpa_ts.ieeg.training.similarity import Rows, Similarity


def test_loss_curve_of_a_stopped_run(tmp_path):
    # The tenth start comes after the second, by number.
    starts = {2: [(0, 3.0, None), (1, 2.9, None), (2, 2.7, 3.2)], 10: [(2, 2.8, 3.1), (3, 2.5, None)]}
    for version, rows in starts.items():
        folder = tmp_path / "csv" / f"version_{version}"
        folder.mkdir(parents=True)
        frame = pd.DataFrame(rows, columns=["step", "train/loss", "validation/loss"])
        frame.to_csv(folder / "metrics.csv", index=False)
    curve = demo_ieeg.loss_curve(tmp_path)
    assert curve["step"].tolist() == [0, 1, 2, 3]
    assert curve["train/loss"].tolist() == [3.0, 2.9, 2.8, 2.5]
    assert curve["validation/loss"].dropna().tolist() == [3.1]


def test_committed_demo_shows_the_true_next_segment_above_the_others():
    content = json.loads((RESULTS / "pretraining" / "pretraining_demo.json").read_text())
    overall = {row["state"]: row for row in content["similarity"]["after"]["overall"]}
    for state in ("all", "interictal", "ictal"):
        assert overall[state]["true"] > 0.2 + max(overall[state]["two_step"], overall[state]["random"])
    before = {row["state"]: row for row in content["similarity"]["before"]["overall"]}
    assert abs(before["all"]["true"] - before["all"]["random"]) < 0.05
    assert not set(content["subjects"]["training"]) & set(content["subjects"]["validation"])


def test_comparison_restores_what_it_wrote():
    rows = Rows(["a", "b"], ["r", "s"], [0.0, 5.0], [0, 2], [[0.9, 0.5, 0.4], [0.7, 0.6, 0.5]])
    similarity = Similarity([rows])
    content = json.loads(json.dumps(similarity.segments.to_dict("list")))
    assert pretraining_comparison.restored(content).segments.equals(similarity.segments)
