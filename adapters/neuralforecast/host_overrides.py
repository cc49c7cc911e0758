"""All that MVPA overrides in the host; tests/adapters/neuralforecast/test_host_api.py watches them.

docs/development/upstream.md says for each why, and which change of the host would end it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from neuralforecast.common._base_model import BaseModel, pl
from neuralforecast.core import NeuralForecast
from neuralforecast.tsdataset import TimeSeriesDataset
from torch import Tensor
from utilsforecast.compat import pl_DataFrame, pl_Series
from utilsforecast.processing import sort

from mvpa_ts.adapters.neuralforecast import losses
from mvpa_ts.adapters.neuralforecast.dates import FrameIndex, rounding_of, saved_frequency, split_dates
from mvpa_ts.adapters.neuralforecast.frames import check_filled, checked, of_this_package
from mvpa_ts.adapters.neuralforecast.training import HostTraining
from mvpa_ts.adapters.options import temporarily
from mvpa_ts.checks import listed, warn
from mvpa_ts.forecasting.series import plain, rows_of
from mvpa_ts.random_state import OwnRandomState


class HostOverrides(BaseModel):
    """A model of the host that reads all series of a panel together.

    Series and columns keep one order, what is stored on missing rows is never read, count distributions have a low
    anchor, and training takes every window once before it takes one again. Random numbers are the model's own, so that
    threads do not take each other's.
    """

    cycle_column: str | None = None
    _training: HostTraining
    _anchors_counts = False
    _keeps_covariates = False  # of missing rows: the network tells those that are there from those that are not
    _batches: Sequence[Tensor] = ()  # of this pass over the windows, which were not trained on yet

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        self._batches = ()
        # The host takes the smaller of both too, with a warning to all who leave val_check_steps out.
        steps, options = min(self.val_check_steps, self.max_steps), quiet_in_pipes(self.trainer_kwargs)
        with temporarily(self, val_check_steps=steps, trainer_kwargs=options):
            # The host would shuffle the series.
            return super()._fit(*args, **{**kwargs, "shuffle_train": False})

    def _restart_seed(self, random_seed: int | None) -> None:
        # The host would seed the whole process.
        if (state := OwnRandomState.current()) is None:
            super()._restart_seed(random_seed)
        else:
            state.manual_seed(self.random_seed if random_seed is None else random_seed)

    def on_fit_start(self) -> None:
        """Begin the random numbers of a fit."""
        if OwnRandomState.current() is None:  # in a process of its own
            super().on_fit_start()
        else:
            self._restart_seed(None)

    def _create_windows(self, batch: dict[str, Any], step: str) -> Any:
        # What is stored on a missing row may be NaN, which no mask of a loss or a scaler would stop.
        columns, temporal = batch["temporal_cols"], batch["temporal"]  # [N, columns, T]
        missing = temporal[:, [columns.get_loc("available_mask")]] == 0
        weight = torch.from_numpy(columns == "sample_weight").to(temporal.device)[:, None]
        temporal = self.scaled_columns(temporal, columns, 1)
        names = self.futr_exog_list if self._keeps_covariates else []
        covariate = torch.tensor([name in names for name in columns], device=temporal.device)[:, None]
        temporal = temporal.masked_fill(missing & ~covariate & (~weight | temporal.isnan()), 0.0)
        batch = {**batch, "temporal": temporal}
        if batch.get("static") is not None:
            batch["static"] = self.scaled_columns(batch["static"], batch["static_cols"], 1)
        return super()._create_windows(batch, step)

    def scaled_columns(self, values: Tensor, columns: Any, dim: int) -> Tensor:
        """Values of a batch with their exogenous columns scaled; here they stay as they are."""
        return values

    def _parse_windows(self, batch: dict[str, Any], windows: dict[str, Any]) -> Any:
        y, mask, y_ahead, mask_ahead, historic, future, static = super()._parse_windows(batch, windows)
        # A missing row was zeroed before the host scaled it, which made its columns far from their mean: zero it again.
        missing = torch.cat([mask, mask_ahead], 1)[:, None] == 0  # [B, 1, L + h, N]
        historic = None if historic is None else historic.masked_fill(missing[:, :, : self.input_size], 0.0)
        if future is not None:
            if self._keeps_covariates:
                missing = missing & future.isnan()
                missing[:, :, : self.input_size] = False
            future = future.masked_fill(missing, 0.0)
        self._training.note_target(y_ahead, mask_ahead)
        return y, mask, y_ahead, mask_ahead, historic, future, static

    def _shard_multivariate_windows(self, final_condition: Tensor) -> Tensor:
        # In training `_sample_windows` divides each batch instead, so that devices take the batches of one.
        if self.training:
            return final_condition
        return super()._shard_multivariate_windows(final_condition)

    def _sample_windows(self, *args: Any, w_idxs: Tensor, final_condition: Tensor, **kwargs: Any) -> Any:
        # The host would draw each batch anew, and fill it with repetitions where there are fewer windows.
        if self.training and self.windows_batch_size is not None:
            if not self._batches:
                order = torch.randperm(len(final_condition), device=w_idxs.device)
                self._batches = order.split(self.windows_batch_size * self.trainer.world_size)
            w_idxs, *self._batches = self._batches
            # Of several devices each takes its share, all as many: their random numbers then stay alike.
            share = -(-len(w_idxs) // self.trainer.world_size)
            w_idxs = w_idxs[(torch.arange(share) * self.trainer.world_size + self.trainer.global_rank) % len(w_idxs)]
        return super()._sample_windows(*args, w_idxs=w_idxs, final_condition=final_condition, **kwargs)

    def _get_temporal_exogenous_cols(self, temporal_cols: Any) -> list[str]:
        # Sorted, since the host's order of a set differs between processes and a scaler may have weights for each.
        columns = super()._get_temporal_exogenous_cols(temporal_cols)
        return sorted(set(columns) - {self.cycle_column})

    def _get_loc_scale(self, y_idx: int, add_channel_dim: bool = False) -> tuple[Tensor, Tensor]:
        location, scale = super()._get_loc_scale(y_idx, add_channel_dim)
        return losses.count_location_scale(self.loss, location, scale) if self._anchors_counts else (location, scale)

    def _inv_normalization(self, y_hat: Tensor, y_idx: int) -> Tensor:
        if not self.loss.is_distribution_output:
            inverse: Tensor = super()._inv_normalization(y_hat, y_idx)
            return inverse
        # Here the host scales the look-back back, not a distribution.
        location, scale = super()._get_loc_scale(y_idx, add_channel_dim=y_hat.ndim > 3)
        scaled: Tensor = self.scaler.inverse_transform(z=y_hat, x_scale=scale, x_shift=location)
        return scaled


def quiet_in_pipes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Lightning's Trainer, which prints on stdout: by default nothing where a pipe or a file reads it."""
    bar = any(isinstance(callback, pl.callbacks.ProgressBar) for callback in options.get("callbacks") or ())
    # In a notebook stdout is another stream.
    if bar or sys.stdout is not sys.__stdout__ or (sys.stdout and sys.stdout.isatty()):
        return dict(options)
    return {"enable_progress_bar": False, "enable_model_summary": False, **options}


