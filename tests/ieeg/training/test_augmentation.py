"""Augmented batches: what changes, what stays, and that the past follows the signal."""

import math

import pytest
import torch
from support.made_up_recordings import recording

from mvpa_ts.ieeg.model.amplitude import band_log_power
from mvpa_ts.ieeg.model.wavelet import wavedec
from mvpa_ts.ieeg.preprocessing.segments import Segments
from mvpa_ts.ieeg.training.augmentation import Augmentation, augment
from mvpa_ts.ieeg.training.spans import HeldSegments, SpanDataset, collate, real_tokens

SEGMENT = 2560


@pytest.fixture(scope="module")
def batch():
    recordings = [recording(f"S{n}", seed=n, segments=40, channels=2 + n) for n in range(3)]
    dataset = SpanDataset([HeldSegments(Segments(item)) for item in recordings], 4, before=3, past=True, tail=True)
    made = collate([dataset[index] for index in (0, 9, 19, 29)])
    made["ictal"] = torch.zeros_like(made["ictal"])
    made["ictal"][1, 3:5] = True
    return made


def changed(batch, seed=0, **settings):
    return augment(batch, Augmentation(**settings), torch.Generator().manual_seed(seed))


def test_defaults_change_nothing(batch):
    after = changed(batch)
    for name in ("signal", "token_mask", "target", "ictal"):
        assert torch.equal(after[name], batch[name]), name
    torch.testing.assert_close(after["past"], batch["past"], equal_nan=True)


def test_the_same_generator_gives_the_same_batch(batch):
    everything = {"gain": 3.0, "tilt": 1.0, "channels": 0.5, "polarity": True, "shift": True, "background": 1.0}
    before = {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
    first, second, other = (changed(batch, seed, **everything) for seed in (1, 1, 2))
    assert torch.equal(first["signal"], second["signal"])
    assert not torch.equal(first["signal"], other["signal"])
    assert first["signal"].isfinite().all()
    assert all(torch.equal(batch[name].nan_to_num(), value.nan_to_num()) for name, value in before.items())
    assert not first["signal"].unflatten(2, (-1, SEGMENT)).transpose(1, 2)[~real_tokens(first)].any()


def test_gain_is_one_factor_for_a_span_and_its_past(batch):
    after = changed(batch, gain=3.0)
    for b in range(4):
        real = batch["signal"][b] != 0
        factors = after["signal"][b][real] / batch["signal"][b][real]
        assert factors.std() < 1e-4
        assert 1 / 3 <= factors.mean() <= 3
        moved = (after["past"][b] - batch["past"][b]).nan_to_num(2 * factors.mean().log().item())
        torch.testing.assert_close(moved, torch.full_like(moved, 2 * factors.mean().log().item()), atol=1e-4, rtol=1e-4)


def test_tilt_lowers_one_end_of_the_spectrum_as_it_lifts_the_other(batch):
    after = changed(batch, seed=3, tilt=2.0)
    ratio = torch.fft.rfft(after["signal"][2, 0]).abs() / torch.fft.rfft(batch["signal"][2, 0]).abs()
    hertz = torch.fft.rfftfreq(batch["signal"].shape[2], 1 / 512)
    at = [2 * ratio[(hertz - f).abs().argmin()].log().item() for f in (1.0, 16.0, 256.0)]
    assert at[1] == pytest.approx(0.0, abs=1e-2)
    assert at[0] == pytest.approx(-at[2], abs=1e-2)
    assert 0.05 < abs(at[0]) <= 2.0
    moved = (after["past"] - batch["past"])[2][~batch["past"][2].isnan()].unflatten(0, (-1, 9))
    assert moved[:, 0].sign().eq(-moved[:, 8].sign()).all()


def test_dropped_channels_leave_at_least_one(batch):
    for seed in range(5):
        after = changed(batch, seed, channels=0.9)
        kept = after["token_mask"].any(1)
        assert kept.any(1).all()
        assert not (kept & ~batch["channel_mask"]).any()
        assert after["past"][~kept[:, None, :, None].expand_as(after["past"])].isnan().all()


def test_polarity_turns_whole_channels(batch):
    after = changed(batch, polarity=True)
    same = (after["signal"] == batch["signal"]).all(2)
    turned = (after["signal"] == -batch["signal"]).all(2)
    assert (same | turned).all()
    assert (turned & batch["channel_mask"]).any()


def test_shifted_borders_keep_certain_labels_only(batch):
    seen = 0
    for seed in range(8):
        after = changed(batch, seed, shift=True)
        for b in range(4):
            if torch.equal(after["signal"][b], batch["signal"][b]):
                assert torch.equal(after["target"][b], batch["target"][b])
                continue
            seen += 1
            first = int(batch["segment_mask"][b].int().argmax())
            assert not after["target"][b, first]
            own, old = after["signal"][b, 0, (first + 1) * SEGMENT :], batch["signal"][b, 0]
            (steps,) = [k for k in range(SEGMENT) if torch.equal(own, old[(first + 1) * SEGMENT - k : len(old) - k])]
            assert steps > 0
            if b == 1:
                assert after["target"][b].tolist() == [False, False, False, False, True, False, True]
    assert seen > 3


def test_background_of_a_span_without_seizure_is_added(batch):
    after = changed(batch, seed=1, background=1.0)
    added = after["signal"] - batch["signal"]
    touched = added.abs().sum((1, 2)) > 0
    assert touched.any()
    for b in torch.nonzero(touched).flatten().tolist():
        ratios = [
            ((added[b] * other).sum() / other.square().sum(), added[b], other)
            for i, other in enumerate(batch["signal"] * (batch["signal"][b] != 0))
            if i not in (b, 1)
        ]
        assert any(0 < r <= 1 and (a - r * o).abs().max() < 2e-3 * a.abs().max() + 1e-3 for r, a, o in ratios)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gain": 0.5}, "gain must be at least 1"),
        ({"gain": math.nan}, "gain must be at least 1"),
        ({"tilt": -1.0}, "tilt must be at least 0"),
        ({"channels": 1.0}, r"channels must be in \[0, 1\), got 1\.0"),
        ({"background": -1.0}, "background must be at least 0"),
        ({"polarity": "no"}, "polarity must be True or False, got 'no'"),
        ({"start": 1.5}, "start must be a share"),
        ({"fluctuation": -1.0}, "fluctuation must be finite and at least 0"),
        ({"fluctuation": math.inf}, "fluctuation must be finite and at least 0"),
    ],
)
def test_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**settings)


