"""The simulator: the same seed gives the same samples; seizures are where it says; sizes and failures; the command."""

import hashlib
import itertools
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import fft
from scipy import signal as scipy_signal

from mvpa_ts.ieeg import Segments, read_recording, simulate_cohort, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.simulation.epileptor import DURATION, STEP, discharges, epileptor
from mvpa_ts.ieeg.simulation.simulate import Difficulty

CALM = Difficulty(artefacts=0, line_frequency=None)


def test_epileptor_equals_its_equations():
    """A few steps against a scalar loop in the paper's notation with a much smaller explicit step."""
    x0, tau0 = np.array([[-1.6, -1.9]]), np.array([200.0])
    fast, _ = epileptor(x0, tau0, 3000, noise=0.0, z=2.9, generator=np.random.default_rng(0))
    state = [[-1.6, -11.8, -0.8, 0.0, 2.9, 0.0] for _ in range(2)]
    h = STEP / 40
    path = []
    for step in range(3000 * 40):
        mean = (state[0][0] + state[1][0]) / 2
        for node in range(2):
            x1, y1, x2, y2, z, g = state[node]
            f1 = x1**3 - 3 * x1**2 if x1 < 0 else (x2 - 0.6 * (z - 4) ** 2) * x1
            f2 = 0.0 if x2 < -0.25 else 6 * (x2 + 0.25)
            state[node] = [
                x1 + h * (y1 - f1 - z + 3.1),
                y1 + h * (1 - 5 * x1**2 - y1),
                x2 + h * (-y2 + x2 - x2**3 + 0.45 + 0.002 * g - 0.3 * (z - 3.5)),
                y2 + h * (-y2 + f2) / 10,
                z + h * (4 * (x1 - x0[0, node]) - z - 2.0 * (mean - x1)) / 200.0,
                g + h * (x1 - 0.01 * g),
            ]
        if step % 40 == 39:
            path.append([s[2] - s[0] for s in state])
    # Spikes of a chaotic model drift apart; the approach to the seizure does not.
    np.testing.assert_allclose(fast[:60, 0], np.array(path)[:60], atol=0.12)
    np.testing.assert_allclose(fast[:, 0].std(0), np.array(path).std(0), rtol=0.2)


def test_epileptor_seizes_for_as_long_as_tau0_says():
    tau0 = np.array([1500.0, 3000.0])
    x0 = np.tile([-1.6, -1.65, -1.9, -2.3], (2, 1))
    potential, activity = epileptor(x0, tau0, 14_000, generator=np.random.default_rng(0))
    assert np.isfinite(potential).all()
    for i in range(2):
        onset, offset = discharges(activity[:, i])
        assert (offset - onset) * STEP == pytest.approx(DURATION * tau0[i], rel=0.25)
    quiet, activity = epileptor(np.full((1, 4), -2.4), tau0[:1], 2000, generator=np.random.default_rng(0))
    assert activity.max() < -1.0
    assert quiet[1000:].std() < 0.3
    with pytest.raises(ValueError, match="no node had a seizure"):
        discharges(activity[:, 0])


def test_same_arguments_same_samples_however_read():
    settings = {"seed": 3, "num_channels": 5, "duration": 90.0, "num_seizures": 1}
    recording = simulate_recording("S02", **settings)
    whole = recording.read(0, recording.num_samples)
    again = simulate_recording("S02", **settings)
    cuts = [0, 1, 5000, 8192, 20_000, 20_001, 46_080]
    pieces = [again.read(a, b) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(pieces, 1), whole)
    copy = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(copy.read(300, 9000), whole[:, 300:9000])
    for other in ({"seed": 4}, {"session": 1}):
        assert not np.array_equal(simulate_recording("S02", **settings | other).read(0, 99), whole[:, :99])
    assert not np.array_equal(simulate_recording("S03", **settings).read(0, 99), whole[:, :99])


