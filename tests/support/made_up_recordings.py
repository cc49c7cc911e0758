"""Small recordings with something to learn: slow waves that go on from one segment into the next."""

from __future__ import annotations

import numpy as np

from mvpa_ts.ieeg.recordings.recording import Recording


def recording(subject: str, seed: int, segments: int = 40, channels: int = 3, rest: int = 0) -> Recording:
    """Rhythms in noise that go on from segment to segment, since 5 s are whole cycles, while their phase drifts.

    The last `rest` samples of the last segment are missing.
    """
    rng = np.random.default_rng(seed)
    samples = segments * 2560 - rest
    frequency = rng.integers(5, 20, (channels, 1)) / 5
    phase = np.cumsum(2 * np.pi * frequency / 512 + rng.normal(0, 0.01, (channels, samples)), axis=1)
    signal = 50 * np.sin(phase) + rng.normal(0, 5, (channels, samples))
    return Recording.from_array(
        signal.astype(np.float32),
        512.0,
        [f"A{c + 1}" for c in range(channels)],
        "µV",
        subject=subject,
        name=f"{subject}_made_up",
        seizures=[(onset, offset) for onset, offset in ((20.0, 50.0), (120.0, 140.0)) if offset < samples / 512],
    )
