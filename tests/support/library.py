"""The library's own files, for tests of how it is put together."""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Folder at the top of the repository: the package it is imported as.
PACKAGES = {"mvpa_ts": "mvpa_ts", "adapters": "mvpa_ts.adapters", "ieeg": "mvpa_ts.ieeg"}


def modules_of(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the library under `root` by its import name."""
    modules = {}
    for folder, package in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            modules[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return modules


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports anywhere: at its top, in a function, for types, or by a literal name; and from where."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((f"{node.module}.{alias.name}", f"{node.module}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((argument.value, "") for argument in node.args[:1] if isinstance(argument, ast.Constant))


def imported_packages(path: Path) -> set[str]:
    """First parts of the names of all modules that a file imports, lazily too."""
    return {name.partition(".")[0] for name, _ in imported(path)}


def run_python(code: str, *arguments: object, status: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """What code does in a process of its own. -P keeps the working directory off its path: the package is imported."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert result.returncode == status, result.stderr[-3000:]
    return result


class Interrupted:
    """A task that Ctrl-C ends, of which another process finds the class here."""

    def score(self, file: Path, *_: Any, **__: Any) -> None:
        file.touch()
        signal.raise_signal(signal.SIGINT)
