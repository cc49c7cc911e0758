"""MVPFormer for intracranial EEG: model, recordings, pretraining and seizure detection.

For research use; not a medical device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvpa_ts.ieeg.configuration import MVPFormerConfig as MVPFormerConfig
    from mvpa_ts.ieeg.configuration import mvpformer_m as mvpformer_m
    from mvpa_ts.ieeg.configuration import mvpformer_s as mvpformer_s
    from mvpa_ts.ieeg.configuration import mvpformer_tiny as mvpformer_tiny
    from mvpa_ts.ieeg.data.files import read_recording as read_recording
    from mvpa_ts.ieeg.data.module import RecordingDataModule as RecordingDataModule
    from mvpa_ts.ieeg.data.preprocessing import Preprocessing as Preprocessing
    from mvpa_ts.ieeg.data.recording import Recording as Recording
    from mvpa_ts.ieeg.data.segments import Segments as Segments
    from mvpa_ts.ieeg.detection import Detection as Detection
    from mvpa_ts.ieeg.detection import Detector as Detector
    from mvpa_ts.ieeg.model import MVPFormer as MVPFormer
    from mvpa_ts.ieeg.pretraining import PretrainingModule as PretrainingModule
    from mvpa_ts.ieeg.released import load_released as load_released
    from mvpa_ts.ieeg.similarity import Similarity as Similarity
    from mvpa_ts.ieeg.simulator import simulate_cohort as simulate_cohort
    from mvpa_ts.ieeg.simulator import simulate_recording as simulate_recording
    from mvpa_ts.ieeg.streaming_detection import StreamingDetector as StreamingDetector

# Names are loaded on first use, so that a command or a reader does not import what it does not need.
_LAZY = {
    "Detection": "mvpa_ts.ieeg.detection",
    "Detector": "mvpa_ts.ieeg.detection",
    "MVPFormer": "mvpa_ts.ieeg.model",
    "MVPFormerConfig": "mvpa_ts.ieeg.configuration",
    "Preprocessing": "mvpa_ts.ieeg.data.preprocessing",
    "PretrainingModule": "mvpa_ts.ieeg.pretraining",
    "Recording": "mvpa_ts.ieeg.data.recording",
    "RecordingDataModule": "mvpa_ts.ieeg.data.module",
    "Segments": "mvpa_ts.ieeg.data.segments",
    "Similarity": "mvpa_ts.ieeg.similarity",
    "StreamingDetector": "mvpa_ts.ieeg.streaming_detection",
    "load_released": "mvpa_ts.ieeg.released",
    "mvpformer_m": "mvpa_ts.ieeg.configuration",
    "mvpformer_s": "mvpa_ts.ieeg.configuration",
    "mvpformer_tiny": "mvpa_ts.ieeg.configuration",
    "read_recording": "mvpa_ts.ieeg.data.files",
    "simulate_cohort": "mvpa_ts.ieeg.simulator",
    "simulate_recording": "mvpa_ts.ieeg.simulator",
}
__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mvpa_ts"):
            raise
        raise ImportError(f'mvpa_ts.ieeg.{name} needs {error.name}: pip install "mvpa-ts[ieeg]"') from error


def __dir__() -> list[str]:
    return sorted(__all__)
