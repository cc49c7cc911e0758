"""Embeddings of a recording against one full pass per window."""

import numpy as np
import pytest
import torch

from mvpa_ts.ieeg import MVPFormer, embed, mvpformer_tiny
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.recordings.recording import Recording

NAMES = ["A1", "A2", "B1"]


def make_recording(seconds: float, gap: bool = True) -> Recording:
    x = np.random.default_rng(0).normal(0, 50, (3, round(seconds * 512)))
    if gap:
        x[1, 5 * 512 : 10 * 512] = np.nan
    return Recording.from_array(x, 512.0, NAMES, "µV")


def make_model(row_order: str = "distance") -> MVPFormer:
    torch.manual_seed(0)
    return MVPFormer(mvpformer_tiny(row_order=row_order, amplitude="none"))


@pytest.mark.parametrize("row_order", ["distance", "released"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_each_row_is_the_last_segment_of_its_window(row_order, batch_size):
    model, recording = make_model(row_order), make_recording(32.0)
    embeddings = embed(model, recording, context=3, batch_size=batch_size)
    assert model.training
    model.eval()
    segments = Segments(recording)
    assert embeddings.features.shape == (7, 3, 64)
    assert embeddings.channel_names == tuple(NAMES)
    np.testing.assert_array_equal(embeddings.starts, [0, 5, 10, 15, 20, 25, 27])
    assert embeddings.valid.tolist() == [[True, index != 1, True] for index in range(7)]
    for index in range(7):
        parts = [segments.read(i, i + 1) for i in range(max(0, index - 2), index + 1)]
        signal, valid = (
            np.concatenate(part, axis=axis) for part, axis in zip(zip(*parts, strict=True), (1, 0), strict=True)
        )
        with torch.no_grad():
            features = model(torch.from_numpy(signal)[None], token_mask=torch.from_numpy(valid)[None])
        torch.testing.assert_close(embeddings.features[index], features[0, -1], atol=1e-5, rtol=1e-4)
    assert (embeddings.features[1, 1] == 0).all()


def test_a_probe_can_be_trained_on_the_features():
    """Logistic regression by torch, whose backward pass keeps the features."""
    embeddings = embed(make_model(), make_recording(40.0))
    assert not embeddings.features.requires_grad
    rows = embeddings.features.flatten(1)
    probe = torch.nn.Linear(rows.shape[1], 1)
    labels = (torch.arange(len(rows)) >= 4).float()[:, None]
    optimizer = torch.optim.Adam(probe.parameters(), lr=0.05)
    losses = []
    for _ in range(50):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(probe(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert not embeddings.valid.is_inference()


def test_each_segment_is_encoded_once():
    model = make_model()
    calls = []
    model.encoder.register_forward_hook(lambda _, inputs, output: calls.append(inputs[0].shape))
    embed(model, make_recording(40.0))
    assert calls == [(1, 8, 3, 2560)]  # one batch


def test_channels_can_be_picked():
    embeddings = embed(make_model(), make_recording(10.0, gap=False), channels=["B1", "A1"])
    assert embeddings.channel_names == ("B1", "A1")
    assert embeddings.features.shape == (2, 2, 64)


def test_a_context_past_the_codebook_is_refused():
    with pytest.raises(ValueError, match=r"context must be from 1 to time_rows \(110\), got 111"):
        embed(make_model(), make_recording(10.0), context=111)
