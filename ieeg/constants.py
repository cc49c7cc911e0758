"""What all of `mvpa_ts.ieeg` agrees on: rate and segment of the model's signal, the notice and numbers of outputs."""

from __future__ import annotations

# Samples per second of the signal that the model reads.
SAMPLING_RATE = 512
# Length of a segment, which is one token of one channel and one decision.
SEGMENT_SECONDS = 5.0
# Samples of a segment at `SAMPLING_RATE`.
SEGMENT_SAMPLES = 2560
# Name of the small detector that ships with the package, trained on simulated subjects to try things out.
DEMO = "demo"
# Name of the small model that ships with the package for finetuning on one patient.
DEMO_BASE = "demo-base"
# Before a model's name on the Hugging Face hub, "hf://owner/name": commands ask for it, Python accepts it.
HUB_PREFIX = "hf://"
# Baselines that `mvpformer detect --model` takes by name; the regression also needs a file that finetune wrote.
LINE_LENGTH, REGRESSION, BRAINMAZE = "line-length", "regression", "brainmaze"
# What a file of classes of one's own, and its kind, are called.
CLASSES = "classes"
# Why a segment is left out that somebody marked.
MARKED_BAD = "a mark of bad signal (BAD_)"
RESEARCH_USE = "For research use; not a medical device."


def check_rate(sfreq: float) -> None:
    """Raise a ValueError where preprocessing does not give the rate that the model reads."""
    # The encoder's weights are tied to 2560 samples a segment: another rate would shift every wavelet band without an
    # error.
    if sfreq != SAMPLING_RATE:
        raise ValueError(
            f"preprocessing.sfreq must be {SAMPLING_RATE} Hz, so that {SEGMENT_SECONDS:g} s are the {SEGMENT_SAMPLES} "
            f"samples of the model's segments, got {sfreq} Hz; recordings of any rate are resampled to it"
        )


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    Examples
    --------
    >>> counted(1, "seizure"), counted(3, "seizure")
    ('1 seizure', '3 seizures')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def length(hours: float) -> str:
    """A time in a unit that can be read.

    Examples
    --------
    >>> length(0.1), length(2.5), length(0.0)
    ('6 minutes', '2.5 hours', '0 seconds')
    """
    if hours >= 2:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.0f} minutes" if hours * 60 >= 2 else f"{hours * 3600:.0f} seconds"


def readable(value: float) -> str:
    """A number with three digits that count, as a person writes it.

    Examples
    --------
    >>> readable(1657.9), readable(5.526), readable(10.0), readable(0.00012345), readable(15.1e6)
    ('1,660', '5.53', '10', '0.000123', '15,100,000')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.9f}".rstrip("0").rstrip(".")
