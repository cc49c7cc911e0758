"""Check and time FlashMVPA and impl="sdpa" on a GPU, against their peers on the same tokens.

Correctness against float64 first, in several processes that compile side by side. Then, one at a time: T = C = 50 and
100, repetitions bit for bit, training steps of MVPFormer-S, kernel by kernel, and more sizes. This process uses no GPU;
the others do one item after another and are ended when an item takes too long, so that no failure stops the rest.
Every answer is a line of attention_gpu.jsonl at once; attention_gpu.md is the page of what is there. Needs torch,
triton, numpy and einops. With TRITON_INTERPRET=1, --quick runs the kernels on the CPU.

    PYTHONPATH=. python experiments/attention/attention_gpu.py --minutes 9
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

from harness.command_line import script_parser

Item = dict[str, Any]
PASSES = ("forward", "forward + backward")
FLASH = "flash SDPA causal"
WORKER: Sequence[str] = (sys.executable, __file__, "--work")
# Of the given minutes, what checking and compiling may take before clocks are read.
CHECKING = 0.3
# Rounding once more than the standard does costs up to twice its error; a mistake costs far more.
CLEARLY_WRONG = 4.0
# The median of a clock that nothing disturbed is near its least.
STEADY = 1.2


@dataclass
class Lane:
    """One process and the items that it does in their order."""

    name: str
    items: list[Item]
    command: Sequence[str] = field(default_factory=lambda: WORKER)
    process: subprocess.Popen[str] | None = None
    answers: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)
    log: Path = Path(os.devnull)

    def start(self, folder: Path) -> None:
        """Start the process; it imports and waits for items."""
        self.log = folder / f"{self.name}.{time.time():.0f}.log"
        self.answers = queue.Queue()
        # A pool of compilers for each process would be many processes, and would outlive a killed one.
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(self.command, stderr=errors, **pipes)  # type: ignore[call-overload]
        threading.Thread(target=self._read, args=(self.process, self.answers), daemon=True).start()

    def do(self, item: Item, seconds: float, folder: Path) -> dict[str, Any]:
        """The answer to an item, or why there is none after so many seconds."""
        if self.process is None or self.process.poll() is not None:
            self.start(folder)
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(item) + "\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            answer = {"failed": f"no answer within {seconds:.0f} s", "lost process": True, "log": self.tail()}
        except OSError:
            answer = None
        if answer is None:
            code = self.stop()
            answer = {"failed": f"the process ended with {code}", "lost process": True, "log": self.tail()}
        if answer.get("lost process") or answer.get("process ends"):
            self.stop()
        return answer

    def tail(self) -> str:
        """The end of what the process wrote."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> int | None:
        """End the process, whatever it does, and return its exit status."""
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs holds a process even when killed
            if process.poll() is None:
                process.kill()
            process.wait(5)
        return process.returncode

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("@@"):
                answers.put(json.loads(line[2:]))
        answers.put(None)


