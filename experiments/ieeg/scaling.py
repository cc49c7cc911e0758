"""Cost of pretraining MVPFormer-S and -M on the whole SWEC set: bytes, operations, steps, memory, traffic.

Operations and bytes kept for the backward pass are counted on small contexts and one or two layers, on a CPU, and
fitted by a formula that is then checked on a larger case. Everything beyond is arithmetic with that formula; no GPU was
used, and a GPU's speed appears only as an assumed number of operations a second.

    python experiments/ieeg/scaling.py  # results/scaling/scaling.json and .md
    python experiments/ieeg/scaling.py --quick  # the small cases of S only, written nowhere
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import torch
from harness.command_line import script_parser
from harness.scaling.formulas import SIZES, training_flop
from harness.scaling.report import Case, markdown
from harness.tables import hardware, results_folder
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mvpa_ts.files import write_text
from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.training.contrastive import info_nce

CASES = ((6, 4), (12, 4), (12, 8), (24, 4), (24, 8))  # segments, channels
CHECK = (32, 16)


def main() -> None:
    """Measure, fit, check, extrapolate."""
    parser = script_parser(__doc__, "few small cases of S, nothing written")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the tables from scaling.json")
    arguments = parser.parse_args()
    if arguments.report:
        record = json.loads((results_folder("scaling") / "scaling.json").read_text(encoding="utf-8"))
        report = markdown(record["fits"], record["checks"], record["machine"])
        write_text(results_folder("scaling") / "scaling.md", report)
        return
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
    machine = f"{hardware()}; 1 thread, torch {torch.__version__}"
    report = markdown(fits, checks, machine)
    print(report)
    if not arguments.quick:
        content = {"machine": machine, "cases": [asdict(case) for case in cases], "fits": fits, "checks": checks}
        write_text(results_folder("scaling") / "scaling.json", json.dumps(content, indent=1) + "\n")
        write_text(results_folder("scaling") / "scaling.md", report)


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
    with _kept(model.parameters()) as kept:
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
def _kept(parameters: Iterable[Tensor] = ()) -> Iterator[dict[int, int]]:
    """Bytes of the storages that autograd keeps for the backward pass, parameters left out."""
    sizes: dict[int, int] = {}
    held: list[Tensor] = []  # so that no address is used again while it is counted
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes
    held.clear()


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
    with _kept() as kept:
        info_nce(prediction, embeddings)
    return sum(kept.values()) / (B * T * C)


if __name__ == "__main__":
    main()
