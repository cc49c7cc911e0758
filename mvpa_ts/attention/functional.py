"""The one public attention function: checks its input, draws the dropout masks, picks an implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mvpa_ts.attention.choice import NEEDS_REFERENCE, check_once, is_transformed, log_once, pick, why_not_triton
from mvpa_ts.attention.problem import INPUTS, Problem, autocast_dtype

Implementation = Literal["auto", "reference", "separable", "sdpa", "triton"]
COMPONENTS = ("content", "time", "channel")
IMPLEMENTATIONS = ("reference", "separable", "sdpa", "triton")


def mvpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    time_key: Tensor,
    channel_key: Tensor,
    content_bias: Tensor,
    time_bias: Tensor,
    channel_bias: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    dense_last_segment: bool = False,
    components: Iterable[str] = COMPONENTS,
    channel_distance: Literal["absolute", "signed"] = "absolute",
    channel_window: int | None = None,
    channel_beyond: Literal["error", "clamp"] = "error",
    channel_mask: Tensor | None = None,
    segment_mask: Tensor | None = None,
    token_mask: Tensor | None = None,
    dropout: float = 0.0,
    dropout_masks: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator | None = None,
    return_lse: bool = False,
    impl: Implementation = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Multi-variate parallel attention over T segments of C channels.

    For query token (t, c) and key token (t', c'), with ``lag = t − t'`` and ``distance = |c − c'|``, the logit is

    .. math:: a = \frac{1}{\sqrt d} [ω (q + u)·k' + (q + v)·K_t[lag] + (q + w)·K_c[distance]]

    where ω is 1 for keys within `window` segments and 0 (not −∞) elsewhere, so the time and channel terms keep the
    whole context in view. The output is softmax(a) times the values.

    Parameters
    ----------
    query : Tensor, shape (B, T, C, H, d)
        Queries; query head h reads key/value head ``h // (H / H_kv)``.
    key, value : Tensor, shape (B, T, C, H_kv, d)
    time_key : Tensor, shape (R, H_kv, d)
        Causal: row = lag, R ≥ T. Bidirectional: R odd, row = lag + (R−1)/2, (R−1)/2 ≥ T−1.
    channel_key : Tensor, shape (R, H_kv, d)
        "absolute": row = distance, R ≥ C. "signed": R odd, row = c − c' + (R−1)/2, (R−1)/2 ≥ C−1. With
        ``channel_beyond="clamp"`` any R.
    content_bias, time_bias, channel_bias : Tensor, shape (H_kv, d)
        u, v and w of the equation.
    causal : bool, default True
        Keys of later segments are not attended to. All channels of the same segment are.
    window : int or None, default None
        Content is scored where ``|lag| ≤ window`` (inclusive); None scores it everywhere.
    dense_last_segment : bool, default False
        Queries of the last segment score content everywhere (on in the released MVPFormer). That is segment T − 1 of
        every sample: pad shorter samples at their start.
    components : iterable of {"content", "time", "channel"}, default all three
        Terms that are summed. Without any, the output is the average over the allowed keys. Tensors of a term that
        is off get zero gradients.
    channel_distance : {"absolute", "signed"}, default "absolute"
    channel_window : int or None, default None
        Content is scored where ``|c − c'| ≤ channel_window`` (inclusive, 1 to C − 1), in a dense last segment too; None
        scores it for all channels. Elsewhere it is 0, as outside `window`.
    channel_beyond : {"error", "clamp"}, default "error"
        What channel distances past `channel_key` get: an error, or its end row (the first and the last if signed).
        Together with `channel_window`, "clamp" makes time and memory linear in C, exactly.
    channel_mask, segment_mask, token_mask : bool Tensor, shapes (B, C), (B, T), (B, T, C), optional
        True = real. A token is real if all given masks say so. Other tokens are never keys, whatever they hold (even
        NaN), and their output is zero.
    dropout : float, default 0.0
        Structured dropout: whole key segments and whole key channels are dropped, each with probability
        1 − √(1 − dropout), after the softmax and without renormalisation.
    dropout_masks : tuple of bool Tensors, shapes (B, T) and (B, C), optional
        Segments and channels to keep, instead of drawn ones.
    generator : torch.Generator, optional
        Source of the dropout masks.
    return_lse : bool, default False
        Also return the log-sum-exp of the logits, by which outputs over parts of the keys can be merged.
    impl : {"auto", "reference", "separable", "sdpa", "triton"}, default "auto"
        "auto" takes what was measured to be the fastest: "reference" for small inputs, otherwise "separable" on a CPU
        and "sdpa" on a GPU, or "triton" on a GPU where it passed its checks (`choice.PASSED`). It logs its choice. A
        named implementation never falls back to another. "triton" is compared with "reference" by a process's first
        call on a GPU.

    Returns
    -------
    Tensor, shape (B, T, C, H, d)
        With `return_lse`, a tuple of it and of the log-sum-exp, shape (B, T, C, H), in float32 at least; −∞ for a query
        without a key. Both have gradients.

    Raises
    ------
    ValueError
        A shape, table length or option does not fit; the message names the argument.
    RuntimeError
        ``impl="triton"`` where the kernels cannot run, or give wrong results; the message says why.

    References
    ----------
    Carzaniga et al., arXiv:2506.20354, the equation of the logits, and the released code. If the two differ,
    docs/attention.md says what is done here.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts import mvpa_attention
    >>> q, k, v = (torch.randn(1, 6, 4, 2, 8) for _ in range(3))
    >>> time_key, channel_key = torch.randn(6, 2, 8), torch.randn(4, 2, 8)
    >>> u, v_bias, w = torch.zeros(3, 2, 8)
    >>> mvpa_attention(q, k, v, time_key, channel_key, u, v_bias, w, window=2).shape
    torch.Size([1, 6, 4, 2, 8])
    """
    inputs: tuple[Tensor, ...] = (query, key, value, time_key, channel_key, content_bias, time_bias, channel_bias)
    terms = checked_components(components)
    options: dict[str, Any] = {
        "causal": causal, "window": window, "dense_last_segment": dense_last_segment, "components": terms,
        "channel_distance": channel_distance, "channel_window": channel_window,
    }  # fmt: skip
    check_switches(return_lse=return_lse)
    check_call(inputs, options, channel_beyond, dropout=dropout, impl=impl)
    B, T, C = query.shape[:3]

    real = merged_mask((B, T, C), channel_mask, segment_mask, token_mask)
    all_real = real is None
    if real is None:
        real = torch.ones(B, T, C, dtype=torch.bool, device=query.device)
    else:
        unreal = ~real[..., None, None]
        inputs = (*(tensor.masked_fill(unreal, 0.0) for tensor in inputs[:3]), *inputs[3:])

    if dropout_masks is not None:
        check_mask("dropout_masks[0]", dropout_masks[0], (B, T))
        check_mask("dropout_masks[1]", dropout_masks[1], (B, C))
    elif dropout > 0.0:
        dropout_masks = draw_dropout_masks(B, T, C, dropout, query.device, generator)

    tensors: dict[str, Any] = {name: x.to(query.dtype) for name, x in zip(INPUTS, inputs, strict=True)}
    problem = Problem(**tensors, **options, real=real, all_real=all_real, dropout=dropout, dropout_masks=dropout_masks)
    if return_lse and impl == "sdpa":
        raise ValueError("return_lse must be False with impl='sdpa', whose kernels give no gradient of it: use another")
    output, lse = _implementation(impl, problem, return_lse)(problem)
    if output.dtype == torch.float32:
        output = output.to(autocast_dtype(query) or torch.float32)
    if len(terms) < len(COMPONENTS) and torch.is_grad_enabled() and not is_transformed():
        output = _WithZeroGradients.apply(output, *inputs)
        lse = _WithZeroGradients.apply(lse, *inputs) if return_lse else lse
    return (output, lse) if return_lse else output


