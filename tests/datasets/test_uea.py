"""The UEA archive: parsing, where files come from, and the sets that need no network."""

import hashlib
import os
import warnings
from pathlib import Path

import numpy as np
import pooch
import pytest

from mvpa_ts.datasets import uea
from mvpa_ts.datasets.uea import UEA_DATASETS, load_uea, read_ts, uea_path

DATA = os.environ.get("MVPA_TS_DATA", "")
HEADER = "# comment\n@problemName Made\n@timeStamps false\n@dimensions 2\n@classLabel true a b\n@data\n"


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MVPA_TS_DATA", raising=False)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_values_missing_values_and_labels(tmp_path):
    path = write(tmp_path / "x.ts", HEADER + "1,2.5,?:-1e-2,0,3: b \n\n4:5:a\n1,2,3:7,8:a\n")
    series, labels = read_ts(path)
    np.testing.assert_array_equal(series[0], [[1.0, 2.5, np.nan], [-0.01, 0.0, 3.0]])
    np.testing.assert_array_equal(series[1], [[4.0], [5.0]])
    np.testing.assert_array_equal(series[2], [[1.0, 2.0, 3.0], [7.0, 8.0, np.nan]])  # a channel that ends early
    assert labels.tolist() == ["b", "a", "a"]


def test_an_empty_value_is_missing_and_what_follows_keeps_its_step(tmp_path):
    series, _ = read_ts(write(tmp_path / "x.ts", HEADER + "1,,3, ? :,5,6:a\n:1,2,:a\n"))
    np.testing.assert_array_equal(series[0], [[1.0, np.nan, 3.0, np.nan], [np.nan, 5.0, 6.0, np.nan]])
    np.testing.assert_array_equal(series[1], [[np.nan, np.nan], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "1,2:a\n", "line 7: 2 channels expected, got 1"),
        (HEADER.replace("@timeStamps false", "@timeStamps true"), "time stamps"),
        (HEADER.replace("@classLabel true a b", "@classLabel false"), "no class labels"),
        (HEADER, "holds no series"),
        (HEADER + "1,x:2,3:a\n", "line 7: could not convert"),
        (HEADER.replace("@dimensions 2", "@dimensions"), "@dimensions must lie between 1 and 100000"),
        (HEADER.replace("@dimensions 2", "@dimensions two"), "@dimensions must lie between 1 and 100000"),
        (HEADER.replace("@dimensions 2", "@dimensions -2"), "@dimensions must lie between 1 and 100000"),
        (HEADER.replace("@dimensions 2\n", "") + "a\n", "line 6: there is no channel before the label"),
        (
            HEADER.replace("@dimensions 2\n", "") + "1:" * 20_000 + "1," * 2_000 + ":a\n",
            "line 6: 20001 channels of very different lengths, up to 2000",
        ),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_ts(write(tmp_path / "x.ts", text))


@pytest.mark.parametrize(
    ("name", "train", "test", "channels"), [("JapaneseVowels", 270, 370, 12), ("BasicMotions", 40, 40, 6)]
)
def test_sets_of_the_installed_sktime_need_no_network(name, train, test, channels, monkeypatch):
    monkeypatch.setattr(pooch, "create", None)
    for split, count in (("train", train), ("test", test)):
        series, labels = load_uea(name, split)
        assert len(series) == len(labels) == count
        assert {one.shape[0] for one in series} == {channels}


def test_values_are_those_that_sktime_reads():
    from sktime.datasets import load_japanese_vowels

    with warnings.catch_warnings(action="ignore"):
        frame, expected = load_japanese_vowels(split="train")
    series, labels = load_uea("JapaneseVowels", "train")
    assert labels.tolist() == list(expected)
    for row, one in enumerate(series):
        np.testing.assert_array_equal(one, np.stack([np.asarray(channel) for channel in frame.iloc[row]]))


@pytest.mark.skipif(not (Path(DATA) / "UEA").is_dir(), reason="needs UEA/ below MVPA_TS_DATA")
@pytest.mark.parametrize(
    ("name", "counts", "shape"),
    [("Handwriting", (150, 850), (3, 152)), ("SelfRegulationSCP1", (268, 293), (6, 896))],
)
def test_sets_of_the_data_folder(name, counts, shape, monkeypatch):
    monkeypatch.setenv("MVPA_TS_DATA", DATA)
    for split, count in zip(("train", "test"), counts, strict=True):
        series, labels = load_uea(name, split)
        assert len(series) == len(labels) == count
        assert {one.shape for one in series} == {shape}
        assert all(np.isfinite(one).all() for one in series)


def test_the_data_folder_comes_first(tmp_path, monkeypatch):
    path = write(tmp_path / "UEA" / "BasicMotions" / "BasicMotions_TRAIN.ts", HEADER + "1:2:a\n")
    write(tmp_path / "UEA" / "Mine" / "Mine_TEST.ts", HEADER + "1:2:b\n")
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path))
    assert uea_path("BasicMotions", "train") == path
    assert load_uea("Mine", "test")[1].tolist() == ["b"]
    assert uea_path("BasicMotions", "test").is_relative_to(Path(pooch.__file__).parents[1] / "sktime")


