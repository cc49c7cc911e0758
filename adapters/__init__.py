"""Thin adapters that put MVPA into host libraries; import the module named after the host.

An adapter imports its host inside `host_library`, so that a missing host is answered with the extra to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mvpa_ts._lazy import lazy_names

HOSTS = ("neuralforecast", "sktime")
__getattr__ = lazy_names(__name__, {host: f"{__name__}.{host}" for host in HOSTS})


@contextmanager
def host_library(name: str) -> Iterator[None]:
    """Turn a missing library into an ImportError that says which extra brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "mvpa_ts"):
            raise
        raise ImportError(f'mvpa_ts.adapters.{name} needs {missing}: pip install ".[{name}]" in the clone') from error
