"""Helpers of the forward and the backward kernels: where tokens lie, their scores, and which keys are near.

A kernel walks the keys of one head in tiles. A tile runs along one axis, the *tile axis*, and lies at one position of
the other, the *cross axis*. With TILE_CHANNELS a tile holds channels of one segment; without it, segments of one
channel. Either way the logit without content is ``tile_score[row, key] + cross_score[row]``. So nothing is gathered for
pairs of tokens, and a mask of whole segments or channels is a −∞ in one of the two scores.

In kernels: ``p_`` pointers, ``o_`` offsets, ``m_`` masks, ``i_`` scalar indices, ``b_`` blocks. Scores are in base 2.
Tuples that helpers pass on::

    rows    (o_segment, o_channel, o_token, m_row)      of query tokens, shaped to broadcast against the keys
    tables  (p_time, p_channel, p_segment_real, p_channel_real)      of one sample and head
    sizes   (batch, segments, channels, columns, heads, time_center)
    FLAGS   (CAUSAL, HAS_CONTENT, HAS_TIME, HAS_CHANNEL, HAS_WINDOW, DENSE_LAST, HAS_MASK, WIDE), known to the compiler
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def token_positions(o_token, channels):
    """Return the segments and channels of tokens, without integer division.

    In float32 the floor of (x + ½) / channels is exact for all x below 2²⁰, the most tokens that are accepted.
    """
    o_segment = ((o_token.to(tl.float32) + 0.5) * (1.0 / channels)).to(tl.int32)
    return o_segment, o_token - o_segment * channels


@triton.jit
def load_rows(p_rows, o_row, m_row, row_stride, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load rows of one head, [rows, BLOCK_D], with zeros for rows and columns that do not exist."""
    o_d = tl.arange(0, BLOCK_D)
    m_tile = m_row[:, None] if HEAD_DIM == BLOCK_D else m_row[:, None] & (o_d[None, :] < HEAD_DIM)
    return tl.load(p_rows + o_row[:, None] * row_stride + o_d[None, :], mask=m_tile, other=0.0)