def check_call(
    inputs: Sequence[Tensor],
    options: Mapping[str, Any],
    channel_beyond: str,
    *,
    segments: int | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
) -> None:
    """Raise a ValueError for a tensor or an option that does not fit; `segments` where the query has but a part.

    The inputs are the tensors of `mvpa_attention` in its order, the options those of `Problem`.
    """
    for name, tensor in zip(INPUTS, inputs, strict=True):
        if not isinstance(tensor, Tensor):
            hint = "" if name in ("query", "key", "value") else "; if its term is not in components, pass zeros"
            raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}{hint}")
    query, key, value, time_key, channel_key, *biases = inputs
    _check_tensors(query, key, value, biases)
    T, C = query.shape[1:3]
    channel_distance, channel_window = options["channel_distance"], options["channel_window"]
    check_switches(causal=options["causal"], dense_last_segment=options["dense_last_segment"])
    check_options(options["window"], channel_distance, dropout, impl, channel_window)
    if channel_window is not None and channel_window >= C:
        raise ValueError(f"channel_window must be None or from 1 to C - 1 = {C - 1} channels, got {channel_window}")
    if channel_beyond not in ("error", "clamp"):
        raise ValueError(f"channel_beyond must be 'error' or 'clamp', got {channel_beyond!r}")
    _check_table("time_key", time_key, key, needed=segments or T, two_sided=not options["causal"])
    needed = C if channel_beyond == "error" else 1
    _check_table("channel_key", channel_key, key, needed=needed, two_sided=channel_distance == "signed")


