"""The backward kernel over blocks of keys: gradients of keys and values, summed over the heads that share them.

A program holds one key tile at several cross positions, so it computes the weights of the tile only once.
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
    key_tokens,
    load_bias,
    load_rows,
    load_score,
    outer_product,
    skipping,
    store_rows,
    tile_factor,
    token_positions,
)


@triton.jit(do_not_specialize=["batch"])
def key_gradient_kernel(
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
    p_output_gradient,
    p_lse,
    p_time_max,
    p_delta,
    p_key_gradient,
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
    HAS_NEAR: tl.constexpr = HAS_CONTENT or HAS_MASK
    HAS_FAR: tl.constexpr = HAS_WINDOW or not HAS_CONTENT
    kv_heads = heads // GROUPS
    tokens = segments * channels
    tile_stop = segments
    cross_stop = channels
    if TILE_CHANNELS:
        tile_stop = channels
        cross_stop = segments
    cross_blocks = tl.cdiv(cross_stop, TILES)
    blocks = tl.cdiv(tile_stop, BLOCK_N) * cross_blocks
    i_batch = (tl.program_id(0) // blocks // kv_heads).to(tl.int64)
    i_kv_head = (tl.program_id(0) // blocks % kv_heads).to(tl.int64)
    columns = column_groups * 8
    sizes = (batch, segments, channels, columns, heads, time_center)
    has_holes = False
    if HAS_MASK:
        p_real += i_batch * tokens
        has_holes = tl.load(p_holes + i_batch) != 0
    query_stride = heads * HEAD_DIM
    kv_stride = kv_heads * HEAD_DIM
    o_kv = (i_batch * tokens * kv_heads + i_kv_head) * HEAD_DIM
    p_content_bias += i_kv_head * HEAD_DIM
    scale_2 = scale * LOG2_E

    # The first key segments of a causal problem have the most queries: they start first.
    i_block = tl.program_id(0) % blocks
    i_tile = i_block // cross_blocks * BLOCK_N
    i_cross_start = i_block % cross_blocks * TILES
    o_tile = i_tile + tl.arange(0, BLOCK_N)
    o_tile_key = tl.minimum(o_tile, tile_stop - 1)
    m_all = o_tile == o_tile
    if TILE_CHANNELS:
        first_segment = i_cross_start
        last_segment = tl.minimum(i_cross_start + TILES, segments) - 1
    else:
        first_segment = i_tile
        last_segment = tl.minimum(i_tile + BLOCK_N, segments) - 1
    # Blocks of query tokens: near ones are near_first … near_last − 1 and dense_first … block_stop − 1.
    block_stop = tl.cdiv(tokens, BLOCK_M)
    block_first = 0
    if CAUSAL:
        block_first = first_segment * channels // BLOCK_M
    near_first = block_first
    near_last = block_first
    dense_first = block_stop
    if HAS_CONTENT:
        near_last = block_stop
        if HAS_WINDOW:
            near_first = tl.maximum(tl.maximum(first_segment - window, 0) * channels // BLOCK_M, block_first)
            near_last = tl.cdiv(tl.minimum(last_segment + window + 1, segments) * channels, BLOCK_M)
            if DENSE_LAST:
                dense_first = tl.maximum((segments - 1) * channels // BLOCK_M, near_last)
    if HAS_MASK:
        near_first = tl.where(has_holes, block_first, near_first)
        near_last = tl.where(has_holes, block_stop, near_last)
        dense_first = tl.where(has_holes, block_stop, dense_first)
    near_count = near_last - near_first

    b_value_gradients = ()
    for _ in tl.static_range(TILES):
        b_value_gradients += (tl.zeros([BLOCK_N, BLOCK_D], tl.float32),)
    if HAS_FAR:
        for i_group in range(0, GROUPS):
            i_head = i_kv_head * GROUPS + i_group
            o_query = (i_batch * tokens * heads + i_head) * HEAD_DIM
            o_statistics = (i_batch * heads + i_head) * tokens
            tables = head_tables(
                p_time,
                p_channel,
                p_segment_real,
                p_channel_real,
                i_batch,
                i_head,
                sizes,
                HAS_TIME,
                HAS_CHANNEL,
                HAS_MASK,
            )
            for i in range(0, dense_first - block_first - near_count):
                i_start = (block_first + skipping(i, near_first - block_first, near_last - block_first)) * BLOCK_M
                # Rows past the end repeat the last token with weights of zero, so that loads need no mask.
                o_token = tl.minimum(i_start + tl.arange(0, BLOCK_M), tokens - 1)
                m_token = i_start + tl.arange(0, BLOCK_M) < tokens
                o_segment, o_channel = token_positions(o_token, channels)
                m_row = o_token == o_token
                if HAS_MASK:
                    m_row = tl.load(p_real + o_token) != 0
                rows = (o_segment, o_channel, o_token, m_row)
                rows_2d = (o_segment[None, :], o_channel[None, :], o_token[None, :], m_row[None, :])
                b_output_gradient = load_rows(
                    p_output_gradient + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D
                )
                b_lse = tl.load(p_lse + o_statistics + o_token, mask=m_token, other=float("inf"))
                b_time_max = tl.load(p_time_max + o_statistics + o_token)
                b_tile_offset, b_cross_offset = far_offsets(b_lse, b_time_max, TILE_CHANNELS)
                b_tile_score = load_score(
                    o_tile[:, None],
                    rows_2d,
                    tables,
                    sizes,
                    scale_2,
                    CAUSAL,
                    HAS_TIME,
                    HAS_CHANNEL,
                    HAS_MASK,
                    WIDE,
                    OF_CHANNEL=TILE_CHANNELS,
                )
                b_tile_weight = tile_factor(b_tile_score, b_tile_offset[None, :]).to(b_output_gradient.dtype)
                b_sums = ()
                for i_part in tl.static_range(TILES):
                    b_cross_score = load_score(
                        tl.full([BLOCK_M], i_cross_start + i_part, tl.int32),
                        rows,
                        tables,
                        sizes,
                        scale_2,
                        CAUSAL,
                        HAS_TIME,
                        HAS_CHANNEL,
                        HAS_MASK,
                        WIDE,
                        OF_CHANNEL=not TILE_CHANNELS,
                    )
                    b_cross_weight = tl.exp2(b_cross_score - b_cross_offset).to(b_output_gradient.dtype)
                    b_weights = outer_product(b_tile_weight, b_cross_weight[None, :], PRECISION)
                    b_sums += (dot(b_weights, b_output_gradient, b_value_gradients[i_part], PRECISION),)
                b_value_gradients = b_sums

    # Near blocks of queries are loaded once for all of the tiles, and so are their scores.
    b_key_gradients = ()
    b_gradient_sums = ()
    b_bias_scores = ()
    b_keys = ()
    b_values = ()
    for i_part in tl.static_range(TILES):
        o_key = key_tokens(tl.minimum(i_cross_start + i_part, cross_stop - 1), o_tile_key, channels, TILE_CHANNELS)
        b_key_gradients += (tl.zeros([BLOCK_N, BLOCK_D], tl.float32),)
        b_gradient_sums += (tl.zeros([BLOCK_N], tl.float32),)
        if HAS_CONTENT:
            # The bias is a score of the key, so that queries need not be rounded once more.
            b_key = load_rows(p_key + o_kv, o_key, m_all, kv_stride, HEAD_DIM, BLOCK_D)
            b_bias = load_bias(p_content_bias, HEAD_DIM, BLOCK_D)
            b_bias_scores += (tl.sum(b_key.to(tl.float32) * b_bias[None, :], 1),)
            b_keys += (b_key,)
            b_values += (load_rows(p_value + o_kv, o_key, m_all, kv_stride, HEAD_DIM, BLOCK_D),)
        else:
            b_bias_scores += (tl.zeros([BLOCK_N], tl.float32),)
    if HAS_NEAR:
        for i_group in range(0, GROUPS):
            i_head = i_kv_head * GROUPS + i_group
            o_query = (i_batch * tokens * heads + i_head) * HEAD_DIM
            o_statistics = (i_batch * heads + i_head) * tokens
            tables = head_tables(
                p_time,
                p_channel,
                p_segment_real,
                p_channel_real,
                i_batch,
                i_head,
                sizes,
                HAS_TIME,
                HAS_CHANNEL,
                HAS_MASK,
            )
            for i in range(0, near_count + block_stop - dense_first):
                i_start = (near_first + i + tl.where(i >= near_count, dense_first - near_last, 0)) * BLOCK_M
                # Rows past the end repeat the last token with weights of zero, so that loads need no mask.
                o_token = tl.minimum(i_start + tl.arange(0, BLOCK_M), tokens - 1)
                m_token = i_start + tl.arange(0, BLOCK_M) < tokens
                o_segment, o_channel = token_positions(o_token, channels)
                m_row = o_token == o_token
                if HAS_MASK:
                    m_row = tl.load(p_real + o_token) != 0
                rows = (o_segment, o_channel, o_token, m_row)
                rows_2d = (o_segment[None, :], o_channel[None, :], o_token[None, :], m_row[None, :])
                b_output_gradient = load_rows(
                    p_output_gradient + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D
                )
                b_lse = tl.load(p_lse + o_statistics + o_token, mask=m_token, other=float("inf"))
                b_tile_score = load_score(
                    o_tile[:, None],
                    rows_2d,
                    tables,
                    sizes,
                    scale_2,
                    CAUSAL,
                    HAS_TIME,
                    HAS_CHANNEL,
                    HAS_MASK,
                    WIDE,
                    OF_CHANNEL=TILE_CHANNELS,
                )
                if HAS_CONTENT:
                    b_query = load_rows(p_query + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
                    b_delta = tl.load(p_delta + o_statistics + o_token)
                b_value_sums = ()
                b_key_sums = ()
                b_sums = ()
                for i_part in tl.static_range(TILES):
                    i_cross = i_cross_start + i_part
                    o_key = key_tokens(tl.minimum(i_cross, cross_stop - 1), o_tile_key, channels, TILE_CHANNELS)
                    b_cross_score = load_score(
                        tl.full([BLOCK_M], i_cross, tl.int32),
                        rows,
                        tables,
                        sizes,
                        scale_2,
                        CAUSAL,
                        HAS_TIME,
                        HAS_CHANNEL,
                        HAS_MASK,
                        WIDE,
                        OF_CHANNEL=not TILE_CHANNELS,
                    )
                    b_logits = b_tile_score + (b_cross_score - b_lse)[None, :]
                    if HAS_CONTENT:
                        key_segment = i_cross if TILE_CHANNELS else o_tile[:, None]
                        m_content = content_counts(
                            o_segment[None, :], key_segment, segments, window, HAS_WINDOW, DENSE_LAST
                        )
                        b_content = dot(b_keys[i_part], tl.trans(b_query), None, PRECISION)
                        b_content_scale = tl.where(m_content, scale_2, 0.0)
                        b_logits += (b_content + b_bias_scores[i_part][:, None]) * b_content_scale
                    if HAS_MASK:
                        m_real = (tl.load(p_real + o_key) != 0)[:, None]
                        b_logits = tl.where(m_real, b_logits, float("-inf"))
                    b_weights = tl.exp2(b_logits)
                    b_value_sums += (
                        dot(
                            b_weights.to(b_output_gradient.dtype),
                            b_output_gradient,
                            b_value_gradients[i_part],
                            PRECISION,
                        ),
                    )
                    if HAS_CONTENT:
                        b_gradient = dot(b_values[i_part], tl.trans(b_output_gradient), None, PRECISION)
                        b_gradient = b_weights * (b_gradient - b_delta[None, :]) * b_content_scale
                        b_sums += (b_gradient_sums[i_part] + tl.sum(b_gradient, 1),)
                        b_key_sums += (dot(b_gradient.to(b_query.dtype), b_query, b_key_gradients[i_part], PRECISION),)
                b_value_gradients = b_value_sums
                if HAS_CONTENT:
                    b_key_gradients = b_key_sums
                    b_gradient_sums = b_sums

    for i_part in tl.static_range(TILES):
        i_cross = i_cross_start + i_part
        o_key = key_tokens(tl.minimum(i_cross, cross_stop - 1), o_tile_key, channels, TILE_CHANNELS)
        m_key = (o_tile < tile_stop) & (tl.full([BLOCK_N], i_cross, tl.int32) < cross_stop)
        store_rows(p_value_gradient + o_kv, b_value_gradients[i_part], o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
        if HAS_CONTENT:
            b_bias = load_bias(p_content_bias, HEAD_DIM, BLOCK_D)
            b_key_gradient = b_key_gradients[i_part] + b_gradient_sums[i_part][:, None] * b_bias[None, :]
            b_key_gradient /= LOG2_E
            store_rows(p_key_gradient + o_kv, b_key_gradient, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
