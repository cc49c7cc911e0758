"""The wavelet decomposition against PyWavelets, and the encoder against its formula."""

import warnings

import numpy as np
import pytest
import pywt
import torch

from mvpa_ts.ieeg.model.wavelet import WaveletEncoder, band_lengths, wavedec

LENGTHS = [1, 2, 3, 5, 7, 8, 13, 14, 15, 33, 100, 777, 1536, 2559, 2560]


def decompose(x: np.ndarray, level: int | None) -> list[np.ndarray]:
    with warnings.catch_warnings(action="ignore"):  # levels past the highest are all boundary, and still defined
        return pywt.wavedec(x, "db4", mode="periodic", level=level)


@pytest.mark.parametrize("level", [None, 0, 1, 3, 8])
@pytest.mark.parametrize("length", LENGTHS)
def test_float64_equals_pywavelets(length, level):
    x = np.random.default_rng(length).standard_normal((2, 3, length))
    expected = decompose(x, level)
    bands = wavedec(torch.from_numpy(x), level)
    assert band_lengths(length, level) == tuple(band.shape[-1] for band in expected)
    for band, truth in zip(bands, expected, strict=True):
        np.testing.assert_allclose(band.numpy(), truth, atol=1e-10, rtol=0)


def test_float32_of_a_segment_to_1e_5():
    x = np.random.default_rng(0).standard_normal((50, 2560))
    bands = wavedec(torch.from_numpy(x).float())
    for band, truth in zip(bands, decompose(x, 8), strict=True):
        assert band.dtype == torch.float32
        np.testing.assert_allclose(band.numpy(), truth, atol=1e-5, rtol=1e-5)


def test_it_passes_gradients():
    x = torch.randn(2, 37, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: torch.cat(wavedec(x, level=3), -1), x)


@pytest.mark.parametrize(
    ("x", "level", "message"),
    [
        (torch.zeros(3, 0), None, "at least one sample"),
        (torch.zeros(3, 8, dtype=torch.bfloat16), None, "x must be float32 or float64, got torch.bfloat16"),
        (torch.zeros(3, 8), -1, "level must be at least 0, got -1"),
    ],
)
def test_refusals(x, level, message):
    with pytest.raises(ValueError, match=message):
        wavedec(x, level=level)


def test_encoder_is_a_norm_and_a_projection_of_the_coefficients():
    torch.manual_seed(0)
    encoder = WaveletEncoder(16).double()
    with torch.no_grad():
        encoder.norm.weight.uniform_(0.5, 2.0)
    x = np.random.default_rng(0).standard_normal((5, 2560))
    coefficients = np.concatenate(pywt.wavedec(x, "db4", mode="periodic"), axis=-1)
    assert coefficients.shape == (5, 2610)
    normed = coefficients / np.sqrt((coefficients**2).mean(-1, keepdims=True) + 1e-5)
    weight, projection = (tensor.detach().numpy() for tensor in (encoder.norm.weight, encoder.projection.weight))
    np.testing.assert_allclose(
        encoder(torch.from_numpy(x)).detach().numpy(), (normed * weight) @ projection.T, atol=1e-10
    )
