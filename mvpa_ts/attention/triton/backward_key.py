"""The backward kernel of the near pairs, over blocks of keys: gradients of keys and values.

They are summed over the heads that share them. A program holds one key tile at several cross positions, so queries and
the scores of the tile are loaded once for all of them. To its sums it adds what `backward_far` found.
In this file the rows of a tile are keys, and its columns are query tokens.
"""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import (
    add_bias,
    computed_once,
    content_counts,
    dot,
    head_tables,
    key_block,
    key_tokens,
    load_bias,
    load_rows,
    load_score,
    store_rows,
    stored_keys,
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
    p_delta,
    p_far_gradient,
    p_key_gradient,
    p_value_gradient,
    scale,
    scale_2,
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
    HAS_FAR: tl.constexpr = HAS_WINDOW or not HAS_CONTENT
    kv_heads = heads // GROUPS
    tokens = segments * channels
    i_batch, i_kv_head, i_tile, i_cross_start, first_segment, last_segment = key_block(
        tl.program_id(0), segments, channels, kv_heads, BLOCK_N, TILES, TILE_CHANNELS
    )
    columns = column_groups * 8
    sizes = (batch, segments, channels, columns, heads, time_center)
    has_holes = False
    if HAS_MASK:
        p_real += i_batch * tokens
        has_holes = tl.load(p_holes + i_batch) != 0
    query_stride = heads * HEAD_DIM
    kv_stride = kv_heads * HEAD_DIM
    o_kv = (i_batch * tokens * kv_heads + i_kv_head) * HEAD_DIM

    o_tile = i_tile + tl.arange(0, BLOCK_N)
    # Blocks of query tokens: near ones are near_first … near_last − 1 and dense_first … block_stop − 1.
    block_stop = tl.cdiv(tokens, BLOCK_M)
    block_first = first_segment * channels // BLOCK_M if CAUSAL else 0
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

    # Keys of the tile at one cross position after another; those past the end repeat the last one.
    cross_stop = segments if TILE_CHANNELS else channels
    tile_stop = channels if TILE_CHANNELS else segments
    o_cross = i_cross_start + tl.minimum(tl.arange(0, TILES * BLOCK_N) // BLOCK_N, cross_stop - 1 - i_cross_start)
    o_tile_key = i_tile + tl.minimum(tl.arange(0, TILES * BLOCK_N) % BLOCK_N, tile_stop - 1 - i_tile)
    o_key = key_tokens(o_cross, o_tile_key, channels, TILE_CHANNELS)
    m_all = o_key == o_key
    o_held = i_cross_start + tl.arange(0, TILES)[:, None]
    b_value_gradient = tl.zeros([TILES * BLOCK_N, BLOCK_D], tl.float32)
    if HAS_CONTENT:
        b_key_gradient = tl.zeros([TILES * BLOCK_N, BLOCK_D], tl.float32)
        b_gradient_sum = tl.zeros([TILES * BLOCK_N], tl.float32)
        b_key = load_rows(p_key + o_kv, o_key, m_all, kv_stride, HEAD_DIM, BLOCK_D)
        b_value = load_rows(p_value + o_kv, o_key, m_all, kv_stride, HEAD_DIM, BLOCK_D)
    for i_group in range(0, GROUPS):
        i_head = i_kv_head * GROUPS + i_group
        o_query = (i_batch * tokens * heads + i_head) * HEAD_DIM
        o_statistics = (i_batch * heads + i_head) * tokens
        tables = head_tables(p_time, p_channel, p_segment_real, p_channel_real, i_batch, i_head, sizes, FLAGS)
        for i in range(near_first, near_last + block_stop - dense_first):
            i_start = (i + tl.where(i >= near_last, dense_first - near_last, 0)) * BLOCK_M
            # Rows past the end repeat the last token with weights of zero, so that loads need no mask.
            o_token = tl.minimum(i_start + tl.arange(0, BLOCK_M), tokens - 1)
            m_token = i_start + tl.arange(0, BLOCK_M) < tokens
            o_segment, o_channel = token_positions(o_token, channels)
            m_row = tl.load(p_real + o_token) != 0 if HAS_MASK else o_token == o_token
            rows = (o_segment[None, :], o_channel[None, :], o_token[None, :], m_row[None, :])
            b_output_gradient = load_rows(p_output_gradient + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
            b_tile_score = load_score(o_tile[:, None], rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=TILE_CHANNELS)
            b_cross_score = load_score(o_held, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=not TILE_CHANNELS)
            b_lse = tl.load(p_lse + o_statistics + o_token, mask=m_token, other=float("inf"))
            b_cross_score -= b_lse[None, :]
            if HAS_CONTENT:
                b_query = load_rows(p_query + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
                # The other pairs are far, but for samples with holes, which have no far pairs.
                key_segment = o_held if TILE_CHANNELS else o_tile[:, None]
                m_content = content_counts(o_segment[None, :], key_segment, segments, window, FLAGS)
                if TILE_CHANNELS:
                    b_cross_score = tl.where(m_content | has_holes, b_cross_score, float("-inf"))
                else:
                    b_tile_score = tl.where(m_content | has_holes, b_tile_score, float("-inf"))
            b_logits = b_tile_score[None, :, :] + computed_once(b_cross_score)[:, None, :]
            b_logits = tl.reshape(b_logits, [TILES * BLOCK_N, BLOCK_M])
            if HAS_CONTENT:
                b_biased_query = add_bias(b_query, p_content_bias + i_kv_head * HEAD_DIM, HEAD_DIM, BLOCK_D)
                b_content = dot(b_key, tl.trans(b_biased_query), None, PRECISION)
                if HAS_MASK:
                    o_key_segment = o_cross if TILE_CHANNELS else o_tile_key
                    m_content = content_counts(o_segment[None, :], o_key_segment[:, None], segments, window, FLAGS)
                    b_content = tl.where(m_content, b_content, 0.0)
                b_logits += b_content * scale_2
            if HAS_MASK:
                m_real = (tl.load(p_real + o_key) != 0)[:, None]
                b_logits = tl.where(m_real, b_logits, float("-inf"))
            b_weights = tl.exp2(b_logits)
            b_value_gradient = dot(
                b_weights.to(b_output_gradient.dtype), b_output_gradient, b_value_gradient, PRECISION
            )
            if HAS_CONTENT:
                b_gradient = dot(b_value, tl.trans(b_output_gradient), None, PRECISION)
                b_delta = computed_once(tl.load(p_delta + o_statistics + o_token))
                b_gradient = b_weights * (b_gradient - b_delta[None, :])
                if HAS_MASK:
                    b_gradient = tl.where(m_content, b_gradient, 0.0)
                # The bias's part is added at the end, so that the query is not rounded with it here.
                b_gradient_sum += tl.sum(b_gradient, 1)
                b_key_gradient = dot(b_gradient.to(b_query.dtype), b_query, b_key_gradient, PRECISION)

    # What only the results need would be held in registers through the loop, which has none to spare. So it is computed
    # again, from numbers that the compiler cannot know to be those from above: the grid has one axis.
    zero = tl.num_programs(1) - 1
    segments += zero
    channels += zero
    kv_heads = heads // GROUPS + zero
    i_batch, i_kv_head, i_tile, i_cross_start, _, _ = key_block(
        tl.program_id(0) + zero, segments, channels, kv_heads, BLOCK_N, TILES, TILE_CHANNELS
    )
    o_kv = (i_batch * (segments * channels) * kv_heads + i_kv_head) * HEAD_DIM
    kv_stride = kv_heads * HEAD_DIM
    o_stored, m_stored = stored_keys(i_tile, i_cross_start, segments, channels, BLOCK_N, TILES, TILE_CHANNELS)
    if HAS_CONTENT:
        b_bias = load_bias(p_content_bias + i_kv_head * HEAD_DIM, HEAD_DIM, BLOCK_D)
        b_key_gradient += b_gradient_sum[:, None] * b_bias[None, :]
        b_key_gradient *= scale
        store_rows(p_key_gradient + o_kv, b_key_gradient, o_stored, m_stored, kv_stride, HEAD_DIM, BLOCK_D)
    if HAS_FAR:
        b_value_gradient += load_rows(p_far_gradient + o_kv, o_stored, m_stored, kv_stride, HEAD_DIM, BLOCK_D)
    store_rows(p_value_gradient + o_kv, b_value_gradient, o_stored, m_stored, kv_stride, HEAD_DIM, BLOCK_D)
