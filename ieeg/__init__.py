"""MVPFormer for intracranial EEG: model, recordings, pretraining and seizure detection.

For research use; not a medical device.
"""

from __future__ import annotations

import importlib
from typing import Any

# Names are loaded on first use, so that a command or a reader does not import what it does not need.
_LAZY = {
    "Preprocessing": "mvpa_ts.ieeg.data.preprocessing",
    "Recording": "mvpa_ts.ieeg.data.recording",
    "Segments": "mvpa_ts.ieeg.data.segments",
    "read_recording": "mvpa_ts.ieeg.data.files",
    "simulate_cohort": "mvpa_ts.ieeg.simulator",
    "simulate_recording": "mvpa_ts.ieeg.simulator",
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
