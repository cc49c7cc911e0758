"""Five corrected events train the box's detector again: F1 before and after, on another recording of the subject.

A simulated reader goes through 40 minutes with six seizures from the start, adds what was missed, deletes what is
false, and moves what is off by more than 5 s, five times; training sees the recording up to the sixth error.

    python experiments/ieeg/corrections.py          # results/detection/corrections.*, some 10 minutes, resumable
    python experiments/ieeg/corrections.py --quick  # one subject, written to a temporary folder
    python experiments/ieeg/corrections.py --window # results/detection/review.png: the window, with mne-qt-browser
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the harness

import numpy as np
import pandas as pd
from harness.command_line import script_parser
from harness.detection.results import begin_study
from harness.study import Study, grid, paragraphs
from harness.tables import machines

from mvpa_ts.ieeg import Detector, simulate_recording
from mvpa_ts.ieeg.detection.review import Review, browse, retrain, review
from mvpa_ts.ieeg.scoring.scores import score_events

SEED, SUBJECTS, CORRECTIONS = 556, 6, 5


def main() -> None:
    """Measure the subjects that the table lacks, or draw the window."""
    parser = script_parser(__doc__)
    parser.add_argument("--window", action="store_true", help="draw the window of `mvpformer review` alone")
    arguments = parser.parse_args()
    quick = arguments.quick
    results = begin_study(quick=quick)
    if arguments.window:
        draw_window(results / "review.png")
        return
    warnings.simplefilter("ignore")
    study = Study("detection", "corrections", ["cohort", "subject"], report, table=results / "corrections.csv")
    if quick:
        study.run([("usual", 0)], partial(measure, channels=2, seconds=700.0, seizures=(2, 1)))
    else:
        study.run(itertools.product(("usual", "hard"), range(SUBJECTS)), measure)


def measure(
    cohort: Any, number: int, channels: int = 8, seconds: float = 2400.0, seizures: Sequence[int] = (6, 4)
) -> dict[str, Any]:
    """F1 by SzCORE's rules before and after, and seconds of training."""
    first, second = (
        simulate_recording(
            f"R{number}",
            seed=SEED,
            session=session,
            num_channels=channels,
            duration=seconds * (1.0 - 0.25 * session),
            num_seizures=seizures[session],
            cohort=cohort,
        )
        for session in (0, 1)
    )
    box = Detector("demo")
    places = errors([*first.seizures], box.detect(first).events)
    until = first.duration if len(places) <= CORRECTIONS else places[CORRECTIONS] - 1.0
    events = [(on, off) for on, off in first.seizures if on < until]
    corrected = Review(first.name, first.fingerprint(), first.duration, until, events, {})
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        retrain("demo", [(corrected, first)], folder)
        seconds = time.process_time() - begun
        trained = Detector(Path(folder) / "model")
        detected = [detector.detect(second).events for detector in (box, trained)]
    scores = [score_events([*second.seizures], events, second.duration).f1 for events in detected]
    # Nothing found and nothing detected is an F1 of 0 where there are seizures.
    before, after = np.nan_to_num(scores)
    return {"corrections": min(len(places), CORRECTIONS), "before": before, "after": after, "seconds": seconds}


def draw_window(path: Path) -> None:
    """The window that a reader sees, with the events that the box's detector found; no display is needed."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    application = QApplication([])
    recording = simulate_recording("R0", seed=SEED, num_channels=16, duration=1200.0, num_seizures=3)

    def save() -> None:
        shown = [item for item in application.topLevelWidgets() if type(item).__name__ == "MNEQtBrowser"]
        if not shown:
            QTimer.singleShot(1000, save)
            return
        window = shown[0]
        window.resize(1100, 620)
        window._toggle_annotation_fig()  # what the key "a" does
        QTimer.singleShot(1000, lambda: (window.grab().save(str(path)), window.close()))

    def show(raw: Any) -> None:
        QTimer.singleShot(2000, save)
        browse(raw)

    review(recording, Detector("demo").detect(recording).events, show)


def errors(truth: Sequence[tuple[float, float]], detected: Sequence[tuple[float, float]]) -> list[float]:
    """Where a reader would correct something, in order."""
    places = [on for on, off in detected if not any(on < end and off > begin for begin, end in truth)]
    for begin, end in truth:
        hits = [(on, off) for on, off in detected if on < end and off > begin]
        if not hits:
            places.append(begin)
        elif abs(hits[0][0] - begin) > 5.0 or abs(hits[-1][1] - end) > 5.0:
            places.append(min(begin, hits[0][0]))
    return sorted(places)


def report(rows: pd.DataFrame) -> str:
    """A row for each cohort."""
    lines = [
        [
            cohort,
            len(own),
            f"{own['corrections'].mean():.1f}",
            f"{own['before'].mean():.2f}",
            f"{own['after'].mean():.2f}",
            int((own["after"] >= own["before"] + 0.05).sum()),
            int((own["after"] < own["before"]).sum()),
            f"{own['seconds'].max():.0f}",
        ]
        for cohort, own in rows.groupby("cohort", sort=False)
    ]
    heads = ["cohort", "subjects", "corrections", "F1 of demo", "F1 after", "better by .05", "worse", "s of one core"]
    return paragraphs(
        "Simulated subjects: a reader corrects the first five errors of `demo` in one recording, "
        "`finetune --from-review` trains on what was read, and another recording of the subject is scored by SzCORE's "
        "rules. The usual subjects were looked at twice, five of them by an earlier `demo`.",
        grid(heads, lines),
        machines(rows),
    )


if __name__ == "__main__":
    main()
