"""Names of a package that are loaded on first use, so that `import mvpa_ts` does not import torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, names: Mapping[str, str], extra: str = "") -> Callable[[str], Any]:
    """The `__getattr__` of a package: `names` maps each name to the module that holds it, or is it."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(names[name])
        except ModuleNotFoundError as error:
            if not extra or (error.name or "").startswith("mvpa_ts"):
                raise
            raise ImportError(f'{package}.{name} needs {error.name}: pip install ".[{extra}]" in the clone') from error
        return module if names[name] == f"{package}.{name}" else getattr(module, name)

    return get