def checked_components(components: Iterable[str]) -> tuple[str, ...]:
    """The terms in the order of `COMPONENTS`, each once, or a ValueError that names the unknown one."""
    if not hasattr(components, "__iter__"):
        raise ValueError(f"components must be a subset of {COMPONENTS}, got {components!r}; [] takes none of them")
    terms = frozenset((components,) if isinstance(components, str) else components)
    if unknown := sorted(terms - set(COMPONENTS)):
        raise ValueError(f"components must be a subset of {COMPONENTS}, got unknown {', '.join(map(repr, unknown))}")
    return tuple(name for name in COMPONENTS if name in terms)


def check_options(
    window: int | None,
    channel_distance: str,
    dropout: float,
    impl: str = "auto",
    channel_window: int | None = None,
) -> None:
    """Raise a ValueError for an option out of range."""
    if channel_window is not None and (type(channel_window) is bool or not _is_whole(channel_window, 1)):
        raise ValueError(f"channel_window must be None or a whole number of at least 1 channel, got {channel_window!r}")
    if window is not None and not _is_whole(window, 0):
        raise ValueError(f"window must be None or at least 0 segments, a whole number, got {window!r}")
    if channel_distance not in ("absolute", "signed"):
        raise ValueError(f"channel_distance must be 'absolute' or 'signed', got {channel_distance!r}")
    if dropout is None or isinstance(dropout, str) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")
    if impl not in ("auto", *IMPLEMENTATIONS):
        raise ValueError(f"impl must be one of {('auto', *IMPLEMENTATIONS)}, got {impl!r}")


def _is_whole(number: Any, least: int) -> bool:
    """Whether it is a whole number, of Python, numpy, torch or a graph, and at least so large."""
    return (isinstance(number, int) or hasattr(number, "__index__")) and bool(number >= least)


def merged_mask(
    shape: tuple[int, int, int], channel_mask: Tensor | None, segment_mask: Tensor | None, token_mask: Tensor | None
) -> Tensor | None:
    """The tokens [B, T, C] that are real under every given mask; None when no mask is given."""
    B, T, C = shape
    real = None
    for name, mask, expected, spread in (
        ("channel_mask", channel_mask, (B, C), (slice(None), None, slice(None))),
        ("segment_mask", segment_mask, (B, T), (slice(None), slice(None), None)),
        ("token_mask", token_mask, (B, T, C), ()),
    ):
        if mask is not None:
            check_mask(name, mask, expected)
            spread_mask = mask[spread].expand(shape)
            real = spread_mask if real is None else real & spread_mask
    return real


