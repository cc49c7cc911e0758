"""Seizures in a recording: probabilities, events, files and a report."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.ieeg.detection.detector": "NO_CHANNEL Detection Detector Skipped as_recording checked_device"
        " skipped_stretches",
    },
)
