"""All that MVPA overrides in the host; tests/adapters/neuralforecast/test_host_api.py watches them.

docs/development/upstream.md says for each why, and which change of the host would end it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from glob import escape
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from neuralforecast import utils
from neuralforecast.common._base_model import BaseModel, pl
from neuralforecast.core import NeuralForecast
from neuralforecast.losses.pytorch import HuberIQLoss, IQLoss
from neuralforecast.tsdataset import TimeSeriesDataset
from torch import Tensor
from torch.nn import functional as F
from utilsforecast.compat import pl_DataFrame, pl_Series
from utilsforecast.processing import sort

from mvpa_ts.adapters.neuralforecast import dates
from mvpa_ts.adapters.neuralforecast.dates import FrameIndex
from mvpa_ts.adapters.neuralforecast.frames import checked_call, of_this_package
from mvpa_ts.adapters.neuralforecast.training import HostTraining, count_location_scale
from mvpa_ts.adapters.options import temporarily
from mvpa_ts.checks import listed, warn
from mvpa_ts.files import read_config, writing_alone
from mvpa_ts.forecasting.series import plain, rows_of
from mvpa_ts.random_state import OwnRandomState

Method = Callable[..., Any]  # of the host, or what takes its place


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
        temporal = self.scaled_columns(temporal, columns, 1)
        names = [*self.futr_exog_list, *self.hist_exog_list] if self._keeps_covariates else []
        covariate = torch.tensor([name in names for name in columns], device=temporal.device)[:, None]
        batch = {**batch, "temporal": temporal.masked_fill(missing & ~covariate, 0.0)}
        if batch.get("static") is not None:
            batch["static"] = self.scaled_columns(batch["static"], batch["static_cols"], 1)
        windows, *others, weight, columns = super()._create_windows(batch, step)
        if weight is not None:  # the host's mean over h rows, of which those that are missing have none
            observed = windows[:, self.input_size :, columns.get_loc("available_mask")].sum(1, keepdim=True)
            weight = weight * self.h / observed.clamp(min=1.0)
        return windows, *others, weight, columns

    def scaled_columns(self, values: Tensor, columns: Any, dim: int) -> Tensor:
        """Values of a batch with their exogenous columns scaled; here they stay as they are."""
        return values

    def _parse_windows(self, batch: dict[str, Any], windows: dict[str, Any]) -> Any:
        y, mask, y_ahead, mask_ahead, historic, future, static = super()._parse_windows(batch, windows)
        # A missing row was zeroed before the host scaled it, which made its columns far from their mean: zero it again.
        missing = torch.cat([mask, mask_ahead], 1)[:, None] == 0  # [B, 1, L + h, N]
        if historic is not None and not self._keeps_covariates:
            historic = historic.masked_fill(missing[:, :, : self.input_size], 0.0)
        if future is not None:
            if self._keeps_covariates:
                missing = missing & future.isnan()
                missing[:, :, : self.input_size] = False
            future = future.masked_fill(missing, 0.0)
        self._training.note_target(y_ahead, mask_ahead)
        return y, mask, y_ahead, mask_ahead, historic, future, static

    def _shard_multivariate_windows(self, final_condition: Tensor) -> Tensor:
        # In training `_sample_windows` divides each batch instead, so that devices take the batches of one.
        return final_condition if self.training else super()._shard_multivariate_windows(final_condition)

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

    def _predict_step_direct(self, batch: dict[str, Any], batch_idx: int, recursive: bool = False) -> Any:
        # The host cuts windows by whole horizons: beyond the last one it would forecast earlier steps again.
        lacking = -self.test_size % self.h if recursive else 0
        if lacking:
            batch = {**batch, "temporal": F.pad(batch["temporal"], (0, lacking), mode="replicate")}
        with temporarily(self, test_size=self.test_size + lacking):
            return super()._predict_step_direct(batch, batch_idx, recursive)

    def simulate(
        self, dataset: Any, n_paths: int = 500, random_seed: int | None = None, quantiles: Any = None, **options: Any
    ) -> Any:
        """Draw paths of each series; called by `NeuralForecast.simulate`."""
        if not isinstance(self.loss, (IQLoss, HuberIQLoss)):
            return super().simulate(dataset, n_paths, random_seed, quantiles, **options)
        # The host would read the quantiles of unequal distances that it asks for as if they were equal.
        method = options.pop("method", "gaussian_copula")
        levels = [0.01, *np.linspace(0.05, 0.95, 19), 0.99] if quantiles is None else quantiles
        values = [self.predict(dataset, random_seed=random_seed, quantiles=[level], **options) for level in levels]
        table = np.sort(np.concatenate(values, 1).reshape(len(dataset), self.h, -1), 2)
        return utils.sample_from_quantiles(sorted(levels), table, dataset, n_paths, random_seed, method)

    def _get_temporal_exogenous_cols(self, temporal_cols: Any) -> list[str]:
        # Sorted, since the host's order of a set differs between processes and a scaler may have weights for each.
        columns = super()._get_temporal_exogenous_cols(temporal_cols)
        return sorted(set(columns) - {self.cycle_column})

    def _get_loc_scale(self, y_idx: int, add_channel_dim: bool = False) -> tuple[Tensor, Tensor]:
        location, scale = super()._get_loc_scale(y_idx, add_channel_dim)
        return count_location_scale(self.loss, location, scale) if self._anchors_counts else (location, scale)

    def _inv_normalization(self, y_hat: Tensor, y_idx: int) -> Tensor:
        if not self.loss.is_distribution_output:
            return super()._inv_normalization(y_hat, y_idx)
        # Here the host scales the look-back back, not a distribution.
        location, scale = super()._get_loc_scale(y_idx, add_channel_dim=y_hat.ndim > 3)
        return self.scaler.inverse_transform(z=y_hat, x_scale=scale, x_shift=location)


def quiet_in_pipes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Lightning's Trainer, which prints on stdout: by default nothing where a pipe or a file reads it."""
    bar = any(isinstance(callback, pl.callbacks.ProgressBar) for callback in options.get("callbacks") or ())
    # In a notebook stdout is another stream.
    if bar or sys.stdout is not sys.__stdout__ or (sys.stdout and sys.stdout.isatty()):
        return dict(options)
    return {"enable_progress_bar": False, "enable_model_summary": False, **options}


