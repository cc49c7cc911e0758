"""Sizes of the forecasters that are trained once for any panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mvpa_ts.checks import keep_whole


@dataclass(frozen=True)
class BaseConfig:
    """Sizes of a `BaseForecaster`.

    Attributes
    ----------
    lookback : int
        Steps that the network reads.
    patch_length : int
        Steps in a token of history or horizon.
    chunk_length : int
        Steps of the horizon that share the weights of the simple forecasts.
    most_patches : int
        Patches of the horizon that the network tells apart; later ones count as the last.
    dim, num_heads, mlp_dim : int
    blocks : str
        A letter for each block: "t" attends over the time of each series, "p" over the whole panel.
    """

    lookback: int = 512
    patch_length: int = 32
    chunk_length: int = 8
    most_patches: int = 24
    dim: int = 64
    num_heads: int = 4
    mlp_dim: int = 128
    blocks: str = "tp"

    def __post_init__(self) -> None:
        keep_whole(self, 1, "lookback", "patch_length", "chunk_length", "most_patches", "dim", "num_heads", "mlp_dim")
        if not self.blocks or set(self.blocks) - {"t", "p"}:
            raise ValueError(f"blocks must be letters 't' (time) and 'p' (panel), got {self.blocks!r}")
        for name, unit in (("lookback", "patch_length"), ("patch_length", "chunk_length"), ("dim", "num_heads")):
            if getattr(self, name) % getattr(self, unit):
                raise ValueError(f"{name} ({getattr(self, name)}) must be a multiple of {unit} ({getattr(self, unit)})")


def mvpa_forecaster_base(**changes: Any) -> BaseConfig:
    """The forecaster that the package ships as "base", 3.3 million weights; `changes` replace fields.

    Examples
    --------
    >>> from mvpa_ts.forecasting.pretrained.configuration import mvpa_forecaster_base
    >>> mvpa_forecaster_base().lookback, mvpa_forecaster_base(blocks="tp").blocks
    (512, 'tp')
    """
    sizes: dict[str, Any] = {"dim": 192, "num_heads": 8, "mlp_dim": 512, "blocks": "ttptpt"}
    return BaseConfig(**(sizes | changes))


def mvpa_forecaster_small(**changes: Any) -> BaseConfig:
    """The one that the package ships as "small", .3 million weights, for edge use; `changes` replace fields."""
    sizes: dict[str, Any] = {"dim": 64, "num_heads": 4, "mlp_dim": 128, "blocks": "tpt"}
    return BaseConfig(**(sizes | changes))
