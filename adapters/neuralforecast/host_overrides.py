"""All private methods of the host that MVPA overrides; tests/adapters/neuralforecast/test_host_api.py watches them.

docs/development/upstream.md says for each why, and which change of the host would end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mvpa_ts.adapters.neuralforecast import losses


class MaskedWindows:
    """Mix-in for a model of the host: missing rows of its windows are zero, whatever the panel holds there."""

    input_size: int

    def _create_windows(self, batch: dict[str, Any], step: str) -> Any:
        # What is stored on a missing row may be NaN, which no mask of a loss or a scaler would stop.
        columns, temporal = batch["temporal_cols"], batch["temporal"]  # [N, columns, T]
        missing = temporal[:, [columns.get_loc("available_mask")]] == 0
        weight = torch.from_numpy(columns == "sample_weight").to(temporal.device)[:, None]
        temporal = self.scaled_columns(temporal, columns, 1)
        temporal = temporal.masked_fill(missing & (~weight | temporal.isnan()), 0.0)
        batch = {**batch, "temporal": temporal}
        if batch.get("static") is not None:
            batch["static"] = self.scaled_columns(batch["static"], batch["static_cols"], 1)
        return super()._create_windows(batch, step)  # type: ignore[misc]

    def scaled_columns(self, values: Tensor, columns: Any, dim: int) -> Tensor:
        """Values of a batch with their exogenous columns scaled; here they stay as they are."""
        return values

    def _parse_windows(self, batch: dict[str, Any], windows: dict[str, Any]) -> Any:
        y, mask, y_ahead, mask_ahead, historic, future, static = super()._parse_windows(  # type: ignore[misc]
            batch, windows
        )
        # A missing row was zeroed before the host scaled it, which made its columns far from their mean: zero it again.
        missing = torch.cat([mask, mask_ahead], 1)[:, None] == 0  # [B, 1, L + h, N]
        historic = None if historic is None else historic.masked_fill(missing[:, :, : self.input_size], 0.0)
        future = None if future is None else future.masked_fill(missing, 0.0)
        return y, mask, y_ahead, mask_ahead, historic, future, static


class HostOverrides:
    """Mix-in for a model of the host: series and columns in a fixed order, count distributions with a low anchor.

    Training takes every window once before it takes one again.
    """

    cycle_column: str | None
    loss: Any
    scaler: Any
    windows_batch_size: int | None
    max_steps: int
    val_check_steps: int
    _anchors_counts: bool
    _batches: Sequence[Tensor] = ()  # of this pass over the windows, which were not trained on yet

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        self._batches = ()
        # The host takes the smaller of both too, with a warning to all who leave val_check_steps out.
        told, self.val_check_steps = self.val_check_steps, min(self.val_check_steps, self.max_steps)
        try:
            # The host would shuffle the series.
            return super()._fit(*args, **{**kwargs, "shuffle_train": False})  # type: ignore[misc]
        finally:
            self.val_check_steps = told

    def _sample_windows(self, *args: Any, w_idxs: Tensor, final_condition: Tensor, **kwargs: Any) -> Any:
        # The host would draw each batch anew, and fill it with repetitions where there are fewer windows.
        if self.training and self.windows_batch_size is not None:  # type: ignore[attr-defined]
            if not self._batches:
                order = torch.randperm(len(final_condition), device=w_idxs.device)
                self._batches = order.split(self.windows_batch_size)
            w_idxs, *self._batches = self._batches
        return super()._sample_windows(  # type: ignore[misc]
            *args, w_idxs=w_idxs, final_condition=final_condition, **kwargs
        )

    def _get_temporal_exogenous_cols(self, temporal_cols: Any) -> list[str]:
        # Sorted, since the host's order of a set differs between processes and a scaler may have weights for each.
        columns = super()._get_temporal_exogenous_cols(temporal_cols)  # type: ignore[misc]
        return sorted(set(columns) - {self.cycle_column})

    def _get_loc_scale(self, y_idx: int, add_channel_dim: bool = False) -> tuple[Tensor, Tensor]:
        location, scale = super()._get_loc_scale(y_idx, add_channel_dim)  # type: ignore[misc]
        return losses.count_location_scale(self.loss, location, scale) if self._anchors_counts else (location, scale)

    def _inv_normalization(self, y_hat: Tensor, y_idx: int) -> Tensor:
        if not self.loss.is_distribution_output:
            inverse: Tensor = super()._inv_normalization(y_hat, y_idx)  # type: ignore[misc]
            return inverse
        # Here the host scales the look-back back, not a distribution.
        location, scale = super()._get_loc_scale(y_idx, add_channel_dim=y_hat.ndim > 3)  # type: ignore[misc]
        scaled: Tensor = self.scaler.inverse_transform(z=y_hat, x_scale=scale, x_shift=location)
        return scaled
