"""The kernel that takes gradients of scores to queries and tables: the backward pass of `scores`."""

import triton
import triton.language as tl

from mvpa_ts.attention.triton.primitives import dot, load_rows, store_rows


@triton.jit(do_not_specialize=["rows"])
def score_gradient_kernel(
    p_query,
    p_table,
    p_gradient,
    p_query_gradient,
    p_table_gradient,
    p_offset_gradient,
    rows,
    columns,
    query_stride,
    tokens,
    channels,
    share,
    segments,
    time_center,
    OF_CHANNEL: tl.constexpr,
    PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # The shapes of each group are those of the score kernel. A program takes some of the rows of one group, `share`
    # blocks, and all columns: it reads each gradient once, for all that depends on it.
    shares = tl.cdiv(tl.cdiv(rows, BLOCK_M), share)
    i_group = (tl.program_id(0) // shares).to(tl.int64)
    i_share = (tl.program_id(0) % shares).to(tl.int64)
    if OF_CHANNEL:
        columns = columns // 8 * 8  # they are padded, so loads take 16 bytes
    o_d = tl.arange(0, BLOCK_D)
    o_column = tl.arange(0, BLOCK_N)
    m_column = o_column < columns
    p_table += i_group * columns * HEAD_DIM
    p_gradient += i_group * columns * rows
    p_query += i_group * HEAD_DIM
    p_query_gradient += i_group * HEAD_DIM
    if OF_CHANNEL:
        m_table = m_column[:, None] & (o_d < HEAD_DIM)[None, :]
        b_table = tl.load(p_table + o_d[None, :] * columns + o_column[:, None], mask=m_table, other=0.0)
    else:
        b_table = load_rows(p_table, o_column, m_column, HEAD_DIM, HEAD_DIM, BLOCK_D)
    b_table_gradient = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    b_offset_gradient = tl.zeros([BLOCK_N], tl.float32)
    for i in range(0, tl.minimum(share, tl.cdiv(rows, BLOCK_M) - i_share.to(tl.int32) * share)):
        # Offsets of blocks may pass 2³¹.
        i_start = (i_share * share + i) * BLOCK_M
        o_row = tl.arange(0, BLOCK_M)
        m_row = i_start + o_row < rows
        m_gradient = m_column[:, None] & m_row[None, :]
        if OF_CHANNEL:
            o_gradient = (i_start + o_row)[None, :] * columns + o_column[:, None]
        else:
            o_gradient = o_column.to(tl.int64)[:, None] * rows + (i_start + o_row)[None, :]
            # Lags that a query does not have have no gradient: nothing was written there.
            o_segment = ((i_start + o_row) % tokens // channels).to(tl.int32)
            key_segment = o_segment[None, :] + time_center - o_column[:, None]
            m_gradient = m_gradient & (key_segment >= 0) & (key_segment < segments)
        b_gradient = tl.load(p_gradient + o_gradient, mask=m_gradient, other=0.0)
        if OF_CHANNEL:
            # Nor has what pads the channels.
            b_gradient = tl.where((o_column < channels)[:, None], b_gradient, 0.0)
        b_query = load_rows(p_query + i_start * query_stride, o_row, m_row, query_stride, HEAD_DIM, BLOCK_D)
        b_offset_gradient += tl.sum(b_gradient.to(tl.float32), 1)
        b_gradient = b_gradient.to(b_query.dtype)
        b_table_gradient = dot(b_gradient, b_query, b_table_gradient, PRECISION)
        p_rows = p_query_gradient + i_start * query_stride
        b_query_gradient = load_rows(p_rows, o_row, m_row, query_stride, HEAD_DIM, BLOCK_D).to(tl.float32)
        b_query_gradient = dot(tl.trans(b_gradient), b_table, b_query_gradient, PRECISION)
        store_rows(p_rows, b_query_gradient, o_row, m_row, query_stride, HEAD_DIM, BLOCK_D)
    i_part = i_group * shares + i_share
    p_table_gradient += i_part * columns * HEAD_DIM
    store_rows(p_table_gradient, b_table_gradient, o_column, m_column, HEAD_DIM, HEAD_DIM, BLOCK_D)
    tl.store(p_offset_gradient + i_part * columns + o_column, b_offset_gradient, mask=m_column)
