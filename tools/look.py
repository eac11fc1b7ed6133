"""Take pictures of a report page, and find faults that keep some people from reading it.

    pip install playwright && npm install axe-core
    python -m tools.look RUN/report.html docs/images --axe node_modules/axe-core/axe.min.js

It uses an installed Chromium at two widths, in a light and a dark theme. It prints how many screens
the page has, and exits with code 1 if a link leads nowhere, the page scrolls sideways, or axe-core
finds anything.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

SIZES = {"wide": (1280, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
BROKEN = """[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))
  .filter(href => !href.startsWith('#') || !document.getElementById(href.slice(1)))"""


def look(page: Path, out: Path, axe: Path, chromium: str) -> list[str]:
    """Write a picture of each size and theme, and return what is wrong with the page."""
    from playwright.sync_api import sync_playwright

    faults = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            for theme in THEMES:
                shown = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=theme
                )
                shown.goto(page.resolve().as_uri())
                shown.screenshot(path=out / f"report-{name}-{theme}.png")
                tall = shown.evaluate("document.documentElement.scrollHeight")
                faults += [f"{name}, {theme}: {fault}" for fault in _faults(shown, axe)]
                print(f"{name}, {theme}: {tall / height:.1f} screens of {height} pixels")
        browser.close()
    return faults


def _faults(page: Any, axe: Path) -> list[str]:
    found = [f"the link {link} leads nowhere" for link in page.evaluate(BROKEN)]
    root = "document.documentElement"
    if page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"):
        found.append("the page scrolls sideways")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    page.evaluate(axe.read_text(encoding="utf-8"))
    for fault in page.evaluate("axe.run()")["violations"]:
        where = fault["nodes"][0]["html"][:100]
        found.append(f"{fault['impact']}: {fault['help']} ({len(fault['nodes'])}; {where})")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    wrong = look(given.page, given.out, given.axe, given.chromium)
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))
