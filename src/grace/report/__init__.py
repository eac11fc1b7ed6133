"""A report of how good confidences are: report.json, report.md, report.html and figures.

    inputs.py   plain values of one run; `merge` joins several
    summary.py  inputs -> rows; significance.py: intervals, paired differences and marks
    rows.py     `Report`, the frozen rows that report.json holds
    groups.py   rows by task and estimator, all seeds together
    tables.py   groups -> tables of cells; sentences.py: what is said beside them
    console.py, markdown.py, page/, figures.py    show them

Whatever is shown is made from the rows alone, so a report can be shown again from report.json. The
same input gives the same bytes.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from grace.errors import ConfigError, RunError
from grace.report.console import render_table as render_table
from grace.report.inputs import EstimatorResult as EstimatorResult
from grace.report.inputs import Replay as Replay
from grace.report.inputs import ReportInput as ReportInput
from grace.report.inputs import Traced as Traced
from grace.report.inputs import merge as merge
from grace.report.names import slug
from grace.report.rows import SCHEMA_VERSION, MetricRow
from grace.report.rows import RatedAnswer as RatedAnswer
from grace.report.rows import Report as Report
from grace.report.rows import TargetRow as TargetRow
from grace.report.rows import Validation as Validation
from grace.report.rows import from_json as from_json
from grace.report.rows import to_json as to_json
from grace.report.summary import summarize as summarize
from grace.store import is_run, is_study, read_card, read_json, write_bytes, write_json


def check_report_place(out: Path | None) -> None:
    """Refuse to write a report over that of a run."""
    if out is None:
        return
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a directory for the report")
    if is_run(out) or is_study(out):
        raise ConfigError(f"{out} is a run with a report of its own; name another directory")
    importlib.import_module("matplotlib")  # if it is missing, say so before the work


def write_report(report: Report, directory: Path) -> list[Path]:
    """Write figures, report.md, report.html and, last, report.json; return the paths."""
    from grace.report.figures import draw
    from grace.report.markdown import markdown
    from grace.report.page import render_page

    figures = draw(report)
    files = {
        f"figures/{figure.name}.{ending}": data
        for figure in figures
        for ending, data in figure.files.items()
    }
    files["report.md"] = markdown(report).encode()
    files["report.html"] = render_page(report, figures).encode()
    for name, data in files.items():
        write_bytes(directory / name, data)
    write_json(directory / "report.json", to_json(report))
    return [directory / name for name in [*files, "report.json"]]


# --- what a run or an exported model says about itself: its report, its own row and its diagram


def checked_report(content: Any, path: Path) -> Report:
    """Build the report of the run at `path` from the content of its report.json."""
    if isinstance(content, dict) and content.get("schema_version") != SCHEMA_VERSION:
        raise RunError(
            f"{path}/report.json was written by another version of GrACE; make it again: "
            "--redo report"
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
