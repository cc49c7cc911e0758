"""Linear memory: content inside the windows, a rank-1 far field outside them; docs/attention.md derives it.

In this folder the batch and the key/value heads are one axis K = B·H_kv, and a segment holds M = G·C query tokens and E
key tokens. E is C, or less where far channels are summed up (`channel_blocks`). The rest of the legend is in
reference.py.
"""

from mvpa_ts.attention.separable.inputs import separable_attention

__all__ = ["separable_attention"]
