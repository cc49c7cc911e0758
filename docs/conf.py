"""Settings of the documentation's site, built by `make docs` without network."""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
import re
import shutil
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
templates_path = ["_templates"]
html_theme = "pydata_sphinx_theme"
html_title = f"mvpa-ts {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": "mvpa-ts"},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_end": ["versions", "theme-switcher"],
}
html_show_sourcelink = False
html_sidebars = {"index": [], "results": [], "tables/**": []}
versions = json.loads((HERE / "versions.json").read_text())
if release not in versions:
    raise ValueError(f"docs/versions.json must list the release {release}, got {versions}")
html_context = {"default_mode": "auto", "versions": versions}
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
    plt.style.use(HERE.parent / "ieeg" / "figures.mplstyle")
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
    "parallel": 2,  # processes: a script uses one core
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


def write_tables() -> None:
    """Copy tables and figures of experiments/results to docs/tables, so that links to them stay on the site."""
    results, folder = HERE.parent / "experiments" / "results", HERE / "tables"
    shutil.rmtree(folder, ignore_errors=True)
    for path in results.rglob("*.*"):
        copy = folder / path.relative_to(results)
        if path.suffix not in (".md", ".png") or path.name == "README.md":
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            shutil.copy(path, copy)
            continue
        text = path.read_text(encoding="utf-8")
        title = "" if text.startswith("# ") else f"# {path.stem.replace('_', ' ').capitalize()}\n\n"
        text = text.replace(
            " ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
        )  # so that a cell breaks behind its deviation
        copy.write_text(f"---\norphan: true\nnosearch: true\n---\n\n{title}{text}", encoding="utf-8")


write_tables()


def setup(app: Any) -> None:
    """Lead links to results to the copies on the site, and name other files that the site does not hold."""
    results = re.compile(r"(?<!!)(\[[^\]]+\]\()(?:\.\./)+experiments/results/([^)]+\.(?:md|png)\))")
    outside = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:experiments|CONTRIBUTING|SECURITY|README)[^)]*)\)")

    def lead(_: Any, page: str, source: list[str]) -> None:
        source[0] = results.sub(rf"\1{'../' * page.count('/')}tables/\2", source[0])
        source[0] = outside.sub(r"\1 (`\2`)", source[0])
        source[0] = source[0].replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")

    app.connect("source-read", lead)
