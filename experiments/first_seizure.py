"""How often does what docs/first_seizure.md shows go well? The small detector on twenty other simulated recordings.

Each recording is made, written and read as on that page (six channels, six minutes, one seizure), with a seed that no
model of this project was trained on. Events are compared with the seizure by SzCORE's rules. The picture at the end
of that page is from the report of the page's own recording.

    python experiments/first_seizure.py           # results/detection/first_seizure.*, resumable
    python experiments/first_seizure.py --quick   # one recording, written to a temporary folder
"""

from __future__ import annotations

import base64
import io
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from harness.command_line import script_parser
from harness.detection.results import begin_study
from harness.tables import append_row, hardware, read_rows, write_page
from PIL import Image

from mvpa_ts.ieeg import Detector, read_recording, simulate_cohort
from mvpa_ts.ieeg.detection.detection import Detection
from mvpa_ts.ieeg.detection.saved import REPORT
from mvpa_ts.ieeg.recordings.recording import Interval
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.scoring.scores import score_events
from mvpa_ts.ieeg.simulation.writing import write_edf

PAGE_SEED = 14
"""Of the recording on the page; the shipped models were trained on the subjects of another seed, see demo_model.py."""
SEEDS = range(100, 120)
SECONDS = 360.0


def main() -> None:
    """Detect in the recordings that the table lacks, and write it."""
    quick = script_parser(__doc__).parse_args().quick
    table = begin_study(quick=quick) / "first_seizure.csv"
    detector = Detector("demo")
    for seed in SEEDS[:1] if quick else SEEDS:
        rows = read_rows(table)
        if rows.empty or seed not in set(rows["seed"]):
            append_row(table, {"seed": seed} | detected(detector, seed) | {"hardware": hardware()})
    write_page(table, report(read_rows(table)))
    picture(detector, table.with_suffix(".png"))


def detected(detector: Detector, seed: int) -> dict[str, Any]:
    """The seizure of a recording, the events found in it, and how many of both agree."""
    with tempfile.TemporaryDirectory() as folder:
        seizures, detection = detection_of(detector, seed, Path(folder))
    scores = score_events(seizures, detection.events, SECONDS)
    return {
        "seizure": _shown(seizures),
        "events": _shown(detection.events),
        "found": scores.true_positives,
        "false events": scores.false_positives,
        "highest probability": float(detection.probabilities.max()),
    }


def detection_of(detector: Detector, seed: int, folder: Path) -> tuple[Sequence[Interval], Detection]:
    """The seizure of a recording that is made as on the page, and what is detected in its file below `folder`."""
    (made,) = simulate_cohort(
        1, seed=seed, num_channels=6, first_subject=101, duration=SECONDS, sfreq=512.0, num_seizures=1
    )
    file = write_edf(made, folder / "recording.edf")
    return made.seizures, detector.detect(read_recording(file))


def picture(detector: Detector, path: Path) -> None:
    """The first pictures of the report of the page's recording: probability over time, and traces of the first event.

    In 32 colours, which takes a third of the bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        detection_of(detector, PAGE_SEED, Path(folder))[1].save(folder)
        images = re.findall(r"data:image/png;base64,([^\"]+)", (Path(folder) / REPORT).read_text(encoding="utf-8"))
    rows = [np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")) for image in images[:2]]
    Image.fromarray(np.concatenate(rows)).quantize(32).save(path, optimize=True)


def report(rows: pd.DataFrame) -> str:
    """One sentence on all recordings, and a row for each."""
    hours = len(rows) * SECONDS / 3600
    false = int(rows["false events"].sum())
    faultless = int(((rows["found"] == 1) & (rows["false events"] == 0)).sum())
    lead = (
        f"The small detector `demo` on {len(rows)} simulated recordings of {SECONDS / 60:.0f} minutes with one seizure "
        f"each, as docs/first_seizure.md makes them: {rows['found'].sum()} of {len(rows)} seizures found, "
        f"{false} false events in {hours:.1f} hours ({false / hours:.1f} an hour), {faultless} recordings without an "
        "error. SzCORE's rules; times in seconds."
    )
    return f"{lead}\n\n{markdown_table(rows.drop(columns='hardware'))}\n{rows['hardware'].iloc[0]}.\n"


def _shown(events: Any) -> str:
    return ", ".join(f"{onset:.0f}–{offset:.0f}" for onset, offset in events) or "none"


if __name__ == "__main__":
    main()
