"""Thin adapters that put MVPA into host libraries; import the module named after the host.

An adapter imports its host inside `host_library`, so that a missing host is answered with the extra to install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mvpa_ts._lazy import lazy_names

HOSTS = ("neuralforecast", "sktime")
__getattr__ = lazy_names(__name__, {host: f"{__name__}.{host}" for host in HOSTS})


@contextmanager
def host_library(name: str) -> Iterator[None]:
    """Turn a missing library into an ImportError that says which extra brings it.

    Examples
    --------
    >>> with host_library("some_host"):
    ...     import some_host
    Traceback (most recent call last):
    ImportError: mvpa_ts.adapters.some_host needs some_host: pip install ".[some_host]" in the clone
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "mvpa_ts"):
            raise
        raise ImportError(f'mvpa_ts.adapters.{name} needs {missing}: pip install ".[{name}]" in the clone') from error


@contextmanager
def host_words(words: Mapping[str, str]) -> Iterator[None]:
    """Let the message of a ValueError name arguments as the host does.

    Examples
    --------
    >>> with host_words({"steps": "max_steps"}):
    ...     raise ValueError("steps must be at least 1, got 0")
    Traceback (most recent call last):
    ValueError: max_steps must be at least 1, got 0
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"\w+", lambda word: words.get(word[0], word[0]), str(error))) from error
