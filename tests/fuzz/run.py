"""Thousands of mutated files for each reader, each in a process forked from a warmed one, with limits.

    python tests/fuzz/run.py                              # 1000 files a format; experiments/results/robustness/fuzz.md
    python tests/fuzz/run.py --files 50 --formats EDF FIF # a look, written nowhere

A file counts as read, as refused (ValueError or OSError, as documented), or as a failure: another exception, more than
2 GiB beyond the warmed process, more than 30 s, or a crash. Failures are kept in --keep with what was said.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "experiments")]
sys.path.append(str(ROOT))  # behind the installed package, for the tests that write released checkpoints

from harness.tables import hardware  # noqa: E402
from support.fuzzing.formats import Format, all_formats  # noqa: E402
from support.fuzzing.limited import read_within_limits  # noqa: E402
from support.fuzzing.mutations import mutated  # noqa: E402

RESULTS = ROOT / "experiments" / "results" / "robustness"
FAILURES = ("undocumented", "memory", "hang", "crash")


def main() -> None:
    """Run, print, and write the rows of formats that had their full number of files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="mutated files of each format")
    parser.add_argument("--formats", nargs="*", help="all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz", help="where failing files are kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    formats = all_formats()
    rows = []
    for name in options.formats or formats:
        rows.append(fuzzed(formats[name], options.files, options.seed, options.keep))
        print(json.dumps(rows[-1]), flush=True)
    if options.files >= 1000:
        table = RESULTS / "fuzz.json"
        table.parent.mkdir(parents=True, exist_ok=True)
        # Of formats that were not run, the rows of an earlier run stay.
        named = {row["format"]: row for row in [*(json.loads(table.read_text()) if table.exists() else []), *rows]}
        rows = [named[name] for name in formats if name in named]
        table.write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "fuzz.md").write_text(markdown(rows, options.seed))
    sys.exit(any(row[kind] for row in rows for kind in FAILURES))


def fuzzed(form: Format, files: int, seed: int, keep: Path) -> dict[str, float | str]:
    """How many of the mutated files of a format ended how."""
    counts: Counter[str] = Counter()
    slowest, begin = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        sample = Path(temporary) / "sample"
        sample.mkdir()
        form.make(sample)
        form.read(sample)  # warms this process
        paths = form.paths(sample)
        for number in range(files):
            generator = random.Random(f"{seed} {form.name} {number}")
            path = generator.choice(paths)
            folder = Path(temporary) / "mutated"
            shutil.copytree(sample, folder)
            place = path.relative_to(sample)
            (folder / place).write_bytes(mutated(path.read_bytes(), generator.randrange(2**32)))
            start = time.monotonic()
            outcome = read_within_limits(form.read, folder)
            slowest = max(slowest, time.monotonic() - start)
            counts[outcome.kind] += 1
            if outcome.kind in FAILURES:
                target = keep / form.name.replace(" ", "-").strip(".") / f"{number}-{outcome.kind}"
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(folder, target)
                (target / "outcome.txt").write_text(f"{place}\n{outcome.text}")
            shutil.rmtree(folder)
    kinds = {kind: counts[kind] for kind in ("read", "refused", *FAILURES)}
    seconds = time.monotonic() - begin
    return {"format": form.name, "files": files, **kinds, "slowest": round(slowest, 1), "seconds": round(seconds)}


def markdown(rows: list[dict[str, float | str]], seed: int) -> str:
    """The table."""
    failures = ("other exceptions", "over 2 GiB", "over 30 s", "crashes")
    heads = ("format", "files", "read", "refused", *failures, "slowest, s")
    keys = ("format", "files", "read", "refused", *FAILURES, "slowest")
    lines = [
        "Mutated files of every format (bits flipped, blocks cut, doubled, moved or overwritten, numbers and words",
        "changed), each read from its first byte to its last sample in a process forked from a warmed one. Refused: a",
        f"ValueError or OSError, as documented. `make fuzz`, seed {seed}.",
        "",
        "| " + " | ".join(heads) + " |",
        "|---|" + "--:|" * (len(heads) - 1),
        *("| " + " | ".join(str(row[key]) for key in keys) + " |" for row in rows),
        "",
        f"Measured on {hardware()}; one process at a time, beside other work.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
