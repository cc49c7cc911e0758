"""Discrete wavelet decomposition, batched on the tensor's device and equal to `pywt.wavedec`, and the encoder."""

from __future__ import annotations

from collections.abc import Sequence

import pywt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvpa_ts.ieeg.constants import SEGMENT_SAMPLES

# Low-pass and high-pass filter of db4, in the order in which they meet the signal.
_LOW, _HIGH = (tuple(reversed(taps)) for taps in (pywt.Wavelet("db4").dec_lo, pywt.Wavelet("db4").dec_hi))


def wavedec(x: Tensor, level: int | None = None) -> list[Tensor]:
    """Decompose the last axis with periodic extension, as ``pywt.wavedec(x, "db4", mode="periodic", level=level)``.

    Parameters
    ----------
    x : Tensor, shape (..., n)
        float32 or float64; any n ≥ 1.
    level : int, optional
        Default: the highest for which the coarsest coefficients are not all boundary (``pywt.dwt_max_level``).

    Returns
    -------
    list of Tensor
        Coefficients a_L, d_L, …, d_1 along the last axis.

    Raises
    ------
    ValueError
        The level is negative, or x empty or not float32 or float64.

    Notes
    -----
    Each level is a sum of shifted copies, so no setting of the device's matrix products (TF32) touches its precision.

    Examples
    --------
    >>> import torch
    >>> [band.shape[-1] for band in wavedec(torch.randn(3, 2560))]
    [16, 16, 26, 46, 86, 166, 326, 645, 1283]
    """
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have at least one sample along its last axis, got shape {tuple(x.shape)}")
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, got {x.dtype}")
    if level is None:  # `pywt.dwt_max_level`, which torch.compile cannot look into
        level = 0
        while x.shape[-1] >= (len(_LOW) - 1) * 2 ** (level + 1):
            level += 1
    if level < 0:
        raise ValueError(f"level must be at least 0, got {level}")
    details = []
    for _ in range(level):
        samples = x.shape[-1]
        # PyWavelets' length for periodic extension, which is longer than half the signal by the filter's overlap.
        length = (samples + len(_LOW) - 1) // 2
        positions = torch.arange(2 - len(_LOW), 2 * length, device=x.device) % samples
        extended = x[..., positions]
        # Both filters read the same slices: tracing by torch.compile takes its time by operations.
        shifted = [extended[..., shift : shift + 2 * length - 1 : 2] for shift in range(len(_LOW))]
        x = _weighted_sum(shifted, _LOW)
        details.append(_weighted_sum(shifted, _HIGH))
    return [x, *reversed(details)]


def band_lengths(samples: int, level: int | None = None) -> tuple[int, ...]:
    """Lengths of what `wavedec` returns for a signal of so many samples.

    >>> sum(band_lengths(2560))
    2610
    """
    return tuple(band.shape[-1] for band in wavedec(torch.empty(samples, device="meta"), level))


class WaveletEncoder(nn.Module):
    """Wavelet coefficients of a segment, RMSNorm over them, and a linear map to the model's width.

    The coefficients are those of a db4 decomposition to level 8, from the coarsest to the finest. The norm makes the
    embedding blind to amplitude, unless the signal is so small that its eps matters: µV are expected. Where the
    configuration asks for amplitude, `AmplitudeMap` adds it.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        coefficients = sum(band_lengths(SEGMENT_SAMPLES))
        self.norm = nn.RMSNorm(coefficients, eps=1e-5)
        self.projection = nn.Linear(coefficients, dim, bias=False)

    def forward(self, segments: Tensor) -> Tensor:
        """Embed segments [..., 2560] as [..., D]; coefficients and norm are at least float32 whatever the precision.

        The result has the weights' precision under autocast too, so that the residual stream keeps it.
        """
        return self.project(self.bands(segments))

    def bands(self, segments: Tensor) -> list[Tensor]:
        """Wavelet coefficients of segments [..., 2560], at least float32."""
        dtype = torch.promote_types(segments.dtype, torch.float32)
        # Coefficients of a slow wave and of a spike differ by orders of magnitude, which half precision does not hold.
        with torch.autocast(segments.device.type, enabled=False):
            return wavedec(segments.to(dtype))

    def project(self, bands: Sequence[Tensor]) -> Tensor:
        """Embedding [..., D] of what `bands` gave."""
        coefficients = torch.cat(list(bands), dim=-1)
        with torch.autocast(coefficients.device.type, enabled=False):
            weight = self.norm.weight.to(coefficients.dtype)
            normed = F.rms_norm(coefficients, self.norm.normalized_shape, weight, self.norm.eps)
        precision = self.projection.weight.dtype
        return self.projection(normed.to(precision)).to(precision)


def _weighted_sum(shifted: Sequence[Tensor], taps: Sequence[float]) -> Tensor:
    output = shifted[0] * taps[0]
    for values, tap in zip(shifted[1:], taps[1:], strict=True):
        output = output.add_(values, alpha=tap)
    return output
