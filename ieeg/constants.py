"""What all of `mvpa_ts.ieeg` agrees on: rate and segment of the model's signal, and the notice of every output."""

from __future__ import annotations

SAMPLING_RATE = 512
"""Samples per second of the signal that the model reads."""
SEGMENT_SECONDS = 5.0
"""Length of a segment, which is one token of one channel and one decision."""
SEGMENT_SAMPLES = 2560
"""Samples of a segment at `SAMPLING_RATE`."""
DEMO = "demo"
"""Name of the small detector that ships with the package, trained on simulated subjects to try things out."""
DEMO_BASE = "demo-base"
"""Name of the small model that ships with the package for finetuning on one patient."""
HUB_PREFIX = "hf://"
"""Before a model's name on the Hugging Face hub, "hf://owner/name": commands ask for it, Python accepts it."""
RESEARCH_USE = "For research use; not a medical device."


def check_rate(sfreq: float) -> None:
    """Raise a ValueError where preprocessing does not give the rate that the model reads."""
    if sfreq != SAMPLING_RATE:
        raise ValueError(
            f"preprocessing.sfreq must be {SAMPLING_RATE} Hz, so that {SEGMENT_SECONDS:g} s are the {SEGMENT_SAMPLES} "
            f"samples of the model's segments, got {sfreq} Hz; recordings of any rate are resampled to it"
        )
