"""The kernel that makes the scores of time and channel: products of queries with a table, plus those with a bias."""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import dot, load_rows


@triton.jit(do_not_specialize=["rows"])
def score_kernel(
    p_query,
    p_table,
    p_offset,
    p_score,
    rows,
    columns,
    query_stride,
    tokens,
    channels,
    OF_CHANNEL: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # Of each group: queries [rows, HEAD_DIM], with other groups between the rows; table [columns, HEAD_DIM] and scores
    # [columns, rows] for lags, or both turned around for channels. Offsets of groups and blocks may pass 2³¹.
    blocks = tl.cdiv(rows, BLOCK_M)
    i_group = (tl.program_id(0) // blocks).to(tl.int64)
    i_start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_M
    o_row = tl.arange(0, BLOCK_M)
    m_row = i_start + o_row < rows
    p_query += i_group * HEAD_DIM + i_start * query_stride
    b_query = load_rows(p_query, o_row, m_row, query_stride, HEAD_DIM, BLOCK_D)
    p_table += i_group * columns * HEAD_DIM
    p_score += i_group * columns * rows
    o_d = tl.arange(0, BLOCK_D)
    column_stop = columns
    if CAUSAL and not OF_CHANNEL:
        # Lags that a query does not have are never read, so they are not written.
        o_segment = ((i_start + o_row) % tokens // channels).to(tl.int32)
        column_stop = tl.max(o_segment, 0) + 1
    for i_column in range(0, column_stop, BLOCK_N):
        o_column = i_column + tl.arange(0, BLOCK_N)
        m_column = o_column < columns
        if OF_CHANNEL:
            m_table = (o_d < HEAD_DIM)[:, None] & m_column[None, :]
            b_table = tl.load(p_table + o_d[:, None] * columns + o_column[None, :], mask=m_table, other=0.0)
        else:
            b_table = tl.trans(load_rows(p_table, o_column, m_column, HEAD_DIM, HEAD_DIM, BLOCK_D))
        b_offset = tl.load(p_offset + i_group * columns + o_column, mask=m_column, other=0.0)
        b_score = dot(b_query, b_table, None, PRECISION) + b_offset[None, :]
        m_score = m_row[:, None] & m_column[None, :]
        if CAUSAL and not OF_CHANNEL:
            m_score = m_score & (o_column[None, :] <= o_segment[:, None])
        if OF_CHANNEL:
            o_score = (i_start + o_row)[:, None] * columns + o_column[None, :]
        else:
            o_score = o_column.to(tl.int64)[None, :] * rows + (i_start + o_row)[:, None]
        tl.store(p_score + o_score, b_score, mask=m_score)
