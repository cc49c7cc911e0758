"""The backward kernel of the far pairs: what they add to the gradient of the values.

The weight of a far pair is a factor of the tile times one of the cross axis. A program computes the first once for
several cross positions.
In this file the rows of a tile are keys, and its columns are query tokens.
"""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import (
    LOG2_E,
    content_counts,
    dot,
    far_offsets,
    head_tables,
    key_block,
    load_rows,
    load_score,
    outer_product,
    skipping,
    store_rows,
    stored_keys,
    tile_factor,
    token_positions,
)


@triton.jit(do_not_specialize=["batch"])
def far_gradient_kernel(
    p_time,
    p_channel,
    p_real,
    p_segment_real,
    p_channel_real,
    p_holes,
    p_output_gradient,
    p_lse,
    p_time_max,
    p_value_gradient,
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
    TILES: tl.constexpr,
):
    FLAGS: tl.constexpr = (CAUSAL, HAS_CONTENT, HAS_TIME, HAS_CHANNEL, HAS_WINDOW, DENSE_LAST, HAS_MASK, WIDE)
    kv_heads = heads // GROUPS
    tokens = segments * channels
    i_batch, i_kv_head, i_tile, i_cross_start, first_segment, last_segment = key_block(
        tl.program_id(0), segments, channels, kv_heads, BLOCK_N, TILES, TILE_CHANNELS
    )
    sizes = (batch, segments, channels, column_groups * 8, heads, time_center)
    query_stride = heads * HEAD_DIM
    scale_2 = scale * LOG2_E
    o_tile = i_tile + tl.arange(0, BLOCK_N)
    # Segments no_first … no_last − 1 of the queries have no far key here, and those from segment_stop on.
    no_first = 0
    no_last = 0
    segment_stop = segments
    if CAUSAL:
        no_last = first_segment
    if HAS_CONTENT:
        no_last = first_segment + window + 1
        if not CAUSAL:
            no_first = tl.maximum(last_segment - window, 0)
        if DENSE_LAST:
            segment_stop = segments - 1
    block_stop = tl.cdiv(segment_stop * channels, BLOCK_M)
    skip_first = tl.cdiv(no_first * channels, BLOCK_M)
    skip_last = tl.maximum(tl.minimum(no_last * channels // BLOCK_M, block_stop), skip_first)
    count = block_stop - (skip_last - skip_first)
    if HAS_MASK:
        p_real += i_batch * tokens
        # The mask of a sample with holes is no outer product: all of its pairs are near.
        count = tl.where(tl.load(p_holes + i_batch) != 0, 0, count)

    o_cross = i_cross_start + tl.arange(0, TILES)[:, None]
    b_value_gradient = tl.zeros([TILES * BLOCK_N, BLOCK_D], tl.float32)
    for i_group in range(0, GROUPS):
        i_head = i_kv_head * GROUPS + i_group
        o_query = (i_batch * tokens * heads + i_head) * HEAD_DIM
        o_statistics = (i_batch * heads + i_head) * tokens
        tables = head_tables(p_time, p_channel, p_segment_real, p_channel_real, i_batch, i_head, sizes, FLAGS)
        for i in range(0, count):
            i_start = skipping(i, skip_first, skip_last) * BLOCK_M
            # Rows past the end repeat the last token with weights of zero, so that loads need no mask.
            o_token = tl.minimum(i_start + tl.arange(0, BLOCK_M), tokens - 1)
            m_token = i_start + tl.arange(0, BLOCK_M) < tokens
            o_segment, o_channel = token_positions(o_token, channels)
            m_row = tl.load(p_real + o_token) != 0 if HAS_MASK else o_token == o_token
            rows = (o_segment[None, :], o_channel[None, :], o_token[None, :], m_row[None, :])
            b_output_gradient = load_rows(p_output_gradient + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
            b_tile_score = load_score(o_tile[:, None], rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=TILE_CHANNELS)
            b_cross_score = load_score(o_cross, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=not TILE_CHANNELS)
            b_time_max = tl.load(p_time_max + o_statistics + o_token)
            b_lse = tl.load(p_lse + o_statistics + o_token, mask=m_token, other=float("inf"))
            b_tile_offset, b_cross_offset = far_offsets(b_lse, b_time_max, TILE_CHANNELS)
            b_tile_weight = tile_factor(b_tile_score, b_tile_offset[None, :])
            b_cross_weight = tl.exp2(b_cross_score - b_cross_offset[None, :])
            if HAS_CONTENT:
                # Pairs whose content is scored are near.
                key_segment = o_cross if TILE_CHANNELS else o_tile[:, None]
                m_near = content_counts(o_segment[None, :], key_segment, segments, window, FLAGS)
                if TILE_CHANNELS:
                    b_cross_weight = tl.where(m_near, 0.0, b_cross_weight)
                else:
                    b_tile_weight = tl.where(m_near, 0.0, b_tile_weight)
            b_weights = outer_product(
                b_tile_weight.to(b_output_gradient.dtype)[None, :, :],
                b_cross_weight.to(b_output_gradient.dtype)[:, None, :],
                PRECISION,
            )
            b_weights = tl.reshape(b_weights, [TILES * BLOCK_N, BLOCK_M])
            b_value_gradient = dot(b_weights, b_output_gradient, b_value_gradient, PRECISION)

    o_kv = (i_batch * tokens * kv_heads + i_kv_head) * HEAD_DIM
    o_key, m_key = stored_keys(i_tile, i_cross_start, segments, channels, BLOCK_N, TILES, TILE_CHANNELS)
    store_rows(p_value_gradient + o_kv, b_value_gradient, o_key, m_key, kv_heads * HEAD_DIM, HEAD_DIM, BLOCK_D)
