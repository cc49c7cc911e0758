"""What pretraining MVPFormer-S and -M on the whole SWEC set takes: bytes, operations, steps, memory, traffic.

Operations and bytes kept for the backward pass are counted on small contexts and one or two layers, on a CPU, and
fitted by a formula that is then checked on a larger case. Everything beyond is arithmetic with that formula; no GPU was
used, and a GPU's speed appears only as an assumed number of operations a second.

    python experiments/scaling.py            # results/scaling.json and .md, and the tables in docs/scaling.md
    python experiments/scaling.py --quick    # the small cases of S only, written nowhere
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from forecasting import hardware
from forecasting_report import RESULTS
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mvpa_ts.files import write_text
from mvpa_ts.ieeg.configuration import SEGMENT_SAMPLES, MVPFormerConfig, mvpformer_m, mvpformer_s
from mvpa_ts.ieeg.contrastive import info_nce
from mvpa_ts.ieeg.model import MVPFormer

SIZES: dict[str, Callable[..., MVPFormerConfig]] = {"S": mvpformer_s, "M": mvpformer_m}
CASES = ((6, 4), (12, 4), (12, 8), (24, 4), (24, 8))  # segments, channels
CHECK = (32, 16)
WAVELET = 2610
# Distinct 5 s channel segments of the SWEC set, as given, for it was not at hand; each lies in up to 100 windows.
SEGMENTS = {"all 68 subjects": 388.5e6, "without the 18 duplicates": 274.5e6, "the paper's 18 for training": 114.0e6}
CONTEXT, CHANNELS = 100, 88
GPUS = (1, 8, 64, 512)
BATCH = 8  # windows of one GPU in a step
SHARED = 2048  # segments that each GPU adds to the common pool of negatives
# Assumed, not measured: what a current data-centre GPU may sustain in bfloat16.
ASSUMED_FLOPS = 2e14
MEMORY = {"40 GB": 40e9, "80 GB": 80e9}


PAGE = RESULTS.parents[1] / "docs" / "scaling.md"


@dataclass(frozen=True)
class Case:
    """One measured forward and backward pass."""

    size: str
    layers: int
    segments: int
    channels: int
    precision: str
    forward_flop: int
    training_flop: int
    kept_bytes: int
    seconds: float


def main() -> None:
    """Measure, fit, check, extrapolate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few small cases of S, nothing written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    sizes = ["S"] if arguments.quick else list(SIZES)
    shapes = CASES[:2] if arguments.quick else CASES
    cases = [
        measure(size, layers, T, C, precision)
        for size in sizes
        for T, C in shapes
        for layers in (1, 2)
        for precision in ("float32", "bfloat16")
    ]
    fits = {size: fit(size, [case for case in cases if case.size == size]) for size in sizes}
    checks = [] if arguments.quick else [check(size, fits[size]) for size in sizes]
    machine = f"{hardware('cpu')}; 1 thread, torch {torch.__version__}"
    report = markdown(cases, fits, checks, machine)
    print(report)
    if not arguments.quick:
        content = {"machine": machine, "cases": [asdict(case) for case in cases], "fits": fits, "checks": checks}
        write_text(RESULTS / "scaling.json", json.dumps(content, indent=1) + "\n")
        write_text(RESULTS / "scaling.md", report)
        write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), report))


def filled(page: str, report: str) -> str:
    """The page with the report's tables, one heading level down, but for those of single cases."""
    before, _, rest = page.partition("<!-- tables -->\n")
    _, _, after = rest.partition("<!-- end -->")
    tables = report[report.index("Kept for the backward pass") :]
    fitted = "\n".join(f"#{line}" if line.startswith("##") else line for line in tables.splitlines()) + "\n"
    return f"{before}<!-- tables -->\n{fitted}<!-- end -->{after}"


def measure(size: str, layers: int, T: int, C: int, precision: str) -> Case:
    """Forward and backward pass of the prediction on one window, and what it keeps in between."""
    model = MVPFormer(SIZES[size](num_layers=layers)).train()
    for block in model.stack.blocks:
        block.attention.impl = "separable"  # linear in memory, as the kernels are
    signal = 50 * torch.randn(1, C, T * SEGMENT_SAMPLES)
    with FlopCounterMode(display=False) as counter:
        prediction = _predict(model, signal, precision)
        forward = counter.get_total_flops()
        prediction.float().square().mean().backward()
        total = counter.get_total_flops()
    with _kept(model) as kept:
        prediction = _predict(model, signal, precision)
    seconds = []
    for _ in range(3):
        model.zero_grad()
        started = time.perf_counter()
        _predict(model, signal, precision).float().square().mean().backward()
        seconds.append(time.perf_counter() - started)
    return Case(size, layers, T, C, precision, forward, total, sum(kept.values()), statistics.median(seconds))


