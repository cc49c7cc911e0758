"""The forward kernel: one program attends for one head and one block of query tokens."""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import (
    LOG2_E,
    add_bias,
    content_counts,
    cross_ranges,
    dot,
    far_offsets,
    finite,
    head_tables,
    key_ranges,
    key_tokens,
    load_rows,
    load_score,
    online_softmax,
    outer_product,
    skipping,
    store_residual,
    store_rows,
    tile_factor,
    token_positions,
)


# The batch is cut into parts of any size: no code of their own for those that 16 divides.
@triton.jit(do_not_specialize=["batch"])
def forward_kernel(
    p_query,
    p_key,
    p_value,
    p_content_bias,
    p_time,
    p_channel,
    p_real,
    p_segment_real,
    p_channel_real,
    p_holes,
    p_output,
    p_residual,
    p_lse,
    p_time_max,
    scale,
    window,
    batch,
    segments,
    channels,
    column_groups,
    heads,
    time_center,
    GROUPS: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_CONTENT: tl.constexpr,
    HAS_TIME: tl.constexpr,
    HAS_CHANNEL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    DENSE_LAST: tl.constexpr,
    HAS_MASK: tl.constexpr,
    WIDE: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    FLAGS: tl.constexpr = (CAUSAL, HAS_CONTENT, HAS_TIME, HAS_CHANNEL, HAS_WINDOW, DENSE_LAST, HAS_MASK, WIDE)
    HAS_NEAR: tl.constexpr = HAS_CONTENT or HAS_MASK
    HAS_FAR: tl.constexpr = HAS_WINDOW or not HAS_CONTENT
    # Offsets of heads and samples may pass 2³¹, those within one do not.
    tokens = segments * channels
    blocks = tl.cdiv(tokens, BLOCK_M)
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    columns = column_groups * 8
    sizes = (batch, segments, channels, columns, heads, time_center)
    # The last block of a causal problem has the most keys: it starts first.
    i_start = (blocks - 1 - tl.program_id(0)) * BLOCK_M
    # Rows past the end repeat the last token and are not stored, so that loads need no mask.
    o_token = tl.minimum(i_start + tl.arange(0, BLOCK_M), tokens - 1)
    o_segment, o_channel = token_positions(o_token, channels)
    m_row = o_token == o_token
    has_holes = False
    if HAS_MASK:
        p_real += i_batch * tokens
        m_row = tl.load(p_real + o_token) != 0
        has_holes = tl.load(p_holes + i_batch) != 0
    o_kv = (i_batch * tokens * (heads // GROUPS) + i_head // GROUPS) * HEAD_DIM
    o_query = (i_batch * tokens * heads + i_head) * HEAD_DIM
    o_statistics = (i_batch * heads + i_head) * tokens
    query_stride = heads * HEAD_DIM
    kv_stride = heads // GROUPS * HEAD_DIM
    tables = head_tables(p_time, p_channel, p_segment_real, p_channel_real, i_batch, i_head, sizes, FLAGS)
    rows = (o_segment, o_channel, o_token, m_row)
    rows_2d = (o_segment[:, None], o_channel[:, None], o_token[:, None], m_row[:, None])
    scale_2 = scale * LOG2_E

    if HAS_CONTENT:
        b_query = load_rows(p_query + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
        b_query = add_bias(b_query, p_content_bias + i_head // GROUPS * HEAD_DIM, HEAD_DIM, BLOCK_D)

    key_stop, near_first, near_last = key_ranges(i_start, sizes, window, has_holes, FLAGS, BLOCK_M)

    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_output = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    b_time_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if HAS_FAR:
        # The largest logit without content is the sum of the two largest scores, and a real key has it.
        b_channel_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        for i_segment in range(0, key_stop):
            o_key = tl.full([BLOCK_M], i_segment, tl.int32)
            b_score = load_score(o_key, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=False)
            if HAS_CONTENT:
                m_content = content_counts(o_segment, o_key, segments, window, FLAGS)
                b_score = tl.where(m_content, float("-inf"), b_score)
            b_time_max = tl.maximum(b_time_max, b_score)
        for i_channel in range(0, channels, 16):
            o_key = i_channel + tl.arange(0, 16)[None, :]
            b_score = load_score(o_key, rows_2d, tables, sizes, scale_2, FLAGS, OF_CHANNEL=True)
            b_channel_max = tl.maximum(b_channel_max, tl.max(b_score, 1))
        if HAS_MASK:
            b_time_max = tl.where(has_holes, float("-inf"), b_time_max)
        # Rows past the end write what the last token has.
        tl.store(p_time_max + o_statistics + o_token, b_time_max)
        b_max = b_time_max + b_channel_max

    tile_stop = channels if TILE_CHANNELS else key_stop
    # With constant bounds where there is one tile, ptxas would wait after each product (C7515).
    for i_tile in range(0, tile_stop, BLOCK_N):
        o_tile = i_tile + tl.arange(0, BLOCK_N)
        # Keys past the end have a score of −∞, so any value will do.
        o_tile_key = tl.minimum(o_tile, tile_stop - 1)
        m_key = o_tile == o_tile
        b_tile_score = load_score(o_tile[None, :], rows_2d, tables, sizes, scale_2, FLAGS, OF_CHANNEL=TILE_CHANNELS)
        cross_first, cross_last, far_count = cross_ranges(
            i_tile, near_first, near_last, key_stop, channels, BLOCK_N, TILE_CHANNELS
        )
        if HAS_FAR:
            b_tile_offset, b_cross_offset = far_offsets(finite(b_max), b_time_max, TILE_CHANNELS)
            b_tile_weight = tile_factor(b_tile_score, b_tile_offset[:, None])
            b_tile_sum = tl.sum(b_tile_weight, 1)
            b_tile_weight = b_tile_weight.to(p_value.dtype.element_ty)
            b_cross_sum = tl.zeros([BLOCK_M], tl.float32)
            for i in range(0, far_count):
                i_cross = skipping(i, cross_first, cross_last)
                o_key = key_tokens(i_cross, o_tile_key, channels, TILE_CHANNELS)
                o_cross = tl.full([BLOCK_M], i_cross, tl.int32)
                b_cross_score = load_score(o_cross, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=not TILE_CHANNELS)
                b_cross_weight = tl.exp2(b_cross_score - b_cross_offset)
                b_cross_sum += b_cross_weight
                b_value = load_rows(p_value + o_kv, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
                b_weights = outer_product(b_tile_weight, b_cross_weight.to(b_value.dtype)[:, None], PRECISION)
                b_output = dot(b_weights, b_value, b_output, PRECISION)
            b_sum += b_cross_sum * b_tile_sum
        if HAS_NEAR:
            for i_cross in range(cross_first, cross_last):
                o_key = key_tokens(i_cross, o_tile_key, channels, TILE_CHANNELS)
                o_cross = tl.full([BLOCK_M], i_cross, tl.int32)
                b_cross_score = load_score(o_cross, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=not TILE_CHANNELS)
                b_logits = b_tile_score + b_cross_score[:, None]
                if HAS_CONTENT:
                    key_segment = i_cross if TILE_CHANNELS else o_tile[None, :]
                    m_content = content_counts(o_segment[:, None], key_segment, segments, window, FLAGS)
                    b_key = load_rows(p_key + o_kv, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
                    b_content = dot(b_query, tl.trans(b_key), None, PRECISION)
                    b_logits += b_content * tl.where(m_content, scale_2, 0.0)
                if HAS_MASK:
                    m_real = tl.load(p_real + o_key) != 0
                    b_logits = tl.where(m_real[None, :], b_logits, float("-inf"))
                b_weights, b_max, b_sum, b_rescale = online_softmax(b_logits, b_max, b_sum)
                b_value = load_rows(p_value + o_kv, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
                b_output *= b_rescale[:, None]
                b_output = dot(b_weights.to(b_value.dtype), b_value, b_output, PRECISION)

    # Positions of the results are not those of the queries, which would be held through the loops.
    o_stored = i_start + tl.arange(0, BLOCK_M)
    m_stored = o_stored < tokens
    # A query without any allowed key gives zeros, and +∞ makes its weights vanish in the backward pass.
    m_any = b_sum > 0.0
    b_output /= tl.where(m_any, b_sum, 1.0)[:, None]
    b_lse = tl.where(m_any, finite(b_max) + tl.log2(tl.where(m_any, b_sum, 1.0)), float("inf"))
    b_rounded = b_output.to(p_output.dtype.element_ty)
    store_rows(p_output + o_query, b_rounded, o_stored, m_stored, query_stride, HEAD_DIM, BLOCK_D)
    if p_output.dtype.element_ty != tl.float32:
        store_residual(p_residual + o_query, b_output, b_rounded, o_stored, m_stored, query_stride, HEAD_DIM, BLOCK_D)
    tl.store(p_lse + o_statistics + o_stored, b_lse, mask=m_stored)
