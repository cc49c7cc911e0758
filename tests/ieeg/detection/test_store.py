"""The store after kills at every byte, with other settings, with two writers."""

import errno
import fcntl
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.made_up_recordings import disk_of
from support.reading import refuses

from mvpa_ts.ieeg.detection.store import ProbabilityStore
from mvpa_ts.weights import weight_hash

SETTINGS = {"weights": "ab12", "preprocessing": {"band": [0.5, 120.0]}, "channels": ["A1", "A2"]}
STARTS = np.append(5.0 * np.arange(7), 33.217)
VALUES = [0.1, 1e-17, math.nan, 1.0, 1 / 3, 0.5, 0.25, 0.75]


def full(path):
    with ProbabilityStore(path, SETTINGS, STARTS) as store:
        store.append(VALUES[:3])
        store.append(np.array(VALUES[3:]))
        assert len(store) == len(STARTS)
    return path.read_bytes()


def test_values_come_back_to_the_bit(tmp_path):
    full(tmp_path / "run")
    with ProbabilityStore(tmp_path / "run", SETTINGS, STARTS) as store:
        np.testing.assert_array_equal(store.probabilities, VALUES)


def test_cut_at_any_byte_it_goes_on_to_the_same_file(tmp_path):
    path = tmp_path / "run"
    whole = full(path)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with ProbabilityStore(path, SETTINGS, STARTS) as store:
            kept = len(store)
            assert kept == max(whole[:end].count(b"\n") - 1, 0)
            store.append(VALUES[kept:])
        assert path.read_bytes() == whole


def test_killed_writer_loses_and_doubles_nothing(tmp_path):
    path = tmp_path / "run"
    code = """
import sys, itertools, numpy as np
from mvpa_ts.ieeg.detection.store import ProbabilityStore
store = ProbabilityStore(sys.argv[1], {"a": 1}, np.arange(1_000_000.0))
print("ready", flush=True)
while True:
    store.append([len(store) / 1e6] * 3)
"""
    process = subprocess.Popen([sys.executable, "-P", "-c", code, str(path)], stdout=subprocess.PIPE)
    process.stdout.readline()
    while path.stat().st_size < 20_000:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with ProbabilityStore(path, {"a": 1}, np.arange(1_000_000.0)) as store:
        count = len(store)
        assert count > 100
        expected = 3 * (np.arange(count) // 3) / 1e6
        np.testing.assert_array_equal(store.probabilities, expected)
        store.append([0.5])
    assert len(path.read_text().splitlines()) == count + 2


def test_a_full_disk_keeps_what_is_stored(tmp_path):
    """A limit on the size of files stands for it."""
    path, starts = tmp_path / "store", np.arange(200) * 5.0
    with ProbabilityStore(path, {"a": 1}, starts) as store:
        store.append([0.25, 0.5])
    with (
        disk_of(path.stat().st_size + 10),
        pytest.raises(OSError, match=r"2 of 200 rows are stored, a new run goes on from them: .*store'"),
        ProbabilityStore(path, {"a": 1}, starts) as store,
    ):
        store.append([0.75] * 100)
    with ProbabilityStore(path, {"a": 1}, starts) as store:
        assert store.probabilities.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("change", "named"),
    [({"weights": "ff00"}, "weights"), ({"preprocessing": {"band": None}, "threshold": 1}, "preprocessing, threshold")],
)
def test_other_settings_are_refused_by_name(tmp_path, change, named):
    before = full(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"begun with other settings \({named}\)"):
        ProbabilityStore(tmp_path / "run", SETTINGS | change, STARTS)
    assert (tmp_path / "run").read_bytes() == before


def test_damage_is_not_taken_for_a_kill(tmp_path):
    path = tmp_path / "run"
    whole = full(path)
    lines = whole.split(b"\n")
    lines[3] = lines[3].replace(b"nan", b"0.9")
    path.write_bytes(b"\n".join(lines))
    refuses(ProbabilityStore, "row 3 is damaged", path, SETTINGS, STARTS)
    path.write_bytes(whole)
    refuses(ProbabilityStore, "row 1 is damaged or of another recording", path, SETTINGS, STARTS + 1)
    path.write_text("onset\tduration\n")
    refuses(ProbabilityStore, "not a store of probabilities", path, SETTINGS, STARTS)


def test_second_writer_is_refused(tmp_path):
    with (
        ProbabilityStore(tmp_path / "run", SETTINGS, STARTS),
        pytest.raises(OSError, match="being written by another process"),
    ):
        ProbabilityStore(tmp_path / "run", SETTINGS, STARTS)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EACCES])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number == errno.EACCES:
        refuses(full, "Permission denied", tmp_path / "run", kind=OSError)
    else:
        full(tmp_path / "run")
        assert len(ProbabilityStore(tmp_path / "run", SETTINGS, STARTS)) == len(STARTS)


def test_too_many_rows(tmp_path):
    with (
        ProbabilityStore(tmp_path / "run", SETTINGS, STARTS) as store,
        pytest.raises(ValueError, match="9 more rows are too many"),
    ):
        store.append([0.5] * 9)


def test_weight_hash_sees_names_types_and_values():
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    assert weight_hash(first) != weight_hash(second)
    second.load_state_dict(first.state_dict())
    assert weight_hash(first) == weight_hash(second)
    assert weight_hash(first) != weight_hash(torch.nn.Sequential(first))
    assert weight_hash(first) != weight_hash(second.to(torch.bfloat16))