def _predict(model: MVPFormer, signal: Tensor, precision: str) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        return model.predict_next(signal)


@contextmanager
def _kept(model: MVPFormer) -> Iterator[dict[int, int]]:
    """Bytes of the storages that autograd keeps for the backward pass, parameters left out."""
    sizes: dict[int, int] = {}
    held: list[Tensor] = []  # so that no address is used again while it is counted
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes
    held.clear()


def dense_flop(config: MVPFormerConfig) -> tuple[float, float]:
    """Operations of the linear maps for a token, forward: of encoder and head, and of one layer."""
    kv = config.num_kv_heads * (config.dim // config.num_heads)
    layer = 2 * config.dim * (2 * config.dim + 2 * kv + 3 * config.mlp_dim)
    return 2 * config.dim * (WAVELET + config.dim), layer


def pairs(T: int, C: int, window: int = 10) -> tuple[float, float]:
    """Query–key pairs of one head with and without content, causal, the last segment dense."""
    near = sum(min(t, window) + 1 for t in range(T - 1)) + T
    return near * C * C, (T * (T + 1) // 2 - near) * C * C


def attention_flop(config: MVPFormerConfig, T: int, C: int) -> tuple[float, float]:
    """Operations of one layer's pairs, forward and with backward; 4·d and 14·d near, 2·d and 6·d far."""
    near, far = pairs(T, C)
    return config.dim * (4 * near + 2 * far), config.dim * (14 * near + 6 * far)


def training_flop(config: MVPFormerConfig, T: int, C: int, extra: float = 1.0) -> float:
    """Operations of forward and backward of one window; `extra` is what the counted pairs exceed the formula's by."""
    outer, layer = dense_flop(config)
    attention = extra * attention_flop(config, T, C)[1]
    # The encoder's input needs no gradient: 2 of 3 products there.
    encoder = 2 * config.dim * WAVELET
    return T * C * (3 * outer - encoder + 3 * config.num_layers * layer) + config.num_layers * attention


def fit(size: str, cases: list[Case]) -> dict[str, float]:
    """Bytes kept a token, by layer and outside, and what counted operations exceed the formula by."""
    result: dict[str, float] = {}
    by_key = {(c.layers, c.segments, c.channels, c.precision): c for c in cases}
    shapes = sorted({(c.segments, c.channels) for c in cases})
    tokens = np.array([T * C for T, C in shapes], dtype=float)
    for precision in ("float32", "bfloat16"):
        one, two = (
            np.array([by_key[layers, T, C, precision].kept_bytes for T, C in shapes], dtype=float) for layers in (1, 2)
        )
        # The slope over tokens: weights cast to bfloat16 are kept too, but once.
        result[f"layer_bytes_{precision}"] = float(np.polyfit(tokens, two - one, 1)[0])
        result[f"outside_bytes_{precision}"] = float(np.polyfit(tokens, 2 * one - two, 1)[0])
    config = SIZES[size](num_layers=1)
    counted, expected = 0.0, 0.0
    for T, C in shapes:
        counted += by_key[2, T, C, "float32"].training_flop - by_key[1, T, C, "float32"].training_flop
        expected += training_flop(SIZES[size](num_layers=2), T, C) - training_flop(config, T, C)
    result["counted_over_formula"] = counted / expected
    result["loss_bytes"] = loss_bytes(config.dim)
    largest = by_key[2, *shapes[-1], "float32"]
    result["cpu_flop_per_second"] = largest.training_flop / largest.seconds
    return result


def check(size: str, fitted: dict[str, float]) -> dict[str, object]:
    """The formula against a count it was not made from: four layers, a larger context."""
    T, C = CHECK
    case = measure(size, 4, T, C, "float32")
    flop = training_flop(SIZES[size](num_layers=4), T, C)
    kept = T * C * (4 * fitted["layer_bytes_float32"] + fitted["outside_bytes_float32"])
    return {
        "size": size,
        "layers": 4,
        "segments": T,
        "channels": C,
        "flop": flop / case.training_flop,
        "bytes": kept / case.kept_bytes,
    }


def loss_bytes(D: int, B: int = 2, T: int = 12, C: int = 8) -> float:
    """Bytes that the loss keeps for the backward pass, for a token."""
    prediction, embeddings = torch.randn(B, 1, T, C, D, requires_grad=True), torch.randn(B, T + 1, C, D)
    sizes: dict[int, int] = {}
    held = []

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor)
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        info_nce(prediction, embeddings)
    return sum(sizes.values()) / (B * T * C)


def activation_bytes(fitted: dict[str, float], config: MVPFormerConfig, precision: str, checkpointing: bool) -> float:
    """Bytes kept for a token between forward and backward pass; with checkpointing a layer's input and one layer."""
    layer, outside = fitted[f"layer_bytes_{precision}"], fitted[f"outside_bytes_{precision}"]
    layers = config.num_layers * 4 * config.dim + layer if checkpointing else config.num_layers * layer
    return layers + outside + fitted["loss_bytes"]


def state_bytes(parameters: float, block: float, strategy: str, gpus: int) -> float:
    """Weights, gradients and AdamW's moments of one GPU, in float32, and the strategy's buffers."""
    if strategy == "ddp":  # gradients once more, in the buckets that are reduced
        return parameters * (16 if gpus == 1 else 20)
    if strategy == "deepspeed_stage_2":  # gradients and moments divided
        return parameters * (4 + 12 / gpus)
    return parameters * 16 / gpus + 2 * 8 * block  # fsdp: all divided; two blocks' weights and gradients whole


def traffic_bytes(parameters: float, strategy: str, gpus: int) -> float:
    """Bytes that one GPU sends in a step: a ring all-reduce of gradients, or gathers and scatters of the parts."""
    share = (gpus - 1) / gpus
    return parameters * 4 * share * (3 if strategy == "fsdp" else 2)


def markdown(
    cases: list[Case], fits: dict[str, dict[str, float]], checks: list[dict[str, object]], machine: str
) -> str:
    """All tables: measured ones first, arithmetic after."""
    configs = {size: SIZES[size]() for size in fits}
    parameters, blocks = {}, {}
    for size, config in configs.items():
        with torch.device("meta"):
            model = MVPFormer(config)
        parameters[size] = sum(p.numel() for p in model.parameters())
        blocks[size] = sum(p.numel() for p in model.stack.blocks[0].parameters())
    sections = [
        "## Measured",
        _table(
            ["size", "layers", "T × C", "precision", "forward GFLOP", "with backward", "kept MB", "s (busy machine)"],
            [
                [
                    case.size,
                    case.layers,
                    f"{case.segments} × {case.channels}",
                    case.precision,
                    f"{case.forward_flop / 1e9:.2f}",
                    f"{case.training_flop / 1e9:.2f}",
                    f"{case.kept_bytes / 1e6:.2f}",
                    f"{case.seconds:.3f}",
                ]
                for case in cases
            ],
        ),
        "Kept for the backward pass, for a token, slope over the cases above; the last column from the loss alone:",
        _table(
            ["size", "a layer, float32", "outside, float32", "a layer, bfloat16", "outside, bfloat16", "loss"],
            [
                [
                    size,
                    *(
                        f"{fitted[f'{part}_bytes_{precision}'] / 1e3:.1f} kB"
                        for precision in ("float32", "bfloat16")
                        for part in ("layer", "outside")
                    ),
                    f"{fitted['loss_bytes'] / 1e3:.1f} kB",
                ]
                for size, fitted in fits.items()
            ],
        ),
    ]
    if checks:
        sections += [
            "The formula and the fit against a count they were not made from:",
            _table(
                ["size", "layers", "T × C", "FLOP, formula / counted", "bytes, fit / counted"],
                [
                    [
                        item["size"],
                        item["layers"],
                        f"{item['segments']} × {item['channels']}",
                        f"{item['flop']:.3f}",
                        f"{item['bytes']:.3f}",
                    ]
                    for item in checks
                ],
            ),
        ]
    sections += [f"Measured on {machine}.", "## Arithmetic", *_arithmetic(configs, parameters, blocks, fits)]
    return "\n\n".join(sections) + "\n"


def _arithmetic(
    configs: dict[str, MVPFormerConfig],
    parameters: dict[str, int],
    blocks: dict[str, int],
    fits: dict[str, dict[str, float]],
) -> Iterator[str]:
    window = CONTEXT * CHANNELS
    flop = {size: training_flop(config, CONTEXT, CHANNELS) / window for size, config in configs.items()}
    shape = f"{CONTEXT} segments × {CHANNELS} channels"
    yield f"### The set\n\nWindows of {shape}; a step of one GPU reads {BATCH} windows."
    rows = []
    for name, segments in SEGMENTS.items():
        tokens = segments * CONTEXT
        row = [
            name,
            f"{segments / 1e6:.1f} M",
            f"{segments * SEGMENT_SAMPLES * 4 / 1e12:.2f} TB",
            f"{tokens / 1e9:.2f} G",
        ]
        row += [f"{tokens * flop[size]:.2e}" for size in configs]
        row += [f"{tokens / (window * BATCH * gpus):,.0f}" for gpus in GPUS]
        rows.append(row)
    heads = [
        "",
        "segments",
        "float32",
        "tokens",
        *(f"{size}: FLOP" for size in configs),
        *(f"steps, {g} GPU" for g in GPUS),
    ]
    yield _table(heads, rows)
    yield (
        f"### Time\n\nDays for one pass over all tokens at an assumed {ASSUMED_FLOPS / 1e12:.0f} · 10¹² operations a "
        "second and GPU; gradient checkpointing adds a third. Segments a second are what one GPU then needs of the "
        "loader, and what it reads, with 1, 20 and 100 windows from a span."
    )
    rows = []
    for size in configs:
        rate = ASSUMED_FLOPS / flop[size]  # tokens a second
        days = [f"{SEGMENTS['all 68 subjects'] * CONTEXT / rate / gpus / 86400:,.2f}" for gpus in GPUS]
        segments = [rate * (CONTEXT + windows) / (CONTEXT * windows) for windows in (1, 20, 100)]
        reads = [f"{s:,.0f} / {s * SEGMENT_SAMPLES * 4 / 1e6:,.0f} MB/s" for s in segments]
        rows.append([size, f"{flop[size] / 1e6:,.0f}", *days, *reads])
    yield _table(["", "MFLOP a token", *(f"days, {g} GPU" for g in GPUS), "segments/s, 1 window", "20", "100"], rows)
    yield (
        "### Memory\n\nGB of one GPU for weights, gradients and AdamW in float32 with the strategy's buffers, and for "
        f"the activations of one window of {shape} in bfloat16, kept or recomputed (checkpointing)."
    )
    rows = [
        [
            size,
            strategy,
            *(f"{state_bytes(parameters[size], blocks[size], strategy, gpus) / 1e9:.2f}" for gpus in GPUS),
            *(
                f"{window * activation_bytes(fits[size], configs[size], 'bfloat16', checkpointing) / 1e9:.1f}"
                for checkpointing in (False, True)
            ),
        ]
        for size in configs
        for strategy in ("ddp", "deepspeed_stage_2", "fsdp")
    ]
    yield _table(["", "strategy", *(f"state, {g} GPU" for g in GPUS), "a window", "checkpointing"], rows)
    yield (
        "### The longest context\n\nTokens of one window whose activations fit beside the state, without and with "
        "checkpointing; 10 % of the memory is left free. The codebooks of 110 × 128 rows end at 14,080 tokens."
    )
    rows = []
    for size in configs:
        for strategy, gpus in (("ddp", 1), ("fsdp", 8), ("fsdp", 512)):
            state = state_bytes(parameters[size], blocks[size], strategy, gpus)
            fitting = [
                (0.9 * memory - state) / activation_bytes(fits[size], configs[size], "bfloat16", checkpointing)
                for memory in MEMORY.values()
                for checkpointing in (False, True)
            ]
            rows.append([size, f"{strategy}, {gpus} GPU", *(f"{max(0.0, tokens):,.0f}" for tokens in fitting)])
    yield _table(["", "", *(f"{memory}{c}" for memory in MEMORY for c in ("", ", checkpointing"))], rows)
    yield "Operations of a training step for a token, by context, and the part of them that is attention:"
    rows = []
    for T, C in ((100, 32), (100, 88), (100, 128), (200, 128), (400, 256)):
        row: list[object] = [f"{T} × {C}", f"{T * C:,}"]
        for config in configs.values():
            total = training_flop(config, T, C)
            part = config.num_layers * attention_flop(config, T, C)[1] / total
            row.append(f"{total / (T * C) / 1e6:,.0f} MFLOP, {part:.0%}")
        rows.append(row)
    yield _table(["T × C", "tokens", *configs], rows)
    yield (
        "### Traffic\n\nGB that one GPU sends in a step for gradients and weights, and receives for "
        f"`shared_negatives: {SHARED}`."
    )
    rows = [
        [
            size,
            strategy,
            *(f"{traffic_bytes(parameters[size], strategy, gpus) / 1e9:.2f}" for gpus in GPUS[1:]),
            *(f"{(gpus - 1) * SHARED * 4 * configs[size].dim / 1e9:.2f}" for gpus in GPUS[1:]),
        ]
        for size in configs
        for strategy in ("ddp", "fsdp")
    ]
    yield _table(["", "", *(f"{g} GPU" for g in GPUS[1:]), *(f"negatives, {g} GPU" for g in GPUS[1:])], rows)


def _table(heads: list[str], rows: list[list[object]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    main()
