"""Print a report, and the command to type next."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any


def show_report(result: Any, path: Path | None, *, as_json: bool) -> None:
    """Print a report as a table with the path of its page, if it is in a directory, or as JSON."""
    from rich.console import Console

    from grace.report import checked_report, render_table

    report = checked_report(result, path or Path())
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    page = path / "report.html" if path else None
    written = page is not None and page.exists()
    Console().print(render_table(report, written=written))
    if written:
        print(f"report: {page}")


def show_next(path: Path, question: str = "your question", options: str = "") -> None:
    """Print the `grace ask` command for the model that a run has trained."""
    from grace.pipeline import load_run_settings
    from grace.store import read_card, runs_in
    from grace.tasks import load_task

    run = next(iter(runs_in(path)), path)
    trained = read_card(run / "adapter").get("kind", "")
    kind = load_task(load_run_settings(run).data.task, trained).kind
    choices = ' --choice "..." --choice "..."' if kind == "choice" else ""
    print(f'next:   grace ask {shlex.quote(str(run))} "{question}"{choices}{options}')
