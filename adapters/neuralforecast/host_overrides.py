"""All that MVPA overrides in the host; tests/adapters/neuralforecast/test_host_api.py watches them.

docs/development/upstream.md says for each why, and which change of the host would end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from neuralforecast.core import NeuralForecast
from neuralforecast.tsdataset import TimeSeriesDataset
from torch import Tensor
from utilsforecast.processing import sort

from mvpa_ts.adapters.neuralforecast import losses
from mvpa_ts.adapters.neuralforecast.dates import FrameIndex, split_dates
from mvpa_ts.adapters.neuralforecast.training import HostTraining


class HostOverrides:
    """Mix-in for a model of the host that reads all series of a panel together.

    Series and columns keep one order, what is stored on missing rows is never read, count distributions have a low
    anchor, and training takes every window once before it takes one again.
    """

    cycle_column: str | None = None
    input_size: int
    loss: Any
    scaler: Any
    windows_batch_size: int | None
    max_steps: int
    val_check_steps: int
    _training: HostTraining
    _anchors_counts = False
    _batches: Sequence[Tensor] = ()  # of this pass over the windows, which were not trained on yet

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        self._batches = ()
        # The host takes the smaller of both too, with a warning to all who leave val_check_steps out.
        given, self.val_check_steps = self.val_check_steps, min(self.val_check_steps, self.max_steps)
        try:
            # The host would shuffle the series.
            return super()._fit(*args, **{**kwargs, "shuffle_train": False})  # type: ignore[misc]
        finally:
            self.val_check_steps = given

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
        self._training.note_target(y_ahead, mask_ahead)
        return y, mask, y_ahead, mask_ahead, historic, future, static

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


def keep_frame_indices() -> None:
    """Let each data set that the host makes of a frame keep the frame's ids and dates, as `frame_index`.

    The host hands a model the data set alone, and holds ids and dates apart from it. A name that is looked up would
    else have to be guessed from the number of series.
    """
    if hasattr(TimeSeriesDataset, "frame_index"):
        return
    TimeSeriesDataset.frame_index = None
    from_df, append = TimeSeriesDataset.from_df, TimeSeriesDataset.append
    prepare_fit, load = NeuralForecast._prepare_fit, NeuralForecast.load

    @wraps(from_df)
    def from_df_with_index(
        df: Any, static_df: Any = None, id_col: str = "unique_id", time_col: str = "ds", target_col: str = "y"
    ) -> Any:
        dataset, names, last_dates, dates = from_df(df, static_df, id_col, time_col, target_col)
        static_names = None if static_df is None else sort(static_df[[id_col]], by=id_col)[id_col].to_list()
        dataset.frame_index = FrameIndex(
            list(names),
            split_dates(dates, dataset.indptr),
            (id_col, time_col, target_col),
            _is_polars(df),
            static_names=None if static_names is None else list(dict.fromkeys(static_names)),
        )
        return dataset, names, last_dates, dates

    @wraps(append)
    def append_with_index(self: Any, futr_dataset: Any) -> Any:
        longer = append(self, futr_dataset)
        if self.frame_index is not None and futr_dataset.frame_index is not None:
            longer.frame_index = replace(self.frame_index.with_appended(), appended=futr_dataset.frame_index)
        return longer

    @wraps(prepare_fit)
    def prepare_fit_with_frequency(self: NeuralForecast, *args: Any, **kwargs: Any) -> Any:
        prepared = prepare_fit(self, *args, **kwargs)
        prepared[0].frame_index = replace(prepared[0].frame_index, freq=self.freq)
        return prepared

    @wraps(load)
    def load_with_index(*args: Any, **kwargs: Any) -> Any:
        host = load(*args, **kwargs)
        if isinstance(dataset := getattr(host, "dataset", None), TimeSeriesDataset):
            dataset.frame_index = FrameIndex(
                list(host.uids),
                split_dates(host.ds, dataset.indptr),
                (host.id_col, host.time_col, host.target_col),
                _is_polars(host.uids),
                host.freq,
            )
        return host

    TimeSeriesDataset.from_df = staticmethod(from_df_with_index)
    TimeSeriesDataset.append = append_with_index
    NeuralForecast._prepare_fit = prepare_fit_with_frequency
    NeuralForecast.load = staticmethod(load_with_index)


def _is_polars(frame: Any) -> bool:
    return type(frame).__module__.startswith("polars")


keep_frame_indices()
