"""Three-reference similarity against a loop over scalars; states, tables, tests and the plot."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.reading import refuses
from torch import Tensor

from mvpa_ts.ieeg.training.similarity import (
    COLUMNS,
    REFERENCES,
    STATES,
    Similarity,
    compare_models,
    signed_rank,
    table_of,
    three_reference_similarity,
)


def cosine(x: Tensor, y: Tensor) -> float:
    return (x.double() @ y.double() / x.double().norm() / y.double().norm()).item()


@pytest.mark.parametrize(("W", "T", "S"), [(1, 5, 40), (3, 4, 12), (2, 1, 6), (1, 30, 31)])
def test_equals_the_loop(W, T, S):
    generator = torch.Generator().manual_seed(W + S)
    prediction = torch.randn(2, W, T, 3, 4, generator=generator)
    embeddings = torch.randn(2, S, 3, 4, generator=generator)
    real = torch.rand(2, S, 3, generator=generator) < 0.8
    similarity = three_reference_similarity(prediction, embeddings, real=real, generator=generator)
    for b, w, t, c in itertools.product(range(2), range(W), range(T), range(3)):
        p, o = w + t, prediction[b, w, t, c]
        later = [s for s in range(p + 3, min(S, p + 25)) if real[b, s, c]]
        found = similarity[b, w, t, c]
        if not (p + 2 < S and real[b, p : p + 3, c].all() and later):
            assert found.isnan().all()
            continue
        assert found[0].item() == pytest.approx(cosine(o, embeddings[b, p + 1, c]), abs=1e-5)
        assert found[1].item() == pytest.approx(cosine(o, embeddings[b, p + 2, c]), abs=1e-5)
        assert min(abs(found[2].item() - cosine(o, embeddings[b, s, c])) for s in later) < 1e-5


def test_random_reference_is_uniform_within_two_minutes():
    S, draws = 40, 3000
    embeddings = torch.eye(S)[None, :, None].expand(draws, S, 1, S)  # each segment has its own direction
    prediction = torch.arange(1.0, S + 1).expand(draws, 1, 1, 1, S)  # whose cosine tells which one was drawn
    similarity = three_reference_similarity(prediction, embeddings, generator=torch.Generator().manual_seed(0))
    drawn = (similarity[:, 0, 0, 0, 2] * prediction[0].norm()).round().long() - 1
    counts = torch.bincount(drawn, minlength=S)
    assert (counts[:3] == 0).all()
    assert (counts[25:] == 0).all()
    assert stats.chisquare(counts[3:25].numpy()).pvalue > 1e-3


def test_states_follow_the_segment_and_its_target():
    B, T, C = 1, 6, 2
    ictal = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    values = torch.ones(B, 1, T, C, 3)
    values[0, 0, 3] = math.nan
    values[0, 0, 0, 1] = math.nan
    values[0, 0, 0, 0] = torch.tensor([0.1, 0.2, 0.3])
    table = table_of(values, ictal, ["s"], ["r"], torch.tensor([100.0]))
    assert table["start"].tolist() == [100.0, 105.0, 110.0, 120.0, 125.0]
    assert table["state"].tolist() == ["interictal", "boundary", "ictal", "boundary", "interictal"]
    assert table.loc[0, [*REFERENCES]].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_rows_average_the_windows_of_a_segment():
    values = torch.zeros(1, 2, 2, 1, 3)
    values[0, 0, 1], values[0, 1, 0] = 1.0, 3.0  # segment 1 seen in both windows
    table = table_of(values, torch.zeros(1, 4, dtype=torch.bool), ["s"], ["r"], torch.tensor([0.0]))
    assert table["true"].tolist() == [0.0, 2.0, 0.0]


def similarity_of(rows: list[tuple[object, ...]], repeated: int = 1) -> Similarity:
    return Similarity([pd.DataFrame(rows, columns=COLUMNS)] * repeated)


def cohort(subjects: int, ictal_shift: float, seed: int = 0, margin: float = 0.3) -> Similarity:
    generator = np.random.default_rng(seed)
    rows = []
    for subject in range(subjects):
        level = generator.normal(0.5, 0.05)
        for i, state in enumerate(["interictal"] * 40 + ["boundary"] * 2 + ["ictal"] * 20):
            true = generator.normal(level + ictal_shift * (state == "ictal"), 0.02)
            rows.append((f"s{subject}", "r", 5.0 * i, state, true, true - margin / 2, true - margin))
    return similarity_of(rows)


def test_table_is_the_mean_of_the_segments():
    similarity = cohort(3, 0.1)
    table = similarity.table()
    assert len(table) == 9
    for row in table.itertuples():
        chosen = similarity.segments.query("subject == @row.subject and state == @row.state")
        assert row.segments == len(chosen)
        assert row.two_step == pytest.approx(chosen["two_step"].mean())
    overall = similarity.overall().set_index("state")
    assert list(overall.index) == ["all", *STATES]
    assert overall.loc["ictal", "true"] == pytest.approx(table.query("state == 'ictal'")["true"].mean())


def test_repeated_segments_count_once():
    row = ("s", "r", 0.0, "interictal", 0.5, 0.5, 0.5)
    assert len(similarity_of([row, row], repeated=2).segments) == 1


def test_ictal_test_is_scipys_on_subject_means():
    similarity = cohort(8, -0.1)
    test = similarity.ictal_test()
    means = similarity.table().pivot(index="subject", columns="state", values="true")
    expected = stats.wilcoxon(means["ictal"], means["interictal"])
    assert (test.n, test.p_value) == (8, pytest.approx(expected.pvalue))
    assert test.p_value == test.smallest_p == 2 / 2**8
    assert test.median_difference == pytest.approx(-0.1, abs=0.02)


def test_few_subjects_are_said_to_be_few():
    assert "cannot go below 0.062" in str(cohort(5, 0.1).ictal_test())
    only_interictal = similarity_of([("s", "r", 0.0, "interictal", 0.5, 0.5, 0.5)])
    assert str(only_interictal.ictal_test()) == "no subject has both"
    assert signed_rank([1.0, 2.0], [1.0, 2.0]).p_value == 1.0


def test_false_positive_rate_of_the_ictal_test():
    found = [cohort(10, 0.0, seed).ictal_test().p_value < 0.05 for seed in range(40)]
    assert sum(found) <= 6


def test_models_are_compared_on_margins_with_holm():
    models = {"a": cohort(7, 0, margin=0.3), "b": cohort(7, 0, margin=0.2), "c": cohort(7, 0, margin=0.1)}
    frame = compare_models(models)
    assert frame[["model", "other"]].values.tolist() == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert frame["margin"].tolist() == pytest.approx([0.3, 0.3, 0.2])
    assert frame["median_difference"].tolist() == pytest.approx([0.1, 0.2, 0.1])
    assert frame["p_holm"].tolist() == pytest.approx([3 * p for p in frame["p_value"]])
    assert (frame["subjects"] == 7).all()
    fewer = compare_models(models, against="b")
    assert fewer[["model", "other"]].values.tolist() == [["b", "a"], ["b", "c"]]
    assert fewer["p_holm"].tolist() == pytest.approx([2 * p for p in fewer["p_value"]])
    refuses(compare_models, "against must be one of a, b, c, got 'd'", models, against="d")


@pytest.mark.parametrize("against", [None, "a"])
@pytest.mark.parametrize("names", [[], ["a"]])
def test_one_model_is_not_compared(names, against):
    with pytest.raises(ValueError, match=f"models must hold at least two .* got \\[{', '.join(map(repr, names))}\\]"):
        compare_models({name: cohort(7, 0) for name in names}, against=against)


def test_holm_steps_down():
    from mvpa_ts.ieeg.training.similarity import _holm

    assert _holm([0.04, 0.01, math.nan, 0.03]) == pytest.approx([0.06, 0.03, math.nan, 0.06], nan_ok=True)


def test_plot_is_written_whole(tmp_path):
    similarity = cohort(3, 0.1)
    similarity.plot(tmp_path / "similarity.png", "tiny")
    assert (tmp_path / "similarity.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["similarity.png"]
    refuses(similarity.plot, "nonsense", tmp_path / "similarity.nonsense")
    assert [path.name for path in tmp_path.iterdir()] == ["similarity.png"]


def test_empty_similarity_has_empty_tables():
    empty = Similarity([])
    assert isinstance(empty.table(), pd.DataFrame)
    assert empty.table().empty
    assert empty.ictal_test().n == 0


def test_short_embeddings_are_refused():
    with pytest.raises(ValueError, match=r"S ≥ W \+ T, got \(1, 2, 3, 1, 4\) and \(1, 4, 1, 4\)"):
        three_reference_similarity(torch.zeros(1, 2, 3, 1, 4), torch.zeros(1, 4, 1, 4))


def test_references_are_named_in_order():
    assert REFERENCES == ("true", "two_step", "random")
