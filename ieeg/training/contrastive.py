"""The pretraining objective: InfoNCE between a prediction and the embedding of the next segment.

Legend: B spans of S consecutive segments, C channels, D model width. A window has T segments, so a span holds W = S − T
windows: window w has segments w … w+T−1 and targets w+1 … w+T. There are A anchors (predictions with a real target) and
n negatives for each. Negatives come from a pool of N pairs of segment and channel, from P spans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torchmetrics.utilities.distributed import gather_all_tensors

from mvpa_ts.checks import warn
from mvpa_ts.ieeg.constants import SEGMENT_SECONDS

# Elements [rows, n, D] gathered at a time. One CPU thread, forward and backward, 8000 anchors of width 768 against as
# many segments: 0.7 s, where all similarities by one matmul and a gather of 30 take 3.5 s (its gradient is a dense
# [A, N] product) and one gather of everything needs 1.5 GB; at 1000 anchors of width 64: 4, 13 and 5 ms.
_GATHERED_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Spans:
    """Recordings and times of the spans of a batch, to know which spans share segments.

    Attributes
    ----------
    recording : int64 Tensor, shape (P,)
        A number for each recording, equal on all ranks.
    start, stop : float64 Tensor, shape (P,)
        Seconds in that recording.
    """

    recording: Tensor
    start: Tensor
    stop: Tensor

    @classmethod
    def of(cls, recordings: Sequence[str], start: Tensor, num_segments: int) -> Spans:
        """Make spans of `num_segments` segments that begin at `start` [B] seconds of the named recordings."""
        numbers = [
            # A hash of the name is equal on all ranks, which Python's own is not.
            int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
            for name in recordings
        ]
        start = start.double()
        recording = torch.tensor(numbers, dtype=torch.long, device=start.device)
        return cls(recording, start, start + num_segments * SEGMENT_SECONDS)

    def overlap(self, other: Spans) -> Tensor:
        """Mark pairs of spans that share some time of a recording; bool [B, P]."""
        same = self.recording[:, None] == other.recording
        return same & (self.start[:, None] < other.stop) & (other.start < self.stop[:, None])


@dataclass(frozen=True)
class Pool:
    """Segments to draw negatives from: every real segment and channel of the spans once, even if in many windows.

    Attributes
    ----------
    embeddings : Tensor, shape (N, D)
        Detached; ordered by span, segment and channel.
    counts : int64 Tensor, shape (P,)
        Number of real pairs of segment and channel in each span; the sum is N.
    spans : Spans
    """

    embeddings: Tensor
    counts: Tensor
    spans: Spans

    @classmethod
    def of(cls, embeddings: Tensor, real: Tensor, spans: Spans) -> Pool:
        """Make the pool of one batch: embeddings [B, S, C, D], real [B, S, C]."""
        # Negatives get no gradient, so that spans of other ranks and of this one count alike.
        return cls(embeddings.detach()[real], real.flatten(1).sum(1), spans)

    def sample(self, size: int, generator: torch.Generator | None = None) -> Pool:
        """Draw `size` rows evenly, without replacement; all rows if there are not more."""
        total = len(self.embeddings)
        if size >= total:
            return self
        rows = torch.randperm(total, device=self.embeddings.device, generator=generator)[:size].sort().values
        # Rows are sorted, so each span's share of the sample is a stretch of it and its count says enough.
        span = torch.searchsorted(self.counts.cumsum(0), rows, right=True)
        return Pool(self.embeddings[rows], torch.bincount(span, minlength=len(self.counts)), self.spans)

    def gathered(self) -> Pool:
        """Join the pools of all ranks, in their order; with one process, return this pool."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        tensors = (self.embeddings, self.counts, self.spans.recording, self.spans.start, self.spans.stop)
        embeddings, counts, *spans = (torch.cat(gather_all_tensors(tensor)) for tensor in tensors)
        return Pool(embeddings, counts, Spans(*spans))


