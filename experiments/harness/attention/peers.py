"""Attention mechanisms that FlashMVPA is timed against, each as a function of one set of inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar
from unittest import mock

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import adaptive_avg_pool1d, conv2d, scaled_dot_product_attention

from mvpa_ts import mvpa_attention
from mvpa_ts.attention import sdpa

INPUTS = ("query", "key", "value", "time_key", "channel_key", "content_bias", "time_bias", "channel_bias")


@dataclass(frozen=True)
class Case:
    """The size of one problem; causal, content within `window` segments."""

    segments: int
    channels: int
    batch: int = 64
    heads: int = 12
    kv_heads: int = 12
    head_dim: int = 64
    window: int = 10
    dense_last_segment: bool = True

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}×{self.head_dim}"
        dense = ", dense last segment" if self.dense_last_segment else ""
        return f"T={self.segments} C={self.channels} B={self.batch} {heads}{dense}"

    @property
    def tokens(self) -> int:
        """Tokens of a sample."""
        return self.segments * self.channels

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the eight tensors of MVPA."""
        B, T, C, H, H_kv, d = self.batch, self.segments, self.channels, self.heads, self.kv_heads, self.head_dim
        tokens = [(B, T, C, H, d), *2 * [(B, T, C, H_kv, d)]]
        return dict(zip(INPUTS, [*tokens, (T, H_kv, d), (C, H_kv, d), *3 * [(H_kv, d)]], strict=True))

    def inputs(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
        """The eight tensors, with gradients; values of a size that a trained model has."""
        generator = torch.Generator(device).manual_seed(seed)
        return {
            name: torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype).requires_grad_()
            for name, shape in self.shapes.items()
        }


Attend = Callable[[dict[str, Tensor]], Tensor]


def contenders(case: Case) -> dict[str, Attend]:
    """Every mechanism by name; those of MVPA compute the same function. One that is not there says so when called."""

    def mvpa(impl: str) -> Attend:
        options = {"window": case.window, "dense_last_segment": case.dense_last_segment, "impl": impl}
        return lambda x: mvpa_attention(*x.values(), **options)  # type: ignore[arg-type]

    return {
        "FlashMVPA": mvpa("triton"),
        "MVPA sdpa": mvpa("sdpa"),
        "MVPA sdpa, rounded once": lambda x: _rounded_once(mvpa("sdpa"), x, None),
        "MVPA sdpa, rounded once, flash": lambda x: _rounded_once(mvpa("sdpa"), x, SDPBackend.FLASH_ATTENTION),
        "MVPA sdpa, rounded once, cuDNN": lambda x: _rounded_once(mvpa("sdpa"), x, SDPBackend.CUDNN_ATTENTION),
        "MVPA separable": mvpa("separable"),
        "MVPA reference": mvpa("reference"),
        "MVPA FlexAttention": FlexMVPA(case),
        "flash SDPA causal": lambda x: _fused(x, SDPBackend.FLASH_ATTENTION),
        "cuDNN SDPA causal": lambda x: _fused(x, SDPBackend.CUDNN_ATTENTION),
        "FlashAttention-3 causal": lambda x: _flash_package(x, "flash_attn_interface"),
        "FlashAttention-4 causal": lambda x: _flash_package(x, "flash_attn.cute"),
        "flash SDPA": lambda x: _fused(x, SDPBackend.FLASH_ATTENTION, causal=False),
        "softmax attention": _softmax_attention,
        "Nyströmformer": _nystromformer,
    }


def _rounded_once(attend: Attend, x: dict[str, Tensor], backend: SDPBackend | None) -> Tensor:
    """MVPA by torch's attention without the second part of the scores: fewer columns, so that more kernels take it."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sdpa, "SPLIT", False))
        if backend is not None:
            stack.enter_context(sdpa_kernel(backend))
        if backend is SDPBackend.FLASH_ATTENTION:  # it takes values as wide as the keys only
            stack.enter_context(mock.patch.object(sdpa, "_value_width", lambda query, _d: query.shape[-1]))
        return attend(x)


def tokens_first(x: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as [B, H, N, d]."""
    query, key, value = (rearrange(x[name], "b t c h d -> b h (t c) d") for name in INPUTS[:3])
    return query, key, value


def _repeated(x: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = tokens_first(x)
    groups = query.shape[1] // key.shape[1]
    return query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


def _fused(x: dict[str, Tensor], backend: SDPBackend, *, causal: bool = True) -> Tensor:
    query, key, value = tokens_first(x)
    grouped = query.shape[1] != key.shape[1]
    of_choice = query.device.type == "cpu" and backend is SDPBackend.FLASH_ATTENTION
    with nullcontext() if of_choice else sdpa_kernel(backend):
        return scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)


def _flash_package(x: dict[str, Tensor], module: str) -> Tensor:
    """FlashAttention of its authors, [B, N, H, d]; some versions return the log-sum-exp as well."""
    try:
        attend = import_module(module).flash_attn_func
    except ImportError as error:
        raise RuntimeError(f"{module} is not installed ({error})") from error
    found = attend(*(rearrange(x[name], "b t c h d -> b (t c) h d") for name in INPUTS[:3]), causal=True)
    return found[0] if isinstance(found, tuple) else found


