"""Sizes and options of the classification network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mvpa_ts.attention.functional import COMPONENTS, checked_components
from mvpa_ts.checks import keep_shares, keep_whole


@dataclass(frozen=True)
class ClassificationConfig:
    """Sizes and options of a `ClassificationNetwork`; the defaults serve every dataset.

    What depends on the data is derived: strides from `length`, the number of token channels from `num_channels`.

    Attributes
    ----------
    num_channels, num_classes : int
        One class stands for a regression: the network gives one number in place of logits.
    length : int
        Steps of the longest training series. Longer and shorter series are accepted.
    token_channels : int
        Most channels of the token grid; more are mixed down to as many by the stem.
    tokens : int
        About how many tokens a series of `length` steps becomes; bounds memory and time.
    positions : int
        Most positions in the convolutional stage.
    width, conv_layers : int
        Features of a token channel in the convolutional stage, and its residual blocks.
    dim, num_heads, mlp_dim, num_layers : int
        Width D, heads, hidden width of the gated MLP, and MVPA blocks; 0 blocks leave the attention out.
    components : tuple of {"content", "time", "channel"}
        Terms of the attention score.
    dropout, attention_dropout, head_dropout : float
        Dropout inside blocks; structured dropout of segments and channels; dropout before the output layer.
    kernel_features : int
        Features of the fixed-kernel path; 0 leaves it out.

    Raises
    ------
    ValueError
        A number is out of range, or two fields contradict each other.

    Examples
    --------
    >>> config = ClassificationConfig(num_channels=6, num_classes=4, length=100)
    >>> config.regression
    False
    """

    num_channels: int
    num_classes: int
    length: int
    token_channels: int = 16
    tokens: int = 64
    positions: int = 160
    width: int = 32
    conv_layers: int = 2
    dim: int = 64
    num_heads: int = 4
    mlp_dim: int = 128
    num_layers: int = 2
    components: tuple[str, ...] = COMPONENTS
    dropout: float = 0.1
    attention_dropout: float = 0.0
    head_dropout: float = 0.3
    kernel_features: int = 5000

    def __post_init__(self) -> None:
        keep_whole(
            self, 1, "num_channels", "num_classes", "length", "token_channels", "tokens", "positions", "width",
            "dim", "num_heads", "mlp_dim",
        )  # fmt: skip
        keep_whole(self, 0, "conv_layers", "num_layers", "kernel_features")
        if self.dim % self.num_heads:
            raise ValueError(f"dim ({self.dim}) must be a multiple of num_heads ({self.num_heads})")
        keep_shares(self, "dropout", "attention_dropout", "head_dropout")
        object.__setattr__(self, "components", checked_components(self.components))

    @property
    def regression(self) -> bool:
        """Whether the network gives one number in place of logits."""
        return self.num_classes == 1

    @property
    def channels(self) -> int:
        """Channels C of the token grid."""
        return min(self.num_channels, self.token_channels)

    @property
    def stem_stride(self) -> int:
        """Steps between two positions of the convolutional stage."""
        return math.ceil(self.length / self.positions)

    @property
    def segment_stride(self) -> int:
        """Positions between two segments."""
        positions = math.ceil(self.length / self.stem_stride)
        return math.ceil(positions / max(1, self.tokens // self.channels))

    @property
    def segments(self) -> int:
        """Segments T of a series of `length` steps."""
        return math.ceil(math.ceil(self.length / self.stem_stride) / self.segment_stride)
