"""Amplitude in the embedding against numpy, and its paths: whole, by pieces, streamed, detected."""

import math

import numpy as np
import pytest
import pywt
import torch
from support.made_up_recordings import seeded

from mvpa_ts.ieeg import Detector, MVPFormerConfig, Recording, mvpformer_m, mvpformer_s, mvpformer_tiny
from mvpa_ts.ieeg.model.amplitude import LEVEL_SEGMENTS, POWER_FLOOR, AmplitudeMap, band_log_power, running_level
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer
from mvpa_ts.ieeg.model.wavelet import wavedec

SEGMENT = 2560


def make_model(**changes):
    return seeded(dim=16, mlp_dim=24, context=4, num_classes=2, **changes)


def make_signal(segments, channels=3):
    generator = torch.Generator().manual_seed(1)
    gains = torch.linspace(1.0, 4.0, segments).repeat_interleave(SEGMENT)
    return 40 * gains * torch.randn(1, channels, segments * SEGMENT, generator=generator)


def test_log_power_is_that_of_pywavelets():
    x = np.random.default_rng(0).normal(0, 30, SEGMENT)
    bands = pywt.wavedec(x, "db4", mode="periodic", level=8)
    expected = [math.log(np.mean(band**2) + POWER_FLOOR) for band in bands]
    np.testing.assert_allclose(band_log_power(wavedec(torch.from_numpy(x))).numpy(), expected)


def test_level_is_the_median_of_two_minutes_without_what_is_masked():
    generator = np.random.default_rng(0)
    power = generator.normal(0, 1, (1, 61, 2, 3))
    power[0, 10:30, 0] = np.nan
    level = running_level(torch.from_numpy(power)).numpy()
    for t in (0, 1, 9, 20, 29, 33, 60):
        for c in range(2):
            known = power[0, max(0, t + 1 - LEVEL_SEGMENTS) : t + 1, c]
            known = known[~np.isnan(known[:, 0])]
            expected = np.quantile(known, 0.5, axis=0, method="lower") if len(known) else np.full(3, np.nan)
            np.testing.assert_allclose(level[0, t, c], expected, err_msg=f"segment {t}")


def test_a_seizure_shorter_than_a_minute_does_not_move_the_level():
    power = torch.zeros(1, 40, 1, 1)
    power[:, 28:39] = 5.0
    assert running_level(power).eq(0.0).all()


def test_gain_moves_the_power_alone_and_not_the_distance_from_the_level():
    amplitude = AmplitudeMap(18)
    with torch.no_grad():
        amplitude.projection.weight.copy_(torch.eye(18))
        amplitude.projection.bias.zero_()
    power = 3.0 + torch.randn(1, 30, 2, 9)
    quiet, loud = amplitude(power), amplitude(power + 2 * math.log(3.0))
    torch.testing.assert_close(loud[..., 9:], quiet[..., 9:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loud[..., :9], quiet[..., :9] + math.log(3.0))


def test_embedding_is_no_longer_blind():
    model, signal = make_model(), make_signal(3)
    assert (model.encode(10 * signal) - model.encode(signal)).norm() > 0.1 * model.encode(signal).norm()


@pytest.mark.parametrize("cuts", [(1, 2), (7, 30), (29,)], ids=str)
def test_pieces_have_the_embeddings_of_the_whole(cuts):
    model, signal = make_model(), make_signal(31)
    mask = torch.rand(1, 31, 3, generator=torch.Generator().manual_seed(2)) > 0.2
    whole = model.encode(signal, mask)
    past, parts = None, []
    for first, last in zip((0, *cuts), (*cuts, 31), strict=True):
        piece = signal[..., first * SEGMENT : last * SEGMENT]
        embeddings, past = model.encode_onward(piece, mask[:, first:last], past)
        parts.append(embeddings)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert past is not None
    assert past.shape[1] == LEVEL_SEGMENTS - 1


def test_what_is_masked_is_zero_and_no_part_of_the_level():
    model, signal = make_model(), make_signal(6)
    mask = torch.ones(1, 6, 3, dtype=torch.bool)
    mask[0, 2, 1] = False
    other = signal.clone()
    other[0, 1, 2 * SEGMENT : 3 * SEGMENT] = torch.nan
    embeddings = model.encode(other, mask)
    assert embeddings[0, 2, 1].eq(0.0).all()
    torch.testing.assert_close(embeddings, model.encode(signal, mask))
    assert embeddings.isfinite().all()


def test_silence_is_finite():
    assert make_model().encode(torch.zeros(1, 2, 3 * SEGMENT)).isfinite().all()


def test_stream_and_detector_equal_the_whole():
    model, signal = make_model(), make_signal(40)
    signal[0, 2, 5 * SEGMENT : 8 * SEGMENT] = 0.0  # flat, so masked
    names = ["A1", "A2", "A3"]
    recording = Recording.from_array(signal[0].numpy(), 512.0, names, "µV", preprocessed=True)
    detector = Detector(model, channels="all", rules="none", batch_size=3)
    segments = detector.segments(recording)
    probabilities = detector.detect_segments(segments).probabilities
    _, valid = segments.read(0, 40)
    mask = torch.from_numpy(valid)[None]
    assert not mask.all()
    with torch.inference_mode():
        embeddings = model.encode(signal, mask)
        for t in (3, 8, 30, 39):  # the windows of a context of 4
            window = slice(t - 3, t + 1)
            features = model.decode(embeddings[:, window], token_mask=mask[:, window])
            logits = model.classify(features, mask[:, t])
            assert probabilities[t] == pytest.approx(logits.softmax(-1)[0, 1].item(), abs=1e-5)
    stream = StreamingMVPFormer(model, 3, context=40)
    for t in range(30):
        features = stream.step(signal[0, :, t * SEGMENT : (t + 1) * SEGMENT], mask[0, t])
        with torch.inference_mode():
            whole = model.decode(embeddings[:, : t + 1], token_mask=mask[:, : t + 1])[0, -1]
        torch.testing.assert_close(features, whole, atol=1e-4, rtol=1e-3)


def test_a_resumed_detection_is_the_same(tmp_path):
    model, signal = make_model(), make_signal(40)
    recording = Recording.from_array(signal[0].numpy(), 512.0, ["A1", "A2", "A3"], "µV", preprocessed=True)
    detector = Detector(model, channels="all", rules="none", batch_size=4)
    segments = detector.segments(recording)
    whole = np.concatenate(list(detector._scored(segments, 0)))
    resumed = np.concatenate(list(detector._scored(segments, 33)))
    np.testing.assert_allclose(resumed, whole[33:], atol=1e-6)


def test_only_tiny_has_it():
    assert mvpformer_tiny().amplitude == "bands"
    assert {config.amplitude for config in (MVPFormerConfig(), mvpformer_s(), mvpformer_m())} == {"none"}
    for config in (mvpformer_s(), mvpformer_tiny()):
        assert MVPFormerConfig.from_dict(config.to_dict()) == config
    assert make_model(amplitude="none").amplitude is None
    with pytest.raises(ValueError, match="amplitude must be one of"):
        MVPFormerConfig(amplitude="loud")
