"""How far MVPA is from the dual-coded attention that the paper derives it from.

Dual-coded attention adds a code of time and a code of channel to each token and compares the sums:
a = (x + T_t + C_c)ᵀ W_qᵀ W_k (x' + T_t' + C_c'). MVPA replaces every product in which a query's position takes part by
learned vectors, and positions of keys by distances. The paper says that this "characterizes the relative error" and
gives no number. Here dual-coded scores are computed, and MVPA's u, v, w and tables are fitted to them by least squares,
which is the best that MVPA can do; the first half of the samples fits, the second is scored.

Codes are drawn at random, as codebooks begin, or are sinusoids, whose products depend on distances alone. Nothing here
is trained, and the error of scores says nothing about the error of a task.

    python experiments/attention/attention_dual.py            # results/attention/attention_dual.csv and .md; seconds
    python experiments/attention/attention_dual.py --quick    # a smaller grid, written elsewhere
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import pandas as pd
import torch
from harness.attention.dual import codes, dual_scores, fit_mvpa, positions
from harness.command_line import script_parser
from harness.study import grid, paragraphs
from harness.tables import hardware, results_folder, write_table

STRENGTHS = (0.1, 0.3, 1.0)
SEEDS = (0, 1, 2)


def main() -> None:
    """Compute, fit, print and write."""
    quick = script_parser(__doc__, "fewer segments and channels, written elsewhere").parse_args().quick
    torch.set_num_threads(1)
    T, C, d = (4, 3, 4) if quick else (6, 5, 12)
    rows = [
        {"codes": kind, "strength": strength, "seed": seed, **measured(kind, strength, seed, T, C, d)}
        for kind in ("random", "sinusoids")
        for strength in STRENGTHS
        for seed in SEEDS[: 1 if quick else None]
    ]
    frame = pd.DataFrame(rows)
    text = markdown(frame.assign(size=f"{T} segments × {C} channels, width {d}", hardware=hardware()))
    write_table(results_folder("attention", quick=quick), "attention_dual", frame, text)


def measured(kind: str, strength: float, seed: int, T: int, C: int, d: int) -> dict[str, float]:
    """Relative errors of scores and of attention weights, root mean square over samples that the fit did not see."""
    generator = torch.Generator().manual_seed(seed)
    samples = 8 * (T + C)
    x = torch.randn(samples, T * C, d, generator=generator, dtype=torch.float64)
    query, key = (torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d) for _ in range(2))
    time, channel = (strength * codes(kind, count, d, generator) for count in (T, C))
    scores = dual_scores(x, query, key, *positions(time, channel))
    content = (x @ query.T) @ (x @ key.T).mT
    half = samples // 2
    fitted = fit_mvpa(x[:half], query, key, (scores - content)[:half], T, C)
    approximation = content[half:] + fitted(x[half:])
    expected = scores[half:]
    # What matters in the softmax is a score against the other keys of its query.
    centred = expected - expected.mean(-1, keepdim=True)
    weights, approximate = ((each / math.sqrt(d)).softmax(-1) for each in (expected, approximation))
    alone = (content[half:] / math.sqrt(d)).softmax(-1)
    error = (expected - approximation) - (expected - approximation).mean(-1, keepdim=True)
    without = (expected - content[half:]) - (expected - content[half:]).mean(-1, keepdim=True)
    return {
        "scores": (error.norm() / centred.norm()).item(),
        "scores, content alone": (without.norm() / centred.norm()).item(),
        "weights": ((weights - approximate).norm() / weights.norm()).item(),
        "weights, content alone": ((weights - alone).norm() / weights.norm()).item(),
    }


def markdown(rows: pd.DataFrame) -> str:
    """Means over seeds."""
    columns = ["scores", "scores, content alone", "weights", "weights, content alone"]
    means = rows.groupby(["codes", "strength"], sort=False)[columns].mean()
    lines = [[*key, *(f"{mean:.3f}" for mean in own)] for key, own in zip(means.index, means.to_numpy(), strict=True)]
    return paragraphs(
        f"Relative error of MVPA, fitted by least squares, to dual-coded attention; {rows['size'].iloc[0]}, "
        f"{rows['seed'].nunique()} seed(s), float64. Scores are compared less the mean over the keys of a query, which "
        "a softmax does not see. Content alone is the same without any position. Strength: standard deviation of a "
        "code beside that of a token.",
        grid(["codes", "strength", *columns], lines),
        f"Computed on {rows['hardware'].iloc[0]}; one thread.",
    )


if __name__ == "__main__":
    main()
