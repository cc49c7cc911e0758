"""White noise on a recording, for the noise test: 30 to 60 dB under each channel's own signal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mvpa_ts.ieeg.recordings.reading import AnyRecording, as_recording
from mvpa_ts.ieeg.recordings.recording import Recording, Signal

_BLOCK = 4096  # samples whose noise comes from one seed, so that any stretch can be made alone


def add_noise(recording: AnyRecording, snr: float, *, seed: int = 0) -> Recording:
    """The recording with white Gaussian noise, as lazy as before.

    The noise of a channel is `snr` dB below the variance of that channel's finite samples over the whole recording,
    which is read once in blocks. A sample's noise depends on the seed and its place only, not on how it is read.

    Parameters
    ----------
    recording : Recording, Raw, path, or (samples, sfreq)
    snr : float
        Signal-to-noise ratio (dB).
    seed : int, default 0

    Raises
    ------
    ValueError
        `snr` is not finite, or the recording holds no finite sample.

    Examples
    --------
    >>> import numpy as np
    >>> clean = Recording.from_array(np.random.default_rng(0).normal(0, 50, (2, 51200)), 512.0, ["A1", "A2"], "µV")
    >>> noise = add_noise(clean, 20.0).read(0, 51200) - clean.read(0, 51200)
    >>> np.round(noise.std(1)).tolist()
    [5.0, 5.0]
    """
    if not np.isfinite(snr):
        raise ValueError(f"snr must be a finite number of dB such as 40, got {snr:g} (--noise)")
    recording = as_recording(recording)
    count, total, squares = np.zeros((3, len(recording.channel_names)))
    # A minute at a time: a night does not fit into memory.
    step = max(int(60 * recording.sfreq), 1)
    for start in range(0, recording.num_samples, step):
        block = recording.read(start, min(start + step, recording.num_samples)).astype(np.float64)
        # Each channel by its own samples: one that was never connected says nothing of the others.
        good = np.isfinite(block)
        block[~good] = 0.0
        count += good.sum(1)
        total += block.sum(1)
        squares += (block**2).sum(1)
    if not count.any():
        raise ValueError(f"{recording.name}: every sample is missing, so noise of {snr:g} dB has no signal to refer to")
    count = np.maximum(count, 1)
    variance = np.maximum(squares / count - (total / count) ** 2, 0.0)
    deviation = np.sqrt(variance * 10 ** (-snr / 10))
    return recording.replaced(
        source=_NoisySource(recording, deviation, seed),
        channel_indices=None,
        first_sample=0,
        metadata={**recording.metadata, "noise_snr_db": snr, "noise_seed": seed},
    )


class _NoisySource:
    def __init__(self, recording: Recording, deviation: NDArray[np.float64], seed: int) -> None:
        self.recording = recording
        self.deviation = deviation
        self.seed = seed

    def read(self, start: int, stop: int, channels: NDArray[np.intp]) -> Signal:
        # Noise is made for all channels and picked afterwards: one channel alone gets the noise that it has among all.
        clean = self.recording.read(start, stop, [int(channel) for channel in channels])
        noise = np.empty((len(self.deviation), stop - start), np.float32)
        for block in range(start // _BLOCK, -(-stop // _BLOCK)):
            drawn = np.random.default_rng((self.seed, block)).standard_normal((_BLOCK, len(self.deviation)), np.float32)
            low, high = max(block * _BLOCK, start), min((block + 1) * _BLOCK, stop)
            noise[:, low - start : high - start] = drawn[low - block * _BLOCK : high - block * _BLOCK].T
        return (clean + noise[channels] * self.deviation[channels, None]).astype(np.float32)
