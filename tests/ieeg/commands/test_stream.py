"""`mvpformer stream` on LSL streams of this machine: decisions, units, channels, gaps, refusals."""

import threading
import uuid
from types import SimpleNamespace
from typing import Any

import mne
import numpy as np
import pytest

from mvpa_ts.ieeg import Preprocessing, StreamingDetector
from mvpa_ts.ieeg.commands.main import CommandError, main
from mvpa_ts.ieeg.commands.stream import Source, decisions, described, show
from mvpa_ts.ieeg.detection.streaming import Decision

lsl = pytest.importorskip("mne_lsl.lsl")
NAMES = ["A10", "A2", "EKG1", "A1"]
RATE = 512.0
PLAIN = Preprocessing(notch=None, reference=None)


def samples_of(seconds: float) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 50e-6, (len(NAMES), round(seconds * RATE))).astype(np.float32)


def rows_of(path) -> list[tuple[float, float, int]]:
    header, *lines = path.read_text().splitlines()
    assert header == "onset\tprobability\talarm"
    return [(float(a), float(b), int(c)) for a, b, c in (line.split("\t") for line in lines)]


def test_an_outlets_samples_have_the_decisions_of_the_detector(model_folder, tmp_path, capsys):
    """In volts, out of natural order, with a channel that is no electrode; 12 s that come at once."""
    source_id = uuid.uuid4().hex
    info = lsl.StreamInfo("mvpa-test", "eeg", len(NAMES), RATE, "float32", source_id)
    info.set_channel_names(NAMES)
    info.set_channel_units(["volts"] * len(NAMES))
    samples, outlet = samples_of(12.0), lsl.StreamOutlet(info)

    def send() -> None:
        outlet.wait_for_consumers(20.0)
        for chunk in np.split(samples, 24, axis=1):
            outlet.push_chunk(np.ascontiguousarray(chunk.T))

    sender = threading.Thread(target=send)
    sender.start()
    path = tmp_path / "new" / "decisions.tsv"
    options = ["--source_id", source_id, "--model", str(model_folder), "-o", str(path)]
    status = main(["stream", *options, "--patience", "1", "--seconds", "12"])
    sender.join()
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "3 channels at 512 Hz in V" in captured.err
    assert "s after each 5 s" in captured.err
    detector = StreamingDetector(str(model_folder), RATE, ["A1", "A2", "A10"], PLAIN, unit="V")
    expected = [*detector.feed(samples[[3, 1, 0]]), *detector.finish()]
    rows = rows_of(path)
    assert [row[0] for row in rows] == [decision.start for decision in expected] == [0.0, 5.0, 7.0]
    np.testing.assert_allclose([row[1] for row in rows], [d.probability for d in expected], atol=1e-4)
    assert len(captured.out.splitlines()) == 3