def test_sessions_share_the_subject():
    first, second = (simulate_recording("S02", session=s, duration=60) for s in (0, 1))
    np.testing.assert_array_equal(first.source._traits.scale, second.source._traits.scale)
    assert first.seizures != second.seizures


@pytest.mark.parametrize("sfreq", [256.0, 512.0, 999.41])
def test_background_is_pink_and_seizures_stand_out(sfreq):
    recording = simulate_recording(
        "S04", num_channels=4, duration=120, num_seizures=1, sfreq=sfreq, difficulty=CALM, seed=1
    )
    x = recording.read(0, recording.num_samples).astype(np.float64)
    ((onset, offset),) = recording.seizures
    first, last = round(onset * sfreq), round(offset * sfreq)
    before = x[:, :first]
    np.testing.assert_allclose(before.std(1), recording.source._traits.scale, rtol=0.35)
    frequencies, power = scipy_signal.welch(before, sfreq, nperseg=int(4 * sfreq))
    band = (frequencies > 15) & (frequencies < 100)
    for channel, exponent in enumerate(recording.source._traits.exponent):
        slope = np.polyfit(np.log(frequencies[band]), np.log(power[channel, band]), 1)[0]
        assert slope == pytest.approx(-exponent, abs=0.35)
    seizure = scipy_signal.sosfiltfilt(scipy_signal.butter(2, (3, 40), "bandpass", fs=sfreq, output="sos"), x)
    ratio = seizure[:, first:last].std(1) / seizure[:, :first].std(1)
    assert ratio.max() > 1.5


def test_irregular_activity_lifts_all_frequencies_of_a_seizure_and_nothing_else():
    settings = {"num_channels": 4, "duration": 120, "num_seizures": 1}
    plain = simulate_recording("S04", **settings, difficulty=CALM)
    lifted = simulate_recording("S04", **settings, difficulty=replace(CALM, irregular=(3.0, 3.0)))
    ((onset, offset),) = plain.seizures
    assert lifted.seizures == plain.seizures
    first, last = round(onset * 512), round(offset * 512)
    added = lifted.read(0, lifted.num_samples) - plain.read(0, plain.num_samples)
    assert not added[:, :first].any()
    assert not added[:, last:].any()
    frequencies, power = scipy_signal.welch(added[:, first:last], 512.0, nperseg=1024)
    for low, high in ((1, 4), (8, 30), (60, 100), (120, 200)):
        assert (power[:, (frequencies > low) & (frequencies < high)].max(0) > 1e-2).all(), (low, high)


def test_events_are_rendered():
    """Each kind of event adds what it should to a calm recording of the same background."""
    calm = simulate_recording("S01", duration=600, num_seizures=0, difficulty=CALM)
    base = calm.read(0, calm.num_samples)
    for kind in ("rhythm", "muscle", "pop", "spike"):
        often = {"rhythm": 5.0, "muscle": 7.5, "pop": 10.0, "spike": 1.0}[kind]  # some 60 an hour
        hard = Difficulty(artefacts=often, line_frequency=None)
        x = simulate_recording("S01", duration=600, num_seizures=0, difficulty=hard)
        x.source._events = [event for event in x.source._events if event.kind == kind]
        x.source._starts = np.array([event.start for event in x.source._events])
        extra = x.read(0, x.num_samples) - base
        assert np.isfinite(extra).all()
        touched = np.abs(extra).max(0) > 1e-3
        assert 0.005 < touched.mean() < 0.9, kind
    hum = simulate_recording("S01", duration=60, num_seizures=0)
    frequencies, power = scipy_signal.welch(hum.read(0, hum.num_samples), 512.0, nperseg=2048)
    at, beside = np.argmin(np.abs(frequencies - 50)), np.argmin(np.abs(frequencies - 55))
    assert np.median(power[:, at] / power[:, beside]) > 10
    # A hum above half the rate would come back as one of 500 - 512 = 12 Hz.
    folded, without = (
        simulate_recording("S01", duration=9, num_seizures=0, difficulty=Difficulty(line_frequency=line))
        for line in (500.0, None)
    )
    np.testing.assert_array_equal(folded.read(0, 4608), without.read(0, 4608))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_seizures_lie_inside_and_apart(count):
    for seed in range(20):
        recording = simulate_recording(duration=30.0 * max(count, 1), num_seizures=count, seed=seed)
        assert len(recording.seizures) == count
        ends = [0.0, *(end for seizure in recording.seizures for end in seizure), recording.duration]
        assert (np.diff(ends) > 1.0).all()


