"""Seizures in a recording: probabilities, events, files and a report."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.ieeg.detection.detector": "NO_CHANNEL Detector as_recording checked_device skipped_stretches",
        "mvpa_ts.ieeg.detection.detection": "Detection Skipped",
    },
)
