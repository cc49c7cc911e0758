"""What `SECURITY.md` promises of every reader: no code from files, no network unless asked, no identity in outputs."""

import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.edf_files import signals_of
from support.fuzzing import saved
from support.library import run_python

from mvpa_ts.classification import FittedClassifier
from mvpa_ts.forecasting import FittedForecaster
from mvpa_ts.ieeg import MVPFormer, load_released, mvpformer_tiny
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.model.lora import load_finetuned
from mvpa_ts.ieeg.training.pretraining import load_pretrained


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small sound form of each file that a reader reads."""
    folder = tmp_path_factory.mktemp("files")
    for make in (saved.make_adapter, saved.make_forecaster, saved.make_classifier):
        make(folder)
    return folder


class Code:
    """What a pickle would run: it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.mkdir, (str(self.mark),)


# Of each reader: a sound folder, and the file in it that holds weights; or None, as the file is all weights.
READERS: dict[str, tuple[Callable[[Path], Any], str | None, str]] = {
    "model": (MVPFormer.from_pretrained, "base", "model.safetensors"),
    "adapter": (lambda path: load_finetuned(path, path.parent / "base"), "m/adapter", "adapter_model.safetensors"),
    "checkpoint": (load_pretrained, None, ""),
    "released": (lambda file: load_released(file, mvpformer_tiny()), None, ""),
    "forecaster": (FittedForecaster.from_files, "f", "forecaster.safetensors"),
    "classifier": (FittedClassifier.from_files, "c", "classifier.safetensors"),
}


@pytest.mark.parametrize("form", ["pickle", "torch", "torch of old"])
@pytest.mark.parametrize("name", READERS)
def test_no_code_from_files(tmp_path, files, name, form):
    read, source, weights = READERS[name]
    path = tmp_path / "file"
    if source is not None:
        shutil.copytree(files / source, path)
        shutil.copytree(files / "base", tmp_path / "base")
        read(path)  # the folder is sound before
    mark = tmp_path / "code has run"
    content = {"state_dict": {}, "code": Code(mark)}
    with (path / weights if weights else path).open("wb") as file:
        if form == "pickle":
            pickle.dump(content, file)
        else:
            torch.save(content, file, _use_new_zipfile_serialization=form == "torch")
    with pytest.raises((ValueError, OSError)):
        read(path)
    assert not mark.exists()


def test_code_in_a_pickle_would_leave_its_mark(tmp_path):
    """The test above could fail."""
    pickle.loads(pickle.dumps(Code(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


_asked: list[str] = []
_watching = False


def _note(event: str, arguments: tuple) -> None:
    if _watching and event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        _asked.append(f"{event} {arguments}")


@contextmanager
def network_noted() -> Iterator[list[str]]:
    """Everything that asks the network inside the block; the hook itself cannot be removed."""
    global _watching
    _asked.clear()
    _watching = True
    try:
        yield _asked
    finally:
        _watching = False


sys.addaudithook(_note)


def test_network_is_noted():
    import socket

    with network_noted() as asked, socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", 1))
    assert len(asked) == 1


FOLDERS = (
    "attention", "forecasting", "classification", "datasets", "adapters.neuralforecast", "adapters.sktime", "ieeg",
)  # fmt: skip


def test_import_asks_no_network():
    code = """
import importlib, pkgutil, sys
asked = []
sys.addaudithook(lambda event, _: asked.append(event) if event in ("socket.connect", "socket.getaddrinfo") else None)
for folder in map(importlib.import_module, sys.argv[1:]):
    modules = [module.name for module in pkgutil.walk_packages(folder.__path__, folder.__name__ + ".")]
    assert modules
    for name in modules:
        if "triton" not in name:
            importlib.import_module(name)
assert not asked, asked
"""
    run_python(code, *(f"mvpa_ts.{name}" for name in FOLDERS))


def test_training_asks_no_network(tmp_path):
    with network_noted() as asked:
        saved.make_forecaster(tmp_path)
        saved.make_classifier(tmp_path)
    assert asked == []


def test_detection_asks_no_network_and_writes_no_identity(tmp_path, files, capfd):
    """A patient's name, code and dates stand in the file's header and in an annotation, and nowhere else."""
    edfio = pytest.importorskip("edfio")
    generator = np.random.default_rng(0)
    signals = signals_of(["A1", "A2"], generator.normal(0, 50, (2, 512 * 40)))
    patient = edfio.Patient(code="X99-KEY", sex="F", birthdate=date(1970, 5, 5), name="Jane_Roe")
    note = edfio.EdfAnnotation(3, 0, "Jane Roe moves")
    edfio.Edf(signals, patient=patient, annotations=[note]).write(tmp_path / "recording.edf")
    arguments = ["detect", str(tmp_path / "recording.edf"), "--model", str(files / "m" / "model")]
    with network_noted() as asked:
        assert main([*arguments, "-o", str(tmp_path / "found"), "--channels", "all"]) == 0
    assert asked == []
    written = [path for path in (tmp_path / "found").rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"events.tsv", "probabilities.tsv", "run.json", "report.html"}
    printed = "".join(capfd.readouterr())
    for text in (*(path.read_text() for path in written), printed):
        words = re.sub(r"base64,[\w+/=]+", "", text)  # figures
        assert not [private for private in ("Jane", "Roe", "X99", "1970") if private in words]
