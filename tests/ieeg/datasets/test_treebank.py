"""Brain TreeBank: the published lists and tables, and recordings of the layout written here."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from support.fuzzing.tables import write_treebank
from support.reading import refuses

from mvpa_ts.ieeg import Recording, simulate_recording
from mvpa_ts.ieeg.datasets import treebank
from mvpa_ts.ieeg.datasets.treebank_tasks import Examples, read_examples, split_examples, treebank_examples

pd = pytest.importorskip("pandas")
h5py = pytest.importorskip("h5py")
REAL = Path(os.environ.get("MVPA_TS_DATA", "")) / "braintreebank"
needs_real_files = pytest.mark.skipif(
    not (REAL / "corrupted_elec.json").is_file(), reason="no braintreebank/corrupted_elec.json in MVPA_TS_DATA"
)


@needs_real_files
class TestPublishedFiles:
    @pytest.mark.parametrize("subject", range(1, 11))
    def test_lists(self, subject):
        corrupted = treebank.electrode_list(REAL / "corrupted_elec.json", subject)
        clean = treebank.electrode_list(REAL / "clean_laplacian.json", subject)
        assert corrupted
        assert len(clean) == {1: 91, 2: 100, 3: 91, 4: 152, 5: 109, 6: 135, 7: 205, 8: 121, 9: 72, 10: 173}[subject]
        assert not any(mark in label for label in corrupted + clean for mark in "*#_")
        refuses(treebank.electrode_list, "has no subject 11", REAL / "clean_laplacian.json", 11)

    def test_word_and_speechless_tables_make_the_speech_task(self):
        words = pd.read_csv(REAL / "subject1_trial1_words_df.csv")
        nonverbal = pd.read_csv(REAL / "subject1_trial1_nonverbal_df.csv")
        assert (len(words), len(nonverbal)) == (10723, 7175)
        for protocol, samples, centre in (("popt", 10240, 5120), ("neuroprobe", 2048, 0)):
            every = treebank_examples(words, nonverbal, "speech", protocol, balance=False)
            assert every.samples == samples
            assert every.labels.sum() == 10723
            np.testing.assert_array_equal(np.sort(words.est_idx), every.starts[every.labels] + centre)
            balanced = treebank_examples(words, nonverbal, "speech", protocol)
            assert balanced.labels.sum() == 7175
            assert len(balanced) == 2 * 7175
        # The speechless windows last one second; the centred window has their middle in its middle.
        middle = (nonverbal.est_idx + nonverbal.est_end_idx) / 2
        every = treebank_examples(words, nonverbal, "speech", "popt", balance=False)
        np.testing.assert_array_equal(np.sort(middle), every.starts[~every.labels] + 5120)

    def test_a_published_signal_is_in_microvolts(self):
        x = np.load(REAL / "example_wav_1.npy")[None]
        recording = Recording.from_array(x, treebank.SFREQ, ["electrode"], "µV")
        ((signal, _),) = read_examples(recording, Examples(np.array([0]), 10240, np.array([True])))
        assert signal.shape == (1, 2560)
        assert 1 < signal.std() < 100


LABELS = ["A1", "A2*", "A3", "A4#", "A5", "DC1", "B1", "B2", "B3_", "TRIG4", "C1", "C2"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("treebank")
    made = simulate_recording(duration=90, num_channels=12, sfreq=2048.0, num_seizures=0)
    write_treebank(root, made.read(0, made.num_samples), LABELS, ["A2", "A3", "B2"])
    return root


def raw(root: Path, i: int, start: int, stop: int) -> np.ndarray:
    with h5py.File(root / "sub_3_trial000.h5") as file:
        return file[f"data/electrode_{i}"][start:stop].astype(np.float64)


class TestRecording:
    def test_laplacian(self, root):
        recording = treebank.read_treebank(root, 3, 0)
        assert recording.channel_names == ("A2", "A3", "B2")
        assert set(recording.dropped) == {"A1", "A4", "A5", "DC1", "B1", "B3", "TRIG4", "C1", "C2"}
        assert recording.dropped["A4"] == "corrupted by the data set's list"
        assert (recording.subject, recording.num_samples, recording.sfreq) == ("sub_3", 90 * 2048, 2048.0)
        # i counts the labels before anything is dropped: B2 is electrode 7.
        expected = raw(root, 7, 100, 5000) - (raw(root, 6, 100, 5000) + raw(root, 8, 100, 5000)) / 2
        np.testing.assert_allclose(recording.read(100, 5000, ["B2"])[0], expected, rtol=1e-5, atol=1e-3)
        copy = pickle.loads(pickle.dumps(recording))
        np.testing.assert_array_equal(copy.read(7, 70), recording.read(7, 70))

    def test_failures(self, root, tmp_path):
        refuses(treebank.read_treebank, r"sub_3_trial007\.h5", root, 3, 7, kind=FileNotFoundError)
        (root / "sub_9_trial000.h5").touch()
        refuses(treebank.read_treebank, r"electrode_labels\.json", root, 9, 0, kind=FileNotFoundError)
        (root / "sub_3_trial001.h5").write_bytes((root / "sub_3_trial000.h5").read_bytes()[:2000])
        refuses(treebank.read_treebank, r"sub_3_trial001\.h5 cannot be opened: truncated", root, 3, 1)
        with h5py.File(root / "sub_3_trial002.h5", "w") as file:
            file["data/electrode_0"] = np.zeros(9)
        refuses(treebank.read_treebank, "has no data/electrode_1", root, 3, 2)


def test_triggers():
    movie, index = np.array([10.0, 20.0, 30.0]), np.array([1000, 22_000, 42_600])
    times = np.array([5.0, 10.0, 14.9, 15.0, 15.1, 29.0, 40.0])
    expected = [
        1000 - 5 * 2048,
        1000,
        1000 + 4.9 * 2048,
        1000 + 5 * 2048,
        22_000 - 4.9 * 2048,
        42_600 - 2048,
        42_600 + 20_480,
    ]
    np.testing.assert_array_equal(treebank.trigger_samples(times, movie, index), np.rint(expected))
    np.testing.assert_array_equal(
        treebank.trigger_samples(times, movie[:1], index[:1]), np.rint(1000 + (times - 10) * 2048)
    )
    refuses(treebank.trigger_samples, "rising order", times, movie[::-1], index)


def test_words(tmp_path):
    (tmp_path / "features.csv").write_text(
        "text,start,end,is_onset,rms,pitch\nhi,11,11.5,1,0.1,100\nyou,,,0,0.2,110\nthere,19,19.2,0,0.3,120\n"
    )
    (tmp_path / "t.csv").write_text("type,movie_time,index\ntrigger,20,22000\nbegin,,\ntrigger,10,1000\n")
    words = treebank.read_words(tmp_path / "features.csv", tmp_path / "t.csv")
    assert words.text.tolist() == ["hi", "there"]
    assert words.est_idx.tolist() == [1000 + 2048, 22_000 - 2048]
    assert words.est_end_idx.tolist() == [1000 + 3072, round(22_000 - 0.8 * 2048)]
    (tmp_path / "t.csv").write_text("time,index\n1,2\n")
    refuses(treebank.read_words, r"lacks the columns \['movie_time'\]", tmp_path / "features.csv", tmp_path / "t.csv")


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    words = pd.DataFrame(
        {"est_idx": np.arange(200) * 900 + 6000, "rms": rng.normal(size=200), "pitch": rng.gamma(2, 50, 200),
         "is_onset": (np.arange(200) % 10 == 0).astype(float)}
    )  # fmt: skip
    nonverbal = pd.DataFrame({"est_idx": np.arange(60) * 1024 + 7000})
    nonverbal["est_end_idx"] = nonverbal.est_idx + 2048
    return words, nonverbal


class TestTasks:
    @pytest.mark.parametrize("task", ["volume", "pitch"])
    def test_quartiles_and_deviations(self, tables, task):
        words, _ = tables
        value = words["rms" if task == "volume" else "pitch"].to_numpy()
        by_start = dict(zip(words.est_idx - 5120, value, strict=True))
        found = treebank_examples(words, None, task, "popt")
        assert len(found) == 100
        low, high = np.quantile(value, [0.25, 0.75])
        for start, label in zip(found.starts, found.labels, strict=True):
            assert (by_start[start] > high) == label
            assert (by_start[start] < low) != label
        outside = treebank_examples(words, None, task, "brainbert", balance=False)
        assert outside.samples == 10240
        assert outside.labels.sum() == (value > value.mean() + value.std()).sum()
        assert (~outside.labels).sum() == (value < value.mean() - value.std()).sum()

    def test_onset(self, tables):
        found = treebank_examples(*tables, "onset", "neuroprobe")
        assert found.samples == 2048
        assert found.labels.sum() == 20 == (~found.labels).sum()
        assert set(found.starts[found.labels]) == set(tables[0].est_idx[::10])
        assert set(found.starts[~found.labels]) <= set(tables[1].est_idx)
        assert (np.diff(found.starts) >= 0).all()

    def test_windows_that_leave_the_recording_are_left_out(self, tables):
        words, nonverbal = tables
        words.loc[0, "est_idx"] = 100
        found = treebank_examples(words, nonverbal, "speech", "popt", num_samples=100_000, balance=False)
        assert found.starts.min() >= 0
        assert found.starts.max() <= 100_000 - 10240

    def test_balance_follows_the_seed(self, tables):
        first, again, other = (treebank_examples(*tables, "speech", seed=s).starts for s in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("loudness", "popt"), "task must be one of"),
            (("speech", "other"), "protocol must be one of"),
            (("valence", "popt"), "task must be one of"),
        ],
    )
    def test_unknown(self, tables, arguments, message):
        refuses(treebank_examples, message, *tables, *arguments)

    def test_what_is_missing(self, tables):
        words, nonverbal = tables
        refuses(treebank_examples, r"words lacks the columns \['rms'\]", words.drop(columns="rms"), nonverbal, "volume")
        refuses(treebank_examples, "needs nonverbal, the table of windows without speech", words, None, "onset")
        refuses(treebank_examples, "0 positive and 60 negative", words.assign(is_onset=0), nonverbal, "onset")


class TestSplits:
    def examples(self, count: int = 500, step: int = 1500) -> Examples:
        return Examples(np.arange(count, dtype=np.int64) * step, 10240, np.arange(count) % 2 == 0)

    def test_random_is_the_published_split_and_leaks(self):
        split = split_examples(self.examples(), "random", seed=1)
        assert [len(part) for part in (split.train, split.validation, split.test)] == [400, 50, 50]
        assert sorted(np.concatenate([split.train, split.validation, split.test])) == list(range(500))
        starts = self.examples().starts
        gaps = np.abs(starts[split.test][:, None] - starts[split.train][None]).min(1)
        assert (gaps < 10240).mean() > 0.9

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("step", [1500, 20_000])
    def test_blocked_parts_share_no_sample(self, seed, step):
        examples = self.examples(step=step)
        split = split_examples(examples, "blocked", seed=seed)
        parts = [split.train, split.validation, split.test]
        assert sorted(np.concatenate([*parts, split.removed])) == list(range(500))
        assert len(split.test) == 50
        for i, one in enumerate(parts):
            for other in parts[i + 1 :]:
                gaps = np.abs(examples.starts[one][:, None] - examples.starts[other][None])
                assert gaps.min() >= examples.samples
        if step == 20_000:
            assert not len(split.removed)

    def test_a_part_without_a_class_is_refused(self):
        """A film whose last two fifths are silent: 80 of 200 windows in a row without speech."""
        silent = Examples(np.arange(200) * 12_000, 10240, np.arange(200) < 120)
        for seed in range(6):
            # Eight blocks train, the ninth validates; blocks 6 to 9 are silent.
            missing = int(np.random.default_rng(seed).permutation(10)[8] >= 6)
            message = f"validation part must hold windows of both classes, got 20 windows and none of class {missing}"
            refuses(split_examples, message, silent, "blocked", seed=seed)
        split_examples(silent, "random")
        with pytest.raises(ValueError, match=r"validation part .* got \d+ windows and none of class 1"):
            split_examples(Examples(np.arange(50) * 12_000, 10240, np.arange(50) < 2), "random", seed=1)
        # All windows overlap, so none is left to train.
        refuses(split_examples, "train part must hold windows of both classes, got 0 windows", self.examples(step=1))

    def test_refusals(self):
        with pytest.raises(ValueError, match="how must be"):
            split_examples(self.examples(), "odd")  # type: ignore[arg-type]
        refuses(split_examples, "multiple of ten", self.examples(), blocks=15)
        refuses(split_examples, "needs at least 10 windows", self.examples(5))


def test_windows_are_read(root):
    recording = treebank.read_treebank(root, 3, 0)
    starts = np.array([0, 4000, 40_000, 90 * 2048 - 10240])
    popt = list(read_examples(recording, Examples(starts, 10240, np.array([True, False, True, True]))))
    assert [x.shape for x, _ in popt] == [(3, 2560)] * 4
    assert [label for _, label in popt] == [True, False, True, True]
    alone = next(read_examples(recording, Examples(starts[2:3], 10240, np.array([True]))))[0]
    np.testing.assert_allclose(popt[2][0], alone, atol=1e-3)
    short = list(read_examples(recording, Examples(starts, 2048, np.ones(4, bool))))
    np.testing.assert_allclose(short[2][0][:, 1024:1536], popt[2][0][:, :512], atol=1e-3)
