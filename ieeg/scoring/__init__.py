"""Scores of detections against references, of decoding, and of whole cohorts."""

from mvpa_ts._moved import hand_on

__getattr__ = hand_on(
    __name__,
    {
        "mvpa_ts.ieeg.scoring.scores": "Mode Scores score_events score_seconds score_segments",
    },
)