def info_nce(prediction: Tensor, embeddings: Tensor, **options: Any) -> Tensor:
    r"""Compute InfoNCE of next-segment predictions, with the positive in the denominator.

    .. math:: -\log \frac{\exp s_+}{\exp s_+ + \sum_{k=1}^{n} \exp s_k}, \quad
        s_+ = \cos(o_t, e_{t+1}) / τ, \quad s_k = \cos(o_t, e_k) / τ

    averaged over all windows, segments and channels whose segment and target are real. Negatives are drawn uniformly
    and with replacement from the real segments (of any channel) of *other windows*. These are the windows of spans that
    share no time of a recording with the anchor's span. So windows cut from one span, which share segments, count as
    one window here; so do overlapping spans of one recording. A negative is therefore never the positive, nor another
    segment of the anchor's window. A segment in many windows is no more likely than a segment in one.

    If the batch holds no such span (a batch of one), negatives are other times of the anchor's window, in any channel,
    and a warning says so. Negatives that equal the positive bit by bit (stretches of zeros, a recording that is there
    twice) are masked. The gradient reaches the positive, but no negative. The paper mentions an "auxiliary loss", which
    neither its text nor its code defines; there is none here.

    Parameters
    ----------
    prediction : Tensor, shape (B, W, T, C, D)
        Prediction made at segment t of window w.
    embeddings : Tensor, shape (B, W + T, C, D)
        Embeddings of the span's segments; the target of (w, t) is segment w + t + 1.
    real : bool Tensor, shape (B, W + T, C), optional
        False for missing segments and channels. They are no anchors, targets or negatives.
    spans : Spans, optional
        Recordings and times of the spans; by default no two spans overlap.
    pool : Pool, optional
        Source of negatives; default: the batch. ``Pool.of(...).gathered()`` holds the batches of all ranks,
        ``Pool.of(...).sample(2048).gathered()`` 2048 segments of each.
    num_negatives : int, default 30
        n of the paper.
    temperature : float, default 0.1
        τ of the paper.
    generator : torch.Generator, optional
        Source of random numbers, on the device of `embeddings`.

    Returns
    -------
    Tensor, shape ()
        In nats; log(1 + n) if the prediction is no better than chance. Zero, with a graph, if nothing is real.

    Raises
    ------
    ValueError
        Shapes do not fit, or an option is out of range.

    References
    ----------
    van den Oord et al. 2018, arXiv:1807.03748, equation 4; n, τ and the choice of negatives as in MVPFormer.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg.training.contrastive import info_nce
    >>> embeddings = torch.randn(4, 6, 3, 8)  # four windows of five segments, and the last one's target
    >>> perfect = embeddings[:, None, 1:]  # [4, 1, 5, 3, 8]
    >>> bool(info_nce(perfect, embeddings) < info_nce(torch.randn_like(perfect), embeddings))
    True
    """
    return mean_loss(contrastive_logits(prediction, embeddings, **options), prediction)


def mean_loss(logits: Tensor, prediction: Tensor) -> Tensor:
    """Average the cross-entropy of the first logit over anchors; zero, with `prediction`'s graph, without anchors."""
    if len(logits) == 0:
        return prediction[..., :0].sum()
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


