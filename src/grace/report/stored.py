"""What a run or an exported model says about itself: its report, its own row and its diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace.errors import RunError
from grace.report.names import slug
from grace.report.rows import SCHEMA_VERSION, MetricRow, Report, from_json
from grace.store import read_card, read_json


def checked_report(content: Any, path: Path) -> Report:
    """Build the report of the run at `path` from the content of its report.json."""
    if isinstance(content, dict) and content.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"{path}/report.json was written by another version of GrACE, whose intervals are not "
            "these; make it again: --redo report"
        )
    try:
        return from_json(Report, content)
    except TypeError:
        raise _no_report(path) from None


def _no_report(path: Path) -> RunError:
    return RunError(f"{path}/report.json is not a report; make it again: --redo report")


def own_row(path: Path) -> dict[str, Any] | None:
    """Read the row about the trained confidence on the task that it was trained for."""
    report = path / "report.json"
    if report.exists():
        content = read_json(report)
        try:
            name = content.get("settings", {}).get("report.name", "grace")
            for row in content.get("rows", []):
                if row["estimator"] == name and row["task"] == row["train_task"]:
                    from_json(MetricRow, row)  # which checks the types
                    return dict(row)
        except (TypeError, KeyError, AttributeError, ValueError):
            raise _no_report(path) from None
    measured: dict[str, Any] | None = read_card(path).get("measured")
    return measured


def own_diagram(path: Path, task: str) -> Path | None:
    """Return the path of a run's reliability diagram on the task, None if there is none."""
    diagram = path / "figures" / f"reliability-{slug(task)}.png"
    return diagram if diagram.is_file() else None
