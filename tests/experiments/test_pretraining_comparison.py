"""The comparison of pretrainings goes on from what it wrote."""

import json

import pretraining_comparison

from mvpa_ts.ieeg.training.similarity import Rows, Similarity


def test_comparison_restores_what_it_wrote():
    rows = Rows(["a", "b"], ["r", "s"], [0.0, 5.0], [0, 2], [[0.9, 0.5, 0.4], [0.7, 0.6, 0.5]])
    similarity = Similarity([rows])
    content = json.loads(json.dumps(similarity.segments.to_dict("list")))
    assert pretraining_comparison.restored(content).segments.equals(similarity.segments)
