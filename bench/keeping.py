"""JSON files of figures, which `tools/results.py` makes the tables of docs/results.md from."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grace.pipeline import hardware


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add the option --keep."""
    parser.add_argument("--keep", type=Path, help="JSON file in which the figures are stored")


def keep(path: Path, rows: Iterable[dict[str, Any]], key: Sequence[str]) -> None:
    """Write rows into a JSON list, in place of those that have the same `key`."""
    new = {tuple(row[name] for name in key): row for row in rows}
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    kept = [row for row in old if tuple(row[name] for name in key) not in new]
    lines = ",\n".join(map(json.dumps, [*kept, *new.values()]))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def figure(what: str, rounds: Sequence[float] | float, path: Path | None) -> None:
    """Print the median of what was measured in each round; with a path, keep it and its range."""
    values = sorted([rounds] if isinstance(rounds, float) else rounds)
    median = statistics.median(values)
    print(f"{what}: {median:.3f} ({len(values)}: {values[0]:.3f} to {values[-1]:.3f})", flush=True)
    if path is not None:
        row = {
            "what": what,
            "median": round(median, 4),
            "range": [round(values[0], 4), round(values[-1], 4)],
            "rounds": len(values),
            "command": _command(),
            "hardware": hardware(),
            "date": datetime.date.today().isoformat(),
        }
        keep(path, [row], ("what", "command"))


def _command() -> str:
    """Return the command, without the paths of this machine."""
    given = sys.argv[1:]
    if "--keep" in given:
        at = given.index("--keep")
        given = given[:at] + given[at + 2 :]
    paths = ((one, Path(one)) for one in given)
    shown = ["DIR" if p.is_dir() else "FILE" if p.is_file() else one for one, p in paths]
    return shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *shown])
