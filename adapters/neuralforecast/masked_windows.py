"""What is stored on rows that are missing must not reach the network."""

from __future__ import annotations

from typing import Any

import torch


class MaskedWindows:
    """Mix-in for a model of the host: missing rows of its windows are zero, whatever the panel holds there.

    It overrides private methods of the host; tests/adapters/test_host_api.py watches them.
    """

    input_size: int

    def _create_windows(self, batch: dict[str, Any], step: str) -> Any:
        # What is stored on a missing row may be NaN, which no mask of a loss or a scaler would stop.
        columns, temporal = batch["temporal_cols"], batch["temporal"]  # [N, columns, T]
        missing = temporal[:, [columns.get_loc("available_mask")]] == 0
        weight = torch.from_numpy(columns == "sample_weight").to(temporal.device)[:, None]
        temporal = temporal.masked_fill(missing & (~weight | temporal.isnan()), 0.0)
        return super()._create_windows({**batch, "temporal": temporal}, step)  # type: ignore[misc]

    def _parse_windows(self, batch: dict[str, Any], windows: dict[str, Any]) -> Any:
        y, mask, y_ahead, mask_ahead, historic, future, static = super()._parse_windows(  # type: ignore[misc]
            batch, windows
        )
        # A missing row was zeroed before the host scaled it, which made its columns far from their mean: zero it again.
        missing = torch.cat([mask, mask_ahead], 1)[:, None] == 0  # [B, 1, L + h, N]
        historic = None if historic is None else historic.masked_fill(missing[:, :, : self.input_size], 0.0)
        future = None if future is None else future.masked_fill(missing, 0.0)
        return y, mask, y_ahead, mask_ahead, historic, future, static
