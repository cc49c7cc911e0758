"""Attention in linear memory: content inside the windows, a rank-1 far field outside; docs/attention.md derives it.

In this folder the batch and the key/value heads are one axis, K = B·H_kv. A segment holds M = G·C query tokens and E
key tokens. E is C, or less if far channels are summed up (`channel_blocks`). reference.py explains the other letters.
"""

from mvpa_ts.attention.separable.inputs import separable_attention

__all__ = ["separable_attention"]
