"""How often does what docs/first_seizure.md shows go well? The small detector on twenty other simulated recordings.

Each recording is made, written and read as on that page (six channels, six minutes, one seizure), with a seed that no
model and no page of this project uses. Events are compared with the seizure by SzCORE's rules.

    python experiments/first_seizure.py           # results/detection/first_seizure.*, resumable
    python experiments/first_seizure.py --quick   # one recording, written to a temporary folder
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from harness.command_line import script_parser
from harness.detection.results import begin_study
from harness.tables import append_row, hardware, read_rows, write_page

from mvpa_ts.ieeg import Detector, read_recording, simulate_cohort
from mvpa_ts.ieeg.scoring.cohort import markdown_table
from mvpa_ts.ieeg.scoring.scores import score_events
from mvpa_ts.ieeg.simulation.writing import write_edf

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


def detected(detector: Detector, seed: int) -> dict[str, Any]:
    """The seizure of a recording, the events found in it, and how many of both agree."""
    (made,) = simulate_cohort(
        1, seed=seed, num_channels=6, first_subject=101, duration=SECONDS, sfreq=512.0, num_seizures=1
    )
    with tempfile.TemporaryDirectory() as folder:
        write_edf(made, Path(folder) / "recording.edf")
        detection = detector.detect(read_recording(Path(folder) / "recording.edf"))
    scores = score_events(made.seizures, detection.events, SECONDS)
    return {
        "seizure": _shown(made.seizures),
        "events": _shown(detection.events),
        "found": scores.true_positives,
        "false events": scores.false_positives,
        "highest probability": float(detection.probabilities.max()),
    }


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
