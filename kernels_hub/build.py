"""Write FlashMVPA as a package for the kernels hub, from the sources of this library.

OUTPUT gets a project of kernel-builder (build.toml, flake.nix, torch-ext/flash_mvpa) and, beside it, what the builder
would make of a package without compiled code: build/torch-cuda and build/torch-cpu, which the `kernels` package loads.
Imports become relative, so that the package is loaded from any path, and the operators of torch get a namespace with a
digest of the sources, so that several versions live in one process. Needs Python alone.

    python kernels_hub/build.py build/flash-mvpa
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "mvpa_ts" / "attention"
ROOT = "mvpa_ts.attention"
# What the hub lets a package import, beside itself and Python's library.
ALLOWED = {"torch", "triton", "einops"}


def main() -> None:
    """Write the package into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder to write; it must be new or empty")
    output = parser.parse_args().output
    if output.exists() and any(output.iterdir()):
        raise SystemExit(f"{output} is not empty: name a new folder")
    build(output)
    print(f"wrote {output}; next: `kernel-builder build` there, or load {output / 'build'} by the kernels package")


def build(output: Path) -> None:
    """Write the project and its variants; raises ValueError where a source would break a rule of the hub."""
    general = tomllib.loads((HERE / "build.toml").read_text(encoding="utf-8"))["general"]
    package = general["name"].replace("-", "_")
    files = sources()
    digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:8]
    project = output / "torch-ext" / package
    _write(project, files)
    for name in ("build.toml", "flake.nix"):
        shutil.copyfile(HERE / name, output / name)
    for backend in general["backends"]:
        variant = output / "build" / f"torch-{backend}"
        identifier = f"_{package}_{backend}_{digest}"
        _write(variant, files | {"_ops.py": _operators(identifier)})
        metadata = {"id": identifier, "backend": {"type": backend}}
        metadata |= {key: general[key] for key in ("name", "version", "license", "python-depends")}
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        # Where older versions of the kernels package look.
        _write(variant / package, {"__init__.py": _COMPATIBLE})


def sources() -> dict[str, str]:
    """Text of every file of the package by its path, with relative imports and prefixed operators."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        found[name] = _relative(path.read_text(encoding="utf-8"), depth=name.count("/"))
        check(name, found[name])
    return found


def _relative(text: str, depth: int) -> str:
    """The same module `depth` folders below the package's root, wherever that root lies."""
    up = "." * (depth + 1)
    text = re.sub(rf"^(\s*)from {ROOT}\.([\w.]+) import", rf"\1from {up}\2 import", text, flags=re.MULTILINE)
    text = re.sub(rf"^(\s*)from {ROOT} import", rf"\1from {up} import", text, flags=re.MULTILINE)
    text, operators = re.subn(r'custom_op\("mvpa_ts::(\w+)"', r'custom_op(add_op_namespace_prefix("\1")', text)
    if operators:
        future = "from __future__ import annotations\n"
        text = text.replace(future, f"{future}\nfrom {up}_ops import add_op_namespace_prefix\n", 1)
    return text


def check(name: str, text: str) -> None:
    """Raise ValueError where a module imports what the hub does not allow, or names an operator without a prefix."""
    for node in ast.walk(ast.parse(text)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        for module in modules:
            if (top := module.partition(".")[0]) not in ALLOWED and top not in sys.stdlib_module_names:
                raise ValueError(f"{name} imports {module}; a package of the hub may import {sorted(ALLOWED)} alone")
    if re.search(r'["\']mvpa_ts::', text):
        raise ValueError(f"{name} has an operator in the namespace mvpa_ts, where two versions would meet")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _operators(namespace: str) -> str:
    """The module that kernel-builder writes as well: the namespace of the package's operators."""
    return f'''"""The namespace of this build's operators."""

import torch

ops = torch.ops.{namespace}


def add_op_namespace_prefix(op_name: str) -> str:
    """Name an operator within the namespace."""
    return f"{namespace}::{{op_name}}"
'''


_COMPATIBLE = '''"""The package one folder up, under its own name: for older versions of the kernels package."""

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).resolve().parents[1] / "__init__.py"
_name = f"{__name__}_{abs(hash(str(_path))):x}"
_spec = importlib.util.spec_from_file_location(_name, _path)
_module = importlib.util.module_from_spec(_spec)
sys.modules[_name] = _module
_spec.loader.exec_module(_module)
globals().update({key: value for key, value in vars(_module).items() if not key.startswith("__")})
'''


if __name__ == "__main__":
    main()
