"""Settings of the documentation's site, built by `make docs` without network."""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from typing import Any

project = "mvpa-ts"
author = "the mvpa-ts developers"
release = importlib.metadata.version("mvpa-ts")
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
html_title = "mvpa-ts"
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
copyright = "Apache-2.0. For research use; not a medical device."

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
# Names in single backticks are words of the text, not references: half of them are arguments.
default_role = "literal"
napoleon_google_docstring = False
napoleon_use_rtype = False
autosummary_generate = True
autodoc_default_options = {"members": True, "show-inheritance": False, "member-order": "bysource"}
autodoc_typehints = "none"
autodoc_mock_imports: list[str] = []
suppress_warnings = ["config.cache"]

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/\w+\.py$",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "plot_gallery": True,
    "abort_on_example_error": True,
    "min_reported_time": 5,
}
warnings.filterwarnings("ignore")


def setup(app: Any) -> None:
    """Name the scripts and tables that links lead to outside of these pages: the site does not hold them."""
    outside = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:experiments|CONTRIBUTING|SECURITY|README)[^)]*)\)")

    def name_files(_: Any, __: str, source: list[str]) -> None:
        source[0] = outside.sub(r"\1 (`\2`)", source[0])

    app.connect("source-read", name_files)
