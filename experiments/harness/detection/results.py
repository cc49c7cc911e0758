"""How a script of a detection study begins, and what its measures are called in tables."""

from __future__ import annotations

from pathlib import Path

import torch
from harness.tables import results_folder

from mvpa_ts.ieeg.constants import RESEARCH_USE

MEASURES = {
    "event_f1": "episodic F1",
    "event_sensitivity": "sensitivity",
    "false_positives_per_hour": "false detections/h",
    "kappa_episodic": "kappa, post-processed",
    "kappa": "kappa, raw",
}


def begin_study(*, quick: bool) -> Path:
    """Use one thread, so that rows repeat, print the notice, and return the folder of the study's results."""
    torch.set_num_threads(1)
    print(RESEARCH_USE, flush=True)
    return results_folder("detection", quick=quick)