def replacing(owner: type, name: str) -> Callable[[Method], Method]:
    """Let a function take the place of a method of the host, which it is handed first.

    A `NeuralForecast` without a model of this package goes on with the method itself.
    """
    method = getattr(owner, name)

    def install(replacement: Method) -> Method:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            host = args[0] if args else None
            if isinstance(host, NeuralForecast) and not of_this_package(host):
                return method(*args, **kwargs)
            return replacement(method, *args, **kwargs)

        static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(call) if static else call)
        return replacement

    return install


NeuralForecast.categories_before = {}  # of this call, whose numbers a `fit` of the host forgets first
for _name in ("fit", "predict", "simulate", "cross_validation", "explain"):
    replacing(NeuralForecast, _name)(checked_call)
# The host hands a model the data set alone, and holds ids and dates apart from it. A name that is looked up would else
# have to be guessed from the number of series. So each data set keeps the ids and dates of its frame.
TimeSeriesDataset.frame_index = None


@replacing(TimeSeriesDataset, "from_df")
def _with_index(
    from_df: Method, df: Any, static_df: Any = None, id_col: str = "unique_id", time_col: str = "ds",
    target_col: str = "y",
) -> Any:  # fmt: skip
    dataset, names, last_dates, row_dates = from_df(df, static_df, id_col, time_col, target_col)
    static_names = None if static_df is None else sort(static_df[[id_col]], by=id_col)[id_col].to_list()
    dataset.frame_index = FrameIndex(
        list(names), dates.split_dates(row_dates, dataset.indptr), (id_col, time_col, target_col),
        isinstance(df, pl_DataFrame),
        static_names=None if static_names is None else list(dict.fromkeys(static_names)),
    )  # fmt: skip
    return dataset, names, last_dates, row_dates


