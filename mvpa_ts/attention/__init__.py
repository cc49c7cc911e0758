"""Multi-variate parallel attention: one public function, one module."""

from mvpa_ts.attention.functional import mvpa_attention
from mvpa_ts.attention.module import MVPAttention

__all__ = ["MVPAttention", "mvpa_attention"]
