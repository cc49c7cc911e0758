"""Tables of what was measured for scaling.py, and of what follows from it for whole training runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from harness.scaling.formulas import (
    SIZES,
    activation_bytes,
    attention_flop,
    state_bytes,
    traffic_bytes,
    training_flop,
)

from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES, SEGMENT_SECONDS
from mvpa_ts.ieeg.datasets.cohort import PAPER_TRAIN
from mvpa_ts.ieeg.model.configuration import MVPFormerConfig
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.recordings.swec_table import SWEC_DUPLICATES, SwecSubject, swec_subjects

PAPER_SET = "the paper's 18 for training"


def channel_segments(subjects: Iterable[SwecSubject]) -> int:
    """Distinct 5 s segments of one channel; each lies in up to 100 windows."""
    return round(sum(subject.channels * subject.hours * 3600 / SEGMENT_SECONDS for subject in subjects))


# From the paper's table, which states the channels and hours of each subject.
SEGMENTS = {
    "all 68 subjects": channel_segments(swec_subjects()),
    "without the 18 duplicates": channel_segments(s for s in swec_subjects() if s.subject not in SWEC_DUPLICATES),
    PAPER_SET: channel_segments(s for s in swec_subjects() if s.subject in PAPER_TRAIN),
}
CONTEXT, CHANNELS = 100, 88
GPUS = (1, 8, 64, 512)
BATCH = 8  # windows of one GPU in a step
SHARED = 2048  # segments that each GPU adds to the common pool of negatives
# Assumed, not measured: what a current data-centre GPU may sustain in bfloat16.
ASSUMED_FLOPS = 2e14
MEMORY = {"40 GB": 40e9, "80 GB": 80e9}
# Stated by the paper for MVPFormer-M: steps, GPUs, days; and the data sheet's peak of an A100 in bfloat16.
PAPER_STEPS, PAPER_GPUS, PAPER_DAYS, A100_FLOPS = 1.2e6, 8, 14, 312e12
CHINCHILLA = 20  # tokens for each parameter


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


def markdown(fits: dict[str, dict[str, float]], checks: list[dict[str, object]], machine: str) -> str:
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
        "Kept for the backward pass, for a token: slope over the cases in `scaling.json`; the last column is the loss:",
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
        for strategy in ("ddp", "ZeRO, stage 2", "fsdp")
    ]
    yield _table(["", "strategy", *(f"state, {g} GPU" for g in GPUS), "a window", "checkpointing"], rows)
    if "M" in configs:
        state = state_bytes(parameters["M"], blocks["M"], "ZeRO, stage 2", PAPER_GPUS)
        each = window * activation_bytes(fits["M"], configs["M"], "bfloat16", checkpointing=False)
        yield from _paper_budget(window * flop["M"], window, (0.9 * MEMORY["80 GB"] - state) / each, parameters)
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


def _paper_budget(window_flop: float, tokens: int, fitting: float, parameters: dict[str, int]) -> Iterator[str]:
    """What the paper's steps, GPUs and days allow for a batch, whose size it does not state."""
    seconds = PAPER_DAYS * 86400 / PAPER_STEPS
    yield (
        f"### The paper's own budget\n\nMVPFormer-M: {PAPER_STEPS / 1e6:.1f} million steps on {PAPER_GPUS} A100 of "
        f"80 GB in two weeks, so {seconds:.2f} s a step. The batch is not stated. Without checkpointing, and with "
        f"gradients and moments divided, {fitting:.1f} windows fit on a GPU. Speed is what each GPU would have to "
        f"sustain; its data sheet says {A100_FLOPS / 1e12:.0f} TFLOP/s. Passes are over the tokens of the set above."
    )
    rows = []
    for windows in (1, 2):
        total = PAPER_STEPS * PAPER_GPUS * windows * tokens
        speed = windows * window_flop / seconds
        passes = [f"{total / (SEGMENTS[name] * CONTEXT):.1f}" for name in SEGMENTS]
        rows.append([windows, f"{total / 1e9:.0f} G", f"{speed / 1e12:.0f}", f"{speed / A100_FLOPS:.0%}", *passes])
    names = [f"passes, {name}" for name in SEGMENTS]
    yield _table(["windows a GPU", "tokens seen", "TFLOP/s", "of the peak", *names], rows)
    wanted = ", ".join(f"{count * CHINCHILLA / 1e9:.1f} G for {size}" for size, count in parameters.items())
    yield (
        f"The paper counts 39 G segments, each as often as windows hold it. All 68 subjects have "
        f"{SEGMENTS['all 68 subjects'] * CONTEXT / 1e9:.2f} G of these; the 18 that it trains on have "
        f"{SEGMENTS[PAPER_SET] * CONTEXT / 1e9:.2f} G. Its second count, 400 million tokens "
        f"where Chinchilla's rule asks for 2 billion, is that of distinct segments, and again fits all 68 subjects "
        f"({SEGMENTS['all 68 subjects'] / 1e6:.1f} M) and not the 18 "
        f"({SEGMENTS[PAPER_SET] / 1e6:.1f} M). {CHINCHILLA} tokens for each parameter are {wanted}."
    )


def _table(heads: list[str], rows: list[list[object]]) -> str:
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