# In small: an outlet of our own, above.
@pytest.mark.slow
def test_the_player_of_mne_lsl(model_folder, tmp_path, capsys):
    from mne_lsl.player import PlayerLSL

    info = mne.create_info(NAMES, RATE, ["seeg", "seeg", "ecg", "seeg"])
    raw = mne.io.RawArray(samples_of(3.0).astype(float), info, verbose=False)
    path = tmp_path / "decisions.tsv"
    with PlayerLSL(raw, chunk_size=64, name="mvpa-player", source_id=uuid.uuid4().hex) as player:
        options = ["--name", "mvpa-player", "--source_id", player.source_id, "--model", str(model_folder)]
        status = main(["stream", *options, "-o", str(path), "--seconds", "5.2", "--lookahead", "0"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "3 channels at 512 Hz in V" in captured.err
    assert rows_of(path)[0][0] == 0.0
    assert all(0 < row[1] < 1 for row in rows_of(path))


class Inlet:
    """Chunks with timestamps, then silence."""

    def __init__(self, *chunks: tuple[np.ndarray, float | np.ndarray]) -> None:
        self.chunks = [*chunks]

    def pull_chunk(self, timeout: float, max_samples: int) -> tuple[np.ndarray, np.ndarray]:
        if not self.chunks:
            return np.empty((0, 2)), np.empty(0)
        samples, start = self.chunks.pop(0)
        return samples, start + np.arange(len(samples)) / RATE if np.ndim(start) == 0 else start


class Detector:
    """Keeps what it is fed."""

    def __init__(self) -> None:
        self.fed: list[np.ndarray] = []

    def feed(self, samples: np.ndarray) -> list[Any]:
        self.fed.append(samples)
        return []

    def finish(self) -> list[Any]:
        return ["end"]


def fed_by(*chunks: tuple[np.ndarray, float | np.ndarray], rate: float = RATE) -> np.ndarray:
    detector = Detector()
    came = decisions(Inlet(*chunks), Source(rate, ("A1",), [0], "µV"), detector, patience=0.0)  # type: ignore[arg-type]
    assert [*came] == ["end"]
    return np.concatenate(detector.fed, axis=1)[0]


def test_lost_signal_is_replaced_by_nothing_known(capsys):
    fed = fed_by((np.ones((512, 1)), 100.0), (np.full((256, 1), 2.0), 101.0 + 3.0))
    assert len(fed) == 512 + 3 * 512 + 256
    assert np.isnan(fed[512 : 4 * 512]).all()
    assert (fed[4 * 512 :] == 2).all()
    assert "3.0 s of signal were lost" in capsys.readouterr().err


def test_a_gap_inside_of_a_chunk(capsys):
    """While a decision was computed, signal came, was lost and came again: one chunk holds both sides."""
    times = np.concatenate([1.0 + np.arange(100) / RATE, 6.0 + np.arange(200) / RATE, 9.0 + np.arange(212) / RATE])
    fed = fed_by((np.ones((512, 1)), 0.0), (np.full((512, 1), 2.0), times))
    assert len(fed) == round((9.0 + 212 / RATE) * RATE)
    known = np.flatnonzero(~np.isnan(fed))
    np.testing.assert_array_equal(known, [*range(612), *range(6 * 512, 6 * 512 + 200), *range(9 * 512, 9 * 512 + 212)])
    assert capsys.readouterr().err.count("of signal were lost") == 2


def test_hours_of_loss_come_in_pieces():
    """A hundred channels of ten hours at once would fill the memory. The patience says that hours may pass."""
    detector, source = Detector(), Source(RATE, ("A1",), [0], "µV")
    inlet = Inlet((np.ones((512, 1)), 0.0), (np.ones((512, 1)), 36000.0))
    assert [*decisions(inlet, source, detector, patience=36000.0, seconds=36001.0)] == ["end"]  # type: ignore[arg-type]
    assert max(part.shape[1] for part in detector.fed) <= 5 * RATE
    assert sum(part.shape[1] for part in detector.fed) == 36001 * RATE
    assert sum(int(np.isnan(part).sum()) for part in detector.fed) == 35999 * RATE


def test_jitter_is_no_gap():
    assert len(fed_by((np.ones((512, 1)), 0.0), (np.ones((512, 1)), 1.4))) == 1024


def test_short_losses_add_up(capsys):
    """Of each 1.4 s the last 0.4 are lost: every sample lies within a second of where it was recorded."""
    begins = 1.4 * np.arange(50)
    fed = fed_by(*((np.full((512, 1), number), begin) for number, begin in enumerate(begins)))
    places = [np.flatnonzero(fed == number)[0] / RATE for number in range(50)]
    assert np.abs(places - begins).max() < 1.0
    assert 0 < np.isnan(fed).sum() / RATE <= 0.4 * 49 + 1e-6
    assert "s of signal were lost" in capsys.readouterr().err


@pytest.mark.parametrize("clock", [1 - 5e-5, 1.0, 1 + 5e-5])
def test_a_clock_that_drifts_and_stamps_that_come_late_are_no_loss(clock):
    late = np.random.default_rng(0).uniform(0.0, 0.5, 6 * 3600)
    chunks = ((np.ones((8, 1)), (begin + np.arange(8) / 8) * clock + late[begin]) for begin in range(6 * 3600))
    fed = fed_by(*chunks, rate=8.0)
    assert len(fed) == 8 * 6 * 3600
    assert not np.isnan(fed).any()


@pytest.mark.parametrize(
    "steps",
    [
        {20: -15.0, 40: 15.0},
        {20: -15.0, 30: -7.0, 40: 7.0, 50: 15.0},
        {10: -3600.0},
        {20: 5000.0},
        {20: 86400.0, 40: -86400.0},
        {20: 1.7e9},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [512, 700])
def test_a_clock_that_is_set_is_no_loss(steps, size, capsys):
    """No sample is missing: those of a minute, in order, are what the detector gets."""
    samples = np.arange(60 * 512, dtype=np.float64)[:, None]
    stamps = samples[:, 0] / RATE + sum(step * (samples[:, 0] >= RATE * second) for second, step in steps.items())
    fed = fed_by(*((samples[first : first + size], stamps[first : first + size]) for first in range(0, 60 * 512, size)))
    np.testing.assert_array_equal(fed, samples[:, 0])
    assert capsys.readouterr().err.count("the clock was set") == len(steps)


def test_signal_that_is_lost_after_the_clock_was_set(capsys):
    fed = fed_by((np.ones((512, 1)), 0.0), (np.ones((512, 1)), 1.0 - 15.0), (np.ones((512, 1)), 2.0 - 15.0 + 6.0))
    assert np.flatnonzero(np.isnan(fed)).tolist() == [*range(1024, 1024 + 6 * 512)]
    assert "6.0 s of signal were lost" in capsys.readouterr().err


def test_stamps_that_slip_or_lack_are_no_loss():
    stamps = np.arange(20 * 512) / RATE
    stamps[[700, 5119]] -= 15.0  # one in the middle of a chunk, one at its end
    stamps[3000:3100] = np.nan
    chunks = [(np.ones((512, 1)), stamps[first : first + 512]) for first in range(0, 20 * 512, 512)]
    assert not np.isnan(fed_by(*chunks)).any()
    assert len(fed_by(*chunks)) == 20 * 512
    unstamped = np.concatenate([np.full(512, np.nan), 1.0 + np.arange(512) / RATE])
    assert len(fed_by((np.ones((1024, 1)), unstamped))) == 1024


def test_stamps_of_another_unit_are_refused():
    chunks = [(np.ones((512, 1)), 1000.0 * np.arange(first, first + 512) / RATE) for first in (0, 512)]
    with pytest.raises(ValueError, match=r"got stamps 1\.95312 apart where 0\.00195312 s are expected"):
        fed_by(*chunks)
    jitter = np.random.default_rng(0).normal(0, 0.1, 5120)
    assert len(fed_by((np.ones((5120, 1)), np.arange(5120) / RATE + jitter))) == 5120


def info_of(**changes: Any) -> SimpleNamespace:
    values = {"names": NAMES, "types": None, "units": ["-6"] * 4, "sfreq": RATE} | changes
    return SimpleNamespace(
        name="x",
        sfreq=values["sfreq"],
        n_channels=4,
        get_channel_names=lambda: values["names"],
        get_channel_types=lambda: values["types"],
        get_channel_units=lambda: values["units"],
    )


def test_what_a_stream_says_of_itself():
    assert described(info_of(), None, "all") == Source(RATE, ("A1", "A2", "A10"), [3, 1, 0], "µV")
    assert described(info_of(names=None), None, "all").names == ("C1", "C2", "C3", "C4")
    assert described(info_of(types=["seeg", "misc", "ecg", "ecog"]), None, "all").names == ("A1", "A10")
    prefixed = info_of(names=[f"EEG {name}-Ref" for name in NAMES])
    assert described(prefixed, None, "A2, A1").names == ("EEG A1-Ref", "EEG A2-Ref")
    assert described(info_of(units=None), "mV", "A2,A1") == Source(RATE, ("A1", "A2"), [3, 1], "mV")


@pytest.mark.parametrize(
    ("changes", "unit", "channels", "message"),
    [
        ({"units": None}, None, "all", "must state one unit, .* --unit"),
        ({"units": ["-6", "-6", "-6", "0"]}, None, "all", "all channels of the stream must state one unit, got"),
        ({"sfreq": 0.0}, None, "all", "must have a fixed rate"),
        ({"types": ["misc"] * 4}, None, "all", "no channel of the stream is an electrode"),
        ({}, None, "A1,B7", "no channel B7; it has A10"),
    ],
)
def test_refusals(changes, unit, channels, message):
    with pytest.raises(CommandError, match=message):
        described(info_of(**changes), unit, channels)


def test_a_decision_without_a_probability_is_said_as_in_other_tables(tmp_path):
    with (tmp_path / "decisions.tsv").open("w+", encoding="utf-8") as table:
        show(Decision(5.0, float("nan"), alarm=False), table)
        show(Decision(10.0, 0.25, alarm=True), table)
    assert (tmp_path / "decisions.tsv").read_text() == "5.0\tn/a\t0\n10.0\t0.2500\t1\n"


def test_no_stream_no_name_and_a_table_that_is_there(tmp_path, capsys, fails):
    fails("--name or --source-id", "stream")
    assert main(["stream", "--name", "nobody-is-here", "--wait", "0.3"]) == 1
    assert "no LSL stream nobody-is-here was found in 0.3 s; there is " in capsys.readouterr().err
    outlet = lsl.StreamOutlet(lsl.StreamInfo("mvpa-other", "eeg", 1, RATE, "float32", "mvpa-other-source"))
    fails("mvpa-other (source mvpa-other-source)", "stream", "--name", "nobody-is-here", "--wait", "0.3")
    del outlet
    path = tmp_path / "decisions.tsv"
    assert main(["stream", "--name", "nobody-is-here", "--wait", "0.3", "-o", str(path)]) == 1
    assert not path.exists()
    path.write_text("mine")
    fails("exists", "stream", "--name", "x", "-o", path)
    assert path.read_text() == "mine"
