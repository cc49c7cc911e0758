"""Saving and loading: exact, strict, and safe when writing fails."""

import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.library import run_python
from support.made_up_recordings import disk_of, seeded
from support.reading import refuses

from mvpa_ts.ieeg.model.configuration import mvpformer_tiny
from mvpa_ts.ieeg.model.mvpformer import MVPFormer
from mvpa_ts.ieeg.model.pretrained import pretrained_config
from mvpa_ts.weights import built_for, check_sizes, read_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    seeded().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_classes": 3, "window": None, "components": ("time",), "row_order": "released", "prediction_head": False},
    ],
    ids=["default", "changed"],
)
def test_round_trip(changes, tmp_path):
    model = seeded(**changes)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    loaded = MVPFormer.from_pretrained(tmp_path)
    assert loaded.config == model.config
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    signal = torch.randn(1, 2, 3 * 2560)
    assert torch.equal(loaded(signal), model(signal))


def test_what_is_read_lies_where_torch_puts_it(folder):
    """Products of tensors at another address are rounded otherwise, by 1e-7: then nothing comes back to the bit."""
    assert any(tensor.data_ptr() % 64 for tensor in load_file(folder / "model.safetensors").values())
    assert not any(tensor.data_ptr() % 64 for tensor in MVPFormer.from_pretrained(folder).state_dict().values())


