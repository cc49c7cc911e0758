"""Each reader on mutated files: it reads, or raises what it documents. `make fuzz` does thousands within limits."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fuzzing.formats import DOCUMENTED, all_formats
from support.fuzzing.limited import read_within_limits
from support.fuzzing.mutations import mutated

for name in ("mne", "mne_bids", "edfio", "pybv", "h5py", "hdf5plugin", "peft", "lightning"):
    pytest.importorskip(name)
FORMATS = all_formats()


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("samples")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_file_is_read_or_refused(samples, name):
    form, sample = FORMATS[name], samples / name.replace(" ", "-").strip(".")
    sample.mkdir()
    form.make(sample)
    form.read(sample)
    places = [path.relative_to(sample) for path in form.paths(sample)]

    @settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places), st.integers(0, 2**32))
    def check(place: Path, seed: int) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "sample"
            shutil.copytree(sample, folder)
            (folder / place).write_bytes(mutated((sample / place).read_bytes(), seed))
            with suppress(*DOCUMENTED):
                form.read(folder)

    check()


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda folder: None, "read"),
        (lambda folder: _raise(ValueError("x")), "refused"),
        (lambda folder: _raise(FileNotFoundError("x")), "refused"),
        (lambda folder: _raise(KeyError("x")), "undocumented"),
        (lambda folder: _raise(AssertionError("x")), "undocumented"),
        (lambda folder: bytearray(3 * 2**30), "memory"),
        (lambda folder: __import__("time").sleep(60), "hang"),
        (lambda folder: __import__("os").kill(__import__("os").getpid(), 11), "crash"),
    ],
)
def test_outcomes(tmp_path, read, kind):
    """The limits see what they are for."""
    assert read_within_limits(read, tmp_path, seconds=1.5 if kind == "hang" else 30).kind == kind
