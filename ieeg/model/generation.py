"""Generation: embeddings of segments that have not come yet, one after the other, and a waveform to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.ieeg.constants import SEGMENT_SECONDS
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.sliding import encoded_past
from mvpa_ts.ieeg.model.streaming import StreamingMVPFormer
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.preprocessing.settings import Preprocessing
from mvpa_ts.ieeg.recordings.reading import AnyRecording, as_recording


@dataclass(frozen=True, repr=False)
class Generated:
    """What `generate` returns.

    Attributes
    ----------
    embeddings : Tensor, shape (steps, C, D)
        Embeddings of the segments after the recording's end; zero for channels without a signal in its last 5 s.
    valid : bool Tensor, shape (C,)
        Channels that had a signal in the recording's last 5 s.
    start : float
        Seconds of the recording at which the first of these segments begins: its end, to within two samples.
    waveform : ndarray of float32, shape (C, steps·2560)
        µV. Pieces of the recording's own past whose embeddings are most like the generated ones, all channels of a
        piece from the same time, with cross-faded joints. It is for looking at: the model gives embeddings, no samples.
    sources : ndarray of float64, shape (steps,)
        Seconds of the recording at which the pieces begin.
    sfreq : float
        Rate of the waveform: 512 Hz.
    channel_names : tuple of str
    """

    embeddings: Tensor
    valid: Tensor
    start: float
    waveform: NDArray[np.float32]
    sources: NDArray[np.float64]
    sfreq: float
    channel_names: tuple[str, ...]

    def __repr__(self) -> str:
        steps, channels, width = self.embeddings.shape
        stop = self.start + steps * SEGMENT_SECONDS
        silent = int((~self.valid).sum())
        missing = f" ({silent} without a signal)" if silent else ""
        return f"<Generated {self.start:.1f} to {stop:.1f} s: {steps} × {channels} channels{missing} × {width}>"


@torch.no_grad()
def roll_out(model: MVPFormer, embeddings: Tensor, valid: Tensor, steps: int, *, context: int | None = None) -> Tensor:
    """Predict the embedding of the next segment, read it as that segment, and repeat.

    Training compares directions only, so each prediction gets the length that embeddings of its channel have: the
    median of those before. Keys and values of the past are cached, see `StreamingMVPFormer`; MV-Llama, whose positions
    move with time, has no cache and a full pass for each step.

    Parameters
    ----------
    model : MVPFormer
        A model with a prediction head; used in evaluation mode.
    embeddings : Tensor, shape (T, C, D)
        Embeddings of the segments so far. The last `context` are read. Values that are not valid do not matter.
    valid : bool Tensor, shape (T, C)
    steps : int
        Segments to generate.
    context : int, optional
        Segments that a prediction is made from; default ``model.config.context``.

    Returns
    -------
    Tensor, shape (steps, C, D)
        Zero for channels that are not valid in the last segment.

    Raises
    ------
    ValueError
        `steps` or `context` is out of range, or the model has no prediction head.

    Examples
    --------
    >>> import torch
    >>> from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
    >>> model = MVPFormer(mvpformer_tiny())
    >>> roll_out(model, torch.randn(6, 3, 64), torch.ones(6, 3, dtype=torch.bool), steps=4).shape
    torch.Size([4, 3, 64])
    """
    context = model.config.context if context is None else context
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not 1 <= context <= model.config.time_rows:
        raise ValueError(f"context must be from 1 to time_rows ({model.config.time_rows}), got {context}")
    # The loss of pretraining is blind to length, so a prediction's own length means nothing.
    lengths = embeddings.norm(dim=-1).masked_fill(~valid, torch.nan).nanmedian(dim=0).values  # [C]
    embeddings, valid = embeddings[-context:], valid[-context:]
    real = valid[-1]
    training = model.training
    try:
        # Rotary positions of a cached key would have to turn with every step, so MV-Llama recomputes the window.
        cached = model.eval().config.attention == "mvpa"
        stream = StreamingMVPFormer(model, embeddings.shape[1], context) if cached else None
        rows, masks = embeddings, valid
        generated: list[Tensor] = []
        for _ in range(steps):
            if stream is None:
                features = model.decode(embeddings[None], token_mask=valid[None])[0, -1]
            else:
                for row, mask in zip(rows, masks, strict=True):
                    features = stream.step_embeddings(row, mask)
            direction = F.normalize(model.predict(features), dim=-1)
            new = (direction * lengths[:, None]).masked_fill(~real[:, None], 0.0)
            generated.append(new)
            rows, masks = new[None], real[None]
            embeddings, valid = torch.cat([embeddings, rows])[-context:], torch.cat([valid, masks])[-context:]
    finally:
        model.train(training)
    return torch.stack(generated)


def nearest_segments(generated: Tensor, past: Tensor, valid: Tensor) -> Tensor:
    """For each generated segment [S, C, D] the row of the past [P, C, D] that is most like it, [S].

    What counts is the mean cosine over channels. A channel that is not valid [P, C] counts as a cosine of 0.

    Examples
    --------
    >>> import torch
    >>> past = torch.eye(3)[:, None]  # three segments of one channel
    >>> nearest_segments(past[[2, 0]] * 5, past, torch.ones(3, 1, dtype=torch.bool))
    tensor([2, 0])
    """
    # A missing channel is a zero vector, so its cosine is 0 and it neither helps nor hurts a segment.
    unit = F.normalize(past.float(), dim=-1).masked_fill(~valid[..., None], 0.0)
    return torch.einsum("scd,pcd->sp", F.normalize(generated.float(), dim=-1), unit).argmax(1)


def generate(
    model: MVPFormer,
    recording: AnyRecording,
    steps: int,
    *,
    preprocessing: Preprocessing | None = None,
    channels: Sequence[str] | None = None,
    context: int | None = None,
    past: int = 360,
) -> Generated:
    """Embeddings of the `steps` segments of 5 s after a recording's end, and a waveform to look at.

    Each predicted embedding is taken for the segment itself and the next one is predicted from it, see `roll_out`. The
    waveform is put together from the recording's last `past` segments (default: half an hour). The other parameters are
    those of `embed`.

    Raises
    ------
    ValueError
        The recording holds less than 10 s, or the model has no prediction head.

    Examples
    --------
    >>> from mvpa_ts.ieeg import MVPFormer, generate, mvpformer_tiny, simulate_recording
    >>> generate(MVPFormer(mvpformer_tiny()), simulate_recording("S01", num_channels=4, duration=60), steps=3)
    <Generated 60.0 to 75.0 s: 3 × 4 channels × 64>
    """
    recording = as_recording(recording)
    # A model without a prediction head is refused here, before hours of signal are read.
    model.predict(next(model.parameters()).new_zeros(model.config.dim))
    # The grid of segments ends where the recording ends; two samples more, as the new rate's grid is another.
    whole = int(recording.duration / SEGMENT_SECONDS + 1e-9)
    first = max(0.0, recording.duration - whole * SEGMENT_SECONDS - 2 / recording.sfreq)
    segments = Segments(recording.crop(first, recording.duration), preprocessing, channels)
    count = segments.num_samples // segments.segment_samples
    if past < 2 or count < 2:
        raise ValueError(f"generation needs two past segments (10 s): past is {past}, {recording.name} holds {count}")
    length = min(past, count)
    embeddings, valid, _ = encoded_past(model, segments, count, length, batch_size=8)
    generated = roll_out(model, embeddings, valid, steps, context=context)
    # Without the last segment, so that each piece goes on into the next one's beginning.
    rows = nearest_segments(generated, embeddings[:-1], valid[:-1]).cpu().numpy() + count - length
    offset = round(first * recording.sfreq) / recording.sfreq
    return Generated(
        generated.cpu(),
        valid[-1].cpu(),
        offset + count * SEGMENT_SECONDS,
        _faded(segments, rows),
        offset + segments.starts[rows],
        segments.preprocessing.sfreq,
        segments.channel_names,
    )


def _faded(segments: Segments, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Segments one after the other; what follows a piece in the recording is faded into the beginning of the next."""
    size = segments.segment_samples
    # The next piece begins with what followed the piece before it and fades over, as a jump would look like an
    # artefact.
    # Half a second is short beside the 5 s of a piece and long beside a spike.
    fade = round(0.5 * segments.preprocessing.sfreq)
    rising = (0.5 - 0.5 * np.cos(np.pi * (np.arange(fade) + 0.5) / fade)).astype(np.float32)
    out = np.empty((len(segments.channel_names), len(rows) * size), np.float32)
    following: NDArray[np.float32] | None = None
    for step, row in enumerate(rows):
        signal, _ = segments.read(int(row), int(row) + 2)
        piece = out[:, step * size : (step + 1) * size]
        piece[:] = signal[:, :size]
        if following is not None:
            piece[:, :fade] = rising * piece[:, :fade] + (1 - rising) * following
        following = signal[:, size : size + fade].copy()
    return out
