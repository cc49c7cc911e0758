"""Seizures in a recording: probabilities, events, files and a report."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.ieeg.detection.detector": "NO_CHANNEL Detector checked_device skipped_stretches",
        "mvpa_ts.ieeg.recordings.reading": "as_recording",
        "mvpa_ts.ieeg.detection.detection": "Detection Skipped",
    },
)
