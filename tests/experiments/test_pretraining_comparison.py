"""The comparison of pretrainings goes on from what it wrote."""

import json

import pandas as pd
import pretraining_comparison

from mvpa_ts.ieeg.training.similarity import COLUMNS, Similarity


def test_comparison_restores_what_it_wrote():
    rows = [("a", "r", 0.0, "interictal", 0.9, 0.5, 0.4), ("b", "s", 5.0, "ictal", 0.7, 0.6, 0.5)]
    similarity = Similarity([pd.DataFrame(rows, columns=COLUMNS)])
    content = json.loads(json.dumps(similarity.segments.to_dict("list")))
    assert pretraining_comparison.restored(content).segments.equals(similarity.segments)