def test_sizes():
    recording = simulate_recording(num_channels=130, duration=30, sfreq=1024)
    assert recording.read(0, 2048).shape == (130, 2048)
    assert recording.channel_names[0] == "A1"
    assert len(set(recording.channel_names)) == 130
    assert simulate_recording(num_channels=1, duration=30).read(0, 9).shape == (1, 9)
    long = simulate_recording(duration=30 * 24 * 3600.0)
    assert np.isfinite(long.read(long.num_samples - 512, long.num_samples)).all()


@pytest.mark.parametrize(
    "settings", [{"num_channels": 0}, {"duration": -1}, {"num_seizures": -1}, {"duration": 50, "num_seizures": 2}]
)
def test_sizes_that_cannot_be(settings):
    with pytest.raises(ValueError, match="must be"):
        simulate_recording(**settings)


def test_cohort():
    cohort = simulate_cohort(3, num_channels=[4, 6], first_subject=9, duration=30)
    assert [(r.subject, len(r.channel_names)) for r in cohort] == [("S09", 4), ("S10", 6), ("S11", 4)]


TWO_SUBJECTS = ["--first_subject=1", "--subjects=2", "--hours=0.01"]


def test_command(tmp_path, fails):
    out = tmp_path / "made"
    arguments = ["simulate", str(out), *TWO_SUBJECTS, "--channels=[4,5]", "--seed=3"]
    assert main(arguments) == 0
    recording = read_recording(out / "S02")
    assert (len(recording.channel_names), recording.num_samples, len(recording.seizures)) == (5, 36 * 512, 1)
    assert Segments(recording).num_segments == 8
    fails("exists already: pass --overwrite", *arguments)
    assert main([*arguments, "--overwrite", "--format=edf", "--difficulty.line_frequency=60", "--channels=4,5"]) == 0
    assert read_recording(out / "S01.edf").channel_names == ("A1", "A2", "A3", "A4")


@pytest.mark.parametrize("name", ["notes.txt", "ieeg/notes.txt", "S01_part_1.h5.bak", "S02_total.h5"])
def test_overwriting_keeps_what_simulate_did_not_write(tmp_path, capsys, name):
    out = tmp_path / "made"
    arguments = ["simulate", str(out), *TWO_SUBJECTS, "--channels=2", "--overwrite"]
    assert main(arguments) == 0
    other = out / "S01" / name
    other.parent.mkdir(exist_ok=True)
    other.write_text("mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main([*arguments, "--seed=9"]) == 1
    message = f"{out / 'S01'} holds more than a recording of the SWEC layout ({name.split('/')[0]})"
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_overwriting_replaces_every_part(tmp_path):
    arguments = ["simulate", str(tmp_path), "--first_subject=1", "--subjects=1", "--channels=2", "--overwrite"]
    assert main([*arguments, "--hours=0.02", "--part_hours=0.005"]) == 0
    assert len([*(tmp_path / "S01").iterdir()]) == 5
    assert main([*arguments, "--hours=0.02", "--part_hours=0"]) == 1  # an error removes nothing
    assert len([*(tmp_path / "S01").iterdir()]) == 5
    assert main([*arguments, "--hours=0.01"]) == 0
    assert sorted(path.name for path in (tmp_path / "S01").iterdir()) == ["S01_part_1.h5", "S01_total.h5"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sfreq=1000"], "sfreq must be 512 or 1024 Hz in files of the SWEC layout, got 1000"),
        (["--subjects=0"], "num_subjects must be at least 1 and first_subject 0, got 0 and 101"),
        (["--first-subject=-1"], "num_subjects must be at least 1 and first_subject 0, got 1 and -1"),
        (["--seed=-1"], "seed and session must be at least 0, got -1 and 0"),
        (["--session=-1"], "seed and session must be at least 0, got 0 and -1"),
        (["--hours=inf"], "num_channels, duration and sfreq must be positive, got 8, inf, 512"),
        (["--channels=4,x"], "--channels must be one or more whole numbers, such as 8 or 4,8, got 4,x"),
        (["--difficulty.irregular=1"], "LOW,HIGH must be two numbers, such as 0.5,1, got 1"),
        (["--channels=[]"], "num_channels must be a number, or a list of one number or more"),
        (["--part_hours=0"], "part_hours must be positive, got 0.0"),
    ],
)
def test_command_refuses_what_it_cannot_write(tmp_path, fails, options, message):
    fails(message, "simulate", tmp_path / "made", "--hours=0.01", "--subjects=1", *options)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("sfreq", "kind"), [(1024, "swec"), (1000, "edf")])
