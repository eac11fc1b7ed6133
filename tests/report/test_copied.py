"""What *Copy as CSV* of the report's page puts on the clipboard, run with Node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import grace.report.page

SCRIPT = Path(grace.report.page.__file__).with_name("page.js")
CELLS = {
    "=1+1": "'=1+1",
    "@SUM(A1)": "'@SUM(A1)",
    "+cmd": "'+cmd",
    "-cmd|' /C calc'!A0": "'-cmd|' /C calc'!A0",
    "\tx": "'\tx",
    "-0.3": "-0.3",
    "+12.5 [1.0, 2.0]": '"+12.5 [1.0, 2.0]"',
    "-1+cmd": "'-1+cmd",
    "plain": "plain",
    'a "b", c': '"a ""b"", c"',
}


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here: install Node.js")
def test_a_cell_of_a_copied_csv_is_never_a_formula() -> None:
    found = re.search(r"  CSV\(heads, rows\) \{.*?\n  \},", SCRIPT.read_text("utf-8"), re.DOTALL)
    assert found
    cells = json.dumps([[{"said": said}] for said in CELLS])
    code = f"const a = {{{found[0]}}}; process.stdout.write(a.CSV([], {cells}))"
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[1:-1] == [*CELLS.values()]
