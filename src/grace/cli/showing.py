"""What the commands print: a report, an answer, and what to do next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def show_report(result: Any, path: Path, *, as_json: bool) -> None:
    """Print a report as a table, with the place of its page, or as JSON.

    Raises:
        RunError: it is not a report.
    """
    from grace.report import checked_report, render_table

    report = checked_report(result, path)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    Console().print(render_table(report))
    page = path / "report.html"
    if page.exists():
        print(f"report: {page}")


def show_next(path: Path, question: str = "your question") -> None:
    """Print the command that asks the model that a run has trained."""
    from grace.pipeline import load_run_settings
    from grace.store import is_run, runs_in
    from grace.tasks import load_task

    run = path if is_run(path) else next(iter(runs_in(path)), path)
    kind = load_task(load_run_settings(run).data.task).kind
    choices = ' --choice "..." --choice "..."' if kind == "choice" else ""
    print(f'next:   grace ask {run} "{question}"{choices}')