def test_a_start_masks_what_lies_before_and_forgets_the_past(batch):
    after = changed(batch, seed=2, start=1.0)
    assert after["past"].isnan().all()
    for b in range(4):
        kept = after["token_mask"][b].any(1)
        first = int(kept.int().argmax()) if kept.any() else len(kept)
        assert kept[first:].all()
        assert not after["target"][b, :first].any()
        assert torch.equal(after["target"][b, first:], batch["target"][b, first:])
    assert (after["token_mask"].any(2).sum(1) < batch["token_mask"].any(2).sum(1)).any()
    untouched = changed(batch, seed=2, start=0.0)
    assert torch.equal(untouched["token_mask"], batch["token_mask"])


def tones(batch, samples_per_second=512):
    """The batch with a sine of 3 and one of 48 Hz in each channel, and a known past."""
    seconds = torch.arange(batch["signal"].shape[2]) / samples_per_second
    sines = 40 * torch.sin(2 * math.pi * 3 * seconds) + 10 * torch.sin(2 * math.pi * 48 * seconds)
    every = torch.ones_like(real_tokens(batch))
    signal = (sines * torch.ones(4, batch["signal"].shape[1], 1)).float()
    return batch | {
        "signal": signal,
        "token_mask": every,
        "segment_mask": every.any(2),
        "channel_mask": every.any(1),
        "past": torch.zeros_like(batch["past"]),
    }


def test_a_fluctuation_changes_power_by_segment_and_octave_alike_in_all_channels(batch):
    before = tones(batch)
    for values in ("token_mask", "target", "ictal"):
        assert torch.equal(changed(before, fluctuation=1.0)[values], before[values])
    spreads = []
    for seed in range(6):
        after = changed(before, seed, fluctuation=1.0)
        power = [band_log_power(wavedec(x["signal"].unflatten(2, (-1, SEGMENT))))[..., [2, 6]] for x in (before, after)]
        moved = power[1] - power[0]
        assert moved.abs().max() < 5
        spreads.append(moved.std(2))
        for values in (after["past"].transpose(1, 2), after["signal"]):
            torch.testing.assert_close(values, values[:, :1].expand_as(values))
    assert 0.1 < torch.cat(spreads).mean() < 1.0


def test_a_fluctuation_has_the_stated_spread_and_memory():
    made = {
        "signal": torch.zeros(4000, 1, SEGMENT),
        "token_mask": torch.ones(4000, 1, 1, dtype=torch.bool),
        "segment_mask": torch.ones(4000, 1, dtype=torch.bool),
        "channel_mask": torch.ones(4000, 1, dtype=torch.bool),
        "target": torch.ones(4000, 1, dtype=torch.bool),
        "ictal": torch.zeros(4000, 1, dtype=torch.bool),
        "past": torch.zeros(4000, 20, 1, 9),
    }
    past = changed(made, fluctuation=1.5)["past"][:, :, 0]
    # An even draw of the standard deviation from 0 to 1.5 has a mean square of 1.5² / 3.
    assert past.square().mean() == pytest.approx(0.75, rel=0.05)
    lagged = [(past[:, 1:, i] * past[:, :-1, j]).mean() / past.square().mean() for i, j in ((4, 4), (2, 5))]
    assert lagged[0] == pytest.approx(0.625, abs=0.03)
    assert lagged[1] == pytest.approx(0.625 * math.exp(-1), abs=0.03)
    assert past.std(0).mean(0).std() < 0.05


def test_a_fluctuation_of_almost_nothing_gives_the_signal_back(batch):
    after = changed(batch, fluctuation=1e-7)
    torch.testing.assert_close(after["signal"], batch["signal"], atol=1e-3, rtol=1e-4)
