"""The shape of the code is itself a test: public names, short functions, lazy imports."""

import ast
import collections
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import grace

PACKAGE = Path(grace.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = [
    "Decision",
    "EarlyStop",
    "GraceError",
    "Majority",
    "Model",
    "Reply",
    "Vote",
    "Weighted",
    "load",
    "measure",
    "run",
]


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_public_names_are_pinned_and_importable():
    assert grace.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(grace, name) is not None


def test_functions_are_mostly_under_twenty_lines():
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median(lengths) < 15
    assert statistics.quantiles(lengths, n=10)[-1] < 36


def test_a_name_belongs_to_one_class():
    named = collections.defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_no_utils_module():
    assert [path for path in FILES if path.stem in {"utils", "helpers", "misc", "common"}] == []


@pytest.mark.parametrize("module", ["grace", "grace.metrics", "grace.strategies", "grace.cli"])
def test_light_modules_do_not_import_heavy_ones(module):
    heavy = {"torch", "transformers", "peft", "sklearn", "datasets", "matplotlib"}
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {heavy!r}))"
    assert _run(code).stdout.split() == []


def test_help_loads_nothing_heavy_and_names_the_commands():
    heavy = {
        "torch",
        "transformers",
        "peft",
        "sklearn",
        "datasets",
        "matplotlib",
        "scipy",
        "pandas",
    }
    code = (
        "import atexit, sys; from grace.cli import main; "
        f"atexit.register(lambda: print('loaded', *sorted(set(sys.modules) & {heavy!r}))); "
        "sys.argv[1:] = ['--help']; main()"
    )
    shown = _run(code).stdout
    assert shown.splitlines()[-1] == "loaded"
    for command_name in ("demo", "run", "ask", "score", "report", "list"):
        assert command_name in shown


def test_the_map_names_files_and_names_that_exist():
    """ARCHITECTURE.md: every `folder/file.py`, every `folder/`, and every `file.py: name`."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+(?:\.py|/))(?:: ([\w.]+))?[^`]*`", text)
    assert len(named) > 60
    missing = []
    for path, name in named:
        found = [place / path for place in (PACKAGE, ROOT) if (place / path).exists()]
        defined = rf"\b(def|class) {name.rpartition('.')[2]}\b" if name else ""
        if not found or (defined and not re.search(defined, found[0].read_text(encoding="utf-8"))):
            missing.append(f"{path}: {name}")
    assert missing == []
