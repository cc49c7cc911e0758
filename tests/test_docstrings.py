"""The examples in the docstrings run as printed, and every public name has a docstring."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import mvpa_ts

MODULES = ["mvpa_ts", *(module.name for module in pkgutil.walk_packages(mvpa_ts.__path__, "mvpa_ts."))]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        failed, _ = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_described(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for public, member in vars(module).items():
        own = getattr(member, "__module__", None) == name and (inspect.isclass(member) or inspect.isfunction(member))
        if own and not public.startswith("_"):
            assert member.__doc__, f"{name}.{public} has no docstring"
