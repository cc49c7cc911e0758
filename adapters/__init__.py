"""Thin adapters that put MVPA into host libraries; import the module named after the host.

An adapter imports its host inside `library_of`, so that a missing host is answered with the extra to install.
"""

from __future__ import annotations

from mvpa_ts._lazy import lazy_names

HOSTS = ("neuralforecast", "sktime")
__getattr__ = lazy_names(__name__, {host: f"{__name__}.{host}" for host in HOSTS})
