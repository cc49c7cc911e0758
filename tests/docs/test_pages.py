"""Links of every page lead somewhere, and every page is listed. tests/docs/test_pages_run.py runs their code."""

import re
from pathlib import Path

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
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](#b) [c](c.md) [d](page.md#a-heading) [e](https://example.org/x)")
    assert broken_links(page) == ["#b", "c.md"]


def test_every_page_is_listed():
    """In the contents of the site, and those of the folder docs in its README too."""
    contents = [page for page in DOCS if page.name in ("index.md", "topics.md")]
    trees = re.findall(r"```{toctree}\n(.*?)```", "".join(page.read_text() for page in contents), re.DOTALL)
    on_site = {Path(line).name for tree in trees for line in tree.splitlines()}
    readme = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in DOCS:
        if page.name not in ("index.md", "README.md"):
            assert page.stem in on_site, f"{name(page)} is in no toctree: add it to docs/topics.md or an index"
        if page.parent.name == "docs" and page.name not in ("index.md", "README.md", "topics.md"):
            assert page.name in readme, f"{name(page)} is not in docs/README.md"