def contrastive_logits(
    prediction: Tensor,
    embeddings: Tensor,
    *,
    real: Tensor | None = None,
    spans: Spans | None = None,
    pool: Pool | None = None,
    num_negatives: int = 30,
    temperature: float = 0.1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute cosines / τ for the anchors of `info_nce`, positive first; float32 [A, 1 + n], −∞ where masked."""
    B, S, C, _ = _check_shapes(prediction, embeddings, real)
    if num_negatives < 1:
        raise ValueError(f"num_negatives must be at least 1, got {num_negatives}")
    if not temperature > 0.0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    T = prediction.shape[2]
    if real is None:
        real = torch.ones(B, S, C, dtype=torch.bool, device=embeddings.device)
    if spans is None:
        numbers = torch.arange(B, device=embeddings.device)
        spans = Spans(numbers, torch.zeros_like(numbers).double(), torch.ones_like(numbers).double())
    if pool is None:
        pool = Pool.of(embeddings, real, spans)

    anchors = find_anchors(real, T)
    index, has_any = draw_negatives(anchors, real, T, spans, pool, num_negatives, generator)
    table = pool.embeddings if has_any is None else torch.cat([pool.embeddings, embeddings.detach()[real]])
    b, w, t, c = anchors.unbind(1)
    # Cosines in float32 whatever the precision of the model: with τ = 0.1 an error of 0.01 moves a logit by 0.1.
    with torch.autocast(embeddings.device.type, enabled=False):
        target = embeddings[b, w + t + 1, c]
        unit = F.normalize(prediction[b, w, t, c].float(), dim=-1)
        positive = (unit * F.normalize(target.float(), dim=-1)).sum(-1, keepdim=True)
        negative = _GatheredProducts.apply(unit, F.normalize(table.float(), dim=-1), index)
    # Two recordings may be one, or a stretch may be zeros: such a negative would be the positive itself.
    masked = _row_codes(table)[index] == _row_codes(target.detach())[:, None]
    if has_any is not None:
        masked |= ~has_any[:, None]
    negative = negative.masked_fill(masked, -torch.inf)
    return torch.cat([positive, negative], dim=1) / temperature


def find_anchors(real: Tensor, T: int) -> Tensor:
    """Find predictions whose segment and target are real, as rows (b, w, t, c); int64 [A, 4]."""
    now = real[:, :-1].unfold(1, T, 1)  # [B, W, C, T]
    following = real[:, 1:].unfold(1, T, 1)
    return (now & following).transpose(2, 3).nonzero()


def draw_negatives(
    anchors: Tensor,
    real: Tensor,
    T: int,
    spans: Spans,
    pool: Pool,
    num_negatives: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Draw rows of `pool` for the anchors [A, 4] of `find_anchors`; int64 [A, n].

    If the pool holds no other span for an anchor, rows from ``len(pool.embeddings)`` on stand for the real tokens of
    the batch, in order. Then the second result, bool [A], marks the anchors with any negative; otherwise it is None.
    """
    counts = pool.counts * ~spans.overlap(pool.spans)  # [B, P]
    total = counts.sum(1)[anchors[:, 0]]  # [A]
    draw = torch.randint(2**62, (len(anchors), num_negatives), device=anchors.device, generator=generator)
    # One draw for all kinds of anchors, so that the stream of random numbers does not depend on the batch.
    others = _among_other_spans(draw % total.clamp(min=1)[:, None], anchors[:, 0], counts, pool)
    alone = (total == 0)[:, None]
    if not bool(alone.any()):
        return others, None

    warn(
        "the batch has no other window to draw negatives from, so they come from other times of the same window: "
        "use batches of at least two spans that do not overlap"
    )
    rows, has_any = _among_own_window(draw, anchors, real, T)
    return torch.where(alone, len(pool.embeddings) + rows, others), ~alone[:, 0] | has_any


def _among_other_spans(drawn: Tensor, span: Tensor, counts: Tensor, pool: Pool) -> Tensor:
    """Turn draws [A, n] into rows of the pool, counting only spans that `counts` [B, P] allows for an anchor's span."""
    ends = counts.cumsum(1)
    # One sorted list for all rows, each lifted above the one before: a row for each anchor would be [A, P].
    lift = torch.arange(len(ends), device=ends.device) * (len(pool.embeddings) + 1)
    position = torch.searchsorted((ends + lift[:, None]).flatten(), drawn + lift[span][:, None], right=True)
    source = (position - span[:, None] * ends.shape[1]).clamp(max=ends.shape[1] - 1)
    before = (ends - counts)[span[:, None], source]
    return (pool.counts.cumsum(0) - pool.counts)[source] + drawn - before


def _among_own_window(draw: Tensor, anchors: Tensor, real: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """Draw real tokens of the anchor's window without the target segment; say if there are any; [A, n] and [A]."""
    b, w, t, _ = anchors.unbind(1)
    ends = F.pad(real.sum(2).cumsum(1), (1, 0))  # [B, S + 1], real channels before each segment
    first, last = ends[b, w], ends[b, w + T + 1]
    target, after = ends[b, w + t + 1], ends[b, w + t + 2]
    # The target is cut out of the window's range, and rows behind it move up by its length.
    total = (last - first) - (after - target)
    rows = draw % total.clamp(min=1)[:, None] + first[:, None]
    rows = torch.where(rows >= target[:, None], rows + (after - target)[:, None], rows)
    tokens = real.flatten(1).sum(1)
    rows = rows + (tokens.cumsum(0) - tokens)[b][:, None]
    return rows.clamp(max=int(tokens.sum()) - 1), total > 0


class _GatheredProducts(torch.autograd.Function):
    """Products of rows [A, D] with table rows [N, D] by index [A, n]; the backward pass gathers the rows again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(table, index)
        products = rows.new_empty(index.shape)
        step = max(1, _GATHERED_ELEMENTS // (index.shape[1] * max(1, rows.shape[1])))
        for first in range(0, len(rows), step):
            chunk = slice(first, first + step)
            products[chunk] = torch.bmm(table[index[chunk]], rows[chunk, :, None])[..., 0]
        return products

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        table, index = ctx.saved_tensors
        return F.embedding_bag(index, table, per_sample_weights=grad.contiguous(), mode="sum"), None, None


def _row_codes(rows: Tensor) -> Tensor:
    """Compute a 64-bit code of each row [N, D]: equal for equal rows, and by chance for one in 2⁶⁴ others."""
    rows = rows.float() + 0.0  # −0 becomes 0
    generator = torch.Generator().manual_seed(0x5E9)
    odd = torch.randint(-(2**62), 2**62, (rows.shape[-1],), generator=generator) * 2 + 1
    return (rows.contiguous().view(torch.int32).long() * odd.to(rows.device)).sum(-1)


def _check_shapes(prediction: Tensor, embeddings: Tensor, real: Tensor | None) -> tuple[int, int, int, int]:
    if embeddings.ndim != 4:
        raise ValueError(f"embeddings must be [B, S, C, D], got shape {tuple(embeddings.shape)}")
    B, S, C, D = embeddings.shape
    W, T = prediction.shape[1:3] if prediction.ndim == 5 else (0, 0)
    if prediction.ndim != 5 or prediction.shape != (B, W, T, C, D) or W + T != S:
        raise ValueError(
            f"prediction must be [B, W, T, C, D] with W + T = S = {S} and B, C, D = {B}, {C}, {D} like embeddings, "
            f"got shape {tuple(prediction.shape)}"
        )
    if real is not None and (real.dtype != torch.bool or real.shape != (B, S, C)):
        raise ValueError(f"real must be a bool tensor of shape {(B, S, C)}, got {real.dtype} of {tuple(real.shape)}")
    return B, S, C, D
