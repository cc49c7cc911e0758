"""Silence for scripts that train through hosts: progress bars and our own lines stay, trainers' log lines go."""

from __future__ import annotations

import logging
import warnings


def silence() -> None:
    """Drop the trainers' log lines, their advice and warnings."""
    for family in ("pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(f"{family}.utilities.rank_zero").setLevel(logging.ERROR)
    logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.ERROR)
    logging.getLogger("pooch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
