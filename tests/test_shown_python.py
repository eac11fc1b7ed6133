"""The Python that README and docs show compiles, and the names and arguments in it exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import grace

ROOT = Path(__file__).parents[1]
SHOWN = {
    f"{page.relative_to(ROOT)} {number}": block
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
}
OWN = {  # what a page calls an object of ours that an earlier line made
    "grace": grace,
    "model": grace.Model,
    "reply": grace.Reply,
    "best": grace.Decision,
    "decision": grace.Decision,
}


def check(code: str) -> None:
    """Look up what is imported, and what is read from or given to objects of ours."""
    tree = ast.parse(code)
    names: dict[str, Any] = dict(OWN)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("grace"):
            module = importlib.import_module(node.module)
            names |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found(node, names)
        elif isinstance(node, ast.Call) and (called := found(node.func, names)) is not None:
            keywords = {word.arg: None for word in node.keywords if word.arg}
            inspect.signature(called).bind_partial(**keywords)


def found(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return what an expression names, None if that is not ours or known only when it runs."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute) or (owner := found(node.value, names)) is None:
        return None
    if isinstance(owner, type) and node.attr in fields(owner):
        return None
    return getattr(owner, node.attr)


def fields(owner: type) -> set[str]:
    return {name for kind in owner.__mro__ for name in vars(kind).get("__annotations__", {})}


@pytest.mark.parametrize("code", SHOWN.values(), ids=SHOWN)
def test_python_shown_compiles_and_its_names_exist(code: str) -> None:
    compile(code, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    check(code)


@pytest.mark.parametrize(
    "code",
    [
        "from grace import Models",
        "from grace.model.loading import connects",
        "grace.loads('runs/qwen')",
        "grace.load('runs/qwen', engines='vllm')",
        "print(reply.sureness)",
        "model.vote('Who?', budgets=8)",
    ],
)
def test_a_wrong_name_is_noticed(code: str) -> None:
    with pytest.raises((AttributeError, TypeError)):
        check(code)


def test_blocks_are_found() -> None:
    assert len(SHOWN) > 8
