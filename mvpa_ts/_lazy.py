"""Names of a package that are loaded on first use, so that `import mvpa_ts` does not import torch, and their extras."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def library_of(extra: str, needed_by: str) -> Iterator[None]:
    """Turn a missing library into an ImportError that says which extra brings it; without one it stays as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not extra or missing in ("", "mvpa_ts"):
            raise
        raise ImportError(f'{needed_by} needs {missing}: pip install ".[{extra}]" in the clone') from error


def lazy_names(package: str, names: Mapping[str, str], extra: str = "") -> Callable[[str], Any]:
    """The `__getattr__` of a package: `names` maps each name to the module that holds it, or is it."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with library_of(extra, f"{package}.{name}"):
            module = importlib.import_module(names[name])
        return module if names[name] == f"{package}.{name}" else getattr(module, name)

    return get
