"""The vanilla Transformer of the long-term forecasting benchmarks: one token a step, in which all channels are mixed.

neuralforecast's VanillaTransformer sees one channel at a time, so it is another model. Built of PyTorch's layers;
sizes, embeddings and the decoder's start are those of the benchmark's code (Time-Series-Library). Products are in
bfloat16: a training step takes 1.8 s on a core, in float32 4.3 s (horizon 192, 32 windows).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

# First row and step of each data set; the benchmark's scripts give all of them the calendar of hours.
FIRST_ROWS = {
    "ETTh1": ("2016-07-01T00:00", 60),
    "ETTh2": ("2016-07-01T00:00", 60),
    "Weather": ("2020-01-01T00:10", 10),
}
ROWS = 60_000
HEADS, ENCODER_LAYERS, DECODER_LAYERS, DROPOUT = 8, 2, 1, 0.1
LABEL = 48  # steps of the look-back that the decoder begins with


class MixingTransformer(nn.Module):
    """Encoder over the look-back, decoder over its last steps and a horizon of zeros.

    Parameters
    ----------
    dataset : str
        Sets the calendar.
    channels, lookback, horizon : int
    width, inner : int
    """

    calendar: Tensor
    positions: Tensor

    def __init__(
        self,
        dataset: str,
        channels: int,
        lookback: int,
        horizon: int,
        *,
        width: int = 512,
        inner: int = 2048,
    ) -> None:
        super().__init__()
        self.horizon, self.label = horizon, min(LABEL, lookback)
        self.register_buffer("calendar", calendar(dataset), persistent=False)
        self.register_buffer("positions", sinusoids(lookback + horizon, width), persistent=False)
        self.encoder_tokens, self.decoder_tokens = _tokens(channels, width), _tokens(channels, width)
        self.encoder_marks, self.decoder_marks = (nn.Linear(4, width, bias=False) for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)
        layer = {"dim_feedforward": inner, "dropout": DROPOUT, "activation": "gelu", "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, HEADS, **layer), ENCODER_LAYERS, nn.LayerNorm(width)
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(width, HEADS, **layer), DECODER_LAYERS, nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, channels)

    def forward(self, x: Tensor, phase: Tensor | None = None, **inputs: Tensor | None) -> Tensor:
        """Map [B, L, C] to [B, h, C, 1]; `phase` is the row of the first step."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return self._forecast(x, phase).to(x.dtype)[..., None]

    def _forecast(self, x: Tensor, phase: Tensor | None) -> Tensor:
        B, L, C = x.shape
        first = torch.zeros(B, dtype=torch.long, device=x.device) if phase is None else phase.long()
        marks = self.calendar[first[:, None] + torch.arange(L + self.horizon, device=x.device)]
        memory = self.encoder(self._embed(x, marks[:, :L], self.encoder_tokens, self.encoder_marks))
        start = torch.cat([x[:, L - self.label :], x.new_zeros(B, self.horizon, C)], dim=1)
        target = self._embed(start, marks[:, L - self.label :], self.decoder_tokens, self.decoder_marks)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=x.device, dtype=x.dtype)
        decoded = self.decoder(target, memory, tgt_mask=causal, tgt_is_causal=True)
        return self.head(decoded[:, -self.horizon :])

    def _embed(self, x: Tensor, marks: Tensor, tokens: nn.Conv1d, of_marks: nn.Linear) -> Tensor:
        return self.dropout(tokens(x.mT).mT + self.positions[: x.shape[1]] + of_marks(marks))


def _tokens(channels: int, width: int) -> nn.Conv1d:
    """A step's token from it and its two neighbours, with the benchmark's initial weights."""
    convolution = nn.Conv1d(channels, width, 3, padding=1, padding_mode="circular", bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="leaky_relu")
    return convolution


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines of the position, [length, width]."""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def calendar(dataset: str) -> Tensor:
    """Hour, weekday, day of the month and day of the year of each row, each from −0.5 to 0.5; [rows, 4]."""
    first, minutes = FIRST_ROWS[dataset]
    times = np.datetime64(first) + np.arange(ROWS) * np.timedelta64(minutes, "m")
    days = times.astype("datetime64[D]")
    hour = (times - days).astype("timedelta64[h]").astype(int)
    weekday = (days.astype(int) + 3) % 7  # 1970-01-01 was a Thursday; Monday is 0
    of_month = (days - times.astype("datetime64[M]").astype("datetime64[D]")).astype(int)
    of_year = (days - times.astype("datetime64[Y]").astype("datetime64[D]")).astype(int)
    columns = [hour / 23, weekday / 6, of_month / 30, of_year / 365]
    return torch.tensor(np.stack(columns, axis=1) - 0.5, dtype=torch.float32)
