"""Amplitude of segments, which the norm of the encoder takes away: log power of the bands and their running level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.wavelet import band_lengths

# Bands of a segment: the coarsest approximation and eight details.
NUM_BANDS = len(band_lengths(SEGMENT_SAMPLES))
# Added to a band's power (µV²) before the logarithm: the square of 0.1 µV, one step of a usual EDF file.
POWER_FLOOR = 0.01
# Segments of the running level, the segment itself included: two minutes.
# Chosen on simulated subjects with random gains: a longer level helps a little more, but makes a stretch of training
# read more of what lies before it. What this level is worth: docs/development/detection.md.
LEVEL_SEGMENTS = 24
_CENTER, _SCALE = 6.0, 2.0  # of log power in µV² over the bands of a background of 40 µV, so that inputs are near one


def band_log_power(bands: Sequence[Tensor]) -> Tensor:
    """Logarithm of each band's mean squared coefficient, [..., bands], of what `wavedec` gives of signals in µV.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg.model.wavelet import wavedec
    >>> band_log_power(wavedec(torch.zeros(2560))).exp()
    tensor([0.0100, 0.0100, 0.0100, 0.0100, 0.0100, 0.0100, 0.0100, 0.0100, 0.0100])
    """
    return torch.stack([band.square().mean(-1) for band in bands], dim=-1).add(POWER_FLOOR).log()


def running_level(log_power: Tensor, past: Tensor | None = None) -> Tensor:
    """Median of each segment and the 23 before it, by channel and band; NaN is left out.

    It is robust, so that a seizure shorter than a minute hardly moves it, and causal, so that a stream gives the same.
    At the start of a recording it is the median of what has come: the first segment is its own level. Log power, and
    that of the segments before in `past`, is [B, T, C, bands], and NaN where a channel has no signal. So is the level
    where no segment had one; of an even number it is the lower one in the middle.

    Examples
    --------
    >>> import torch
    >>> running_level(torch.tensor([1.0, 5.0, 2.0, float("nan")]).reshape(1, 4, 1, 1)).flatten()
    tensor([1., 1., 2., 2.])
    """
    joined = log_power if past is None else torch.cat([past.to(log_power), log_power], dim=1)
    # Every segment gets a window of the same length. At the start of a recording the window is filled up with NaN,
    # which the median leaves out, so a stream that has just begun and a file give the same level.
    missing = LEVEL_SEGMENTS - 1 + log_power.shape[1] - joined.shape[1]
    joined = F.pad(joined, (0, 0, 0, 0, missing, 0), value=torch.nan)  # a longer past is cut off: fewer than none
    return joined.unfold(1, LEVEL_SEGMENTS, 1).nanmedian(dim=-1).values


class AmplitudeMap(nn.Module):
    """A linear map of log band power, and of its distance from the running level, to the model's width.

    Both are needed. The distance tells a seizure in a recording whatever its gain; the power itself tells one that
    fills a recording from the first second, where there is no level to compare with.

    Parameters
    ----------
    dim : int
        Width D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.projection = nn.Linear(2 * NUM_BANDS, dim)

    def forward(self, log_power: Tensor, past: Tensor | None = None) -> Tensor:
        """Map log power [B, T, C, bands], NaN where masked, to [B, T, C, D]; `past` as for `running_level`."""
        # The power alone depends on the electrode and the amplifier. Its distance from the level is what a seizure
        # changes.
        distance = log_power - running_level(log_power, past)
        # A masked channel becomes 0, the middle of an average background, so that it pulls the embedding nowhere.
        numbers = torch.cat([(log_power - _CENTER) / _SCALE, distance], dim=-1).nan_to_num(0.0)
        return self.projection(numbers.to(self.projection.weight.dtype))