def test_unknown_names():
    with pytest.raises(ValueError, match="split must be one of"):
        uea_path("BasicMotions", "validation")
    with pytest.raises(ValueError, match="name must be one of"):
        uea_path("Mine", "train")
    for name in ("../BasicMotions", "", ".."):
        with pytest.raises(ValueError, match="name must be that of a data set"):
            uea_path(name, "train")
    assert len(UEA_DATASETS) == len(set(UEA_DATASETS)) == 11


class Archive:
    """Stands for pooch's client of a Zenodo record."""

    content = HEADER + "1:2:a\n"
    failure: Exception | None = None
    fetched: list[str] = []  # noqa: RUF012

    def __init__(self, path: Path, base_url: str) -> None:
        self.path, self.base_url = Path(path), base_url
        self.registry: dict[str, str] = {}

    def load_registry_from_doi(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.registry["Heartbeat_TRAIN.ts"] = "md5:" + hashlib.md5(self.content.encode()).hexdigest()

    def fetch(self, name: str, progressbar: bool) -> str:
        assert name in self.registry
        self.fetched.append(f"{self.base_url}{name}")
        return str(write(self.path / name, self.content))


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Archive]:
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    monkeypatch.setattr(Archive, "failure", None)
    monkeypatch.setattr(Archive, "fetched", [])
    monkeypatch.setattr(pooch, "create", Archive)
    return Archive


def test_downloaded_once_and_checked_afterwards(archive, tmp_path):
    path = uea_path("Heartbeat", "train")
    assert path == tmp_path / "mvpa-ts" / "UEA" / "Heartbeat" / "Heartbeat_TRAIN.ts"
    assert archive.fetched == ["doi:10.5281/zenodo.11206229/Heartbeat_TRAIN.ts"]
    assert load_uea("Heartbeat", "train")[1].tolist() == ["a"]
    assert len(archive.fetched) == 1  # from the cache
    path.write_text("half a file")
    uea_path("Heartbeat", "train")
    assert len(archive.fetched) == 2


def test_no_network_and_wrong_checksums_say_so(archive, monkeypatch):
    for failure in (OSError("no route"), ValueError("hash of downloaded file does not match")):
        monkeypatch.setattr(archive, "failure", failure)
        with pytest.raises(OSError, match=r"Heartbeat_TRAIN\.ts could not be downloaded from Zenodo record 11206229"):
            uea_path("Heartbeat", "train")


def test_without_pooch_the_message_says_what_to_do(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(OSError, match=r'put UEA/Heartbeat/Heartbeat_TRAIN\.ts there, or pip install "\.\[sktime\]"'):
        uea_path("Heartbeat", "train")


def test_without_sktime_the_core_still_finds_files(monkeypatch, tmp_path):
    monkeypatch.setattr(uea.importlib.util, "find_spec", lambda name: None)
    write(tmp_path / "UEA" / "BasicMotions" / "BasicMotions_TRAIN.ts", HEADER + 40 * "1:2:a\n")
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path))
    assert load_uea("BasicMotions", "train")[1].tolist() == ["a"] * 40


def test_a_file_of_the_data_folder_with_other_series(tmp_path, monkeypatch):
    path = write(tmp_path / "UEA" / "BasicMotions" / "BasicMotions_TRAIN.ts", HEADER + 39 * "1:2:a\n")
    monkeypatch.setenv("MVPA_TS_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"holds 39 series, in the archive it has 40: it is cut short or changed\. If"):
        load_uea("BasicMotions", "train")
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{content}  UEA/BasicMotions/BasicMotions_TRAIN.ts\n")
    assert len(load_uea("BasicMotions", "train")[0]) == 39
    write(path, HEADER + 38 * "1:2:a\n")
    with pytest.raises(ValueError, match="does not have the SHA-256"):
        load_uea("BasicMotions", "train")
