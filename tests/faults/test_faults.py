"""Deliberate faults, each of which the tests named beside it must catch.

`faults.py` lists them by the definition that they break. The slow test puts each into the package,
in a process of its own; the fast one keeps the list from rotting: `pytest -m slow tests/faults`.
"""

from __future__ import annotations

import re
from pathlib import Path

import faulty
import pytest

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def test_every_fault_replaces_something_that_exists_and_names_tests_that_exist() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 40
    for fault in FAULTS:
        assert faulty.original(fault.at)[2] is not None
        assert fault.tests
        for name in fault.tests:
            file, _, test = name.partition("[")[0].partition("::")
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.M), name


@pytest.mark.slow
def test_without_a_fault_the_named_tests_pass(tmp_path: Path) -> None:
    named = sorted({name for fault in FAULTS for name in fault.tests})
    assert faulty.failures(ROOT, tmp_path / "said.txt", named) == set()


@pytest.mark.slow
@every_fault
def test_a_fault_is_caught(fault: Fault, tmp_path: Path) -> None:
    found = faulty.failures(ROOT, tmp_path / "said.txt", list(fault.tests), fault.name)
    caught = {
        name
        for name in fault.tests
        if any(one == name or one.startswith(f"{name}[") for one in found)
    }
    assert caught == set(fault.tests)