def keep_frame_indices() -> None:
    """Let each data set that the host makes of a frame keep the frame's ids and dates, as `frame_index`.

    The host hands a model the data set alone, and holds ids and dates apart from it. A name that is looked up would
    else have to be guessed from the number of series.
    """
    if hasattr(TimeSeriesDataset, "frame_index"):
        return
    TimeSeriesDataset.frame_index = None
    from_df, append, align = TimeSeriesDataset.from_df, TimeSeriesDataset.append, TimeSeriesDataset.align
    prepare_fit, load, save = NeuralForecast._prepare_fit, NeuralForecast.load, NeuralForecast.save
    encode, conformity = NeuralForecast._encode_categoricals, NeuralForecast._conformity_scores
    check_nan = NeuralForecast._check_nan

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
            isinstance(df, pl_DataFrame),
            static_names=None if static_names is None else list(dict.fromkeys(static_names)),
            rounded=rounding_of(df, list(names), dataset.indptr, id_col, time_col),
        )
        return dataset, names, last_dates, dates

    @wraps(align)
    def align_by_name(self: Any, *args: Any, **kwargs: Any) -> Any:
        rows = align(self, *args, **kwargs)
        return rows if self.frame_index is None else _in_order_of(self.frame_index.names, rows)

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
        if isinstance(host.freq, dict):
            host.freq = pd.DateOffset(**host.freq)
        if isinstance(dataset := getattr(host, "dataset", None), TimeSeriesDataset):
            dataset.frame_index = FrameIndex(
                list(host.uids),
                split_dates(host.ds, dataset.indptr),
                (host.id_col, host.time_col, host.target_col),
                isinstance(host.uids, pl_Series),
                host.freq,
            )
        return host

    @wraps(save)
    def save_whole(self: NeuralForecast, path: str, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(save).bind(self, path, *args, **kwargs)
        folder = Path(path).absolute()
        refused = folder.is_dir() and any(folder.iterdir()) and not given.arguments.get("overwrite")
        if not of_this_package(self) or "://" in str(path) or refused:
            save(self, path, *args, **kwargs)
            return
        # The host takes offsets of pandas, and writes texts alone.
        written = {"freq": saved_frequency(self.freq)}
        if hasattr(self, "uids"):
            written["uids"] = _writable(self.uids)
        if isinstance(scores := getattr(self, "_cs_df", None), pl_DataFrame):
            written["_cs_df"] = scores.with_columns(_writable(scores[self.id_col]))
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The host would delete what is there first, and a kill or a full disk then leaves neither of both.
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside, temporarily(self, **written):
            given.arguments["path"] = f"{beside}/new"
            save(*given.args, **given.kwargs)
            if folder.exists():
                folder.rename(f"{beside}/older")
            Path(beside, "new").rename(folder)

    @wraps(encode)
    def encode_known(self: NeuralForecast, df: Any) -> Any:
        for column in ({*self.categorical_vocab_} & {*df.columns}) if of_this_package(self) else ():
            known = self.categorical_vocab_[column]
            if new := [value for value in pd.Series(df[column].unique()).dropna() if value not in known]:
                warn(
                    f"column {column!r} has categories that the fit did not have, {listed(list(map(repr, new)))}: they "
                    "are read as unknown. Fit with rows of them, or mend their spelling"
                )
        return encode(self, df)

    @wraps(conformity)
    def conformity_of_observed_rows(self: NeuralForecast, df: Any, *args: Any, **kwargs: Any) -> Any:
        if of_this_package(self):
            _check_calibration(df, self.prediction_intervals, self.h, kwargs)
        return conformity(self, df, *args, **kwargs)

    @wraps(check_nan)
    def check_nan_by_name(
        self: NeuralForecast, df: Any, static_df: Any, id_col: str, time_col: str, target_col: str
    ) -> None:
        if of_this_package(self):
            check_filled("df", df, [id_col, time_col])
            if static_df is not None:
                check_filled("static_df", static_df, [id_col])
            # Of text in polars the host cannot tell; it looks at the weights.
            kept = {target_col, "available_mask", "sample_weight"}
            df, static_df = df[[name for name in df.columns if name in kept]], None
        check_nan(self, df, static_df, id_col, time_col, target_col)

    for name in ("fit", "predict", "simulate", "cross_validation"):
        setattr(NeuralForecast, name, checked(getattr(NeuralForecast, name)))
    NeuralForecast.save = save_whole
    NeuralForecast._conformity_scores = conformity_of_observed_rows
    NeuralForecast._encode_categoricals, NeuralForecast._check_nan = encode_known, check_nan_by_name
    TimeSeriesDataset.from_df = staticmethod(from_df_with_index)
    TimeSeriesDataset.append, TimeSeriesDataset.align = append_with_index, align_by_name
    NeuralForecast._prepare_fit = prepare_fit_with_frequency
    NeuralForecast.load = staticmethod(load_with_index)


def _check_calibration(df: Any, intervals: Any, horizon: int, columns: Mapping[str, Any]) -> None:
    """Raise ValueError where the host would take what is stored on missing rows for values to calibrate by."""
    if intervals is None or "available_mask" not in df.columns:
        return
    id_col, time_col = columns.get("id_col", "unique_id"), columns.get("time_col", "ds")
    rows = sort(df[[id_col, time_col, "available_mask"]], by=[id_col, time_col])
    ids, missing = rows[id_col].to_numpy(), rows["available_mask"].to_numpy() == 0
    last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
    count = horizon + intervals.step_size * (intervals.n_windows - 1)
    for end in last:
        if missing[max(0, end + 1 - count) : end + 1].any():
            raise ValueError(
                f"prediction_intervals compares forecasts with the last {count} rows of each series, got some with "
                f"available_mask = 0 in series {ids[end]!r}: neuralforecast would take what is stored there for "
                "values. Let series end with their last value, take fewer n_windows, or learn quantiles, "
                "loss=MQLoss(level=[80])"
            )


def _in_order_of(names: list[Any], rows: Any) -> Any:
    """A data set with its series in this order, as the host appends them; as it is where it has other series."""
    index = rows.frame_index
    order = rows_of([plain(name) for name in index.names], names)
    # Categories are sorted by their own order, and text by letters.
    if order == sorted(order) or sorted(order) != list(range(len(rows))):
        return rows
    parts = np.split(np.arange(len(rows.temporal)), rows.indptr[1:-1])
    rows.temporal = rows.temporal[np.concatenate([parts[row] for row in order])]
    rows.indptr = np.append(0, np.cumsum([len(parts[row]) for row in order])).astype(rows.indptr.dtype)
    rows.frame_index = replace(index, names=names, dates=index.dates and [index.dates[row] for row in order])
    return rows


def _writable(ids: Any) -> Any:
    """Ids of polars in a type that the host can write: text for categories, whole numbers of 64 bits for shorter."""
    if not isinstance(ids, pl_Series):
        return ids
    kind = str(ids.dtype)
    return ids.cast(int if ids.dtype.is_integer() else str if kind.startswith(("Categorical", "Enum")) else ids.dtype)


keep_frame_indices()