def draw_dropout_masks(
    B: int, T: int, C: int, dropout: float, device: torch.device, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Keep masks [B, T] and [B, C]; a token is kept with probability 1 − dropout."""
    probability = (1.0 - dropout) ** 0.5
    # torch.compile does not take generator=None with sizes that it keeps open.
    source: dict[str, Any] = {"device": device}
    if generator is not None:
        source = {"device": generator.device, "generator": generator}
    keep_segment, keep_channel = ((torch.rand(B, size, **source) < probability).to(device) for size in (T, C))
    return keep_segment, keep_channel


def _implementation(impl: str, problem: Problem, needs_lse: bool) -> Callable[[Problem], tuple[Tensor, Tensor]]:
    name = impl
    if impl == "auto":
        name, reason = pick(problem, needs_lse)
        log_once(name, problem.query.device.type, reason)
    elif impl == "triton" and (reason_against := why_not_triton(problem)):
        raise RuntimeError(f"impl='triton' cannot run here: {reason_against}")
    if name == "triton":
        check_once(problem.query.device, autocast_dtype(problem.query) or problem.query.dtype)
    if name in ("separable", "sdpa") and is_transformed():
        raise RuntimeError(f"impl={name!r} cannot run here: {NEEDS_REFERENCE}")
    if name == "sdpa" and problem.channel_window is not None:
        raise RuntimeError(
            f"impl='sdpa' cannot run here: it has no channel_window, got {problem.channel_window}; use impl='separable'"
        )
    return _load(name)


def _load(name: str) -> Callable[[Problem], tuple[Tensor, Tensor]]:
    # Imported when it is first used, by statements: those torch.compile can follow.
    if name == "reference":
        from mvpa_ts.attention.reference import reference_attention as attention
    elif name == "separable":
        from mvpa_ts.attention.separable import separable_attention as attention
    elif name == "sdpa":
        from mvpa_ts.attention.sdpa import sdpa_attention as attention
    else:
        from mvpa_ts.attention.triton.operator import triton_attention as attention
    return attention


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, biases: Sequence[Tensor]) -> None:
    if query.ndim != 5 or 0 in query.shape:
        raise ValueError(f"query must be [B, T, C, H, d] with no empty axis, got shape {tuple(query.shape)}")
    if not query.is_floating_point():
        raise ValueError(f"query must be floating point, got {query.dtype}")
    B, T, C, H, d = query.shape
    for name, tensor in (("key", key), ("value", value)):
        if tensor.ndim != 5 or tensor.shape[:3] != (B, T, C) or tensor.shape[4] != d:
            raise ValueError(
                f"{name} must be [B, T, C, H_kv, d] = [{B}, {T}, {C}, H_kv, {d}] like query, "
                f"got shape {tuple(tensor.shape)}"
            )
    H_kv = key.shape[3]
    if value.shape[3] != H_kv:
        raise ValueError(f"value must have the {H_kv} heads of key, got {value.shape[3]}")
    if H_kv == 0 or H % H_kv:
        raise ValueError(f"the heads of query ({H}) must be a multiple of the heads of key ({H_kv})")
    for name, bias in zip(INPUTS[5:], biases, strict=True):
        if bias.shape != (H_kv, d):
            raise ValueError(f"{name} must be [H_kv, d] = [{H_kv}, {d}], got shape {tuple(bias.shape)}")


def _check_table(name: str, table: Tensor, key: Tensor, *, needed: int, two_sided: bool) -> None:
    H_kv, d = key.shape[3:]
    if table.ndim != 3 or table.shape[1:] != (H_kv, d):
        raise ValueError(f"{name} must be [R, H_kv, d] = [R, {H_kv}, {d}], got shape {tuple(table.shape)}")
    rows = table.shape[0]
    if two_sided and (rows % 2 == 0 or (rows - 1) // 2 < needed - 1):
        raise ValueError(f"{name} must have an odd number of rows R ≥ {2 * needed - 1} for signed use, got R = {rows}")
    if not two_sided and rows < needed:
        raise ValueError(f"{name} must have R ≥ {needed} rows, one for each distance, got R = {rows}")


# This folder is published alone, so it has a check of its own.
def check_switches(**switches: Any) -> None:
    """Raise ValueError for an argument that is neither True nor False."""
    for name, value in switches.items():
        if value not in (True, False):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_mask(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a ValueError for a mask of another type or shape."""
    if not isinstance(mask, Tensor):
        raise ValueError(f"{name} must be a bool tensor of shape {shape}, got {type(mask).__name__}")
    if mask.dtype != torch.bool or mask.shape != shape:
        raise ValueError(f"{name} must be a bool tensor of shape {shape}, got {mask.dtype} of {tuple(mask.shape)}")


def check_floats(name: str, tensor: Any, weight: Any) -> None:
    """Raise a ValueError for what is no tensor of floats, or of another precision than the weights."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}: give torch.as_tensor({name})")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must hold floats, got {tensor.dtype}: give {name}.float()")
    precision = getattr(weight, "dtype", tensor.dtype)  # quantised layers have a method in its place
    cast = torch.float64 not in (tensor.dtype, precision) and autocast_dtype(tensor) is not None
    if tensor.dtype != precision and not cast:
        raise ValueError(
            f"{name} must have the precision of the weights, {precision}, got {tensor.dtype}: give "
            f"{name}.to({precision})"
        )


class _WithZeroGradients(torch.autograd.Function):
    """Pass `output` on and give every other input a zero gradient where the graph would give it None."""

    # torch.func gives zeros by itself. torch.compile takes no function with a derivative in forward mode.

    @staticmethod
    def forward(output: Tensor, *inputs: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        zeros = (
            torch.zeros_like(x) if need else None
            for x, need in zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        )
        return (grads[0], *zeros)
