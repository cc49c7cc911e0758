"""The backward kernel over blocks of query tokens: gradients of the queries and of both scores."""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import (
    LOG2_E,
    add_bias,
    computed_once,
    content_counts,
    cross_ranges,
    dot,
    far_offsets,
    head_tables,
    key_ranges,
    key_tokens,
    load_rows,
    load_score,
    outer_product,
    residual_step,
    skipping,
    store_rows,
    store_score_gradient,
    tile_factor,
    token_positions,
)


@triton.jit(do_not_specialize=["batch"])
def query_gradient_kernel(
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
    p_output_gradient,
    p_lse,
    p_lse_gradient,
    p_time_max,
    p_delta,
    p_query_gradient,
    p_bias_gradient,
    p_time_gradient,
    p_channel_gradient,
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
    SINGLE_TILE: tl.constexpr,
    HAS_LSE_GRADIENT: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    FLAGS: tl.constexpr = (CAUSAL, HAS_CONTENT, HAS_TIME, HAS_CHANNEL, HAS_WINDOW, DENSE_LAST, HAS_MASK, WIDE)
    HAS_NEAR: tl.constexpr = HAS_CONTENT or HAS_MASK
    HAS_FAR: tl.constexpr = HAS_WINDOW or not HAS_CONTENT
    HAS_TILE_SCORE: tl.constexpr = HAS_CHANNEL if TILE_CHANNELS else HAS_TIME
    HAS_CROSS_SCORE: tl.constexpr = HAS_TIME if TILE_CHANNELS else HAS_CHANNEL
    tokens = segments * channels
    blocks = tl.cdiv(tokens, BLOCK_M)
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    columns = column_groups * 8
    sizes = (batch, segments, channels, columns, heads, time_center)
    i_start = (blocks - 1 - tl.program_id(0)) * BLOCK_M
    # Rows past the end repeat the last token and are not stored, so that loads need no mask.
    o_token = tl.minimum(i_start + tl.arange(0, BLOCK_M), tokens - 1)
    o_segment, o_channel = token_positions(o_token, channels)
    m_token = tl.arange(0, BLOCK_M) < tokens - i_start
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
    p_time_gradient, p_channel_gradient, _, _ = head_tables(
        p_time_gradient, p_channel_gradient, p_segment_real, p_channel_real, i_batch, i_head, sizes, FLAGS
    )
    p_tile_gradient = p_channel_gradient if TILE_CHANNELS else p_time_gradient
    p_cross_gradient = p_time_gradient if TILE_CHANNELS else p_channel_gradient
    rows = (o_segment, o_channel, o_token, m_row)
    rows_2d = (o_segment[:, None], o_channel[:, None], o_token[:, None], m_row[:, None])
    # Rows that are not real get zeros: their weights are zero.
    # Those past the end write what the last token has; added up, that would be too much.
    stored_rows = (o_segment, o_channel, o_token, o_token == o_token if SINGLE_TILE else m_token)
    stored_rows_2d = (o_segment[:, None], o_channel[:, None], o_token[:, None], (o_token == o_token)[:, None])
    scale_2 = scale * LOG2_E

    b_output_gradient = load_rows(p_output_gradient + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
    b_output = load_rows(p_output + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
    b_exact = b_output.to(tl.float32)
    if p_output.dtype.element_ty != tl.float32:
        b_steps = load_rows(p_residual + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
        b_exact += b_steps.to(tl.float32) * residual_step(b_output)[:, None]
    b_delta = tl.sum(b_exact * b_output_gradient.to(tl.float32), 1)
    if HAS_LSE_GRADIENT:
        # A logit's share of the log-sum-exp is its weight; that statistic is in base 2.
        b_delta -= tl.load(p_lse_gradient + o_statistics + o_token) * LOG2_E
    # Rows past the end write what the last token has.
    tl.store(p_delta + o_statistics + o_token, b_delta)
    b_lse = tl.load(p_lse + o_statistics + o_token)
    if HAS_CONTENT:
        b_query = load_rows(p_query + o_query, o_token, m_row, query_stride, HEAD_DIM, BLOCK_D)
        b_query = add_bias(b_query, p_content_bias + i_head // GROUPS * HEAD_DIM, HEAD_DIM, BLOCK_D)
    if HAS_FAR:
        b_time_max = tl.load(p_time_max + o_statistics + o_token)
        b_tile_offset, b_cross_offset = far_offsets(b_lse, b_time_max, TILE_CHANNELS)

    key_stop, near_first, near_last = key_ranges(i_start, sizes, window, has_holes, FLAGS, BLOCK_M)
    tile_stop = channels if TILE_CHANNELS else key_stop

    b_query_gradient = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # With constant bounds the loop over one tile is none. Wide heads need that, or they spill; narrow ones must not
    # have it, or ptxas waits after each product (C7515).
    for i_tile in range(0, BLOCK_N if SINGLE_TILE and BLOCK_D > 64 else tile_stop, BLOCK_N):
        o_tile = i_tile + tl.arange(0, BLOCK_N)
        # Keys past the end have a score of −∞, so any value will do.
        o_tile_key = tl.minimum(o_tile, tile_stop - 1)
        m_key = o_tile == o_tile
        if not SINGLE_TILE:
            # What the last tile stored of the cross gradients must be there before it is read.
            tl.debug_barrier()
        b_tile_score = load_score(o_tile[None, :], rows_2d, tables, sizes, scale_2, FLAGS, OF_CHANNEL=TILE_CHANNELS)
        b_tile_gradient = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        cross_first, cross_last, far_count = cross_ranges(
            i_tile, near_first, near_last, key_stop, channels, BLOCK_N, TILE_CHANNELS
        )
        if HAS_FAR:
            b_tile_weight = tile_factor(b_tile_score, b_tile_offset[:, None])
            # The gradient of a logit is its weight times (dO·v − Δ): what Δ takes is the same for a row of the tile.
            b_tile_delta = b_delta * tl.sum(b_tile_weight, 1)
            b_cross_sum = tl.zeros([BLOCK_M], tl.float32)
            for i in range(0, far_count):
                i_cross = skipping(i, cross_first, cross_last)
                o_cross = tl.full([BLOCK_M], i_cross, tl.int32)
                o_key = key_tokens(i_cross, o_tile_key, channels, TILE_CHANNELS)
                b_cross_score = load_score(o_cross, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=not TILE_CHANNELS)
                b_cross_weight = computed_once(tl.exp2(b_cross_score - b_cross_offset))
                b_value = load_rows(p_value + o_kv, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
                b_gradient = dot(b_output_gradient, tl.trans(b_value), None, PRECISION)
                if HAS_TILE_SCORE:
                    b_cross_sum += b_cross_weight
                    b_tile_gradient += b_gradient * b_cross_weight[:, None]
                if HAS_CROSS_SCORE:
                    b_cross_gradient = tl.sum(b_gradient * b_tile_weight, 1) - b_tile_delta
                    b_cross_gradient = computed_once(b_cross_gradient * (b_cross_weight * scale))
                    store_score_gradient(
                        p_cross_gradient,
                        b_cross_gradient,
                        o_cross,
                        stored_rows,
                        sizes,
                        i_tile,
                        FLAGS,
                        OF_CHANNEL=not TILE_CHANNELS,
                        ADDS=not SINGLE_TILE,
                    )
            b_tile_gradient = (b_tile_gradient - (b_cross_sum * b_delta)[:, None]) * b_tile_weight
        if HAS_NEAR:
            for i_cross in range(cross_first, cross_last):
                o_cross = tl.full([BLOCK_M], i_cross, tl.int32)
                o_key = key_tokens(i_cross, o_tile_key, channels, TILE_CHANNELS)
                b_cross_score = load_score(o_cross, rows, tables, sizes, scale_2, FLAGS, OF_CHANNEL=not TILE_CHANNELS)
                # Added last, the tile's scores are brought into the layout of products outside of the loop.
                b_logits = (b_cross_score - b_lse)[:, None]
                if HAS_CONTENT:
                    key_segment = o_cross[:, None] if TILE_CHANNELS else o_tile[None, :]
                    m_content = content_counts(o_segment[:, None], key_segment, segments, window, FLAGS)
                    b_key = load_rows(p_key + o_kv, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
                    b_content = dot(b_query, tl.trans(b_key), None, PRECISION)
                    b_content_scale = tl.where(m_content, scale_2, 0.0)
                    b_logits += b_content * b_content_scale
                b_logits += b_tile_score
                if HAS_MASK:
                    m_real = tl.load(p_real + o_key) != 0
                    b_logits = tl.where(m_real[None, :], b_logits, float("-inf"))
                b_value = load_rows(p_value + o_kv, o_key, m_key, kv_stride, HEAD_DIM, BLOCK_D)
                b_gradient = dot(b_output_gradient, tl.trans(b_value), None, PRECISION)
                b_gradient = tl.exp2(b_logits) * (b_gradient - b_delta[:, None])
                if HAS_TILE_SCORE:
                    b_tile_gradient += b_gradient
                if HAS_CROSS_SCORE:
                    store_score_gradient(
                        p_cross_gradient,
                        tl.sum(b_gradient, 1) * scale,
                        o_cross,
                        stored_rows,
                        sizes,
                        i_tile,
                        FLAGS,
                        OF_CHANNEL=not TILE_CHANNELS,
                        ADDS=not SINGLE_TILE,
                    )
                if HAS_CONTENT:
                    m_scored = m_content.to(tl.float32).to(b_key.dtype)
                    b_gradient = outer_product(b_gradient.to(b_key.dtype), m_scored, PRECISION)
                    b_query_gradient = dot(b_gradient, b_key, b_query_gradient, PRECISION)
        if HAS_TILE_SCORE:
            store_score_gradient(
                p_tile_gradient,
                b_tile_gradient * scale,
                o_tile[None, :],
                stored_rows_2d,
                sizes,
                0,
                FLAGS,
                OF_CHANNEL=TILE_CHANNELS,
                ADDS=False,
            )
    if HAS_CONTENT:
        o_stored = i_start + tl.arange(0, BLOCK_M)
        m_stored = o_stored < tokens
        b_query_gradient *= scale
        store_rows(p_query_gradient + o_query, b_query_gradient, o_stored, m_stored, query_stride, HEAD_DIM, BLOCK_D)
        # The bias has the sum of these gradients, before they are rounded. With wide heads ptxas would serialise.
        if BLOCK_D <= 64:
            o_d = tl.arange(0, BLOCK_D)
            b_bias_gradient = tl.sum(tl.where(m_stored[:, None], b_query_gradient, 0.0), 0)
            i_block = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * blocks + i_start // BLOCK_M
            p_bias_gradient += i_block.to(tl.int64) * HEAD_DIM
            tl.store(p_bias_gradient + o_d, b_bias_gradient, mask=o_d < HEAD_DIM)
