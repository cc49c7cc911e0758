"""The package for the kernels hub: complete, loaded without this library, and several versions side by side."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.attention_checks import Case
from support.library import run_python

HUB = Path(__file__).parents[2] / "kernels_hub"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hub_builder", HUB / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(builder: ModuleType, tmp_path: Path) -> Path:
    builder.build(tmp_path / "package")
    return tmp_path / "package"


def test_layout_is_that_of_the_hub(package):
    general = tomllib.loads((package / "build.toml").read_text())["general"]
    assert re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", general["name"])
    assert (package / "flake.nix").is_file()
    assert (package / "torch-ext" / "flash_mvpa" / "triton" / "forward.py").is_file()
    assert sorted(path.name for path in (package / "build").iterdir()) == ["torch-cpu", "torch-cuda"]
    for backend in general["backends"]:
        variant = package / "build" / f"torch-{backend}"
        metadata = json.loads((variant / "metadata.json").read_text())
        assert metadata["name"] == general["name"]
        assert metadata["backend"] == {"type": backend}
        assert metadata["python-depends"] == ["einops"]
        assert re.fullmatch(rf"_flash_mvpa_{backend}_[0-9a-f]{{8}}", metadata["id"])
        assert (variant / "__init__.py").is_file()
        assert (variant / "flash_mvpa" / "__init__.py").is_file()


PROGRAM = """
import importlib.util, sys, torch
sys.modules["mvpa_ts"] = None  # importing it is an error

def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

first, second, folder = sys.argv[1:]
modules = [load("one", first + "/__init__.py"), load("two", second + "/__init__.py")]
modules.append(load("three", first + "/flash_mvpa/__init__.py"))
inputs = torch.load(folder + "/inputs.pt", weights_only=True)
for implementation in ("separable", "triton"):
    found = [module.mvpa_attention(*inputs, impl=implementation, window=1) for module in modules]
    compiled = torch.compile(modules[1].mvpa_attention, backend="eager", fullgraph=True)
    found.append(compiled(*inputs, impl=implementation, window=1))
    torch.save(found, folder + f"/{implementation}.pt")
"""


def test_two_versions_run_without_this_library(builder, package, tmp_path):
    pytest.importorskip("triton")
    other = tmp_path / "other"
    builder.build(other)
    for file in (other / "build" / "torch-cpu").rglob("*.py"):
        file.write_text(re.sub(r"_flash_mvpa_cpu_\w{8}", "_flash_mvpa_cpu_00000000", file.read_text()))
    inputs = [x.detach() for x in Case((3, 2), batch=1, kv_heads=1, head_dim=16).inputs(torch.float32)]
    torch.save(inputs, tmp_path / "inputs.pt")
    folders = [path / "build" / "torch-cpu" for path in (package, other)]
    run_python(PROGRAM, *folders, tmp_path, env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=tmp_path)
    from mvpa_ts import mvpa_attention

    expected = mvpa_attention(*inputs, impl="reference", window=1)
    for name in ("separable", "triton"):
        for actual in torch.load(tmp_path / f"{name}.pt", weights_only=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import numpy as np\n",
            r"bad.py imports numpy; a package of the hub may import \['einops', 'torch', 'triton'\]",
        ),
        ("from mvpa_ts.files import write_text\n", "bad.py imports mvpa_ts.files"),
        ("name = 'mvpa_ts::attention'\n", "bad.py has an operator in the namespace mvpa_ts"),
    ],
)
def test_what_the_hub_does_not_allow_is_refused(builder, text, message):
    with pytest.raises(ValueError, match=message):
        builder.check("bad.py", text)


def test_a_folder_with_files_is_not_overwritten(package):
    result = subprocess.run(
        [sys.executable, str(HUB / "build.py"), str(package)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "is not empty: name a new folder" in result.stderr
