"""Absolute paths in settings, so that a run can be resumed from another directory.

A relative path starts from the current directory, in a recipe as in a command.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grace.config import assignment, merged, parse_value
from grace.store.inputs import located


def absolute_model(model: str | Path) -> str:
    """Return the absolute path of a model's directory or file, a Hub id or `pocket` as it is."""
    is_path = str(model) != "pocket" and Path(os.path.expanduser(model)).exists()
    return located(model) if is_path else str(model)


PLACES: dict[str, dict[str, Callable[[str], str]]] = {
    "model": {"path": absolute_model},
    "data": {"file": located, "dir": located},
}


def absolute(tree: dict[str, Any]) -> dict[str, Any]:
    """Return sections of settings with absolute paths; what is no path stays as it is."""
    for section, places in PLACES.items():
        named = tree.get(section)
        for key, place in places.items():
            value = named.get(key) if isinstance(named, dict) else None
            if isinstance(value, str) and value:
                tree = merged(tree, {section: {key: place(value)}})
    return tree


def each_absolute(trees: dict[str, Any]) -> dict[str, Any]:
    """Return sections of settings by name, each with absolute paths."""
    return {name: absolute(tree) for name, tree in trees.items()}


def absolute_override(override: str) -> str:
    """Return `section.key=value` with an absolute path, if the value is a path."""
    name, equals, text = override.partition("=")
    section, _, key = name.strip().partition(".")
    value = parse_value(text.strip())
    if not equals or not isinstance(value, str):
        return override
    path = absolute({section: {key: value}})[section][key]
    return override if path == value else assignment(name, path)
