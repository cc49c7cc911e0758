"""What each process of tests/ieeg/training/test_contrastive.py runs; importable by name, as new processes need it."""

import torch
from harness.processes import join, leave

from mvpa_ts.ieeg.training.contrastive import Pool, Spans, draw_negatives, find_anchors


def draw(rank: int, folder: str) -> None:
    """Pool the segments of both processes, draw negatives, and save both."""
    join(rank, 2, folder)
    B, S, T, C = 2 - rank, 4 - rank, 2, 2 + rank  # ranks differ in every size
    embeddings = torch.full((B, S, C, 3), float(rank + 1)) + torch.arange(C)[:, None] / 10
    real = torch.ones(B, S, C, dtype=torch.bool)
    spans = Spans.of([f"rank {rank} span {b}" for b in range(B)], torch.zeros(B), S)
    pool = Pool.of(embeddings, real, spans).gathered()
    anchors = find_anchors(real, T)
    index, _ = draw_negatives(anchors, real, T, spans, pool, 500, torch.Generator().manual_seed(rank))
    torch.save({"pool": pool.embeddings, "index": index}, f"{folder}/{rank}.pt")
    leave()
