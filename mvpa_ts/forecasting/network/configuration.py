"""Sizes and options of the forecasting network."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from mvpa_ts.attention.functional import COMPONENTS, checked_components
from mvpa_ts.checks import check_flags, keep_shares, keep_whole
from mvpa_ts.forecasting.network.regressions import LEAST_LOOKBACK

# Above so many channels per row of the channel codebook, the linear path never writes out a weight for each pair.
DENSE_LIMIT = 8
COVARIATES = ("maps", "channels", "effects")
"""Ways in which the linear path reads features that change with time."""
PER_CHANNEL = ("vectors", "cycle", "matrix", "bounds")
"""What each channel may have of its own."""


class FeatureSizes(NamedTuple):
    """Numbers of exogenous features that are known ahead, known in the past only, and constant."""

    future: int = 0
    historic: int = 0
    static: int = 0


_NO_FEATURES = FeatureSizes()


@dataclass(frozen=True)
class ForecastingConfig:
    """Sizes and options of a `ForecastingNetwork`.

    The network runs on any number of channels, and its size does not depend on it, unless `per_channel` is set.

    Attributes
    ----------
    horizon, lookback : int
        Steps to forecast (h) and steps to look back at (L).
    patch_length, patch_stride : int
        Steps in a token and between the starts of two tokens. If the look-back is not a whole number of strides, the
        first patch is padded with missing values.
    dim, num_heads, mlp_dim, num_layers : int
        Width D, heads, hidden width of the gated MLP, and blocks. With 0 layers there is only the linear path.
    components : tuple of {"content", "time", "channel"}
        Terms of the attention score.
    channel_distance : {"absolute", "signed"}
        Channels 32 or more places apart share a row of the codebook.
    channel_window : int or None
        Compare the content of channels at most this far apart, as `mvpa_attention` does. The time of a step is then
        linear in the number of channels instead of quadratic. It pays from some 300 channels on. Learnt vectors and
        positions compare all pairs, so with them it takes at most 256 channels.
    mixing_heads : int
        Heads of the linear path that read other channels (`ChannelMixing`). With 0 it reads each channel alone.
    num_channels : int or None
        Number of channels, if each has something of its own.
    per_channel : tuple of {"vectors", "cycle", "matrix", "bounds"}
        What each channel has of its own. "vectors" are learnt and say which others it reads in the linear path, for
        panels whose order tells little; a channel that was not in the training has none and is read by its distance.
        With the others, the number of channels is fixed. "cycle" is a learnable cycle; without it all share one.
        "matrix" is a correction of the linear path's matrix, and a vector that is added to the tokens, for channels
        that are different things, as in weather data. "bounds" keep forecasts between two numbers, which
        `ForecastingNetwork.set_bounds` sets, for values that often lie at a limit: rain, sunshine, sales.
    position_size : int
        Number of coordinates of a channel (a place along a shaft, kilometres, latitude and longitude), which `forward`
        then needs. The linear path reads by place instead of by order. 0: there are no positions.
    regressions : bool
        Fit regressions inside each window (`regress`) and learn how far to trust them. For relations between channels
        that change with time; turned off before the first training where they do not pay on its windows. Needs a
        look-back of at least 16 steps; shorter ones are read without. For relations that stay, ridge regressions on all
        rows are solved at the end of a training, if there are no covariates (`FittedRegressions`).
    dropout : float
        Dropout on tokens, on the attention's output and inside the MLP.
    attention_dropout : float
        Structured dropout of whole segments and channels.
    head_dropout : float
        Dropout on the features before the output head.
    num_outputs : int
        Numbers per forecast step: quantiles, or parameters of a distribution.
    cycle_length : int or None
        Steps of a learnable cycle that is taken from the input and added to the output (CycleNet); needs `phase`.
    feature_sizes : FeatureSizes
        Exogenous features known ahead, known in the past only, and constant.
    covariates : tuple of {"maps", "channels", "effects"}
        How the linear path reads features that change with time, beside the attention path. "maps": a linear map of
        the window's features, shared by the channels. "channels", of channels with "vectors": further maps,
        which each combines by learnt weights. "effects": the effect of a feature known ahead at the same step is one
        number for each feature. The network reads the series without these effects and adds those of the horizon to
        the forecast; training starts them by a regression with autoregressive errors. The last two need "maps".
    normalise : bool or "reverting"
        Instance normalisation per window and channel, undone on the output. "reverting" also learns how far each step
        of the forecast returns from the window's mean towards zero, for series that were standardised as a whole, so
        that zero is their mean.

    Raises
    ------
    ValueError
        A number is out of range, an option is unknown, or two fields contradict each other.

    Examples
    --------
    >>> config = ForecastingConfig(horizon=24, lookback=96)
    >>> config.segments, config.future_segments  # tokens of a channel
    (4, 0)
    """

    horizon: int
    lookback: int
    patch_length: int = 24
    patch_stride: int = 24
    dim: int = 32
    num_heads: int = 4
    mlp_dim: int = 64
    num_layers: int = 1
    components: tuple[str, ...] = COMPONENTS
    channel_distance: Literal["absolute", "signed"] = "signed"
    channel_window: int | None = None
    mixing_heads: int = 12
    num_channels: int | None = None
    per_channel: tuple[str, ...] = ()
    position_size: int = 0
    covariates: tuple[str, ...] = COVARIATES
    regressions: bool = True
    dropout: float = 0.3
    attention_dropout: float = 0.0
    head_dropout: float = 0.5
    num_outputs: int = 1
    cycle_length: int | None = None
    feature_sizes: FeatureSizes = _NO_FEATURES
    normalise: bool | Literal["reverting"] = True

    max_channels: ClassVar[int] = 32  # rows of the channel codebook on each side

    def __post_init__(self) -> None:
        keep_whole(
            self, 1, "horizon", "lookback", "patch_length", "patch_stride", "dim", "num_heads", "mlp_dim",
            "channel_window", "num_outputs", "cycle_length", "num_channels",
        )  # fmt: skip
        keep_whole(self, 0, "mixing_heads", "position_size", "num_layers")
        check_flags(self, "regressions", *(() if self.normalise == "reverting" else ("normalise",)))
        self._keep_parts()
        roles = self.covariates
        if not isinstance(roles, (tuple, list)) or not set(roles) <= set(COVARIATES) or (roles and "maps" not in roles):
            raise ValueError(f"covariates must be () or some of {COVARIATES}, 'maps' among them, got {roles!r}")
        object.__setattr__(self, "covariates", tuple(roles))
        future, historic, static = self.feature_sizes
        read_by_layers = static + (0 if "maps" in self.covariates else future + historic)
        if not self.num_layers and read_by_layers:
            raise ValueError(
                "num_layers must be at least 1 with constant features, or with covariates=(), got 0: nothing else "
                "would read the features"
            )
        if self.channel_window is not None and not (self.num_layers and "content" in self.components):
            raise ValueError(
                f"channel_window ({self.channel_window}) needs num_layers of at least 1 and 'content' in components: "
                "nothing else reads it"
            )
        if self.num_layers and self.patch_length > self.lookback:
            raise ValueError(f"patch_length ({self.patch_length}) must not exceed lookback ({self.lookback})")
        if self.patch_stride > self.patch_length:
            raise ValueError(
                f"patch_stride ({self.patch_stride}) must not exceed patch_length ({self.patch_length}): "
                "steps between patches would be lost"
            )
        if self.num_layers and self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be a multiple of num_heads ({self.num_heads})")
        keep_shares(self, "dropout", "attention_dropout", "head_dropout")
        for name in ("vectors", "position_size"):
            if (name in self.per_channel or getattr(self, name, False)) and not self.mixing_heads:
                raise ValueError(f"{name} needs mixing_heads of at least 1, got 0: nothing else reads it")
        if "cycle" in self.per_channel and self.cycle_length is None:
            raise ValueError("cycle in per_channel needs cycle_length, the number of steps in a cycle, got None")
        if self.channel_distance not in ("absolute", "signed"):
            raise ValueError(f"channel_distance must be 'absolute' or 'signed', got {self.channel_distance!r}")
        object.__setattr__(self, "components", checked_components(self.components))
        self.check_cost("vectors", self.num_channels or 1)

    def _keep_parts(self) -> None:
        """Turn `feature_sizes` and `per_channel` into tuples of what they may hold; raises ValueError otherwise."""
        try:
            sizes = FeatureSizes(*map(operator.index, self.feature_sizes))
        except TypeError:
            sizes = FeatureSizes(-1)
        if min(sizes) < 0:
            raise ValueError(
                f"feature_sizes must be three numbers of at least 0 {FeatureSizes._fields}, got {self.feature_sizes!r}"
            )
        object.__setattr__(self, "feature_sizes", sizes)
        chosen, is_list = self.per_channel, isinstance(self.per_channel, (tuple, list))
        if not is_list or not set(chosen) <= set(PER_CHANNEL) or bool(chosen) != (self.num_channels is not None):
            raise ValueError(
                f"per_channel must be some of {PER_CHANNEL} if num_channels is given, else (), got {chosen!r} with "
                f"num_channels={self.num_channels}"
            )
        object.__setattr__(self, "per_channel", tuple(name for name in PER_CHANNEL if name in chosen))

    def channels_with(self, name: str) -> int | None:
        """The number of channels, if each has this of its own (`per_channel`); else None."""
        return self.num_channels if name in self.per_channel else None

    def check_cost(self, name: Literal["vectors", "position_size"], channels: int) -> None:
        """Raise ValueError if this option compares so many channels in pairs that `channel_window` would be in vain."""
        wanted, most = name in self.per_channel or getattr(self, name, False), DENSE_LIMIT * self.max_channels
        if self.channel_window is not None and wanted and channels > most:
            instead = "sort the channels by their positions" if name == "position_size" else "sort like beside like"
            raise ValueError(
                f"{name} with channel_window needs at most {most} channels, got {channels}: it compares every channel "
                f"with every other. Leave {name} out and {instead}, or leave channel_window out"
            )

    def with_vectors(self, channels: int) -> ForecastingConfig:
        """The same with "vectors" in `per_channel` where they pay and cost little: the default of the adapters.

        They find pairs that no order tells of: the error on random leaders and followers falls from .794 to .610, and
        elsewhere they do no harm (experiments/results/structure). That takes two channels and heads that read others by
        content; above ``8 * max_channels`` channels, a cost that is linear in their number would become quadratic.
        """
        pays = self.mixing_heads > 0 and "content" in self.components
        few = 1 < channels <= DENSE_LIMIT * self.max_channels
        per_channel = ("vectors", *self.per_channel)
        return replace(self, num_channels=channels, per_channel=per_channel) if pays and few else self

    @property
    def reads_regressions(self) -> bool:
        """Whether regressions are fitted inside each window."""
        return self.regressions and self.lookback >= LEAST_LOOKBACK

    @property
    def segments(self) -> int:
        """Tokens per channel over the look-back."""
        return 1 + math.ceil((self.lookback - self.patch_length) / self.patch_stride)

    @property
    def future_segments(self) -> int:
        """Tokens per channel over the horizon; none without future exogenous features."""
        return math.ceil(self.horizon / self.patch_stride) if self.feature_sizes.future else 0
