"""What a run has measured about its own confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace.report.figures import slug
from grace.store import read_json


def own_row(path: Path, task: str) -> dict[str, Any] | None:
    """Return the report's row about the trained confidence on the task it was trained for.

    A run has it in report.json, an exported model in grace.json; None where there is none.

    Raises:
        RunError: one of the files is not JSON.
    """
    report = path / "report.json"
    if report.exists():
        content = read_json(report)
        name = content.get("settings", {}).get("report.name", "grace")
        for row in content.get("rows", []):
            if row["estimator"] == name and row["task"] == row["train_task"] == task:
                found: dict[str, Any] = row
                return found
    card = path / "grace.json"
    kept: dict[str, Any] | None = read_json(card).get("measured") if card.exists() else None
    return kept


def own_diagram(path: Path, task: str) -> Path | None:
    """Return the reliability diagram of a run on the task it was trained for, if it drew one."""
    drawn = path / "figures" / f"reliability-{slug(task)}.png"
    return drawn if drawn.is_file() else None
