"""Silence for scripts that train through hosts: progress bars and our own lines stay, trainers' log lines go."""

from __future__ import annotations

import logging
import warnings
from typing import Any

# Options of a trainer, or of a host's model, that trains on the processor and shows and keeps nothing.
QUIET: dict[str, Any] = {
    "enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu",
}  # fmt: skip


def silence() -> None:
    """Drop the trainers' log lines, their advice and warnings."""
    for family in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(f"{family}.utilities.rank_zero").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.ERROR)
    logging.getLogger("pooch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
