"""An object with a part of another kind."""

from __future__ import annotations

from typing import Any


class Instead:
    """Another object, but for the attributes that are given."""

    def __init__(self, whole: Any, **parts: Any) -> None:
        self._whole = whole
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)
