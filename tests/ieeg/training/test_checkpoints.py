"""Checkpoints survive a full disk, and damaged ones are named."""

import os
import pickle
import signal
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from support.made_up_recordings import disk_of
from support.reading import refuses

from mvpa_ts.ieeg.training.checkpoints import AtomicCheckpointIO


def checkpoint(value: float) -> dict[str, object]:
    return {"state_dict": {"w": torch.full((1000, 100), value)}, "global_step": 1, "loops": {"a": [1, None, "x"]}}


def test_round_trip(tmp_path):
    io = AtomicCheckpointIO()
    io.save_checkpoint(checkpoint(1.0), tmp_path / "new" / "last.ckpt")
    loaded = io.load_checkpoint(tmp_path / "new" / "last.ckpt")
    assert torch.equal(loaded["state_dict"]["w"], torch.ones(1000, 100))
    assert loaded["loops"] == {"a": [1, None, "x"]}
    assert os.listdir(tmp_path / "new") == ["last.ckpt"]


@pytest.mark.parametrize("size", [0, 1000, 200_000, 400_000])
def test_full_disk_leaves_the_previous_checkpoint(tmp_path, size):
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint(checkpoint(1.0), path)
    with (
        disk_of(size),
        pytest.raises(OSError, match=r"cannot write .*File too large.*previous checkpoint .* untouched"),
    ):
        io.save_checkpoint(checkpoint(2.0), path)
    assert torch.equal(io.load_checkpoint(path)["state_dict"]["w"], torch.ones(1000, 100))
    assert os.listdir(tmp_path) == ["last.ckpt"]
    io.save_checkpoint(checkpoint(2.0), path)  # and once there is room, it works again
    assert io.load_checkpoint(path)["state_dict"]["w"][0, 0] == 2.0


class Interrupting:
    """Ctrl-C while this is written."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        signal.raise_signal(signal.SIGINT)
        return OrderedDict, ()


def test_an_interrupt_waits_for_the_checkpoint(tmp_path):
    path, before = tmp_path / "last.ckpt", signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            AtomicCheckpointIO().save_checkpoint({**checkpoint(1.0), "more": Interrupting()}, path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.load(path, weights_only=True)["more"] == {}
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_flipped_bits_are_named(tmp_path):
    """Each bit of a file, in 200 places: what loads is what was written."""
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    written = checkpoint(1.0)
    io.save_checkpoint(written, path)
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(whole), (200,), generator=generator).tolist()
    named = 0
    for bit, place in enumerate([*places, *range(len(whole) - 300, len(whole), 3)]):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            loaded = io.load_checkpoint(path)
        except ValueError as error:
            named += "last.ckpt" in str(error)
        else:
            assert torch.equal(loaded["state_dict"]["w"], written["state_dict"]["w"])
            assert (loaded["global_step"], loaded["loops"]) == (written["global_step"], written["loops"])
    assert named > 190


def test_killed_while_writing_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint(checkpoint(1.0), path)

    class Killed(BaseException):
        pass

    def half(_: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise Killed

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(Killed):
        io.save_checkpoint(checkpoint(2.0), path)
    assert io.load_checkpoint(path)["state_dict"]["w"][0, 0] == 1.0


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": lambda content: content[:100] + bytes(255 - byte for byte in content[100:900]) + content[900:],
    "text": lambda content: b"not a checkpoint",
    "letter": lambda content: b"a",  # at which torch's reader pops from an empty list
    "pickle": lambda content: pickle.dumps({"state_dict": Path("x")}),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoint(tmp_path, how):
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint(checkpoint(1.0), path)
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    refuses(io.load_checkpoint, r"last\.ckpt cannot be read .* damaged", path, weights_only=False)


def test_other_files_and_no_file(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.ckpt")
    refuses(AtomicCheckpointIO().load_checkpoint, "holds no state_dict", tmp_path / "weights.ckpt")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")