@replacing(TimeSeriesDataset, "align")
def _aligned_by_name(align: Method, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    rows = align(dataset, *args, **kwargs)
    return rows if dataset.frame_index is None else _in_order_of(dataset.frame_index.names, rows)


@replacing(TimeSeriesDataset, "append")
def _appended_with_index(append: Method, dataset: Any, futr_dataset: Any) -> Any:
    longer = append(dataset, futr_dataset)
    if dataset.frame_index is not None and futr_dataset.frame_index is not None:
        longer.frame_index = replace(dataset.frame_index.with_appended(), appended=futr_dataset.frame_index)
    return longer


@replacing(utils, "sample_from_quantiles")
def _sampled_in_order(sample: Method, quantile_positions: Any, quantile_values: Any, *args: Any, **kwargs: Any) -> Any:
    # The host searches in levels as if they increased; `MQLoss(level=[80])` has its median first.
    order = np.argsort(quantile_positions)
    return sample(np.asarray(quantile_positions)[order], np.asarray(quantile_values)[..., order], *args, **kwargs)


@replacing(NeuralForecast, "_prepare_fit")
def _prepared_with_frequency(prepare: Method, host: NeuralForecast, *args: Any, **kwargs: Any) -> Any:
    prepared = prepare(host, *args, **kwargs)
    index, scaled = prepared[0].frame_index, host.local_scaler_type is not None
    prepared[0].frame_index = replace(index, freq=host.freq, scaled=scaled)
    return prepared


@replacing(NeuralForecast, "load")
def _loaded_with_index(load: Method, path: str, *args: Any, **kwargs: Any) -> Any:
    host = load(path, *args, **kwargs)
    # The host loads the models that it finds, and older versions of it wrote no such file.
    if (file := Path(path) / "configuration.json").is_file():
        saved = read_config(file).get("configuration", {}).get("alias_to_model", {})
        if lost := sorted({*saved} - {model.alias for model in host.models}):
            raise FileNotFoundError(f"{path} lacks the files of {listed(lost)}: copy all that save wrote")
    host.freq = dates.loaded_frequency(host.freq)
    if isinstance(dataset := getattr(host, "dataset", None), TimeSeriesDataset):
        dataset.frame_index = FrameIndex(
            list(host.uids),
            dates.split_dates(host.ds, dataset.indptr),
            (host.id_col, host.time_col, host.target_col),
            isinstance(host.uids, pl_Series),
            host.freq,
        )
    return host


@replacing(NeuralForecast, "save")
def _saved_whole(save: Method, host: NeuralForecast, path: str, *args: Any, **kwargs: Any) -> None:
    given = inspect.signature(save).bind(host, path, *args, **kwargs)
    folder = Path(path).absolute()
    refused = folder.is_dir() and any(folder.iterdir()) and not given.arguments.get("overwrite")
    if "://" in str(path) or refused:
        save(host, path, *args, **kwargs)
        return
    # The host takes offsets of pandas, and writes texts alone.
    written = {"freq": dates.saved_frequency(host.freq)}
    if hasattr(host, "uids"):
        written["uids"] = _writable(host.uids)
    if isinstance(scores := getattr(host, "_cs_df", None), pl_DataFrame):
        written["_cs_df"] = scores.with_columns(_writable(scores[host.id_col]))
    with writing_alone(folder.parent), temporarily(host, **written):
        # The host would delete what is there first, and a kill or a full disk then leaves neither of both.
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
            given.arguments["path"] = f"{beside}/new"
            save(*given.args, **given.kwargs)
            if folder.exists():
                folder.rename(f"{beside}/older")
            Path(beside, "new").rename(folder)
        for left in folder.parent.glob(f".{escape(folder.name)}-{'?' * 8}"):  # by a save that was killed
            if left.is_dir() and {entry.name for entry in left.iterdir()} <= {"new", "older"}:
                rmtree(left, ignore_errors=True)


@replacing(NeuralForecast, "_build_categorical_vocab")
def _vocabulary_kept(build: Method, host: NeuralForecast, df: Any, static_df: Any) -> None:
    before = host.categories_before
    build(host, df, static_df)
    if all(getattr(model, "_fitted_series", None) is None for model in host.models):
        return
    # A model that is trained further has learnt the numbers of its categories: new ones come after them.
    for column in before.keys() & host.categorical_vocab_.keys():
        new = [value for value in host.categorical_vocab_[column] if value not in before[column]]
        if len(kept := dict.fromkeys([*before[column], *new])) > (most := host._get_categorical_exog()[column]):
            raise ValueError(
                f"categorical_cardinalities has room for {most} values of {column!r}, and with those of the first fit "
                f"there are {len(kept)}: make a model with a larger number"
            )
        host.categorical_vocab_[column] = {value: number for number, value in enumerate(kept, 1)}


@replacing(NeuralForecast, "_encode_categoricals")
def _encoded_known(encode: Method, host: NeuralForecast, df: Any) -> Any:
    for column in {*host.categorical_vocab_} & {*df.columns}:
        if isinstance(getattr(df[column], "dtype", None), pd.CategoricalDtype):  # the host writes numbers into it
            df = df.assign(**{column: df[column].astype(object)})
        vocabulary = host.categorical_vocab_[column]
        if new := [value for value in pd.Series(df[column].unique()).dropna() if value not in vocabulary]:
            warn(
                f"column {column!r} has categories that the fit did not have, {listed(list(map(repr, new)))}: they "
                "are read as unknown. Fit with rows of them, or mend their spelling"
            )
    return encode(host, df)


@replacing(NeuralForecast, "_check_nan")
def _check_weights(check: Method, host: NeuralForecast, df: Any, static_df: Any, *columns: str) -> None:
    # Cells were looked at before. Of text in polars the host cannot tell; it looks at the weights.
    kept = {host.target_col, "available_mask", "sample_weight"}
    check(host, df[[name for name in df.columns if name in kept]], None, *columns)


@replacing(NeuralForecast, "_conformity_scores")
def _scores_of_observed_rows(
    conformity: Method, host: NeuralForecast, df: Any, id_col: str, time_col: str, *args: Any, **kwargs: Any
) -> Any:
    intervals = host.prediction_intervals
    if intervals is not None and "available_mask" in df.columns:
        rows = sort(df[[id_col, time_col, "available_mask"]], by=[id_col, time_col])
        ids, missing = rows[id_col].to_list(), pd.Series(rows["available_mask"].to_numpy() == 0)
        count = host.h + intervals.step_size * (intervals.n_windows - 1)
        if (compared := missing.groupby(ids).tail(count)).any():
            raise ValueError(
                f"prediction_intervals compares forecasts with the last {count} rows of each series, got some with "
                f"available_mask = 0 in series {ids[compared.idxmax()]!r}: neuralforecast would take what is stored "
                "there for values. Let series end with their last value, take fewer n_windows, or learn quantiles, "
                "loss=MQLoss(level=[80])"
            )
    return conformity(host, df, id_col, time_col, *args, **kwargs)


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
