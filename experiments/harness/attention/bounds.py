"""What bounds a kernel of FlashMVPA from below on an H100, as formulas of its sizes: bytes, waits, waste of tiles.

Legend, beside that of mvpa_ts/attention/reference.py: M query tokens and N keys of a tile, P channels padded to 8, e
bytes of a number. n and p are the keys of a tile that exist and its columns of scores that are loaded, on average: the
other keys repeat the last one, and scores past P are masked. Steps are those of the far and the near loop of a whole
call. `attention_kernel_code.py` adds what the compiled loops tell: tensor cores, exponentials, instruction issue.

    L2          Σ over programs, and over steps of the two loops:
        forward  M·d·(2e + r) + M·4·(T̄ + P) + tiles·M·p·4   far n·d·e + M·4              near 2·n·d·e + M·4
        query    M·d·(4e + r) + tiles·M·p·(4 + e)         far n·d·e + M·(4 + g)        near 2·n·d·e + M·(4 + g)
        far      n·d·4·TILES                            far M·d·e + M·p·4 + M·4·(TILES + 2)
        key      n·d·(4e + 4)·TILES                     near 2·M·d·e + M·p·4 + M·4·(TILES + 2)
        scores   as HBM, and the queries once more; for 64 segments of a channel (T̄ + P)·d·e of the tables
        score gradients, as HBM
    HBM         every tensor once; scores and their gradients once to write them and once to read them. Causal time
                scores and their gradients are written and read only where the lag exists. Score gradients are read by
                a kernel that also reads queries and adds to their gradients, once for time and once for channels, or
                where its sums do not fit by two products and one sum of torch
    prologue    programs · T̄ · latency / resident: loads of the largest time score, each waiting for the one before
    barriers    barriers of the loops · wait / resident
    tile waste  pairs of the tiles over pairs that exist

T̄ is the mean number of key segments that a block of queries sees, g the bytes of a score's gradient that are stored
and, from the second tile on, read; r is 1 byte, of the output's residual in 16 bits. Latency, wait and L2's rate are
assumptions; they are not in a data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MULTIPROCESSORS, HERTZ = 132, 1.755e9
HBM = 3.35e12  # bytes a second, data sheet of the SXM version
L2 = 5.5e12  # bytes a second, assumed
LATENCY = 270  # cycles of a load from L2, assumed
WAIT = 30  # cycles of a barrier, assumed
REGISTERS, SHARED, THREADS = 65536, 227 * 1024, 2048


@dataclass(frozen=True)
class Launch:
    """One kernel of one call: sizes, tiles, steps, and what the compiler made of it."""

    name: str
    batch: int
    segments: int
    channels: int
    heads: int
    kv_heads: int
    head_dim: int
    query_tokens: int
    keys: int
    tiles_held: int
    num_warps: int
    registers: int
    shared_bytes: int
    far: int
    near: int
    far_barriers: int
    near_barriers: float
    causal: bool = True
    element_bytes: int = 2
    # Whether one kernel takes the gradients of the scores, of time and of channel.
    read_once: tuple[bool, bool] = (True, True)

    @classmethod
    def of(
        cls, kernel: Any, setting: Any, taken: dict[str, int], barriers: list[int], read_once: tuple[bool, bool]
    ) -> Launch:
        """From a compiled kernel, its setting, its steps and the barriers of its inner loops, the far one first."""
        a = kernel.arguments
        heads = setting.kv_heads * setting.groups
        return cls(
            kernel.name, setting.batch, setting.segments, setting.channels, heads, setting.kv_heads,
            setting.head_dim, a["BLOCK_M"], a["BLOCK_N"], a.get("TILES", 1), kernel.num_warps, kernel.registers,
            kernel.shared_bytes, taken["far"], taken["near"], barriers[0],
            sum(barriers[1:]) / max(1, len(barriers) - 1), setting.causal, read_once=read_once,
        )  # fmt: skip

    @property
    def tiles(self) -> int:
        """Tiles along the channels."""
        return -(-self.channels // self.keys)

    @property
    def padded_channels(self) -> int:
        """Columns of the channel scores."""
        return -(-self.channels // 8) * 8

    @property
    def blocks(self) -> int:
        """Blocks of query tokens of one sample and head."""
        return -(-self.segments * self.channels // self.query_tokens)

    @property
    def programs(self) -> int:
        """Programs of the launch."""
        if self.name in ("far_gradient", "key_gradient"):
            return self.tiles * -(-self.segments // self.tiles_held) * self.batch * self.kv_heads
        return self.blocks * self.batch * self.heads

    @property
    def resident(self) -> int:
        """Programs that one multiprocessor holds at a time."""
        threads = 32 * self.num_warps
        return max(1, min(REGISTERS // (self.registers * threads), SHARED // self.shared_bytes, THREADS // threads))

    @property
    def residual_bytes(self) -> int:
        """Of a number of the output: what rounding to 16 bits took from it is kept in 8."""
        return 1 if self.element_bytes == 2 else 0

    @property
    def mean_segments(self) -> float:
        """Key segments that a block of queries sees, on average."""
        if not self.causal:
            return self.segments
        tokens = self.segments * self.channels
        ends = (min(start + self.query_tokens, tokens) for start in range(0, tokens, self.query_tokens))
        return sum((end - 1) // self.channels + 1 for end in ends) / self.blocks

    @property
    def l2_bytes(self) -> float:
        """Bytes that all programs load and store."""
        M, d, e = self.query_tokens, self.head_dim, self.element_bytes
        n, p = self.channels / self.tiles, min(self.keys, self.padded_channels / self.tiles)
        if self.name == "forward":
            each = (
                M * d * (2 * e + self.residual_bytes)
                + M * 4 * (self.mean_segments + self.padded_channels)
                + self.tiles * M * p * 4
            )
            far, near = n * d * e + M * 4, 2 * n * d * e + M * 4
        elif self.name == "query_gradient":
            gradient = e if self.tiles == 1 else 4 * (2 - 1 / self.tiles)
            each = M * d * (4 * e + self.residual_bytes) + self.tiles * M * p * (4 + e)
            far, near = n * d * e + M * (4 + gradient), 2 * n * d * e + M * (4 + gradient)
        elif self.name == "far_gradient":
            each = n * d * 4 * self.tiles_held
            far, near = M * d * e + M * p * 4 + M * 4 * (self.tiles_held + 2), 0
        elif self.name == "score_gradient":
            return self.hbm_bytes
        elif self.name == "score":
            # Eight channels of 64 segments to a program. For each channel it loads its queries twice, and both tables.
            tiles = -(-self.channels // 8) * 8 * -(-self.batch * self.segments // M) * self.heads
            queries = self.batch * self.segments * self.channels * self.heads * d * e
            tables = tiles * (self.mean_segments + self.padded_channels) * d * e
            return self.hbm_bytes + queries + tables
        else:
            each = n * d * (4 * e + 4) * self.tiles_held
            far, near = 0, 2 * M * d * e + M * p * 4 + M * 4 * (self.tiles_held + 2)
        return self.programs * each + self.far * far + self.near * near

    @property
    def hbm_bytes(self) -> float:
        """Bytes of the tensors, once each; scores are made for the forward and for the query kernel."""
        tokens, e = self.batch * self.segments * self.channels, self.element_bytes
        queries, keys = (tokens * heads * self.head_dim * e for heads in (self.heads, self.kv_heads))
        pairs = self.heads * tokens
        time, channel = 4 * pairs * self.segments * (1 if self.causal else 2), 4 * pairs * self.padded_channels
        lags = time * self.mean_segments / self.segments if self.causal else time  # those that exist
        read = lags + channel
        statistics, residual = 8 * pairs, self.residual_bytes * pairs * self.head_dim
        # Several tiles add up the gradients of time in float32.
        stored = 1 if self.tiles > 1 else e / 4
        if self.name == "score":
            return queries + read
        if self.name == "score_gradient":
            time_once, channel_once = self.read_once
            gradients = 6 * queries + (1 if channel_once else 3) * channel * e / 4
            if time_once:
                return gradients + lags * stored
            # Filled with zeros first, then rounded, and read by two products and a sum.
            rounded = 0 if self.tiles == 1 else time * (1 + e / 4)
            return gradients + time * stored + rounded + 3 * time * e / 4
        if self.name == "forward":
            return 2 * queries + residual + 2 * keys + statistics + read
        if self.name == "query_gradient":
            return 4 * queries + residual + 2 * keys + statistics + read + lags * stored + channel * e / 4
        partial = keys * 4 / e
        if self.name == "far_gradient":
            return queries + read + statistics + partial
        return 2 * queries + 4 * keys + statistics + read + partial

    @property
    def waste(self) -> float:
        """Pairs that the tiles compute over pairs that exist."""
        computed = (self.far + self.near) * self.tiles_held * self.query_tokens * self.keys
        T, C = self.segments, self.channels
        pairs = C * C * (T * (T + 1) // 2 if self.causal else T * T)
        return computed / (pairs * self.batch * self.heads)

    def milliseconds(self) -> dict[str, float]:
        """The bounds by name."""
        cycles = 1e3 / (MULTIPROCESSORS * HERTZ * self.resident)
        prologue = self.programs * self.mean_segments * LATENCY if self.name == "forward" else 0
        barriers = (self.far * self.far_barriers + self.near * self.near_barriers) * WAIT
        return {
            "L2": self.l2_bytes / L2 * 1e3,
            "HBM": self.hbm_bytes / HBM * 1e3,
            "prologue": prologue * cycles,
            "barriers": barriers * cycles,
        }
