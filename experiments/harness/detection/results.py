"""How a script of a detection study begins."""

from __future__ import annotations

from pathlib import Path

import torch
from harness.tables import results_folder

from mvpa_ts.ieeg.constants import RESEARCH_USE


def begin_study(*, quick: bool) -> Path:
    """Use one thread, so that rows repeat, print the notice, and return the folder of the study's results."""
    torch.set_num_threads(1)
    print(RESEARCH_USE, flush=True)
    return results_folder("detection", quick=quick)
