"""README and docs: links lead somewhere, every page is on the site, the first lines say it all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import grace

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            linked = page.parent / file if file else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


def test_every_page_is_on_the_site_once() -> None:
    nav = re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(nav) == sorted(pages)


def test_the_api_page_has_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: [\w.]+\.(\w+)$", page, re.MULTILINE)) == grace.__all__


def test_the_readme_starts_with_what_a_newcomer_needs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head = "\n".join(text.splitlines()[:45])
    for wanted in (
        "known answers",
        "pip install",
        "grace run",
        "grace ask",
        '"answers"',
        "| **GrACE**",
    ):
        assert wanted in head
    for wanted in ("import grace", "make demo", "make test", "src/grace/"):
        assert wanted in text
