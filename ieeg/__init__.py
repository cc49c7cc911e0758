"""MVPFormer for intracranial EEG: model, recordings, pretraining and seizure detection.

For research use; not a medical device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvpa_ts._lazy import lazy_names

if TYPE_CHECKING:
    from mvpa_ts.ieeg.detection.detection import Detection as Detection
    from mvpa_ts.ieeg.detection.detector import Detector as Detector
    from mvpa_ts.ieeg.detection.streaming import StreamingDetector as StreamingDetector
    from mvpa_ts.ieeg.model.configuration import MVPFormerConfig as MVPFormerConfig
    from mvpa_ts.ieeg.model.configuration import mvpformer_m as mvpformer_m
    from mvpa_ts.ieeg.model.configuration import mvpformer_s as mvpformer_s
    from mvpa_ts.ieeg.model.configuration import mvpformer_tiny as mvpformer_tiny
    from mvpa_ts.ieeg.model.embedding import embed as embed
    from mvpa_ts.ieeg.model.generation import generate as generate
    from mvpa_ts.ieeg.model.mvpformer import MVPFormer as MVPFormer
    from mvpa_ts.ieeg.model.released import load_released as load_released
    from mvpa_ts.ieeg.preprocessing.segments import Segments as Segments
    from mvpa_ts.ieeg.preprocessing.settings import Preprocessing as Preprocessing
    from mvpa_ts.ieeg.recordings.reading import read_recording as read_recording
    from mvpa_ts.ieeg.recordings.recording import Recording as Recording
    from mvpa_ts.ieeg.simulation.simulate import simulate_cohort as simulate_cohort
    from mvpa_ts.ieeg.simulation.simulate import simulate_recording as simulate_recording
    from mvpa_ts.ieeg.training.data_module import RecordingDataModule as RecordingDataModule
    from mvpa_ts.ieeg.training.pretraining import PretrainingModule as PretrainingModule
    from mvpa_ts.ieeg.training.similarity import Similarity as Similarity

# Names are loaded on first use, so that a command or a reader does not import what it does not need.
_LAZY = {
    "Detection": "mvpa_ts.ieeg.detection.detection",
    "Detector": "mvpa_ts.ieeg.detection.detector",
    "MVPFormer": "mvpa_ts.ieeg.model.mvpformer",
    "Preprocessing": "mvpa_ts.ieeg.preprocessing.settings",
    "PretrainingModule": "mvpa_ts.ieeg.training.pretraining",
    "Recording": "mvpa_ts.ieeg.recordings.recording",
    "RecordingDataModule": "mvpa_ts.ieeg.training.data_module",
    "Segments": "mvpa_ts.ieeg.preprocessing.segments",
    "Similarity": "mvpa_ts.ieeg.training.similarity",
    "StreamingDetector": "mvpa_ts.ieeg.detection.streaming",
    "embed": "mvpa_ts.ieeg.model.embedding",
    "generate": "mvpa_ts.ieeg.model.generation",
    "load_released": "mvpa_ts.ieeg.model.released",
    "read_recording": "mvpa_ts.ieeg.recordings.reading",
    "MVPFormerConfig": "mvpa_ts.ieeg.model.configuration",
    **dict.fromkeys(("mvpformer_m", "mvpformer_s", "mvpformer_tiny"), "mvpa_ts.ieeg.model.configuration"),
    **dict.fromkeys(("simulate_cohort", "simulate_recording"), "mvpa_ts.ieeg.simulation.simulate"),
}
__all__ = [*_LAZY]
__getattr__ = lazy_names(__name__, _LAZY, extra="ieeg")


def __dir__() -> list[str]:
    return sorted(__all__)
