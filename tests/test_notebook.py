"""The notebook in examples/ has no stored output, and runs from top to bottom."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grace.config import RunSettings, to_dict

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def cells() -> list[str]:
    told = json.loads(NOTEBOOK.read_text("utf-8"))
    assert told["nbformat"] == 4
    code = [cell for cell in told["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    return ["".join(cell["source"]) for cell in code]


def test_every_cell_compiles() -> None:
    assert len(cells()) > 4
    for number, cell in enumerate(cells()):
        compile(cell, f"cell {number}", "exec")


def test_its_settings_are_known() -> None:
    named = re.findall(r'"(\w+)\.(\w+)":', "\n".join(cells()))
    known = to_dict(RunSettings())
    assert len(named) > 3 and all(name in known[part] for part, name in named)


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = "\n\n".join(cells()) + "\nprint('the end')\n"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shown = done.stdout.splitlines()
    assert shown[-1] == "the end"
    rated = {line.split()[0] for line in shown if re.match(r"\w+ +ECE +[\d.]+%", line)}
    assert {"grace", "likelihood", "platt"} <= rated
    assert any("of at most 8 samples" in line for line in shown)
