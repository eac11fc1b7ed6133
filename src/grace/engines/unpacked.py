"""Where the directories are that GGUF files are unpacked into (`grace.engines.gguf`)."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder for models of GGUF files, in `XDG_CACHE_HOME` or ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored if relative, says XDG
    return (named if named.is_absolute() else Path.home() / ".cache") / "grace" / "gguf"


def is_unpacked(path: str | Path) -> bool:
    """Return whether a directory of weights is that of a GGUF file."""
    return cache_folder().resolve() in Path(path).resolve().parents
