"""Similarity of predictions to the true next segment and to two other references, by seizure state and subject.

The prediction o[t] is compared with the embedding of the true next segment e[t+1], of the segment after it e[t+2]
("two-step"), and of a random later segment within two minutes, always in the same channel. If the first similarity is
above both others, the model predicts this very segment, and not just this subject, channel or minute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.figures import BLUE, RED, literal, save_figure, styled

REFERENCES = ("true", "two_step", "random")
STATES = ("interictal", "boundary", "ictal")
COLUMNS = ("subject", "recording", "start", "state", *REFERENCES)
"""Of a table of segments."""
# Segments of 5 s; the random reference is 3 … 24 segments ahead, so that it never is one of the other two.
TWO_MINUTES = 24


def three_reference_similarity(
    prediction: Tensor, embeddings: Tensor, *, real: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Compute the cosine similarity of predictions with the next segment, the one after it, and a random later one.

    Parameters
    ----------
    prediction : Tensor, shape (B, W, T, C, D)
        Predictions made at segment w + t of a span, for segment w + t + 1.
    embeddings : Tensor, shape (B, S, C, D)
        Embeddings of the span, S ≥ W + T; segments after the windows serve as later references.
    real : bool Tensor, shape (B, S, C), optional
        False for missing segments and channels.
    generator : torch.Generator, optional
        Draws the random reference evenly from the real segments 3 to 24 ahead (two minutes). Each segment and channel
        has one such reference, the same in all windows.

    Returns
    -------
    Tensor, shape (B, W, T, C, 3)
        In the order of `REFERENCES`. All three are NaN if the segment or any reference is missing, so that means of the
        three are over the same predictions.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg.training.similarity import three_reference_similarity
    >>> embeddings = torch.randn(1, 8, 2, 16)
    >>> perfect = embeddings[:, None, 1:5]  # one window of four segments
    >>> three_reference_similarity(perfect, embeddings)[0, 0, :, 0, 0]
    tensor([1.0000, 1.0000, 1.0000, 1.0000])
    """
    if prediction.ndim != 5 or embeddings.ndim != 4 or embeddings.shape[1] < sum(prediction.shape[1:3]):
        raise ValueError(
            "prediction must be [B, W, T, C, D] and embeddings [B, S, C, D] with S ≥ W + T, "
            f"got {tuple(prediction.shape)} and {tuple(embeddings.shape)}"
        )
    B, S, C, _ = embeddings.shape
    W, T = prediction.shape[1:3]
    if real is None:
        real = torch.ones(B, S, C, dtype=torch.bool, device=embeddings.device)
    positions = W + T - 1  # segments at which a prediction is made
    ahead = F.pad(real, (0, 0, 0, TWO_MINUTES))  # nothing is real after the span
    # From the third segment on, so that the random reference is never one of the other two.
    later = ahead[:, 3 : positions + TWO_MINUTES].unfold(1, TWO_MINUTES - 2, 1)  # [B, positions, C, lags 3 … 24]
    draw = torch.rand(later.shape, device=later.device, generator=generator)
    lag = draw.masked_fill(~later, -1.0).argmax(-1) + 3
    position = torch.arange(positions, device=lag.device)[:, None]
    targets = torch.stack([(position + 1).expand_as(lag), (position + 2).expand_as(lag), position + lag], dim=-1)
    comparable = real[:, :positions] & ahead[:, 1 : positions + 1] & ahead[:, 2 : positions + 2] & later.any(-1)

    samples = torch.arange(B, device=lag.device)[:, None, None]
    channels = torch.arange(C, device=lag.device)
    unit = F.normalize(prediction.float(), dim=-1)
    normed = F.normalize(embeddings.float(), dim=-1)
    similarities = []
    for target in targets.clamp(max=S - 1).unbind(-1):
        reference = normed[samples, target, channels].unfold(1, T, 1)  # [B, W, C, D, T]
        similarities.append(torch.einsum("bwtcd,bwcdt->bwtc", unit, reference))
    seen = comparable.unfold(1, T, 1).transpose(2, 3)
    return torch.stack(similarities, dim=-1).masked_fill(~seen[..., None], torch.nan)


