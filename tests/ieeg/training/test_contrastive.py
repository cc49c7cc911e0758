"""InfoNCE against a float64 loop over scalars, and where its negatives come from."""

import math

import pytest
import torch
from support.distributed_negatives import draw
from torch import Tensor

from mvpa_ts.ieeg.training import contrastive
from mvpa_ts.ieeg.training.contrastive import Pool, Spans, contrastive_logits, draw_negatives, find_anchors, info_nce


def batch(B=3, S=6, T=4, C=3, D=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    prediction = torch.randn(B, S - T, T, C, D, generator=generator, dtype=dtype)
    embeddings = torch.randn(B, S, C, D, generator=generator, dtype=dtype)
    real = torch.rand(B, S, C, generator=generator) < 0.8
    return prediction.requires_grad_(), embeddings.requires_grad_(), real


def apart(B: int) -> Spans:
    return Spans.of([f"recording {b}" for b in range(B)], torch.zeros(B), 6)


def reference(prediction: Tensor, embeddings: Tensor, anchors: Tensor, pool: Tensor, index: Tensor, τ: float) -> float:
    """The equation, one scalar at a time."""

    def cosine(x: list[float], y: list[float]) -> float:
        norm = math.sqrt(sum(a * a for a in x)) * math.sqrt(sum(a * a for a in y))
        return sum(a * b for a, b in zip(x, y, strict=True)) / norm

    losses = []
    for (b, w, t, c), rows in zip(anchors.tolist(), index.tolist(), strict=True):
        o, e = prediction[b, w, t, c].tolist(), embeddings[b, w + t + 1, c].tolist()
        positive = math.exp(cosine(o, e) / τ)
        negatives = [pool[row].tolist() for row in rows]
        total = sum(math.exp(cosine(o, other) / τ) for other in negatives if other != e)
        losses.append(-math.log(positive / (positive + total)))
    return math.fsum(losses) / len(losses)


@pytest.mark.parametrize(("B", "S", "T", "C"), [(3, 6, 4, 3), (2, 2, 1, 1), (4, 8, 3, 2), (5, 12, 11, 7)])
@pytest.mark.parametrize("τ", [0.1, 0.5])
def test_equals_the_equation(B, S, T, C, τ):
    prediction, embeddings, real = batch(B, S, T, C)
    real[0, 0, 0] = real[1:, :, 0] = True  # at least one anchor
    spans = Spans.of([str(b) for b in range(B)], torch.zeros(B), S)
    pool = Pool.of(embeddings, real, spans)
    anchors = find_anchors(real, T)
    index, found = draw_negatives(anchors, real, T, spans, pool, 30, torch.Generator().manual_seed(7))
    assert found is None
    loss = info_nce(
        prediction, embeddings, real=real, spans=spans, temperature=τ, generator=torch.Generator().manual_seed(7)
    )
    expected = reference(prediction, embeddings, anchors, pool.embeddings, index, τ)
    assert loss.item() == pytest.approx(expected, rel=1e-5)  # cosines are float32


def test_anchors_have_a_real_segment_and_target():
    _, _, real = batch()
    T = 4
    expected = [
        [b, w, t, c]
        for b in range(3)
        for w in range(2)
        for t in range(T)
        for c in range(3)
        if real[b, w + t, c] and real[b, w + t + 1, c]
    ]
    assert find_anchors(real, T).tolist() == expected


def drawn(B, S, T, C, real, spans, n=4000) -> tuple[Tensor, Tensor, Tensor | None]:
    """The (span, segment, channel) of many negatives of every anchor; [A, n, 3]."""
    embeddings = torch.randn(B, S, C, 2)
    pool = Pool.of(embeddings, real, spans)
    anchors = find_anchors(real, T)
    index, found = draw_negatives(anchors, real, T, spans, pool, n, torch.Generator().manual_seed(3))
    return anchors, real.nonzero().repeat(2, 1)[index], found


def chi_squared(counts: Tensor) -> float:
    """Standardised: about N(0, 1) where all cells are equally likely."""
    expected = counts.sum() / counts.numel()
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    freedom = counts.numel() - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def test_negatives_are_uniform_over_the_segments_of_other_windows():
    B, S, T, C = 4, 6, 4, 3
    _, _, real = batch(B, S, T, C, seed=5)
    anchors, source, found = drawn(B, S, T, C, real, apart(B))
    assert found is None
    for span in range(B):
        mine = source[anchors[:, 0] == span].flatten(0, 1)
        assert (mine[:, 0] != span).all()
        code = (mine[:, 0] * S + mine[:, 1]) * C + mine[:, 2]
        counts = torch.bincount(code, minlength=B * S * C).view(B, S, C).float()
        elsewhere = real.clone()
        elsewhere[span] = False
        assert counts[~elsewhere].sum() == 0
        assert abs(chi_squared(counts[elsewhere])) < 4.0
        # Also for one anchor alone, and not only for all of a span together.
        one = code.view(-1, source.shape[1])[0]
        assert abs(chi_squared(torch.bincount(one, minlength=B * S * C).view(B, S, C)[elsewhere].float())) < 4.0


def test_overlapping_spans_of_a_recording_count_as_one_window():
    B, S, T, C = 4, 6, 4, 2
    # Spans 0 and 1 share one segment; span 2 is of the same recording and follows span 1 at once; 3 is another one's.
    spans = Spans.of(["a", "a", "a", "b"], torch.tensor([0.0, 25.0, 55.0, 0.0]), S)
    assert spans.overlap(spans).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    anchors, source, _ = drawn(B, S, T, C, torch.ones(B, S, C, dtype=torch.bool), spans)
    drawn_from = {b: set(source[anchors[:, 0] == b][..., 0].flatten().tolist()) for b in range(B)}
    assert drawn_from == {0: {2, 3}, 1: {2, 3}, 2: {0, 1, 3}, 3: {0, 1, 2}}


def test_a_batch_of_one_draws_from_other_times_of_its_window_and_warns():
    B, S, T, C = 1, 7, 4, 3
    _, _, real = batch(B, S, T, C, seed=2)
    with pytest.warns(UserWarning, match="other times of the same window"):
        anchors, source, found = drawn(B, S, T, C, real, apart(B))
    assert found is not None
    assert found.all()
    for (_, w, t, _), negatives in zip(anchors.tolist(), source, strict=True):
        allowed = real.clone()
        allowed[:, :w] = allowed[:, w + T + 1 :] = allowed[:, w + t + 1] = False
        counts = torch.bincount(negatives[:, 1] * C + negatives[:, 2], minlength=S * C).view(B, S, C)
        assert counts[~allowed].sum() == 0
        assert abs(chi_squared(counts[allowed].float())) < 4.5


def test_only_the_span_without_another_window_draws_from_its_own():
    spans = Spans.of(["a", "a", "b"], torch.tensor([0.0, 10.0, 0.0]), 3)
    real = torch.ones(3, 3, 2, dtype=torch.bool)
    real[2] = False  # nothing is left for spans 0 and 1 but themselves
    with pytest.warns(UserWarning, match="other times"):
        anchors, source, _ = drawn(3, 3, 2, 2, real, spans)
    assert (source[..., 0] == anchors[:, :1]).all()


def test_a_lonely_segment_has_no_negatives_and_no_loss():
    real = torch.zeros(1, 3, 2, dtype=torch.bool)
    real[0, 1:, 0] = True  # one anchor, whose window holds itself and its target
    prediction, embeddings, _ = batch(1, 3, 2, 2)
    with pytest.warns(UserWarning, match="other times"):
        logits = contrastive_logits(prediction, embeddings, real=real)
    assert logits.shape == (1, 31)  # its own segment is another time of the window
    real[0, 1, 0] = False
    assert info_nce(prediction, embeddings, real=real).item() == 0.0
    info_nce(prediction, embeddings, real=real).backward()
    assert prediction.grad is not None
    assert not prediction.grad.any()


def test_negatives_equal_to_the_positive_are_masked():
    prediction, embeddings, _ = batch(2, 3, 2, 1)
    zeros = torch.zeros_like(embeddings)
    logits = contrastive_logits(prediction, zeros)
    assert torch.isneginf(logits[:, 1:]).all()
    same = embeddings.detach().clone()
    same[1, 2] = same[0, 1]
    logits = contrastive_logits(prediction, same, num_negatives=200)
    masked = torch.isneginf(logits[:, 1:]).float().mean(1)
    # Anchors (0, t=0) and (1, t=1) predict the doubled segment: a third of the other span equals it.
    assert masked.tolist() == pytest.approx([1 / 3, 0, 0, 1 / 3], abs=0.1)


def test_the_sign_of_zero_and_one_unit_in_the_last_place_are_told_apart():
    x = torch.randn(2, 8)
    near = x.clone()
    near[0, 3] = torch.nextafter(x[0, 3], torch.tensor(9.0))
    assert (contrastive._row_codes(x) == contrastive._row_codes(near)).tolist() == [False, True]
    assert contrastive._row_codes(torch.zeros(1, 4)) == contrastive._row_codes(-torch.zeros(1, 4))


def test_gradient_reaches_the_positive_and_no_negative():
    prediction, embeddings, _ = batch(2, 3, 2, 1)
    targets_only = torch.zeros(2, 3, 1, dtype=torch.bool)
    targets_only[:, 1:] = True
    info_nce(prediction, embeddings).backward()
    assert embeddings.grad is not None
    assert not embeddings.grad[:, 0].any()  # never a target, often a negative
    assert embeddings.grad[:, 1:].abs().amin() > 0


@pytest.mark.parametrize("elements", [1, 100, 1 << 22])
def test_gradients_equal_those_of_the_plain_expression(elements, monkeypatch):
    monkeypatch.setattr(contrastive, "_GATHERED_ELEMENTS", elements)
    rows = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    table, index = torch.randn(11, 5, dtype=torch.float64), torch.randint(11, (7, 4))
    products = contrastive._GatheredProducts.apply(rows, table, index)
    assert torch.allclose(products, torch.einsum("ad,and->an", rows, table[index]))
    assert torch.autograd.gradcheck(lambda x: contrastive._GatheredProducts.apply(x, table, index), (rows,))


def test_whole_gradient_by_finite_differences(monkeypatch):
    prediction, embeddings, real = batch(2, 4, 2, 2)
    # In float64 throughout, so that finite differences resolve the gradient.
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self.double())
    monkeypatch.setattr(contrastive, "_row_codes", lambda rows: rows[:, 0])
    fixed = embeddings.detach()
    pool = Pool.of(fixed, real, apart(2))

    def loss(o: Tensor, e: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return info_nce(o, e, real=real, spans=apart(2), pool=pool, generator=generator)

    assert torch.autograd.gradcheck(loss, (prediction, embeddings))


def test_masked_values_do_not_matter():
    prediction, embeddings, real = batch(dtype=torch.float32)
    T = prediction.shape[2]
    clean = info_nce(prediction, embeddings, real=real, generator=torch.Generator().manual_seed(1))
    spoilt_prediction, spoilt = prediction.detach().clone(), embeddings.detach().clone()
    spoilt[~real] = math.nan
    spoilt_prediction.masked_fill_(~real[:, :-1].unfold(1, T, 1).transpose(2, 3)[..., None], math.nan)
    spoilt_prediction.requires_grad_()
    again = info_nce(spoilt_prediction, spoilt, real=real, generator=torch.Generator().manual_seed(1))
    assert again.item() == clean.item()
    again.backward()
    assert spoilt_prediction.grad is not None
    assert spoilt_prediction.grad.isfinite().all()


def test_level_of_ignorance_and_of_knowledge():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(8, 21, 4, 512, generator=generator)
    noise = torch.randn(8, 1, 20, 4, 512, generator=generator)
    assert info_nce(noise, embeddings).item() == pytest.approx(math.log(31), abs=0.15)
    assert info_nce(embeddings[:, None, 1:], embeddings).item() < 0.01


def test_draws_repeat_with_the_generator():
    prediction, embeddings, real = batch()
    first, second, other = (
        info_nce(prediction, embeddings, real=real, generator=torch.Generator().manual_seed(seed)).item()
        for seed in (1, 1, 2)
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prediction": torch.zeros(2, 4, 2, 8)}, r"prediction must be \[B, W, T, C, D\]"),
        ({"prediction": torch.zeros(2, 2, 4, 2, 8)}, r"W \+ T = S = 5"),
        ({"embeddings": torch.zeros(2, 5, 8)}, r"embeddings must be \[B, S, C, D\]"),
        ({"real": torch.ones(2, 5, 2)}, "real must be a bool tensor"),
        ({"num_negatives": 0}, "num_negatives must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_errors(change, message):
    arguments = {"prediction": torch.zeros(2, 1, 4, 2, 8), "embeddings": torch.zeros(2, 5, 2, 8)} | change
    with pytest.raises(ValueError, match=message):
        info_nce(**arguments)


def test_bf16_cosines_are_float32():
    prediction, embeddings, real = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = contrastive_logits(prediction, embeddings, real=real, generator=torch.Generator().manual_seed(1))
    plain = contrastive_logits(prediction, embeddings, real=real, generator=torch.Generator().manual_seed(1))
    assert logits.dtype == torch.float32
    assert torch.equal(logits, plain)


def test_sample_of_a_pool():
    real = torch.ones(3, 4, 2, dtype=torch.bool)
    real[1, 2:] = False
    spans = apart(3)
    embeddings = torch.arange(24.0).view(3, 4, 2, 1)
    pool = Pool.of(embeddings, real, spans)
    assert pool.sample(20) is pool
    drawn_rows = torch.zeros(24)
    for seed in range(400):
        sample = pool.sample(5, torch.Generator().manual_seed(seed))
        rows = sample.embeddings[:, 0].long()
        assert torch.bincount(rows // 8, minlength=3).tolist() == sample.counts.tolist()
        drawn_rows += torch.bincount(rows, minlength=24)
    assert drawn_rows[12:16].sum() == 0
    assert abs(chi_squared(drawn_rows[real.flatten()])) < 4.0


@pytest.mark.filterwarnings("error")
def test_negatives_of_all_ranks(tmp_path):
    torch.multiprocessing.spawn(draw, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first["pool"], second["pool"])
    assert first["pool"].shape == (2 * 4 * 2 + 1 * 3 * 3, 3)
    # Rank 0's spans draw from each other and from rank 1's; rank 1 has one span, and draws from rank 0's.
    rank_0 = first["pool"][first["index"]][..., 0]
    assert 0.4 < (rank_0 >= 2).double().mean() < 0.65  # 9 of 17
    assert (second["pool"][second["index"]][..., 0] < 2).all()
