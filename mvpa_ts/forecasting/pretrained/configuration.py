"""Sizes of the forecaster that is trained once for any panel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mvpa_ts.checks import keep_shares, keep_whole


@dataclass(frozen=True)
class BaseConfig:
    """Sizes of a `BaseForecaster`.

    Attributes
    ----------
    lookback, horizon : int
        Steps that the network reads and forecasts at once.
    patch_length : int
        Steps in a token of history; a token of the horizon has as many.
    chunk_length : int
        Steps of the horizon that share the weights of the simple forecasts.
    dim, num_heads, mlp_dim, num_layers : int
    max_channels : int
        Rows of the channel codebook, used where the order of series has a meaning; series further apart share the last.
    dropout : float
    """

    lookback: int = 512
    horizon: int = 64
    patch_length: int = 32
    chunk_length: int = 8
    dim: int = 64
    num_heads: int = 4
    mlp_dim: int = 160
    num_layers: int = 3
    max_channels: int = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        keep_whole(self, 1, "lookback", "horizon", "patch_length", "chunk_length", "dim", "num_heads", "mlp_dim",
                   "num_layers", "max_channels")  # fmt: skip
        keep_shares(self, "dropout")
        for name, of in (("lookback", "patch_length"), ("horizon", "patch_length"), ("patch_length", "chunk_length")):
            if getattr(self, name) % getattr(self, of):
                raise ValueError(f"{name} ({getattr(self, name)}) must be a multiple of {of} ({getattr(self, of)})")
        if self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be a multiple of num_heads ({self.num_heads})")


def mvpa_forecaster_base(**changes: Any) -> BaseConfig:
    """The forecaster that the package ships as "base", 1.1 million weights; `changes` replace fields.

    Examples
    --------
    >>> from mvpa_ts.forecasting.pretrained.configuration import mvpa_forecaster_base
    >>> mvpa_forecaster_base().lookback, mvpa_forecaster_base(num_layers=2).num_layers
    (512, 2)
    """
    sizes: dict[str, Any] = {"dim": 128, "num_heads": 8, "mlp_dim": 256, "num_layers": 4}
    return BaseConfig(**(sizes | changes))