def table_of(
    similarity: Tensor, ictal: Tensor, subject: Sequence[str], recording: Sequence[str], start: Tensor
) -> pd.DataFrame:
    """Average over windows and channels, for each segment of a batch at which something could be compared.

    The table has the columns `COLUMNS`. `similarity` [B, W, T, C, 3] is from `three_reference_similarity`, and spans
    begin at `start` [B] s. By `ictal` [B, S] a prediction is ictal if both its segment and its target are, interictal
    if neither is, else at the boundary.
    """
    B, W, T, _, _ = similarity.shape
    positions = W + T - 1
    number = torch.zeros(B, positions, dtype=torch.float64, device=similarity.device)
    total = torch.zeros(B, positions, len(REFERENCES), dtype=torch.float64, device=similarity.device)
    for w in range(W):
        number[:, w : w + T] += (~similarity[:, w, ..., 0].isnan()).sum(-1)
        total[:, w : w + T] += similarity[:, w].nan_to_num().double().sum(2)
    state = ictal[:, :positions].long() + ictal[:, 1 : positions + 1].long()
    where = number.nonzero().tolist()
    mean = (total / number[..., None])[number > 0]
    facts = [(subject[b], recording[b], float(start[b]) + SEGMENT_SECONDS * p) for b, p in where]
    states = [STATES[at] for at in state[number > 0].tolist()]
    rows = [(*fact, at, *values) for fact, at, values in zip(facts, states, mean.tolist(), strict=True)]
    return pd.DataFrame(rows, columns=[*COLUMNS])


@dataclass(frozen=True)
class SignedRank:
    """A paired Wilcoxon signed-rank test with subjects as units; `n` subjects have both values.

    `smallest_p` is what n subjects can reach at best, 2/2ⁿ: five subjects never reach 0.05.
    """

    median_difference: float
    statistic: float
    p_value: float
    n: int
    smallest_p: float

    def __str__(self) -> str:
        if self.n == 0:
            return "no subject has both"
        reach = f" (n = {self.n} cannot go below {self.smallest_p:.2g})" if self.smallest_p > 0.05 else ""
        return f"median difference {self.median_difference:+.3f}, n = {self.n}, p = {self.p_value:.2g}{reach}"


class Similarity:
    """Three-reference similarities of a model, segment by segment.

    Examples
    --------
    >>> from mvpa_ts.ieeg.training.similarity import COLUMNS, Similarity
    >>> rows = [("a", "r", 0.0, "interictal", 0.9, 0.5, 0.4), ("a", "r", 5.0, "ictal", 0.7, 0.6, 0.5),
    ...         ("b", "s", 0.0, "interictal", 0.8, 0.6, 0.2)]
    >>> table = pd.DataFrame(rows, columns=COLUMNS)
    >>> Similarity([table]).table().round(2)[["subject", "state", "segments", "true", "random"]]
      subject       state  segments  true  random
    0       a       ictal         1   0.7     0.5
    1       a  interictal         1   0.9     0.4
    2       b  interictal         1   0.8     0.2
    """

    def __init__(self, tables: Sequence[pd.DataFrame]) -> None:
        # Rows of segments, not means of batches: subjects have different numbers of segments, and each counts once in
        # the end.
        filled = [table for table in tables if len(table)] or [pd.DataFrame(columns=[*COLUMNS])]
        # A distributed sampler may repeat a span to fill the last batch.
        frame = pd.concat(filled).drop_duplicates([*COLUMNS[:3]], ignore_index=True)
        self.segments: pd.DataFrame = frame.astype(dict.fromkeys(REFERENCES, float))

    def table(self) -> pd.DataFrame:
        """Average over each subject in each state: subject, state, segments, true, two_step, random."""
        grouped = self.segments.groupby(["subject", "state"])[[*REFERENCES]]
        means = grouped.mean()
        means.insert(0, "segments", grouped.size())
        return means.reset_index()

    def overall(self) -> pd.DataFrame:
        """Average over subjects for each state, and for all segments of a subject together (state "all")."""
        of_subjects = self.segments.groupby("subject")[[*REFERENCES]].mean().assign(state="all").reset_index()
        grouped = pd.concat([of_subjects, self.table()]).groupby("state")[[*REFERENCES]]
        result = grouped.mean()
        result.insert(0, "subjects", grouped.size())
        return result.reindex([state for state in ("all", *STATES) if state in result.index]).reset_index()

    def ictal_test(self, reference: str = "true") -> SignedRank:
        """Test ictal against interictal similarity: means of subjects, paired, Wilcoxon's signed ranks, two-sided.

        The test has one pair for each subject with both states, because subjects are independent and their segments are
        not. It uses ranks, because similarities are bounded and their spread differs between subjects.
        """
        # Segments of a subject are alike, and a test over them would find a difference in anything.
        means = self.table().pivot(index="subject", columns="state", values=reference)
        if not {"ictal", "interictal"} <= set(means):
            return signed_rank([], [])
        pairs = means[["ictal", "interictal"]].dropna()
        return signed_rank(pairs["ictal"].tolist(), pairs["interictal"].tolist())

    @styled
    def plot(self, path: str | Path, title: str = "") -> None:
        """Plot bars of the three references by state with a dot for each subject, and beside them each subject."""
        colours = dict(zip(REFERENCES, (BLUE, RED, "#9a9a9a"), strict=True))
        table, overall = self.table(), self.overall().set_index("state")
        states = [state for state in STATES if state in overall.index]
        subjects = self.segments.groupby("subject")[[*REFERENCES]].mean()
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(6 + 0.35 * len(subjects), 4), sharey=True, width_ratios=(4, max(3, len(subjects)))
        )
        for position, reference in enumerate(REFERENCES):
            at = [index + 0.27 * (position - 1) for index in range(len(states))]
            label = reference.replace("_", "-")
            left.bar(at, overall.loc[states, reference], 0.25, color=colours[reference], alpha=0.6, label=label)
            for x, state in zip(at, states, strict=True):
                dots = table.loc[table["state"] == state, reference]
                left.plot([x] * len(dots), dots, ".", color=colours[reference])
            right.plot(range(len(subjects)), subjects[reference], "o", color=colours[reference], label=label)
        left.set_xticks(range(len(states)), states)
        left.set_ylabel("cosine similarity")
        left.set_title("mean over subjects")
        names = [literal(subject) for subject in subjects.index]
        right.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0)
        right.set_title("each subject")
        right.legend(title="reference")
        if title:
            figure.suptitle(literal(title))
        save_figure(figure, path, dpi=120)


