"""The files of the package, each parsed once for all tests of its shape."""

import ast
import functools
from pathlib import Path

import grace

PACKAGE = Path(grace.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
