"""Deliberate faults, each of which the tests named beside it must catch.

`faults.toml` lists them: a file of the package, a piece of it, and what stands there instead.
A fault is the smallest change that breaks one definition of the method. The slow test applies each
to a copy of the package; the fast one keeps the list from rotting: `pytest -m slow tests/faults`.
"""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import faulty
import pytest

import grace

PACKAGE = Path(grace.__file__).parent
ROOT = Path(__file__).parents[2]
FAULTS = tomllib.loads((Path(__file__).parent / "faults.toml").read_text("utf-8"))["fault"]
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])


def test_there_are_many_faults_and_each_has_a_name_of_its_own():
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS) > 40
    assert all(set(fault) == {"name", "file", "old", "new", "tests"} for fault in FAULTS)


@every_fault
def test_a_fault_fits_the_code_once_and_names_tests_that_exist(fault: dict[str, Any]):
    text = (PACKAGE / fault["file"]).read_text("utf-8")
    times = text.count(fault["old"])
    assert times == 1, f"{fault['old']!r} is {times} times in {fault['file']}: adapt the fault"
    ast.parse(text.replace(fault["old"], fault["new"]))
    for name in fault["tests"]:
        file, _, test = name.partition("[")[0].partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), name


@pytest.mark.slow
def test_without_a_fault_the_named_tests_pass(tmp_path: Path):
    named = sorted({name for fault in FAULTS for name in fault["tests"]})
    assert run(tmp_path, named) == set()


@pytest.mark.slow
@every_fault
def test_a_fault_is_caught(fault: dict[str, Any], tmp_path: Path):
    found = run(tmp_path, fault["tests"], fault)
    caught = {
        name
        for name in fault["tests"]
        if any(one == name or one.startswith(f"{name}[") for one in found)
    }
    assert caught == set(fault["tests"])


def run(folder: Path, named: list[str], fault: dict[str, Any] | None = None) -> set[str]:
    """Return which tests fail with a copy of the package that has a fault."""
    shutil.copytree(PACKAGE, folder / "grace", ignore=shutil.ignore_patterns("__pycache__"))
    if fault is not None:
        file = folder / "grace" / fault["file"]
        file.write_text(file.read_text("utf-8").replace(fault["old"], fault["new"]), "utf-8")
    return faulty.failures(ROOT, folder, named)