def test_precision_is_kept(tmp_path):
    seeded().bfloat16().save_pretrained(tmp_path)
    assert {p.dtype for p in MVPFormer.from_pretrained(tmp_path).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("given", [".", "adapter", "checkpoints", "checkpoints/last.ckpt", "model/model.safetensors"])
def test_a_path_near_the_model_says_where_it_is(folder, given):
    run = folder.parent
    for name in ("adapter", "checkpoints"):
        (run / name).mkdir()
    (run / "checkpoints" / "last.ckpt").write_bytes(b"x")
    path = run / given
    kind = NotADirectoryError if path.is_file() else FileNotFoundError
    expected = f"{path} is a file, a model is a folder with config.json" if path.is_file() else f"is not in {path}"
    for load in (MVPFormer.from_pretrained, pretrained_config):
        with pytest.raises(kind, match=re.escape(f"{expected}: did you mean {folder}?")):
            load(path)


def test_a_path_near_no_model_says_nothing_of_one(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"x")
    with pytest.raises(NotADirectoryError, match=r"weights\.pt is a file, a model is a folder with config\.json$"):
        MVPFormer.from_pretrained(tmp_path / "weights.pt")


def test_fields_can_be_changed_on_loading(folder):
    assert MVPFormer.from_pretrained(folder, dropout=0.0, window=3).config == mvpformer_tiny(dropout=0.0, window=3)


def test_another_layer_count_is_refused(folder):
    for layers, message in ((1, "10 unexpected|unexpected"), (3, "missing")):
        refuses(MVPFormer.from_pretrained, message, folder, num_layers=layers)


def test_another_shape_is_refused(folder):
    with pytest.raises(ValueError, match=r"1 of another shape: stack.time_codebook \(110, 64\) in place of \(50, 64\)"):
        MVPFormer.from_pretrained(folder, time_rows=50)


def test_a_missing_tensor_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["stack.blocks.1.attention.value.weight"]
    save_file(weights, folder / "model.safetensors")
    refuses(MVPFormer.from_pretrained, r"1 missing: stack\.blocks\.1\.attention\.value\.weight", folder)


@pytest.mark.parametrize("size", [0, 5, 1000, -1], ids=["empty", "header cut", "cut", "last byte cut"])
def test_a_truncated_file_is_refused(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refuses(MVPFormer.from_pretrained, r"model.safetensors is damaged or not a safetensors file", folder)


def test_a_damaged_configuration_is_refused(folder):
    path = folder / "config.json"
    path.write_text(path.read_text()[:40])
    refuses(MVPFormer.from_pretrained, r"config.json is not readable as JSON", folder)
    path.write_text("[]")
    refuses(MVPFormer.from_pretrained, r"must hold a JSON object, got list", folder)
    path.write_text(json.dumps({"dims": 3}))
    refuses(MVPFormer.from_pretrained, r"fields that MVPFormerConfig does not know: dims", folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    refuses(MVPFormer.from_pretrained, f"{name} is not in", folder, kind=FileNotFoundError)


def test_a_missing_folder_is_never_a_random_model(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for load in (MVPFormer.from_pretrained, pretrained_config):
        with pytest.raises(FileNotFoundError, match="neither a folder nor a model on the Hugging Face hub"):
            load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="neither a folder nor a model on the Hugging Face hub"):
        MVPFormer.from_pretrained("someone/absent", local_files_only=True)


@pytest.mark.parametrize("failure", ["refused", "silent"])
def test_without_a_network_a_missing_model_fails_in_seconds(failure, tmp_path):
    """In a process of its own: a hub that refuses, and one that never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if failure == "silent":
            server.listen()
        code = (
            "import time, mvpa_ts.ieeg.model.pretrained as pretrained\npretrained.HUB_SECONDS = 1.0\n"
            "from mvpa_ts.ieeg import MVPFormer\nstarted = time.monotonic()\n"
            "try:\n    MVPFormer.from_pretrained('someone/absent')\n"
            "except FileNotFoundError as error:\n    print(time.monotonic() - started, error)"
        )
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HOME": str(tmp_path)}
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        output = run_python(code, env=kept | hub).stdout
    seconds, message = output.split(maxsplit=1)
    assert float(seconds) < 10
    assert message.startswith("there is no folder someone/absent, and the Hugging Face hub could not be asked")
    assert "config.json" in message
    assert "check the path" in message


def test_a_failed_write_leaves_the_older_model_whole(folder):
    """A limit on the size of files stands for a full disk."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    larger = seeded(num_layers=3)
    with disk_of(100_000), pytest.raises(OSError, match=r"cannot write .*model.safetensors"):
        larger.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    MVPFormer.from_pretrained(folder)


def test_hub_upload_sends_both_files(folder, monkeypatch, tmp_path):
    sent: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None = None) -> None:
            pass

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            return type("Repository", (), {"repo_id": repo_id})

        def upload_folder(self, *, folder_path: Path, repo_id: str, **options: Any) -> str:
            sent.update(repo_id=repo_id, files=sorted(path.name for path in Path(folder_path).iterdir()))
            return "address"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    assert seeded().save_pretrained(tmp_path / "here", push_to_hub=True, repo_id="me/model") == "address"
    assert sent == {"repo_id": "me/model", "files": ["README.md", "config.json", "model.safetensors"]}


def test_no_connection_for_an_upload_is_said_in_words(monkeypatch, tmp_path):
    no_connection = type("ConnectError", (Exception,), {"__module__": "httpx"})  # the hub's library, by its version

    def refused(*_: Any, **__: Any) -> None:
        raise no_connection("[Errno -2] Name or service not known")

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi.create_repo", refused)
    with pytest.raises(OSError, match=r"saved in .*here, but not sent to me/model: .* could not be .*connection"):
        seeded().save_pretrained(tmp_path / "here", push_to_hub=True, repo_id="me/model")
    assert (tmp_path / "here" / "model.safetensors").is_file()


class TestBuiltFor:
    """Networks are made only once their sizes are known to be those of the weights."""

    weights = {name: tensor.clone() for name, tensor in torch.nn.Linear(3, 2).state_dict().items()}  # noqa: RUF012

    def test_the_weights_are_in_it(self):
        layer = built_for(lambda: torch.nn.Linear(3, 2), self.weights, "x")
        assert torch.equal(layer.weight, self.weights["weight"])
        assert layer.weight.device.type == "cpu"

    @pytest.mark.parametrize("size", [10**6, 10**12])
    def test_other_sizes_take_no_memory(self, size):
        with pytest.raises(ValueError, match=r"x.*(weight|no network of such sizes)"):
            built_for(lambda: torch.nn.Linear(size, size), self.weights, "x")

    @pytest.mark.parametrize(
        "description", [{"dim": 10**7}, {"num_layers": 3}, {"num_networks": 10**7}, {"dim": -1}, {"dim": 2**70}]
    )
    def test_numbers_larger_than_the_weights(self, description):
        with pytest.raises(ValueError, match=rf"x: {next(iter(description))} must lie between 0 and"):
            check_sizes(description, self.weights, "x")

    def test_numbers_that_fit(self):
        check_sizes({"dim": 3, "num_layers": 2, "dropout": 0.5, "shuffled": True, "window": None}, self.weights, "x")


def test_weights_without_safetensors_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_weights(tmp_path / "model.safetensors")
