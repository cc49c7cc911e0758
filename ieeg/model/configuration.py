"""Sizes and options of MVPFormer, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Literal

from mvpa_ts.attention.functional import COMPONENTS, check_options, checked_components
from mvpa_ts.checks import check_choices, check_flags, keep_whole, read_fields


@dataclass(frozen=True)
class MVPFormerConfig:
    """Sizes and options of an `MVPFormer`; the defaults are MVPFormer-S.

    Attributes
    ----------
    dim, num_layers, num_heads, num_kv_heads, mlp_dim : int
        Width D, blocks, query heads, key/value heads and hidden width of the gated MLP.
    time_rows, channel_rows : int
        Rows of the codebooks: the most segments and channels that one input may have.
    window : int or None
        Content is scored for keys at most so many segments back; None: for all.
    dense_last_segment : bool
        The last segment scores content over the whole context.
    dropout : float
        Dropout on embeddings, in the attention (whole segments and channels) and on its output.
    attention : {"mvpa", "llama"}
        "llama" is the ablation with ordinary attention and rotary positions; `window`, `dense_last_segment`,
        `components`, `row_order` and the codebooks have no part in it.
    components : tuple of {"content", "time", "channel"}
        Terms of the attention score.
    row_order : {"distance", "released"}
        How codebook rows are counted, see `mvpa_ts.MVPAttention`; "released" for the authors' checkpoints.
    context : int
        Segments of a window in training and detection: 100 are 500 s.
    amplitude : {"none", "bands"}
        "bands" adds a linear map of each segment's log band power, and of its distance from the running level, to its
        embedding, see `mvpa_ts.ieeg.model.amplitude`; "none", as in the paper, leaves the embedding blind to amplitude.
    prediction_head : bool
        Whether there is a linear map D → D of features to the next segment's embedding.
    num_classes : int
        Outputs of the classification head; 0: no such head.
    pooling : {"mean", "concatenate", "logsumexp"}
        How the classification head reads the channels of the last segment: their mean; one after the other; or each
        alone, of two classes, and the logarithm of the mean odds, in which the most suspicious channels count most.
    num_channels : int or None
        Channels that "concatenate" needs, always the same.
    threshold : float
        Detectors take a segment as positive above this probability, unless they are told another; 0.5 is the argmax.

    Raises
    ------
    ValueError
        A number is out of range, an option is unknown, or two fields contradict each other.

    Examples
    --------
    >>> config = MVPFormerConfig(num_classes=2)
    >>> config.dim, config.context
    (768, 100)
    >>> MVPFormerConfig.from_dict(config.to_dict()) == config
    True
    """

    dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    num_kv_heads: int = 4
    mlp_dim: int = 1728
    time_rows: int = 110
    channel_rows: int = 128
    window: int | None = 10
    dense_last_segment: bool = True
    dropout: float = 0.1
    attention: Literal["mvpa", "llama"] = "mvpa"
    components: tuple[str, ...] = COMPONENTS
    row_order: Literal["distance", "released"] = "distance"
    context: int = 100
    amplitude: Literal["none", "bands"] = "none"
    prediction_head: bool = True
    num_classes: int = 0
    pooling: Literal["mean", "concatenate", "logsumexp"] = "mean"
    num_channels: int | None = None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        keep_whole(self, 1, "dim", "num_heads", "num_kv_heads", "mlp_dim")
        keep_whole(self, 1, "time_rows", "channel_rows", "context", "num_channels")
        keep_whole(self, 0, "num_layers", "num_classes")
        check_flags(self, "dense_last_segment", "prediction_head")
        # Both quotients are widths and group sizes in the attention, where a remainder would fail far from its cause.
        if self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be a multiple of num_heads ({self.num_heads})")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})")
        check_options(self.window, "absolute", self.dropout)
        check_choices(self, attention=("mvpa", "llama"), row_order=("distance", "released"))
        check_choices(self, pooling=("mean", "concatenate", "logsumexp"), amplitude=("none", "bands"))
        # Rotary positions turn pairs of entries.
        if self.attention == "llama" and (self.dim // self.num_heads) % 2:
            raise ValueError(f"rotary positions need an even head width, got {self.dim // self.num_heads}")
        object.__setattr__(self, "components", checked_components(self.components))
        # A window needs a codebook row for every lag in it.
        if self.context > self.time_rows:
            raise ValueError(f"context ({self.context}) must not exceed time_rows ({self.time_rows})")
        # A head that reads channels one after the other has a weight for each, so their number is fixed when it is
        # made.
        if (self.pooling == "concatenate") != (self.num_channels is not None):
            raise ValueError("num_channels must be given with pooling='concatenate', and be None with any other")
        if self.pooling == "logsumexp" and self.num_classes not in (0, 2):
            raise ValueError(f"pooling='logsumexp' needs num_classes 2 (0 without a head), got {self.num_classes}")
        if not (isinstance(self.threshold, Real) and 0.0 <= self.threshold <= 1.0):
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold!r}")

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON values."""
        return {**asdict(self), "components": list(self.components)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> MVPFormerConfig:
        """The configuration of these fields; a ValueError names fields that are unknown here or of another type."""
        return read_fields(cls, fields, "the model's configuration")


def mvpformer_s(**changes: Any) -> MVPFormerConfig:
    """MVPFormer-S, 74,167,602 parameters; `changes` replace fields.

    Examples
    --------
    >>> mvpformer_s(num_classes=2).dim
    768
    """
    return MVPFormerConfig(**changes)


def mvpformer_m(**changes: Any) -> MVPFormerConfig:
    """MVPFormer-M, 1,243,279,922 parameters; `changes` replace fields.

    Examples
    --------
    >>> mvpformer_m().num_layers
    24
    """
    sizes = {"dim": 2048, "num_layers": 24, "num_heads": 16, "num_kv_heads": 8, "mlp_dim": 5632}
    return MVPFormerConfig(**(sizes | changes))


def mvpformer_tiny(**changes: Any) -> MVPFormerConfig:
    """A model that trains in minutes on a CPU, for demonstrations and tests; `changes` replace fields.

    Examples
    --------
    >>> mvpformer_tiny(context=4).context
    4
    """
    sizes: dict[str, Any] = {"dim": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "mlp_dim": 144}
    sizes |= {"context": 20, "amplitude": "bands"}
    return MVPFormerConfig(**(sizes | changes))
