"""The kernel that makes the scores of time and channel: products of queries with a table, plus those with a bias."""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import dot, load_rows


@triton.jit(do_not_specialize=["rows"])
def score_kernel(
    p_query,
    p_time_table,
    p_time_offset,
    p_time_score,
    p_channel_table,
    p_channel_offset,
    p_channel_score,
    rows,
    segments,
    channels,
    heads,
    lags,
    columns,
    HAS_TIME: tl.constexpr,
    HAS_CHANNEL: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    # A row is a segment of a sample. A program takes BLOCK_M rows and CHANNELS channels of one head, and reads their
    # queries twice; the second time they are in the cache. A tile of time scores holds all of the channels for some of
    # the rows, for these scores lie side by side in memory. A tile of channel scores holds all of the rows for one
    # channel, for each channel has a table of its own.
    groups = tl.cdiv(channels, CHANNELS)
    first_channel = tl.program_id(0) % groups * CHANNELS
    # Offsets of heads and blocks may pass 2³¹.
    i_start = (tl.program_id(0) // groups).to(tl.int64) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    token_stride = heads * HEAD_DIM
    p_query += i_head * HEAD_DIM
    if HAS_TIME:
        p_time_table += i_head * lags * HEAD_DIM
        p_time_offset += i_head * lags
        p_time_score += i_head * lags * rows * channels
        o_row = tl.arange(0, BLOCK_M) // CHANNELS
        o_channel = first_channel + tl.arange(0, BLOCK_M) % CHANNELS
        o_token = o_row * channels + o_channel
        for i in range(0, CHANNELS):
            i_row = i_start + i * (BLOCK_M // CHANNELS)
            m_token = (i_row + o_row < rows) & (o_channel < channels)
            p_rows = p_query + i_row * channels * token_stride
            b_query = load_rows(p_rows, o_token, m_token, token_stride, HEAD_DIM, BLOCK_D)
            lag_stop = lags
            if CAUSAL:
                # Lags that a query does not have are never read, so they are not written.
                o_segment = ((i_row % segments).to(tl.int32) + o_row) % segments
                lag_stop = tl.max(o_segment, 0) + 1
            for i_lag in range(0, lag_stop, BLOCK_N):
                o_lag = i_lag + tl.arange(0, BLOCK_N)
                m_lag = o_lag < lags
                b_table = tl.trans(load_rows(p_time_table, o_lag, m_lag, HEAD_DIM, HEAD_DIM, BLOCK_D))
                b_offset = tl.load(p_time_offset + o_lag, mask=m_lag, other=0.0)
                b_score = dot(b_query, b_table, None, PRECISION) + b_offset[None, :]
                m_score = m_token[:, None] & m_lag[None, :]
                if CAUSAL:
                    m_score = m_score & (o_lag[None, :] <= o_segment[:, None])
                o_score = o_lag.to(tl.int64)[None, :] * (rows * channels) + o_token[:, None]
                tl.store(p_time_score + i_row * channels + o_score, b_score, mask=m_score)
    if HAS_CHANNEL:
        columns = columns // 8 * 8  # they are padded, so loads and stores take 16 bytes
        o_d = tl.arange(0, BLOCK_D)
        o_row = tl.arange(0, BLOCK_M)
        m_row = i_start + o_row < rows
        for i_channel in range(first_channel, tl.minimum(first_channel + CHANNELS, channels)):
            p_rows = p_query + (i_start * channels + i_channel) * token_stride
            b_query = load_rows(p_rows, o_row, m_row, channels * token_stride, HEAD_DIM, BLOCK_D)
            i_table = i_channel * heads + i_head
            for i_column in range(0, columns, BLOCK_N):
                o_column = i_column + tl.arange(0, BLOCK_N)
                m_column = o_column < columns
                p_table = p_channel_table + i_table * HEAD_DIM * columns
                m_table = (o_d < HEAD_DIM)[:, None] & m_column[None, :]
                b_table = tl.load(p_table + o_d[:, None] * columns + o_column[None, :], mask=m_table, other=0.0)
                b_offset = tl.load(p_channel_offset + i_table * columns + o_column, mask=m_column, other=0.0)
                b_score = dot(b_query, b_table, None, PRECISION) + b_offset[None, :]
                p_score = p_channel_score + (i_table * rows + i_start) * columns
                p_tile = p_score + o_row[:, None] * columns + o_column[None, :]
                tl.store(p_tile, b_score, mask=m_row[:, None] & m_column[None, :])
