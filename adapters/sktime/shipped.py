"""The forecaster that the package ships, trained on other panels, as sktime's forecaster uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mvpa_ts.forecasting.pretrained.base import BaseForecaster
    from mvpa_ts.windows import Scaling, Series

USED = {
    "pretrained", "channel_order", "channel_positions", "bounded", "sp", "finetune_steps", "learning_rate",
    "random_state", "device", "verbose",
}  # fmt: skip
"""Parameters of the forecaster that a shipped network uses."""


@dataclass(frozen=True)
class ShippedForecaster:
    """A network that was trained before, with the calls of `FittedForecaster`."""

    network: BaseForecaster
    horizon: int  # steps to forecast
    ordered: bool  # whether neighbouring columns belong together
    season: int = 0  # steps of the season by the calendar, 0 for none
    covariates: tuple[Any, ...] = ()  # names of the columns of X, for messages
    asked: tuple[float, ...] = ()  # levels of the quantiles, in order; none are those of the network

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles of `predict`."""
        from mvpa_ts.forecasting.pretrained.base import LEVELS

        return self.asked or LEVELS

    @property
    def lookback(self) -> int:
        """Steps that a forecast reads at the most."""
        return self.network.farthest

    def predict(self, series: Series, scaling: Scaling, channel_inputs: Any = None) -> np.ndarray:
        """Quantiles of the steps after the series' last row, shape (h, C, Q)."""
        import torch

        from mvpa_ts.forecasting.pretrained import forecast_quantiles

        series, ahead = by_the_clock(series, self.horizon)
        # Scaled in double precision first, because large levels with small changes would leave float32.
        values = torch.tensor(scaling.apply(series.values), dtype=torch.float32)[None]
        future = _future(series)
        with torch.no_grad():
            quantiles = forecast_quantiles(
                self.network, values.nan_to_num(0.0), ~values.isnan(), horizon=int(ahead.max()) + 1, levels=self.levels,
                positions=self._positions(values.shape[2], channel_inputs), season=self.season,
                future=None if future is None else future[None, : len(series.values) + int(ahead.max()) + 1],
                names=list(map(str, self.covariates)),
            )[0, ahead]  # fmt: skip
        return quantiles.double().numpy() * scaling.scale[:, None] + scaling.location[:, None]

    def _positions(self, count: int, channel_inputs: Mapping[str, Any] | None) -> Any:
        """Coordinates of the columns, a row each; None where nothing is known."""
        import torch

        positions = (channel_inputs or {}).get("positions")
        if positions is None and self.ordered:
            positions = torch.arange(count)[:, None].float()
        return positions

    def finetuned(
        self, series: Series, scaling: Scaling, channel_inputs: Mapping[str, Any], **settings: Any
    ) -> ShippedForecaster:
        """A copy that is trained further on one series, see `finetuned` of the core for what is set."""
        import torch

        from mvpa_ts.forecasting.pretrained import finetuned

        values = torch.tensor(scaling.apply(series.values), dtype=torch.float32)
        trained = finetuned(
            self.network, values, horizon=self.horizon, **settings, season=self.season, future=_future(series),
            positions=self._positions(values.shape[1], channel_inputs),
        )  # fmt: skip
        return replace(self, network=trained)

    def to_files(self, folder: str | Path, beside: Mapping[str, str] | None = None) -> None:
        """Write the folder that `pretrained` takes: weights in half precision, sizes, and files `beside` them."""
        from mvpa_ts.forecasting.pretrained import save_base

        save_base(self.network, folder, beside=beside)


def by_the_clock(series: Series, horizon: int) -> tuple[Series, np.ndarray]:
    """A series in steps of its local clock, and which of the steps after it are those of the horizon, [h].

    Where the clock is set forward, a step is missing. Where it is set back, the later of two rows stays.
    """
    from mvpa_ts.windows import Series

    count = len(series.values)
    places = series.positions(0, horizon)
    places = places - places[0]
    last = int(places[count - 1])
    usual = np.array_equal(places, np.arange(count + horizon))
    if usual or places.min() < 0 or last < places[:count].max() or places[count:].min() <= last:  # an hour twice
        return series, np.arange(horizon)
    row = np.full(places.max() + 1, -1)
    row[places] = np.arange(count + horizon)
    values = np.where(row[: last + 1, None] < 0, np.nan, series.values[row[: last + 1]])
    features = series.features
    if features is not None:  # of a step that is missing, those before it
        features = features[np.maximum.accumulate(row).clip(max=len(features) - 1)]
    return Series(values, features), places[count:] - last - 1


def _future(series: Series) -> Any:
    """Columns of X for each column of y, a tensor [n + ahead, C, F]; None without X."""
    import torch

    if series.features is None:
        return None
    return torch.tensor(series.features)[:, None].expand(-1, series.values.shape[1], -1)


def bounds_of_rows(bounded: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of the columns' forecasts, [C, 1]; infinite where there are none."""
    import torch

    from mvpa_ts.forecasting.pretrained.pretrained import bounds_of

    values = torch.tensor(rows)[None]
    lower, upper = bounds_of(bounded, values.nan_to_num(0.0), ~values.isnan())
    return lower.mT.numpy(), upper.mT.numpy()


def side_by_side(series: Sequence[Series]) -> Series:
    """Instances of a panel as the columns of one series that ends where they all do; missing before they begin."""
    from mvpa_ts.windows import Series

    longest = max(len(part.values) for part in series)
    padded = [np.pad(part.values, ((longest - len(part.values), 0), (0, 0)), constant_values=np.nan) for part in series]
    return Series(np.concatenate(padded, axis=1))


def check_parameters(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ValueError where a parameter is set that the shipped network does not use."""
    for name, value in parameters.items():
        if name not in USED and value != defaults[name]:
            raise ValueError(
                f"{name} must be left out with pretrained={parameters['pretrained']!r}, whose network exists and is "
                f"trained already, got {value!r}; to train a network with {name}, leave pretrained out"
            )
    bounds_of_rows(parameters["bounded"], np.full((1, 1), np.nan))
    if parameters["device"] != "cpu":
        raise ValueError(
            f"device must be 'cpu' with pretrained, whose network is small (7 megabytes as shipped), got "
            f"{parameters['device']!r}"
        )
