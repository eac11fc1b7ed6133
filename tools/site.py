"""A hook of mkdocs: links to files outside docs/ become plain text, as the site lacks the files."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text without the links that leave docs/."""
    up = r"\.\./" * (page.file.src_uri.count("/") + 1)
    return re.sub(rf"\[([^\]]+)\]\({up}[^)]+\)", r"\1", markdown)
