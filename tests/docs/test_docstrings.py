"""The examples in the docstrings run as printed, and every public name has a docstring."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

# By name: an editable install keeps adapters and ieeg in folders that a walk from mvpa_ts does not enter.
PACKAGES = ("mvpa_ts", "mvpa_ts.adapters", "mvpa_ts.ieeg")


def modules() -> list[str]:
    found = set(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        found.update(module.name for module in pkgutil.walk_packages(path, f"{package}."))
    return sorted(found)


MODULES = modules()
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_every_module_is_looked_at():
    assert {"mvpa_ts.blocks", "mvpa_ts.adapters.sktime.forecaster", "mvpa_ts.ieeg.recordings.swec"} <= set(MODULES)


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