def signed_rank(first: Sequence[float], second: Sequence[float]) -> SignedRank:
    """Test first − second by Wilcoxon's signed ranks, two-sided; exact up to 50 pairs without ties."""
    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    n = len(difference)
    if n == 0:
        return SignedRank(math.nan, math.nan, math.nan, 0, 1.0)
    median, smallest = float(np.median(difference)), 2.0 ** (1 - n)
    if not difference.any():
        return SignedRank(median, 0.0, 1.0, n, smallest)
    result = stats.wilcoxon(difference)
    return SignedRank(median, float(result.statistic), float(result.pvalue), n, smallest)


def compare_models(models: Mapping[str, Similarity], against: str | None = None) -> pd.DataFrame:
    """Compare models in pairs by the margin of the true over the random reference, paired by subject.

    All pairs are compared, or only those with the model named `against`, which are fewer tests. The test is that of
    signed ranks; p-values are adjusted over the pairs by Holm.

    Cosines of two models cannot be compared directly, because they come from different embedding spaces. An encoder
    that maps everything to nearly one direction has high cosines. The margin over the random reference can be compared.

    Returns
    -------
    DataFrame
        model, other, subjects, margin, other_margin, median_difference, p_value, p_holm, smallest_p.

    Raises
    ------
    ValueError
        There are fewer than two models, or none of them is `against`.
    """
    if len(models) < 2:
        raise ValueError(f"models must hold at least two models, because they are compared in pairs, got {[*models]}")
    margins = {}
    for name, similarity in models.items():
        means = similarity.segments.groupby("subject")[[*REFERENCES]].mean()
        # Two models have embedding spaces of their own, whose cosines cannot be compared.
        margins[name] = means["true"] - means["random"]
    rows = []
    if against is not None and against not in margins:
        raise ValueError(f"against must be one of {', '.join(margins)}, got {against!r}")
    pairs = itertools.combinations(margins, 2)
    for name, other in pairs if against is None else [(against, other) for other in margins if other != against]:
        pair = pd.concat([margins[name], margins[other]], axis=1, keys=["first", "second"]).dropna()
        test = signed_rank(pair["first"].tolist(), pair["second"].tolist())
        rows.append(
            {
                "model": name,
                "other": other,
                "subjects": test.n,
                "margin": pair["first"].mean(),
                "other_margin": pair["second"].mean(),
                "median_difference": test.median_difference,
                "p_value": test.p_value,
                "smallest_p": test.smallest_p,
            }
        )
    frame = pd.DataFrame(rows)
    frame.insert(7, "p_holm", _holm(frame["p_value"].tolist()))
    return frame


def _holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down method; NaN stays NaN and does not count as a test."""
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values)  # NaN is last
    factors = np.count_nonzero(~np.isnan(values)) - np.arange(len(values))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return adjusted.tolist()
