"""What the attention tests share: cases, inputs, the direct evaluation, and the rule for low precision."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mvpa_ts import mvpa_attention

INPUTS = ("query", "key", "value", "time_key", "channel_key", "content_bias", "time_bias", "channel_bias")
COMPONENT_SUBSETS = tuple(
    subset for size in range(4) for subset in itertools.combinations(("content", "time", "channel"), size)
)
FACTORS: dict[str, Sequence[Any]] = {
    "shape": ((1, 1), (7, 1), (1, 5), (13, 19), (25, 7), (17, 33)),
    "groups": (1, 2, 4),
    "window": (None, 0, 3, 10),
    "causal": (True, False),
    "dense_last_segment": (False, True),
    "masks": ("none", "all"),
    "dropout": (0.0, 0.4),
    "components": COMPONENT_SUBSETS,
}
EXTRA_FACTORS: dict[str, Sequence[Any]] = {
    **FACTORS,
    "masks": ("none", "all", "channel", "segment", "token"),
    "channel_distance": ("absolute", "signed"),
}
# Of `Case`; its sizes differ from test to test.
RANDOM_OPTIONS: dict[str, st.SearchStrategy] = {
    "causal": st.booleans(),
    "dense_last_segment": st.booleans(),
    "masks": st.sampled_from(EXTRA_FACTORS["masks"]),
    "dropout": st.sampled_from((0.0, 0.3)),
    "channel_distance": st.sampled_from(EXTRA_FACTORS["channel_distance"]),
}


@dataclass(frozen=True)
class Case:
    """One way to call `mvpa_attention`."""

    shape: tuple[int, int] = (4, 3)
    groups: int = 1
    window: int | None = None
    causal: bool = True
    dense_last_segment: bool = False
    masks: str = "none"
    dropout: float = 0.0
    components: tuple[str, ...] = ("content", "time", "channel")
    channel_distance: str = "absolute"
    channel_window: int | None = None
    channel_reach: int | None = None  # the table's last distance; None: further than needed
    batch: int = 2
    kv_heads: int = 2
    head_dim: int = 4
    seed: int = 0

    def __str__(self) -> str:
        words = [f"T{self.shape[0]}-C{self.shape[1]}-G{self.groups}-window{self.window}"]
        words.append("causal" if self.causal else "bidirectional")
        words.extend(["dense"] if self.dense_last_segment else [])
        words.append(f"masks_{self.masks}")
        words.extend(["dropout"] if self.dropout else [])
        words.append("+".join(self.components) or "uniform")
        words.extend([] if self.channel_window is None else [f"neighbours{self.channel_window}"])
        words.extend([] if self.channel_reach is None else [f"reach{self.channel_reach}"])
        return "-".join([*words, self.channel_distance])

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """The eight tensors, leaves that need gradients; tables are one row longer (or wider) than needed."""
        T, C = self.shape
        B, H_kv, d = self.batch, self.kv_heads, self.head_dim
        time_rows = T + 1 if self.causal else 2 * T + 1
        reach = C if self.channel_reach is None else self.channel_reach
        channel_rows = 2 * reach + 1 if self.channel_distance == "signed" else reach + 1
        shapes = [(B, T, C, H_kv * self.groups, d), *2 * [(B, T, C, H_kv, d)]]
        shapes += [(time_rows, H_kv, d), (channel_rows, H_kv, d), *3 * [(H_kv, d)]]
        generator = torch.Generator().manual_seed(self.seed)
        return [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
        ]

    def options(self) -> dict[str, Any]:
        """Keyword arguments; dropout comes with given masks, which every implementation must follow."""
        T, C = self.shape
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return torch.rand(self.batch, *shape, generator=generator) < 0.7

        drawn = {"channel": draw(C), "segment": draw(T), "token": draw(T, C)}
        keep = draw(T), draw(C)
        options: dict[str, Any] = {f"{name}_mask": mask for name, mask in drawn.items() if self.masks in (name, "all")}
        if self.dropout:
            options |= {"dropout": self.dropout, "dropout_masks": keep}
        if self.channel_reach is not None:
            options["channel_beyond"] = "clamp"
        names = ("causal", "window", "dense_last_segment", "components", "channel_distance", "channel_window")
        return options | {name: value for name, value in asdict(self).items() if name in names}

    def real(self) -> Tensor:
        """The tokens [B, T, C] that no mask takes away."""
        T, C = self.shape
        options = self.options()
        real = options.get("token_mask", torch.ones(self.batch, T, C, dtype=torch.bool))
        real = real & options.get("segment_mask", torch.ones(self.batch, T, dtype=torch.bool))[:, :, None]
        return real & options.get("channel_mask", torch.ones(self.batch, C, dtype=torch.bool))[:, None]

    def evaluate(self, impl: str, dtype: torch.dtype = torch.float64, **options: Any) -> dict[str, Tensor]:
        """The output and every gradient, by name."""
        inputs = self.inputs(dtype)
        output = mvpa_attention(*inputs, impl=impl, **(self.options() | options))
        assert output.dtype == dtype
        generator = torch.Generator().manual_seed(2)
        cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(dtype)
        gradients = torch.autograd.grad(output, inputs, cotangent)
        return {"output": output.detach()} | dict(zip(INPUTS, gradients, strict=True))


class Returned(TorchDispatchMode):
    """Elements of the largest tensor that an operation returned, and of all: what the arithmetic went through."""

    largest = total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
                self.total += leaf.numel()
        return result


def covering_cases(factors: Mapping[str, Sequence[Any]], **fixed: Any) -> list[Case]:
    """Cases in which every two values of every two factors meet at least once."""
    names = list(factors)
    missing = {
        (first, second, i, j)
        for first, second in itertools.combinations(names, 2)
        for i in range(len(factors[first]))
        for j in range(len(factors[second]))
    }
    cases = []
    while missing:
        # Start from one missing pair, then give each other factor the value that meets most missing pairs.
        first, second, i, j = min(missing)
        chosen = {first: i, second: j}
        for name in sorted(set(names) - chosen.keys(), key=lambda name: (-len(factors[name]), name)):
            chosen[name] = max(
                range(len(factors[name])),
                key=lambda value: len(missing & set(_pairs(names, chosen | {name: value}))),
            )
        missing -= set(_pairs(names, chosen))
        cases.append(Case(**{name: factors[name][value] for name, value in chosen.items()}, **fixed))
    return cases


def _pairs(names: Sequence[str], chosen: Mapping[str, int]) -> Iterator[tuple[str, str, int, int]]:
    present = [name for name in names if name in chosen]
    return ((a, b, chosen[a], chosen[b]) for a, b in itertools.combinations(present, 2))


def direct_attention(case: Case) -> Tensor:
    """Equation (1) term by term: loops over samples and heads, queries, keys; no tensor algebra but the dot product."""
    query, key, value, time_key, channel_key, u, v, w = (tensor.detach() for tensor in case.inputs())
    T, C = case.shape
    real = case.real().tolist()
    everything = torch.ones(case.batch, T), torch.ones(case.batch, C)
    keep_segment, keep_channel = (mask.tolist() for mask in case.options().get("dropout_masks", everything))

    def logit(b: int, h: int, t: int, c: int, s: int, e: int) -> float:
        kv = h // case.groups
        q = query[b, t, c, h]
        total = 0.0
        in_window = case.window is None or abs(t - s) <= case.window
        in_channel_window = case.channel_window is None or abs(c - e) <= case.channel_window
        in_window = in_window or (case.dense_last_segment and t == T - 1)
        if "content" in case.components and in_window and in_channel_window:
            total += float((q + u[kv]) @ key[b, s, e, kv])
        if "time" in case.components:
            row = t - s if case.causal else t - s + (len(time_key) - 1) // 2
            total += float((q + v[kv]) @ time_key[row, kv])
        if "channel" in case.components:
            reach = C if case.channel_reach is None else case.channel_reach
            distance = max(-reach, min(reach, c - e))
            row = abs(distance) if case.channel_distance == "absolute" else distance + reach
            total += float((q + w[kv]) @ channel_key[row, kv])
        return total / math.sqrt(case.head_dim)

    output = torch.zeros_like(query)
    tokens = list(itertools.product(range(T), range(C)))
    for b, h in itertools.product(range(case.batch), range(query.shape[3])):
        for t, c in tokens:
            keys = [(s, e) for s, e in tokens if real[b][s][e] and (s <= t or not case.causal)]
            if not keys or not real[b][t][c]:
                continue
            exponentials = [math.exp(logit(b, h, t, c, s, e)) for s, e in keys]
            for (s, e), exponential in zip(keys, exponentials, strict=True):
                if keep_segment[b][s] and keep_channel[b][e]:
                    weight = exponential / sum(exponentials) / (1.0 - case.dropout)
                    output[b, t, c, h] += weight * value[b, s, e, h // case.groups]
    return output


def assert_equals_reference(
    case: Case, impl: str, dtype: torch.dtype = torch.float64, atol: float = 1e-10, rtol: float = 1e-9
) -> None:
    """Output and every gradient, against the reference in float64."""
    actual = {name: x.double() for name, x in case.evaluate(impl, dtype).items()}
    torch.testing.assert_close(actual, case.evaluate("reference"), atol=atol, rtol=rtol)


def assert_compiled_same(
    module: nn.Module, compiled: Callable[..., Tensor], *tensors: Tensor, atol: float, rtol: float, **options: Any
) -> None:
    """Outputs and gradients; the compiled one first, as by a user, before an eager call leaves anything."""
    leaves, results = [x for x in (*tensors, *module.parameters()) if x.requires_grad], []
    for call in (compiled, module):
        torch.manual_seed(1)  # of dropout
        output = call(*tensors, **options)
        gradients = torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
        results.append([output.detach(), *(gradient for gradient in gradients if gradient is not None)])
    torch.testing.assert_close(*results, atol=atol, rtol=rtol)


def assert_masked_nan_reaches_nothing(
    case: Case, impl: str, dtype: torch.dtype = torch.float64, atol: float = 1e-12
) -> None:
    """NaN in masked tokens and in their cotangent change no result and no gradient; theirs are zero."""
    real = case.real()

    def evaluate(poison: float) -> list[Tensor]:
        inputs = case.inputs(dtype)
        cotangent = torch.ones_like(inputs[0])
        for tensor in (*(x.data for x in inputs[:3]), cotangent):
            tensor[~real] = poison
        output = mvpa_attention(*inputs, impl=impl, **case.options())
        return [output.detach(), *torch.autograd.grad(output, inputs, cotangent)]

    clean, poisoned = evaluate(0.0), evaluate(float("nan"))
    torch.testing.assert_close(poisoned, clean, atol=atol, rtol=0)
    for tensor in poisoned[:4]:  # the output and the gradients of query, key and value
        assert (tensor[~real] == 0).all()


def assert_zeros_without_a_key(case: Case, impl: str, dtype: torch.dtype = torch.float64) -> None:
    """A sample without any real token, and early queries whose only keys are later in time."""
    inputs = case.inputs(dtype)
    segment_mask = torch.tensor([[False] * 5, [False, False, True, True, True]])
    output = mvpa_attention(*inputs, impl=impl, causal=case.causal, window=1, segment_mask=segment_mask)
    assert (output[0] == 0).all()
    assert (output[1, :2] == 0).all()
    assert (output[1, 2:] != 0).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), inputs))


def assert_as_accurate_as_reference(
    actual: Tensor, reference: Tensor, exact: Tensor, name: str = "result", times: float = 2.0
) -> None:
    """Hold `actual` to so many times the error that the reference makes in the same precision.

    The error is the root mean square: in a small tensor the largest error is a matter of luck. One rounding of the
    largest number is always granted, for cases in which the reference happens to be exact.
    """
    assert actual.dtype == reference.dtype, f"{name}: {actual.dtype} against {reference.dtype}"
    assert actual.shape == reference.shape == exact.shape, f"{name}: {actual.shape}, {reference.shape}, {exact.shape}"
    error, reference_error = ((x.double() - exact).square().mean().sqrt().item() for x in (actual, reference))
    allowed = max(times * reference_error, torch.finfo(actual.dtype).eps * exact.abs().max().item())
    # Written so that NaN fails.
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"