def test_command_writes_the_rate_that_was_asked_for(tmp_path, sfreq, kind):
    options = ["--subjects=1", "--hours=0.01", f"--sfreq={sfreq}", f"--format={kind}"]
    assert main(["simulate", str(tmp_path), *options]) == 0
    assert read_recording(tmp_path / ("S101" if kind == "swec" else "S101.edf")).sfreq == sfreq


def test_a_quiet_recording_of_the_same_subject(tmp_path):
    """Another session, without a seizure: the signal of the Python call."""
    options = ["--format", "edf", "--subjects", "1", "--hours", "0.01", "--channels", "2"]
    assert main(["simulate", str(tmp_path), *options]) == 0
    assert main(["simulate", str(tmp_path), *options, "--seizures", "0", "--session", "1"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["S101.edf", "S101_session1.edf"]
    quiet = read_recording(tmp_path / "S101_session1.edf")
    assert (quiet.annotated, quiet.seizures) == (True, ())
    expected = simulate_recording("S101", num_channels=2, duration=36.0, num_seizures=0, session=1)
    np.testing.assert_allclose(quiet.read(0, 5120), expected.read(0, 5120), atol=0.1)


# The fixture is older than the rooms of ieeg.
FIXTURE = json.loads((Path(__file__).parent / "recordings_of_seeds.json").read_text())


def machine() -> str:
    """How this processor rounds what the simulator computes with: sines, exponentials, transforms, products."""
    x = np.linspace(0.1, 30.0, 4001)
    sections = scipy_signal.butter(2, 0.1, output="sos")
    parts = [np.sin(x), np.exp(-x), np.log(x), np.cumsum(x), np.sqrt(x), fft.irfft(x.astype(np.complex64), 8000)]
    parts += [np.outer(x[:40], x[:4]) @ np.outer(x[:4], x), scipy_signal.sosfiltfilt(sections, x)]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


@pytest.mark.parametrize("name", FIXTURE["recordings"])
def test_recordings_of_a_seed_are_those_of_which_committed_results_were_made(name):
    """To the bit where the processor rounds as the one that wrote the fixture, else to 1e-4 of the background."""
    expected = FIXTURE["recordings"][name]
    options = {} if expected["difficulty"] is None else {"difficulty": Difficulty(**expected["difficulty"])}
    recording = simulate_recording(**expected["settings"], **options)
    x = recording.read(0, recording.num_samples) + np.float32(0)  # −0 is 0
    assert [list(seizure) for seizure in recording.seizures] == expected["seizures"]
    at = np.linspace(0, recording.num_samples - 1, 40).astype(int)
    np.testing.assert_allclose(x[:2, at], expected["samples"], rtol=1e-4, atol=4e-3)
    if machine() == FIXTURE["machine"]:
        # Products with one channel are rounded in two ways by processors that agree on all that `machine` looks at.
        assert hashlib.sha256(x.tobytes()).hexdigest() in np.atleast_1d(expected["sha256"])
