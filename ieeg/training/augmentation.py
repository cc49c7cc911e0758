"""Changes of a batch that keep its labels, so that a training on little data does not learn recordings by heart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from mvpa_ts.checks import check_flags, check_not_negative, keep_shares
from mvpa_ts.ieeg.constants import SAMPLING_RATE, SEGMENT_SAMPLES
from mvpa_ts.ieeg.model.amplitude import NUM_BANDS
from mvpa_ts.ieeg.training.spans import real_tokens

# Octaves over which a fluctuation of log power is alike: the length of its Gaussian kernel.
FLUCTUATION_OCTAVES = 3.0
# Correlation of a fluctuation from one segment to the next, drawn evenly for each span.
FLUCTUATION_MEMORY = (0.3, 0.95)


@dataclass(frozen=True)
class Augmentation:
    """How strongly spans are changed; the defaults change nothing.

    Every span is changed by different random numbers. All of its channels change alike, except by `channels` and
    `polarity`.

    Attributes
    ----------
    gain : float, default 1
        Largest factor of the amplitude; the smallest is 1 / gain. The logarithm of the factor is drawn evenly.
    tilt : float, default 0
        Largest change of log power at the ends of the spectrum, 1 and 256 Hz, in opposite directions.
    channels : float, default 0
        Largest share of channels that are dropped; one channel is always kept.
    polarity : bool, default False
        Turn each channel upside down with a chance of one half, because the reference of an electrode is arbitrary.
    shift : bool, default False
        Move the borders of the segments. Then the first segment of a span, and segments at a border of a seizure, whose
        label is no longer certain, are no targets.
    background : float, default 0
        Add a stretch without seizure from another span of the batch, multiplied by a factor up to this one.
    start : float, default 0
        Share of the spans that are made to look like the start of a recording: everything before a random segment is
        masked, so there is no running level. A file that begins inside a seizure is like this.
    fluctuation : float, default 0
        Largest standard deviation of a slow random change of log power, from segment to segment and from octave to
        octave. Real background is less steady than simulated noise: a detector trained on steady background takes
        every change of power for a seizure.

    Notes
    -----
    The wide gain is what keeps a strong background from looking like a seizure: see the gains in
    docs/development/detection.md.
    """

    gain: float = 1.0
    tilt: float = 0.0
    channels: float = 0.0
    polarity: bool = False
    shift: bool = False
    background: float = 0.0
    start: float = 0.0
    fluctuation: float = 0.0

    def __post_init__(self) -> None:
        if not self.gain >= 1.0:
            raise ValueError(f"gain must be at least 1, got {self.gain}")
        check_not_negative(self, "tilt", "background")
        keep_shares(self, "channels")
        if not 0.0 <= self.start <= 1.0:
            raise ValueError(f"start must be a share in [0, 1], got {self.start}")
        check_flags(self, "polarity", "shift")
        if not 0.0 <= self.fluctuation < math.inf:
            raise ValueError(f"fluctuation must be finite and at least 0, got {self.fluctuation}")


def augment(batch: dict[str, Any], settings: Augmentation, generator: torch.Generator) -> dict[str, Any]:
    """Return a changed copy of a batch of spans; all random numbers come from `generator`.

    Parameters
    ----------
    batch : dict
        As `collate` makes it, with ``target``.
    settings : Augmentation
    generator : torch.Generator
        On the device of the batch.

    Returns
    -------
    dict
        The batch with changed ``signal``, ``token_mask``, ``target`` and ``past``. The past changes like the signal, by
        band; its borders do not shift.
    """
    signal, past = batch["signal"], batch.get("past")
    device, (B, C, samples) = signal.device, signal.shape
    real, target, ictal = real_tokens(batch), batch["target"], batch["ictal"]

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    # A file may begin inside a seizure. Then there is no level to compare with, which training must have seen.
    if settings.start > 0:
        cut = uniform(B, 1) < settings.start
        first = (uniform(B, 1) * real.shape[1]).long()
        later = ~cut | (torch.arange(real.shape[1], device=device) >= first)
        real, target = real & later[..., None], target & later
        past = None if past is None else past.masked_fill(cut[..., None, None], torch.nan)
    # Only spans without seizure are added: one with a seizure would make the label wrong.
    if settings.background > 0 and len(quiet := torch.nonzero(~ictal.any(1)).flatten()):
        signal, past = _with_background(signal, past, real, quiet, settings.background, generator)
    if settings.polarity:
        # The sign of a channel is a matter of which contact was wired as reference.
        signal = signal * (2.0 * (uniform(B, C, 1) < 0.5) - 1.0)
    log_gain = math.log(settings.gain) * (2 * uniform(B, 1, 1) - 1)
    tilt = settings.tilt * (2 * uniform(B, 1, 1) - 1)
    if settings.tilt > 0:
        frequency = torch.fft.rfftfreq(samples, 1 / SAMPLING_RATE, device=device).clamp(min=1.0)
        place = frequency.log2() / 4 - 1  # −1 at 1 Hz, 1 at 256 Hz
        signal = torch.fft.irfft(torch.fft.rfft(signal) * (0.5 * tilt * place).exp(), n=samples)
    signal = signal * log_gain.exp()
    if past is not None:
        # The past is log power: a factor of the amplitude is twice its logarithm there.
        change = 2 * log_gain + tilt * (_octaves(device) / 4 - 1)  # [B, 1, bands]
        past = past + change[:, None]
    if settings.fluctuation > 0:
        signal, past = _fluctuating(signal, past, settings.fluctuation, generator)
    if settings.channels > 0:
        chance = settings.channels * uniform(B, 1)
        drawn = uniform(B, C).masked_fill(~real.any(1), -1.0)
        # The channel with the highest draw always stays, so that no span is empty.
        kept = (drawn >= chance) | (drawn == drawn.amax(1, keepdim=True))
        real = real & kept[:, None]
        past = None if past is None else past.masked_fill(~kept[:, None, :, None], torch.nan)
    if settings.shift:
        steps = (uniform(B) * SEGMENT_SAMPLES).long() * (uniform(B) < 0.5)
        shifted = torch.arange(samples, device=device) - steps[:, None]
        signal = signal.gather(2, shifted.clamp(min=0)[:, None].expand(-1, C, -1))
        moved = steps > 0
        # A moved segment begins in the one before it, which padding has none of.
        present = real.any(2)
        uncertain = torch.ones_like(target)
        uncertain[:, 1:] = ~present[:, :-1] | (ictal[:, 1:] != ictal[:, :-1])
        before = torch.zeros_like(real)
        before[:, 1:] = real[:, :-1]
        real = real & torch.where(moved[:, None, None], before, True)
        target = target & ~(moved[:, None] & uncertain)
    signal = signal * rearrange(real, "b t c -> b c t").repeat_interleave(SEGMENT_SAMPLES, 2)
    changed = {"signal": signal, "token_mask": real, "target": target}
    return batch | changed | ({} if past is None else {"past": past})


def _octaves(device: torch.device) -> Tensor:
    """Middle of each band as log2 of its frequency; the coarsest two bands lie below 2 Hz, the finest in 128–256 Hz."""
    return torch.tensor([0.0, *(i - 0.5 for i in range(1, NUM_BANDS))], device=device)


def _fluctuating(
    signal: Tensor, past: Tensor | None, highest: float, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Log power that drifts, all channels alike: in frames of a segment that overlap by half, and in the past."""
    device, (B, _, samples) = signal.device, signal.shape
    half = SEGMENT_SAMPLES // 2
    earlier = 0 if past is None else past.shape[1]
    steps = 2 * earlier + samples // half + 1  # of half a segment
    octaves = _octaves(device)
    covariance = torch.exp(-((octaves[:, None] - octaves) / FLUCTUATION_OCTAVES).square())
    factor = torch.linalg.cholesky(covariance + 1e-4 * torch.eye(NUM_BANDS, device=device))
    low, high = FLUCTUATION_MEMORY
    memory = (low + (high - low) * torch.rand((B, 1), generator=generator, device=device)).sqrt()
    scale = highest * torch.rand((B, 1, 1), generator=generator, device=device)
    noise = torch.randn((B, steps, NUM_BANDS), generator=generator, device=device) @ factor.T
    # An autoregressive step keeps the variance at one, whatever the memory.
    drift = [noise[:, 0]]
    for step in range(1, steps):
        drift.append(memory * drift[-1] + (1 - memory.square()).sqrt() * noise[:, step])
    log_power = scale * torch.stack(drift, dim=1)  # [B, steps, bands]
    if past is not None:
        past = past + log_power[:, 1 : 2 * earlier : 2, None]

    # Linear between the octaves' middles, constant beyond them.
    frequency = torch.fft.rfftfreq(SEGMENT_SAMPLES, 1 / SAMPLING_RATE, device=device).clamp(min=1e-3).log2()
    position = torch.where(frequency < 0.5, 2 * frequency, frequency + 0.5).clamp(0, NUM_BANDS - 1)
    lower = position.long().clamp(max=NUM_BANDS - 2)
    share = position - lower
    log_power = log_power[:, 2 * earlier :]
    log_power = (1 - share) * log_power[..., lower] + share * log_power[..., lower + 1]

    # Hann windows with half an overlap add up to one, so a drift of 0 gives back the signal.
    window = torch.hann_window(SEGMENT_SAMPLES, device=device)
    frames = F.pad(signal, (half, half)).unfold(2, SEGMENT_SAMPLES, half) * window
    frames = torch.fft.irfft(torch.fft.rfft(frames) * (0.5 * log_power[:, None]).exp(), n=SEGMENT_SAMPLES)
    halves = frames.unflatten(3, (2, half))
    return (halves[:, :, 1:, 0] + halves[:, :, :-1, 1]).flatten(2), past


def _with_background(
    signal: Tensor, past: Tensor | None, real: Tensor, quiet: Tensor, most: float, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Add a stretch of another span to half of the spans, in the channels in which both have a signal."""
    B, device = len(signal), signal.device
    other = quiet[torch.randint(len(quiet), (B,), generator=generator, device=device)]
    factor = most * torch.rand(B, generator=generator, device=device)
    chosen = torch.rand(B, generator=generator, device=device) < 0.5
    factor = factor * chosen * (other != torch.arange(B, device=device))
    signal = signal + factor[:, None, None] * signal[other]
    if past is not None:
        # Powers of two independent signals add up; past holds their logarithms.
        added = past[other] + 2 * factor.clamp(min=1e-6).log()[:, None, None, None]
        past = torch.where(added.isnan(), past, torch.logaddexp(past, added))
    return signal, past