def _softmax_attention(x: dict[str, Tensor]) -> Tensor:
    """Softmax attention as it is written, causal by token, with all of its weights in memory."""
    query, key, value = _repeated(x)
    later = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device).triu(1)
    logits = query @ key.mT * query.shape[-1] ** -0.5
    return logits.masked_fill(later, float("-inf")).softmax(-1) @ value


def _nystrom_attention(x: dict[str, Tensor], landmarks: int = 64, iterations: int = 6) -> Tensor:
    """Softmax attention by the Nyström method: landmarks are means of neighbours, the inverse is iterated.

    Not causal, and without the convolution that Nyströmformer adds to it.
    """
    query, key, value = _repeated(x)
    B, H, N, d = query.shape
    query = query * d**-0.5
    if landmarks >= N:
        return (query @ key.mT).softmax(-1) @ value
    query_marks, key_marks = (
        adaptive_avg_pool1d(tensor.reshape(B * H, N, d).mT, landmarks).mT.reshape(B, H, landmarks, d)
        for tensor in (query, key)
    )
    left = (query @ key_marks.mT).softmax(-1)
    middle = (query_marks @ key_marks.mT).softmax(-1)
    right = (query_marks @ key.mT).softmax(-1)
    return left @ (_pseudo_inverse(middle, iterations) @ (right @ value))


def _nystromformer(x: dict[str, Tensor], width: int = 33) -> Tensor:
    """The attention of Nyströmformer: the Nyström method and a depth-wise convolution of the values over the tokens.

    One kernel a head, as in its code. The values of the kernel, which is learned there, change nothing in its cost.
    """
    _, _, value = _repeated(x)
    heads = value.shape[1]
    kernel = torch.full((heads, 1, width, 1), 1.0 / width, dtype=value.dtype, device=value.device)
    return _nystrom_attention(x) + conv2d(value, kernel, padding=(width // 2, 0), groups=heads)


def _pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Third-order iteration towards the Moore–Penrose inverse, started below its radius of convergence."""
    single = matrix.float()
    identity = torch.eye(matrix.shape[-1], device=matrix.device)
    inverse = single.mT / (single.sum(-1).amax(-1) * single.sum(-2).amax(-1))[..., None, None]
    for _ in range(iterations):
        product = single @ inverse
        inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return inverse.to(matrix.dtype)


class FlexMVPA:
    """MVPA as a score modification of FlexAttention: what one would write without kernels of one's own.

    Sizes are tensors and shapes are dynamic, so that a compiled kernel serves several sizes; where that fails, a
    kernel of its own is compiled for each size.
    """

    compiled: ClassVar[dict[bool, Callable[..., Tensor]]] = {}

    def __init__(self, case: Case, dynamic: bool = True) -> None:
        self.case, self.dynamic = case, dynamic
        self.prepared: tuple[list[Tensor], BlockMask] | None = None

    def prepare(self, device: torch.device) -> tuple[list[Tensor], BlockMask]:
        """Sizes on the device and the causal mask, which do not change from call to call."""
        case, N = self.case, self.case.tokens
        numbers = (case.channels, case.segments - 1, case.window, case.dense_last_segment)
        sizes = [torch.tensor(number, device=device) for number in numbers]
        C = sizes[0]
        return sizes, create_block_mask(lambda b, h, q, k: k // C <= q // C, None, None, N, N, device=device)

    def __call__(self, x: dict[str, Tensor]) -> Tensor:
        case, device = self.case, x["query"].device
        if self.prepared is None:
            self.prepared = self.prepare(device)
        (C, last, window, dense), mask = self.prepared
        query, key, value = tokens_first(x)
        groups = case.heads // case.kv_heads
        scale = case.head_dim**-0.5
        u, v, w = (x[name].repeat_interleave(groups, 0)[:, None] for name in INPUTS[5:])
        time_key, channel_key = (
            rearrange(x[name].repeat_interleave(groups, 1), "r h d -> h d r") for name in ("time_key", "channel_key")
        )
        by_lag, by_distance = (query + v) @ time_key * scale, (query + w) @ channel_key * scale

        def score(content: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            lag = q // C - k // C
            near = (lag <= window) | (dense & (q // C == last))
            distance = (q % C - k % C).abs()
            # Keys of later segments are masked; their lag must not leave the table.
            past = torch.where(lag < 0, 0, lag)
            return torch.where(near, content, 0.0) + by_lag[b, h, q, past] + by_distance[b, h, q, distance]

        if self.dynamic not in self.compiled:
            # Precisions, groups, lengths and passes each compile once. Past its limit torch would go on uncompiled,
            # with all weights in memory, which is not what is timed here.
            torch._dynamo.config.recompile_limit = 256
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            self.compiled[self.dynamic] = torch.compile(flex_attention, dynamic=self.dynamic)
        attend = flex_attention if device.type == "cpu" else self.compiled[self.dynamic]
        return attend(query + u, key, value, score_mod=score, block_mask=mask, enable_gqa=groups > 1)
