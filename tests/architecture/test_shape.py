"""The shape of the code is itself a test: public names, short functions, lazy imports."""

import ast
import collections
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from sources import FILES, PACKAGE, nodes

import grace

ROOT = Path(__file__).parents[2]
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


def test_public_names_are_pinned_and_importable():
    assert grace.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(grace, name) is not None


def test_functions_are_mostly_under_twenty_lines():
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median(lengths) < 15
    assert statistics.quantiles(lengths, n=10)[-1] < 36


def test_a_name_belongs_to_one_class():
    named = collections.defaultdict(list)
    for path in FILES:
        for node in nodes(path)[0].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_no_utils_module():
    assert [path for path in FILES if path.stem in {"utils", "helpers", "misc", "common"}] == []


def test_help_settings_and_measures_load_nothing_heavy_and_help_names_the_commands(tmp_path):
    heavy = {"torch", "transformers", "peft", "sklearn", "datasets", "matplotlib", "scipy"}
    rows = [{"question": f"{n}?", "confidence": n / 40, "correct": n % 3 > 0} for n in range(40)]
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    commands = [["--help"], ["--version"], ["list", "settings"], ["run", "--help"]]
    code = f"""
import importlib, sys

def tell(what):
    print("loaded by", what, *sorted(set(sys.modules) & {heavy | {"pandas"}}))

for name in ("grace", "grace.metrics", "grace.strategies", "grace.cli"):
    importlib.import_module(name)
    tell(name)
for words in {[*commands, ["measure", str(file)]]}:
    try:
        sys.modules["grace.cli"].main(words)
    except SystemExit as stopped:
        assert not stopped.code, words
    tell("a command")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.split()[2:] for line in done.stdout.splitlines() if line[:9] == "loaded by"]
    assert [len(words) for words in told] == [1] * 4 + [2] * 5, told
    for command_name in ("demo", "run", "ask", "score", "report", "list"):
        assert command_name in done.stdout


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
