"""FlashMVPA: exact attention in Triton kernels with the rank-1 far field; docs/flashmvpa.md derives it.

Nothing here imports Triton before `operator` is loaded, which mvpa_ts.attention.functional does on first use.
"""