class Record:
    """The lines of answers, and the page made of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "attention_gpu.jsonl"
        self.path.write_text("")
        self.begun = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, item: Item, answer: dict[str, Any]) -> None:
        """Write one answer down."""
        with self._lock:
            row = {"at": round(time.monotonic() - self.begun, 1), "item": item, "answer": answer}
            self.rows.append(row)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            try:
                self.path.with_suffix(".md").write_text(page(self.rows))
                print(f"{row['at']:6.1f} s  {title(item)}: {brief(answer)}", flush=True)
            except Exception:  # the line is kept; that it cannot be shown must not end a rare run
                traceback.print_exc()


def case(segments: int, channels: int, **changes: Any) -> Item:
    """A size; the harness adds batch 64, 12 heads of 64, window 10 and a dense last segment."""
    return {"segments": segments, "channels": channels} | changes


# Batches are those that fit float64 beside the kernels; kernels do not depend on them.
FIFTY = {"case": case(50, 50, batch=16), "dtype": "bfloat16", "samples": [0, 15], "heads": [0, 11], "draws": 2}
TILES = {"case": case(40, 100, batch=16), "dtype": "bfloat16", "samples": [0, 15], "heads": [11], "draws": 2}
HUNDRED = {"case": case(100, 100, batch=16), "dtype": "bfloat16", "samples": [15], "heads": [11]}
WIDE = {
    "case": case(100, 32, batch=2, heads=4, kv_heads=2, head_dim=128), "dtype": "bfloat16",
    "variant": "channels masked, dropout", "draws": 2,
}  # fmt: skip
FEW = {
    "case": case(50, 7, batch=4, heads=4, kv_heads=2, window=3), "dtype": "bfloat16", "variant": "tokens masked",
    "draws": 4,
}  # fmt: skip
MODEL = {
    "case": case(25, 32, batch=16, kv_heads=4), "dtype": "bfloat16", "samples": [0, 15], "heads": [0, 3],
    "draws": 2,
}  # fmt: skip
SINGLE = {"case": case(13, 19, batch=2, heads=4, kv_heads=2), "dtype": "float32", "draws": 4}
HALF = SINGLE | {"dtype": "float16", "variant": "tokens masked"}


def checks() -> list[Lane]:
    """Lanes of checks, the telling ones first in each; what is compiled for later clocks comes last."""

    def triton(setting: Item, position: int = 0) -> Item:
        return {"kind": "check", "impl": "triton", "position": position} | setting

    def ahead(position: int, *cases: Item) -> list[Item]:
        shared = {"kind": "compile", "mechanism": "FlashMVPA", "dtype": "bfloat16", "position": position}
        return [shared | {"case": some | {"batch": 8}} for some in cases]

    flex = {"kind": "compile", "mechanism": "MVPA FlexAttention", "dtype": "bfloat16"}
    every = (FIFTY, MODEL, WIDE, FEW, SINGLE, HALF, TILES)
    lanes = [
        Lane("flex-50", [flex | {"case": case(50, 50)}]),
        Lane("flex-100", [flex | {"case": case(100, 100, batch=16)}]),
        Lane("sdpa", [{"kind": "check", "impl": "sdpa"} | setting for setting in every]),
    ]
    # Candidates of block sizes by their position: all of those that the clock may choose are checked.
    for position in range(3):
        lanes += [
            Lane(
                f"fifty-{position}", [triton(FIFTY, position), *ahead(position, case(50, 50, dense_last_segment=False))]
            ),
            Lane(f"tiles-{position}", [triton(TILES, position), *ahead(position, case(100, 64))]),
            Lane(f"model-{position}", [triton(MODEL, position), *ahead(position, case(100, 32))]),
        ]
    lanes += [
        Lane("wide", [triton(WIDE), triton(WIDE, 1), *ahead(0, case(25, 128))]),
        Lane("few", [triton(FEW), triton(FEW, 1)]),
        Lane("single", [triton(SINGLE), triton(HALF)]),
        Lane("hundred", [triton(HUNDRED)]),
    ]
    return lanes


def clocks() -> list[Item]:
    """What is measured alone on the GPU, in decreasing interest."""

    def at(some: Item, *mechanisms: str) -> list[Item]:
        return [{"kind": "time", "mechanism": name, "case": some, "dtype": "bfloat16"} for name in mechanisms]

    fifty, hundred, few = case(50, 50), case(100, 100), case(100, 100, batch=4)
    sixteen = {"case": fifty, "dtype": "bfloat16"}
    # Flash attention at the beginning and at the end of a size tells how steady the clock of the GPU is.
    items = at(fifty, FLASH, "FlashMVPA", "cuDNN SDPA causal", "MVPA sdpa", "MVPA separable")
    items += [{"kind": "repeat", "mechanism": "FlashMVPA", "times": 100} | sixteen]
    items += at(hundred, FLASH, "FlashMVPA", "cuDNN SDPA causal")
    step = {"kind": "train", "segments": 25, "channels": 32, "batch": 32, "sizes": {}}
    items += [step | {"impl": impl} for impl in ("triton", "sdpa", "separable", "plain attention")]
    items += at(fifty, "MVPA FlexAttention", FLASH)
    items += at(case(100, 100, batch=16), "MVPA FlexAttention", "FlashMVPA", FLASH)
    items += [{"kind": "profile", "mechanism": "FlashMVPA"} | sixteen]
    model = case(25, 32, kv_heads=4)
    items += at(model, "FlashMVPA", FLASH, "MVPA sdpa", "MVPA separable")
    once = "MVPA sdpa, rounded once"
    items += at(fifty, once, f"{once}, flash", f"{once}, cuDNN")
    items += [{"kind": "repeat", "mechanism": "MVPA sdpa", "times": 20} | sixteen | {"case": model}]
    items += [{"kind": "profile", "mechanism": "FlashMVPA", "case": hundred, "dtype": "bfloat16"}]
    items += at(case(50, 50, dense_last_segment=False), "FlashMVPA", FLASH)
    for size in ((100, 64), (100, 32), (25, 128)):
        items += at(case(*size), "FlashMVPA", FLASH, "cuDNN SDPA causal")
    items += at(few, "MVPA sdpa", "MVPA separable", "FlashMVPA", FLASH)
    items += at(fifty, "flash SDPA", "Nyströmformer", "MVPA reference", "softmax attention")
    for size in ((16, 7), (8, 21), (10, 10), (20, 20), (30, 30), (40, 40), (50, 10), (10, 50)):
        items += at(case(*size), FLASH, "MVPA sdpa", "MVPA separable", "MVPA reference", "FlashMVPA")
    return items


def tiny() -> tuple[list[Lane], list[Item]]:
    """One item of every kind, for a CPU, where an interpreted kernel takes a second."""
    size = {"case": case(3, 3, batch=1, heads=2, kv_heads=1, head_dim=16, window=1), "dtype": "float32"}
    part = {"samples": [0], "heads": [0]}
    check = {"kind": "check", "impl": "triton"} | size
    lanes = [Lane("one", [check | part, check | {"impl": "sdpa", "variant": "tokens masked"}])]
    names = ("FlashMVPA", FLASH, "cuDNN SDPA causal", "MVPA sdpa", "MVPA sdpa, rounded once, flash")
    items: list[Item] = [{"kind": "time", "mechanism": name} | size for name in names]
    items += [{"kind": "repeat", "mechanism": "FlashMVPA", "times": 1} | size]
    sizes = {"dim": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "mlp_dim": 16}
    step = {"kind": "train", "segments": 3, "channels": 2, "batch": 1, "sizes": sizes, "steps": 1}
    items += [step | {"impl": impl} for impl in ("sdpa", "plain attention")]
    return lanes, [*items, {"kind": "profile", "mechanism": "MVPA sdpa"} | size]


def run(lanes: list[Lane], items: list[Item], record: Record, minutes: float, limit: float, together: int) -> None:
    """Check in lanes side by side, then measure one item after another, until all is done or the minutes are over."""
    folder = Path(tempfile.mkdtemp(prefix="mvpa-ts-gpu-"))
    deadline = record.begun + minutes * 60
    alone = Lane("alone", items)
    alone.start(folder)
    try:
        free = threading.Semaphore(together)
        until = record.begun + CHECKING * minutes * 60
        threads = [threading.Thread(target=_check, args=(lane, record, until, free, folder)) for lane in lanes]
        for thread in threads:
            thread.start()
        begin = {"kind": "device"}
        record.add(begin, alone.do(begin, 0.5 * minutes * 60, folder))
        # FlexAttention compiles longest. Its first runs on the GPU made a clock of FlashMVPA three times too slow once.
        for thread in threads:
            thread.join()
        by_name = {lane.name: lane for lane in lanes}
        losses: dict[str, int] = {}
        for item in items:
            who = item.get("mechanism", item.get("impl", ""))
            left = deadline - time.monotonic()
            if left < 3 or losses.get(who, 0) > 1:
                reason = "time was over" if left < 3 else "left out: two processes were lost with it"
                record.add(item, {"failed": reason})
                continue
            lane = alone
            if who == "MVPA FlexAttention":  # compiled in that process
                lane = by_name.get(f"flex-{item['case']['segments']}", alone)
            answer = lane.do(item, min(limit, left), folder)
            losses[who] = losses.get(who, 0) + bool(answer.get("lost process") or answer.get("process ends"))
            record.add(item, answer)
    finally:
        for lane in (alone, *lanes):
            lane.stop()
        logs = "".join(f"#### {log.name}\n{log.read_text(errors='replace')[-200_000:]}" for log in folder.glob("*.log"))
        record.path.with_suffix(".log").write_text(logs)


def _check(lane: Lane, record: Record, until: float, free: threading.Semaphore, folder: Path) -> None:
    for item in lane.items:
        with free:
            left = until - time.monotonic()
            answer = lane.do(item, left, folder) if left > 1 else {"failed": "time for checks was over"}
        record.add(item, answer)
    if not lane.name.startswith("flex"):
        lane.stop()  # its memory is needed


def title(item: Item) -> str:
    """An item in a few words."""
    words = [item["kind"], item.get("mechanism", item.get("impl", ""))]
    if size := item.get("case"):
        words.append(size_of(size))
    words += [str(item[name]) for name in ("dtype", "variant", "position") if name in item]
    return " ".join(word for word in words if word)


def size_of(size: Item) -> str:
    """A size in a few words: only what differs from the usual."""
    others = {name: value for name, value in size.items() if name not in ("segments", "channels")}
    return f"T={size['segments']} C={size['channels']}" + "".join(f" {name}={value}" for name, value in others.items())


def head_dim(item: Item) -> int:
    """The width of a head, which decides which blocks a kernel takes."""
    return item["case"].get("head_dim", 64)


def brief(answer: dict[str, Any]) -> str:
    """An answer in a few words."""
    if "ratios" in answer:
        worst = max(answer["ratios"], key=answer["ratios"].get)
        beyond = "WRONG" if answer["ratios"][worst] > CLEARLY_WRONG else "above the limit"
        state = "right" if answer["passes"] else f"{beyond} in {', '.join(answer['wrong'])}"
        return f"{state}, at most {answer['ratios'][worst]:.2f}× the error of the standard ({worst})"
    words = [f"{answer[name]['ms']:.3f} ms {name}" for name in PASSES if name in answer]
    words += [f"{answer['ms']:.2f} ms a step"] if "ms" in answer else []
    words += [f"differing {sum(answer['differing'].values())} times"] if "differing" in answer else []
    words += [answer["failed"].splitlines()[0][:160]] if "failed" in answer else []
    return ", ".join(words) or f"done in {answer.get('seconds', 0):.1f} s"


def page(rows: list[dict[str, Any]]) -> str:
    """Checks, times as ratios to causal flash attention, and the rest."""
    by_kind: dict[str, list[tuple[Item, dict[str, Any]]]] = {}
    for row in rows:
        by_kind.setdefault(row["item"]["kind"], []).append((row["item"], row["answer"]))
    _, device = by_kind.get("device", [({}, {})])[0]
    lines = [", ".join(f"{name} {value}" for name, value in device.items()), "", "## Checks", ""]
    lines += [
        f"- {title(item)}: {brief(answer)}" for item, answer in by_kind.get("check", []) if not answer.get("passes")
    ]
    passed = Counter(item["impl"] for item, answer in by_kind.get("check", []) if answer.get("passes"))
    lines += [f"- {impl}: right in {count} other cases" for impl, count in passed.items()]
    checked = [(item, answer) for item, answer in by_kind.get("check", []) if item["dtype"] == "bfloat16"]
    beyond = {(item["impl"], head_dim(item)) for item, answer in checked if not answer.get("passes")}
    marks = {"FlashMVPA": "triton", "MVPA sdpa": "sdpa"}
    times = by_kind.get("time", [])
    base = {json.dumps(item["case"]): answer for item, answer in times if item["mechanism"] == FLASH}
    lines += ["", "## Times", "", "× is time over that of causal flash attention on the same tokens.", ""]
    heads = ["case", "mechanism", *(f"{name}: ms | × | GiB" for name in PASSES), ""]
    lines += [f"| {' | '.join(heads)} |", "|" + " --- |" * 9]
    for item, answer in times:
        cells = [size_of(item["case"]), item["mechanism"]]
        notes = [answer["called"]["backend"]] if answer.get("called") else []
        if (marks.get(item["mechanism"]), head_dim(item)) in beyond:
            notes.append("a check is above its limit")
        for name in PASSES:
            if name not in answer:
                cells += [""] * 3
                notes.append(answer.get("failed", "").splitlines()[0][:120])
                continue
            ms, gib = answer[name]["ms"], answer[name]["GiB"]
            least = answer[name].get("least ms", ms)
            notes += [f"unsteady {name}, least {least:.3f} ms"] if ms > STEADY * least else []
            flash = base.get(json.dumps(item["case"]), {}).get(name)
            cells += [f"{ms:.3f}", f"{ms / flash['ms']:.2f}" if flash else "", f"{gib:.2f}" if gib is not None else ""]
        lines.append(f"| {' | '.join([*cells, ', '.join(dict.fromkeys(notes))])} |")
    for kind in ("train", "repeat", "compile"):
        lines += ["", f"## {kind}", ""] + [
            f"- {title(item)}: {brief(answer)}" for item, answer in by_kind.get(kind, [])
        ]
    for item, answer in by_kind.get("profile", []):
        lines += ["", f"## {title(item)}, ms of one forward and backward pass", ""]
        lines += [f"- {ms:.3f} in {count:.0f} × {name}" for name, count, ms in answer.get("kernels", [])]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run everything, or do items as one of the processes."""
    parser = script_parser(__doc__, "one tiny item of every kind on the CPU; keep nothing")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop after this many minutes (default 9)")
    parser.add_argument("--limit", type=float, default=25.0, help="seconds for one measurement (default 25)")
    parser.add_argument("--output", help="folder of the results (default: experiments/results/attention)")
    parser.add_argument("--work", action="store_true", help="do the items that standard input holds")
    arguments = parser.parse_args()
    if arguments.work:
        # What libraries print must not mix with the answers.
        answers, sys.stdout = sys.stdout, sys.stderr
        from harness.attention.gpu_work import serve

        serve(sys.stdin, answers)
        return
    output = Path(arguments.output or Path(__file__).parents[1] / "results" / "attention")
    if arguments.quick:
        output = Path(arguments.output or tempfile.mkdtemp(prefix="mvpa-ts-"))
        run(*tiny(), Record(output), minutes=arguments.minutes, limit=120.0, together=1)
    else:
        run(checks(), clocks(), Record(output), arguments.minutes, arguments.limit, together=os.cpu_count() or 1)


if __name__ == "__main__":
    main()
