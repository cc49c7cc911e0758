"""Settings of the documentation's site, built by `make docs` without network."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
import warnings
from pathlib import Path
from typing import Any

import mvpa_ts

HERE = Path(__file__).parent

project = "mvpa-ts"
author = "the mvpa-ts developers"
release = mvpa_ts.__version__
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "README.md", "gallery/*"]
html_theme = "pydata_sphinx_theme"
html_title = f"mvpa-ts {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_end": ["theme-switcher"],
}
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
copyright = "Apache-2.0. For research use; not a medical device"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
# Names in single backticks are words of the text, not references: half of them are arguments.
default_role = "literal"
napoleon_google_docstring = False
napoleon_use_param = False  # one entry may hold several names, as numpydoc allows
napoleon_use_rtype = False
autosummary_generate = False
autodoc_default_options = {"members": True, "show-inheritance": False, "member-order": "bysource"}
autodoc_typehints = "none"
suppress_warnings = ["config.cache", "ref.python"]  # two classes may have an attribute of one name


def settle(_: Any, __: Any) -> None:
    """Give each script of the gallery the same look, and keep its hosts quiet."""
    import matplotlib.pyplot as plt

    plt.rcdefaults()
    plt.style.use(HERE / "figures.mplstyle")
    for name in (
        "lightning",
        "lightning.pytorch",
        "pytorch_lightning",
        "lightning.fabric",
        "lightning_fabric",
        "optuna",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/\w+\.py$",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": (settle,),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "min_reported_time": 5,
}
warnings.filterwarnings("ignore")


def write_reference() -> None:
    """Write a page for each package into api/modules, with every public module in it."""
    folder = HERE / "api" / "modules"
    folder.mkdir(exist_ok=True)
    # By name: an editable install keeps adapters and ieeg in folders that a walk from mvpa_ts does not enter.
    roots = ("mvpa_ts", "mvpa_ts.adapters", "mvpa_ts.ieeg")
    found = {
        module.name: module.ispkg
        for root in roots
        for module in pkgutil.walk_packages(importlib.import_module(root).__path__, f"{root}.")
        if "._" not in module.name
    }
    pages: dict[str, list[str]] = {"mvpa_ts": []}
    for name, package in sorted(found.items()):
        if package:
            pages.setdefault(name, [])
        else:
            pages.setdefault(name.rpartition(".")[0], []).append(name)
    for old in folder.glob("*.rst"):
        old.unlink()
    for package, modules in pages.items():
        lines = [package, "=" * len(package), "", (importlib.import_module(package).__doc__ or "").strip(), ""]
        for name in modules:
            lines += [name, "-" * len(name), "", f".. automodule:: {name}", ""]
        (folder / f"{package}.rst").write_text("\n".join(lines), encoding="utf-8")


write_reference()


def setup(app: Any) -> None:
    """Name the scripts and tables that links lead to outside of these pages: the site does not hold them."""
    outside = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:experiments|CONTRIBUTING|SECURITY|README)[^)]*)\)")

    def name_files(_: Any, __: str, source: list[str]) -> None:
        source[0] = outside.sub(r"\1 (`\2`)", source[0])

    app.connect("source-read", name_files)
