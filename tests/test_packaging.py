"""What is shipped, and what an import costs."""

import calendar
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.library import PACKAGES, ROOT, imported_packages, modules_of, run_python

HOSTS = ("triton", "neuralforecast", "sktime", "lightning", "pytorch_lightning", "pandas")


def test_package_list_equals_folders():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {name for name, path in modules_of().items() if path.name == "__init__.py"}
    assert set(project["tool"]["setuptools"]["packages"]) == folders


def test_version_is_the_same_everywhere():
    import mvpa_ts

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert mvpa_ts.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert json.loads((ROOT / "docs" / "versions.json").read_text())[0] == version


def test_every_folder_with_modules_is_a_package():
    for path in modules_of().values():
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} has no __init__.py"


@pytest.mark.skipif("MVPA_TS_TEST_WHEEL" not in os.environ, reason="no wheel here: `make test` builds and installs one")
class TestWheel:
    def test_holds_every_module_and_the_type_marker(self):
        (wheel,) = (ROOT / "build" / "wheel").glob("*.whl")
        held = set(zipfile.ZipFile(wheel).namelist())
        assert "mvpa_ts/py.typed" in held
        for name, path in modules_of().items():
            file = name.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
            assert file in held
        assert not [file for file in held if file.startswith(("tests", "experiments", "adapters", "ieeg"))]

    def test_holds_a_bill_of_materials(self):
        """As CycloneDX has it, compared with pyproject.toml: what is always needed, and what the extras ask for."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (wheel,) = (ROOT / "build" / "wheel").glob("*.whl")
        with zipfile.ZipFile(wheel) as held:
            (name,) = (name for name in held.namelist() if name.endswith(".dist-info/sboms/mvpa-ts.cdx.json"))
            bill = json.loads(held.read(name))
        assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
        own = bill["metadata"]["component"]
        assert (own["name"], own["version"]) == (project["name"], project["version"])
        assert own["licenses"] == [{"license": {"id": project["license"]}}]
        scopes = {component["name"]: component["scope"] for component in bill["components"]}
        assert sorted(name for name, scope in scopes.items() if scope == "required") == ["einops", "numpy", "torch"]
        optional = {
            re.split(r"[\[<>=; ]", text)[0] for texts in project["optional-dependencies"].values() for text in texts
        }
        assert {name for name, scope in scopes.items() if scope == "optional"} == optional - {project["name"]}
        references = [component["bom-ref"] for component in bill["components"]]
        assert len(references) == len({*references})
        needed = [f"pkg:pypi/{name}" for name in ("einops", "numpy", "torch")]
        assert bill["dependencies"] == [{"ref": f"pkg:pypi/{own['name']}@{own['version']}", "dependsOn": needed}]

    def test_another_build_is_equal_byte_for_byte(self, tmp_path):
        (wheel,) = (ROOT / "build" / "wheel").glob("*.whl")
        source = tmp_path / "source"
        source.mkdir()
        for name in (*PACKAGES, "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
            if (path := ROOT / name).is_dir():
                shutil.copytree(path, source / name, copy_function=shutil.copyfile)  # files of another time
            elif path.is_file():
                shutil.copyfile(path, source / name)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
        # The wheel may be that of an earlier commit, if only tests have changed since.
        with zipfile.ZipFile(wheel) as archive:
            built = os.environ | {"SOURCE_DATE_EPOCH": str(calendar.timegm(archive.infolist()[0].date_time))}
        subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True, env=built)
        assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()

    def test_is_what_the_tests_import(self):
        import mvpa_ts
        import mvpa_ts.adapters

        for module in (mvpa_ts, mvpa_ts.adapters):
            assert module.__file__ is not None
            assert "site-packages" in module.__file__
            assert not Path(module.__file__).is_relative_to(ROOT / "mvpa_ts")


def test_import_is_quick_and_light():
    code = """
import sys, time
start = time.perf_counter()
import mvpa_ts
seconds = time.perf_counter() - start
heavy = {"torch", "numpy", "pandas", "triton", "neuralforecast", "sktime", "lightning", "pytorch_lightning"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert seconds < 1.0, seconds
assert "ForecastingNetwork" in dir(mvpa_ts)
"""
    run_python(code)


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def test_core_works_without_any_host():
    code = """
import torch
from mvpa_ts import ForecastingConfig, ForecastingNetwork, MVPAttention, mvpa_attention

attention = MVPAttention(16, num_heads=2, causal=True)
attention(torch.randn(2, 4, 3, 16), torch.randn(4, 16), torch.randn(3, 16)).sum().backward()
network = ForecastingNetwork(ForecastingConfig(horizon=5, lookback=24, patch_length=8, patch_stride=4))
network(torch.randn(2, 24, 3)).square().mean().backward()
import mvpa_ts.datasets

from mvpa_ts.attention.triton import why_unavailable
q, k, v = torch.randn(3, 1, 4, 3, 2, 16)
tables = torch.randn(4, 2, 16), torch.randn(3, 2, 16), *torch.randn(3, 2, 16)
assert mvpa_attention(q, k, v, *tables).shape == q.shape
assert why_unavailable(q) == "the package triton is not installed"
try:
    mvpa_attention(q, k, v, *tables, impl="triton")
except RuntimeError as error:
    assert str(error) == "impl='triton' cannot run here: the package triton is not installed"
else:
    raise AssertionError
assert "triton" not in sys.modules
"""
    run_python(BLOCKER + code, *HOSTS)


def test_unknown_name_is_an_attribute_error():
    import mvpa_ts

    with pytest.raises(AttributeError, match="no attribute 'forecaster'"):
        _ = mvpa_ts.forecaster


@pytest.mark.parametrize("statement", ["import mvpa_ts.adapters.{}", "import mvpa_ts; mvpa_ts.adapters.{}"])
@pytest.mark.parametrize("host", [path.name for path in sorted((ROOT / "adapters").glob("[a-z]*")) if path.is_dir()])
def test_missing_host_names_the_extra(host, statement):
    result = run_python(BLOCKER + statement.format(host), host, status=1)
    assert f'ImportError: mvpa_ts.adapters.{host} needs {host}: pip install ".[{host}]"' in result.stderr


def test_adapters_import_no_host_by_themselves():
    run_python("import sys, mvpa_ts.adapters; assert not {'neuralforecast', 'sktime'} & set(sys.modules)")


def test_each_part_knows_one_lightning_family():
    forbidden = {"mvpa_ts.ieeg": {"pytorch_lightning"}, "mvpa_ts.adapters": {"lightning", "pytorch_lightning"}}
    for module, path in modules_of().items():
        for package, families in forbidden.items():
            if module.startswith(package):
                others = families & imported_packages(path)
                assert not others, f"{module} imports {others}"


def test_the_way_of_a_call_names_files_that_exist():
    """A name without a folder lies in the folder named before it."""
    page = (ROOT / "docs" / "development" / "how_a_call_travels.md").read_text(encoding="utf-8")
    folder = ROOT
    for name in re.findall(r"`([\w/]+\.py)`", page):
        folder = (ROOT / name).parent if "/" in name else folder
        assert (folder / Path(name).name).is_file(), f"{name} is not in {folder.relative_to(ROOT)}"