@triton.jit
def store_rows(p_rows, b_rows, o_row, m_row, row_stride, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store rows of one head, as `load_rows` reads them."""
    o_d = tl.arange(0, BLOCK_D)
    m_tile = m_row[:, None] if HEAD_DIM == BLOCK_D else m_row[:, None] & (o_d[None, :] < HEAD_DIM)
    p_tile = p_rows + o_row[:, None] * row_stride + o_d[None, :]
    tl.store(p_tile, b_rows.to(p_rows.dtype.element_ty), mask=m_tile)


@triton.jit
def residual_step(b_rounded):
    """Return the size of one step of the residual in each row: 127 steps are the largest rounding error of the row."""
    BOUND: tl.constexpr = 2.0**-10 if b_rounded.dtype == tl.float16 else 2.0**-7
    return tl.max(tl.abs(b_rounded.to(tl.float32)), 1) * (BOUND / 127)


@triton.jit
def store_residual(
    p_residual, b_rows, b_rounded, o_row, m_row, row_stride, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Store the rounding errors of the rows in 8 bits: the backward pass needs the unrounded output for dO·O."""
    b_step = residual_step(b_rounded)
    b_steps = (b_rows - b_rounded.to(tl.float32)) / tl.where(b_step > 0.0, b_step, 1.0)[:, None]
    b_steps = tl.floor(tl.minimum(tl.maximum(b_steps, -127.0), 127.0) + 0.5)
    store_rows(p_residual, b_steps, o_row, m_row, row_stride, HEAD_DIM, BLOCK_D)


@triton.jit
def load_bias(p_bias, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load the content bias of a head, in float32."""
    o_d = tl.arange(0, BLOCK_D)
    return tl.load(p_bias + o_d, mask=o_d < HEAD_DIM, other=0.0).to(tl.float32)


@triton.jit
def add_bias(b_query, p_bias, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Add the content bias of a head to its queries, in the precision of the queries."""
    b_bias = load_bias(p_bias, HEAD_DIM, BLOCK_D)
    return (b_query.to(tl.float32) + b_bias[None, :]).to(b_query.dtype)


@triton.jit
def head_tables(p_time, p_channel, p_segment_real, p_channel_real, i_batch, i_head, sizes, FLAGS: tl.constexpr):
    """Return pointers to the tables of one sample and head.

    Time scores lie as [H, rows, B, N], channel scores as [C, H, B, T, columns]. The columns are the channels, padded
    with −∞ to a multiple of 8, so that loads take 16 bytes.
    """
    HAS_TIME: tl.constexpr = FLAGS[2]
    HAS_CHANNEL: tl.constexpr = FLAGS[3]
    HAS_MASK: tl.constexpr = FLAGS[6]
    batch, segments, channels, columns, _, time_center = sizes
    tokens = segments * channels
    if HAS_TIME:
        p_time += (i_head * (time_center + segments) * batch + i_batch) * tokens
    if HAS_CHANNEL:
        p_channel += (i_head * batch + i_batch) * segments * columns
    if HAS_MASK:
        p_segment_real += i_batch * segments
        p_channel_real += i_batch * channels
    return p_time, p_channel, p_segment_real, p_channel_real


@triton.jit
def score_offset(key_position, rows, sizes, OF_CHANNEL: tl.constexpr, WIDE: tl.constexpr):
    """Return where the score of query rows against key channels (or key segments) lies in its table.

    WIDE tables need 64-bit offsets. These take twice the registers and are held across the loops.
    """
    o_segment, o_channel, o_token, _ = rows
    batch, segments, channels, columns, heads, time_center = sizes
    o_outer = o_channel if OF_CHANNEL else o_segment - key_position + time_center
    if WIDE:
        o_outer = o_outer.to(tl.int64)
    if OF_CHANNEL:
        o_score = o_outer * (heads * batch * segments * columns) + o_segment * columns + key_position
    else:
        o_score = o_outer * (batch * segments * channels) + o_token
    return o_score


@triton.jit
def score_exists(key_position, rows, sizes, CAUSAL: tl.constexpr, OF_CHANNEL: tl.constexpr):
    """Say whether the channel exists, or whether the segment exists and the query may look at it."""
    o_segment, _, _, m_row = rows
    _, segments, _, columns, _, _ = sizes
    if OF_CHANNEL:
        m_exists = m_row & (key_position < columns)
    else:
        m_exists = m_row & (key_position < segments)
        if CAUSAL:
            m_exists = m_exists & (key_position <= o_segment)
    return m_exists


@triton.jit
def load_score(key_position, rows, tables, sizes, scale, FLAGS: tl.constexpr, OF_CHANNEL: tl.constexpr):
    """Load scores of query rows against key channels (or key segments), −∞ where the query may not look."""
    CAUSAL: tl.constexpr = FLAGS[0]
    HAS_TIME: tl.constexpr = FLAGS[2]
    HAS_CHANNEL: tl.constexpr = FLAGS[3]
    HAS_MASK: tl.constexpr = FLAGS[6]
    WIDE: tl.constexpr = FLAGS[7]
    p_time, p_channel, p_segment_real, p_channel_real = tables
    _, _, channels, _, _, _ = sizes
    m_exists = score_exists(key_position, rows, sizes, CAUSAL, OF_CHANNEL)
    HAS_SCORE: tl.constexpr = HAS_CHANNEL if OF_CHANNEL else HAS_TIME
    if HAS_SCORE:
        p_score = p_channel if OF_CHANNEL else p_time
        p_score += score_offset(key_position, rows, sizes, OF_CHANNEL, WIDE)
        b_score = tl.load(p_score, mask=m_exists, other=float("-inf")).to(tl.float32) * scale
    else:
        if OF_CHANNEL:
            m_exists = m_exists & (key_position < channels)
        b_score = tl.where(m_exists, 0.0, float("-inf"))
    if HAS_MASK:
        p_real = p_channel_real if OF_CHANNEL else p_segment_real
        if OF_CHANNEL:
            m_exists = m_exists & (key_position < channels)
        o_real = key_position + tl.zeros(m_exists.shape, tl.int32)
        m_real = tl.load(p_real + o_real, mask=m_exists, other=0) != 0
        b_score = tl.where(m_real, b_score, float("-inf"))
    return b_score


@triton.jit
def store_score_gradient(
    p_gradient,
    b_gradient,
    key_position,
    rows,
    sizes,
    i_tile,
    FLAGS: tl.constexpr,
    OF_CHANNEL: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Store a gradient where `load_score` read the score; with ADDS, add it to what earlier tiles stored there."""
    CAUSAL: tl.constexpr = FLAGS[0]
    WIDE: tl.constexpr = FLAGS[7]
    m_exists = score_exists(key_position, rows, sizes, CAUSAL, OF_CHANNEL)
    p_gradient += score_offset(key_position, rows, sizes, OF_CHANNEL, WIDE)
    if ADDS:
        m_earlier = m_exists & (tl.full(m_exists.shape, i_tile, tl.int32) > 0)
        b_gradient += tl.load(p_gradient, mask=m_earlier, other=0.0).to(tl.float32)
    tl.store(p_gradient, b_gradient.to(p_gradient.dtype.element_ty), mask=m_exists)


@triton.jit
def content_counts(o_segment, key_segment, segments, window, FLAGS: tl.constexpr):
    """Mark the pairs whose content is scored: those within the window, and all keys of a dense last segment."""
    HAS_WINDOW: tl.constexpr = FLAGS[4]
    DENSE_LAST: tl.constexpr = FLAGS[5]
    lag = o_segment - key_segment
    m_content = lag == lag
    if HAS_WINDOW:
        m_content = (lag <= window) & (-lag <= window)
        if DENSE_LAST:
            m_content = m_content | (o_segment == segments - 1)
    return m_content


@triton.jit
def key_ranges(i_start, sizes, window, has_holes, FLAGS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return where the key segments of a block of queries end, and which of them some query reads pair by pair.

    All others are rank 1. A sample with holes (masked tokens in a segment and a channel that are not masked as a whole)
    has no rank-1 part: its mask is no outer product. Also, a bound of far scores that no real key reaches could make
    all weights vanish.
    """
    CAUSAL: tl.constexpr = FLAGS[0]
    HAS_CONTENT: tl.constexpr = FLAGS[1]
    HAS_WINDOW: tl.constexpr = FLAGS[4]
    DENSE_LAST: tl.constexpr = FLAGS[5]
    HAS_MASK: tl.constexpr = FLAGS[6]
    _, segments, channels, _, _, _ = sizes
    first_segment = i_start // channels
    last_segment = (tl.minimum(i_start + BLOCK_M, segments * channels) - 1) // channels
    key_stop = last_segment + 1 if CAUSAL else segments
    near_first = 0
    near_last = 0
    if HAS_CONTENT:
        near_last = key_stop
        if HAS_WINDOW:
            near_first = tl.maximum(first_segment - window, 0)
            near_last = tl.minimum(last_segment + window + 1, key_stop)
            if DENSE_LAST:
                near_first = tl.where(last_segment == segments - 1, 0, near_first)
                near_last = tl.where(last_segment == segments - 1, key_stop, near_last)
    if HAS_MASK:
        near_first = tl.where(has_holes, 0, near_first)
        near_last = tl.where(has_holes, key_stop, near_last)
    return key_stop, near_first, near_last


@triton.jit
def cross_ranges(i_tile, near_first, near_last, key_stop, channels, BLOCK_N: tl.constexpr, TILE_CHANNELS: tl.constexpr):
    """Return the near cross positions of a tile, first … last − 1, and the number of far ones."""
    if TILE_CHANNELS:
        cross_first = near_first
        cross_last = near_last
        far_count = key_stop - (near_last - near_first)
    else:
        cross_first = 0
        cross_last = tl.where((i_tile < near_last) & (i_tile + BLOCK_N > near_first), channels, 0)
        far_count = channels - cross_last
    return cross_first, cross_last, far_count


@triton.jit
def skipping(i, first, last):
    """Return the i-th number of 0, 1, … without first … last − 1."""
    return i + tl.where(i >= first, last - first, 0)


@triton.jit
def key_tokens(i_cross, o_tile, channels, TILE_CHANNELS: tl.constexpr):
    """Return the tokens of a tile."""
    if TILE_CHANNELS:
        return i_cross * channels + o_tile
    return o_tile * channels + i_cross


@triton.jit
def key_block(
    i_program, segments, channels, kv_heads, BLOCK_N: tl.constexpr, TILES: tl.constexpr, TILE_CHANNELS: tl.constexpr
):
    """Return what a program over keys holds: sample, head, first position of the tile, first cross position, segments.

    The first segments have the most queries in a causal problem: they start first.
    """
    tile_stop = channels if TILE_CHANNELS else segments
    cross_stop = segments if TILE_CHANNELS else channels
    cross_blocks = tl.cdiv(cross_stop, TILES)
    blocks = tl.cdiv(tile_stop, BLOCK_N) * cross_blocks
    i_batch = (i_program // blocks // kv_heads).to(tl.int64)
    i_kv_head = (i_program // blocks % kv_heads).to(tl.int64)
    i_block = i_program % blocks
    i_tile = i_block // cross_blocks * BLOCK_N
    i_cross = i_block % cross_blocks * TILES
    first_segment = i_cross if TILE_CHANNELS else i_tile
    last_segment = tl.minimum(first_segment + (TILES if TILE_CHANNELS else BLOCK_N), segments) - 1
    return i_batch, i_kv_head, i_tile, i_cross, first_segment, last_segment


@triton.jit
def stored_keys(
    i_tile, i_cross, segments, channels, BLOCK_N: tl.constexpr, TILES: tl.constexpr, TILE_CHANNELS: tl.constexpr
):
    """Return the tokens of a tile at one cross position after another, and which of them exist."""
    o_key = tl.arange(0, TILES * BLOCK_N)
    o_tile = i_tile + o_key % BLOCK_N
    o_cross = i_cross + o_key // BLOCK_N
    tile_stop = channels if TILE_CHANNELS else segments
    cross_stop = segments if TILE_CHANNELS else channels
    m_key = (o_tile < tile_stop) & (o_cross < cross_stop)
    return key_tokens(o_cross, o_tile, channels, TILE_CHANNELS), m_key


@triton.jit
def far_offsets(b_normalizer, b_time_max, TILE_CHANNELS: tl.constexpr):
    """Split exp2(time + channel − normalizer) into a factor of the tile and one of the cross axis, both at most 1.

    Returns the numbers to subtract from the tile score and from the cross score; +∞ in rows without a far key.
    """
    b_time = tl.where(b_time_max == float("-inf"), float("inf"), b_time_max)
    b_channel = tl.where(b_time_max == float("-inf"), float("inf"), b_normalizer - b_time_max)
    if TILE_CHANNELS:
        return b_channel, b_time
    return b_time, b_channel


# PRECISION under Triton's interpreter. It keeps bfloat16 as bit patterns, and would multiply the patterns.
INTERPRETED = tl.constexpr("interpreted")


@triton.jit
def dot(b_left, b_right, b_sum, PRECISION: tl.constexpr):
    """Multiply two matrices, and add `b_sum` unless that is None."""
    if PRECISION == INTERPRETED:
        return tl.dot(b_left.to(tl.float32), b_right.to(tl.float32), b_sum, input_precision="ieee")
    return tl.dot(b_left, b_right, b_sum, input_precision=PRECISION)


@triton.jit
def computed_once(b_numbers):
    """Return the numbers, handed over through shared memory.

    Elsewhere the compiler has each thread load and compute again what it needs of a vector beside its part of a
    product. It does not look beyond a maximum, here one of a single number.
    """
    return tl.max(b_numbers[None], 0)


@triton.jit
def tile_factor(b_tile_score, b_tile_offset):
    """Return the tile's factor of the far weights, cut at 1: that of near tiles is not used and could pass 2¹²⁸.

    NaN must stay: by default a GPU takes the other number, and a NaN in a table would look like a weight of 1.
    """
    return tl.exp2(tl.minimum(b_tile_score - b_tile_offset, 0.0, tl.PropagateNan.ALL))


@triton.jit
def outer_product(b_tile_weight, b_cross_weight, PRECISION: tl.constexpr):
    """Multiply the two factors in the precision of the values: half the registers of float32, two per instruction."""
    if PRECISION == INTERPRETED:
        return (b_tile_weight.to(tl.float32) * b_cross_weight.to(tl.float32)).to(b_tile_weight.dtype)
    return b_tile_weight * b_cross_weight


@triton.jit
def finite(x):
    """Replace −∞ by 0: an offset of 0 keeps −∞ − offset at −∞, where −∞ − (−∞) would be NaN."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def online_softmax(b_logits, b_max, b_sum):
    """Take one step: return the weights, the new maximum and sum, and the factor that rescales earlier sums."""
    b_new_max = tl.maximum(b_max, tl.max(b_logits, 1))
    b_offset = finite(b_new_max)
    b_weights = tl.exp2(b_logits - b_offset[:, None])
    b_rescale = tl.exp2(b_max - b_offset)
    return b_weights, b_new_max, b_sum * b_rescale + tl.sum(b_weights, 1), b_rescale
