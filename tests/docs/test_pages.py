"""Links of every page lead somewhere, every page is listed, and code on every page is run by a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# Without the copies of experiments/results that `make docs` puts into docs/tables.
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parts[len(ROOT.parts) + 1] != "tables")
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "experiments" / "results").rglob("*.md"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(text: str) -> set[str]:
    """Names that headings get on the site and on the web page of a repository."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    """Links of a page to a file or heading that is not there."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text):
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (heading and heading not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](#b) [c](c.md) [d](page.md#a-heading) [e](https://example.org/x)")
    assert broken_links(page) == ["#b", "c.md"]


def test_every_page_is_listed() -> None:
    """In the contents of the site, and those of the folder docs in its README too."""
    contents = [page for page in DOCS if page.name in ("index.md", "topics.md")]
    trees = re.findall(r"```{toctree}\n(.*?)```", "".join(page.read_text() for page in contents), re.DOTALL)
    on_site = {Path(line).name for tree in trees for line in tree.splitlines()}
    readme = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in DOCS:
        if page.name not in ("index.md", "README.md"):
            assert page.stem in on_site, (
                f"{name(page)} is in no toctree: add it to docs/topics.md or its folder's index"
            )
        if page.parent.name == "docs" and page.name not in ("index.md", "README.md", "topics.md"):
            assert page.name in readme, f"{name(page)} is not in docs/README.md"


# Needs a GPU and a package from outside; tests/attention/test_kernels_hub.py builds and calls what it is about.
NEEDS_GPU = "kernels_hub.md"
WITH_CODE = [page for page in DOCS if page.name != NEEDS_GPU and "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_code_is_run_by_a_test(page: Path) -> None:
    """By a test that names the page."""
    tests = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert any(f'"{page.name}"' in text for text in tests), f"no test in tests/docs names {page.name}"


def run_blocks(page: str) -> dict[str, Any]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names


def test_attention_runs_as_printed() -> None:
    assert run_blocks("attention.md")["tokens"].shape == (2, 6, 5, 32)


def test_classification_runs_as_printed() -> None:
    pytest.importorskip("sktime")
    names = run_blocks("classification.md")
    assert names["probabilities"].shape == (3, 9)
    assert len(names["features"]) == 3
    assert np.isfinite(names["features"]).all()
