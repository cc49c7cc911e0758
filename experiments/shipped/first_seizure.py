"""How often does what docs/first_seizure.md shows go well? The small detector on twenty other simulated recordings.

Each recording is made, written and read as on that page (six channels, six minutes, one seizure), with a seed that no
model of this project was trained on. Events are compared with the seizure by SzCORE's rules. Beside it: line length
and a logistic regression on band power, which learn their threshold, and the regression its weights, from eight more.
The picture at the end of that page is from the report of the page's own recording.

    python experiments/shipped/first_seizure.py           # results/detection/first_seizure.*, resumable
    python experiments/shipped/first_seizure.py --quick   # one recording, written to a temporary folder
"""

from __future__ import annotations

import base64
import io
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
from harness.command_line import script_parser
from harness.detection.baselines import BASELINES, INSTALLED
from harness.detection.pipeline import best_threshold
from harness.detection.results import begin_study
from harness.study import Study
from PIL import Image

from mvpa_ts.ieeg import Detector, Recording, read_recording, simulate_cohort
from mvpa_ts.ieeg.detection.rules import probabilities_to_events
from mvpa_ts.ieeg.detection.saved import REPORT
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.scoring.scores import score_events
from mvpa_ts.ieeg.simulation.writing import write_edf

PAGE_SEED = 14
"""Of the recording on the page; the shipped models were trained on the subjects of another seed, see demo_model.py."""
SEEDS, OTHERS = range(100, 120), range(120, 128)
"""Of the recordings that are tested, and of those that baselines learn from."""
SECONDS = 360.0
DEMO = "demo"
COLUMNS = ["seed", "seizure", "events", "found", "false events", "highest probability"]
Found = Callable[[Recording], tuple[Any, float]]
"""From a recording to its events and the highest probability."""


def main() -> None:
    """Detect in the recordings that the table lacks, and write it."""
    quick = script_parser(__doc__).parse_args().quick
    results = begin_study(quick=quick)
    seeds, others = (SEEDS[:1], OTHERS[:1]) if quick else (SEEDS, OTHERS)
    finders: dict[str, Found] = {}

    def measure(name: str, seed: int) -> dict[str, Any]:
        if name not in finders:
            finders[name] = found_by_demo() if name == DEMO else found_by_baseline(name, others)
        with tempfile.TemporaryDirectory() as folder:
            return detected(finders[name], recording_of(seed, Path(folder)))

    study = Study("detection", "first_seizure", ["detector", "seed"], report, table=results / "first_seizure.csv")
    study.run([(name, seed) for name in (DEMO, *INSTALLED) for seed in seeds], measure)
    picture(study.table.with_suffix(".png"))


def recording_of(seed: int, folder: Path) -> Recording:
    """A recording as on the page, written and read; its seizures are known."""
    (made,) = simulate_cohort(
        1, seed=seed, num_channels=6, first_subject=101, duration=SECONDS, sfreq=512.0, num_seizures=1
    )
    write_edf(made, folder / f"{seed}.edf")
    return read_recording(folder / f"{seed}.edf").with_seizures(made.seizures)


def found_by_demo() -> Found:
    """The small detector of the package."""
    detector = Detector("demo")

    def find(recording: Recording) -> tuple[Any, float]:
        detection = detector.detect(recording)
        return detection.events, float(detection.probabilities.max())

    return find


def found_by_baseline(name: str, seeds: Sequence[int]) -> Found:
    """A baseline with the threshold that is best on the recordings of these seeds, from which it learns."""
    with tempfile.TemporaryDirectory() as folder:
        training = [recording_of(seed, Path(folder)) for seed in seeds]
        score = BASELINES[name](training)
        threshold = best_threshold([(recording, *score(recording)) for recording in training], "szcore")

    def find(recording: Recording) -> tuple[Any, float]:
        probabilities, starts = score(recording)
        events = probabilities_to_events(probabilities, starts, "szcore", threshold=threshold)
        return events, float(probabilities.max())

    return find


def detected(find: Found, recording: Recording) -> dict[str, Any]:
    """The seizure of a recording, the events found in it, and how many of both agree."""
    events, highest = find(recording)
    scores = score_events(recording.seizures, events, SECONDS)
    return {
        "seizure": _shown(recording.seizures),
        "events": _shown(events),
        "found": scores.true_positives,
        "false events": scores.false_positives,
        "highest probability": highest,
    }


def picture(path: Path) -> None:
    """The first pictures of the report of the page's recording: probability over time, and traces of the first event.

    In 32 colours, which takes a third of the bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        Detector(DEMO).detect(recording_of(PAGE_SEED, Path(folder))).save(folder)
        images = re.findall(r"data:image/png;base64,([^\"]+)", (Path(folder) / REPORT).read_text(encoding="utf-8"))
    rows = [np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")) for image in images[:2]]
    Image.fromarray(np.concatenate(rows)).quantize(32).save(path, optimize=True)


def report(everything: pd.DataFrame) -> str:
    """One sentence on all recordings, the baselines, and a row for each recording of the detector."""
    rows = everything[everything["detector"] == DEMO]
    hours = len(rows) * SECONDS / 3600
    false = int(rows["false events"].sum())
    faultless = _faultless(rows)
    lead = (
        f"The small detector `demo` on {len(rows)} simulated recordings of {SECONDS / 60:.0f} minutes with one seizure "
        f"each, as docs/first_seizure.md makes them: {rows['found'].sum()} of {len(rows)} seizures found, "
        f"{false} false events in {hours:.1f} hours ({false / hours:.1f} an hour), {faultless} recordings without an "
        "error. SzCORE's rules; times in seconds."
    )
    summary = [
        {
            "": name,
            "seizures found": int(part["found"].sum()),
            "false events": int(part["false events"].sum()),
            "recordings without an error": _faultless(part),
        }
        for name, part in everything.groupby("detector", sort=False)
    ]
    beside = (
        f"Beside it, with the threshold that is best on {len(OTHERS)} other recordings of this kind, from which the "
        "regression also learns:"
    )
    each = "Each recording, by `demo`:"
    tables = markdown_table(pd.DataFrame(summary)), markdown_table(rows[COLUMNS])
    return f"{lead}\n\n{beside}\n\n{tables[0]}\n{each}\n\n{tables[1]}\n{rows['hardware'].iloc[0]}.\n"


def _faultless(rows: pd.DataFrame) -> int:
    return int(((rows["found"] == 1) & (rows["false events"] == 0)).sum())


def _shown(events: Any) -> str:
    return ", ".join(f"{onset:.0f}–{offset:.0f}" for onset, offset in events) or "none"


if __name__ == "__main__":
    main()
