"""What the commands print: a report, the plan of a run, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grace.config import RunSettings
from grace.store import RunDir


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
    from grace.store import runs_in
    from grace.tasks import load_task

    run = next(iter(runs_in(path)), path)
    kind = load_task(load_run_settings(run).data.task).kind
    choices = ' --choice "..." --choice "..."' if kind == "choice" else ""
    print(f'next:   grace ask {run} "{question}"{choices}')


def show_plans(
    path: Path,
    runs: Mapping[Path, RunSettings],
    *,
    redo: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Print the stages that each run has left, with their answers and tokens.

    A single run is shown stage by stage, several by their tokens.
    """
    from grace.pipeline import stages_left
    from grace.pipeline.planning import plan_runs
    from grace.pipeline.prompting import settled

    left = {
        folder: stages_left(RunDir(path / folder), settings, redo=redo, until=until)
        for folder, settings in runs.items()
    }
    runs = {folder: settings for folder, settings in runs.items() if left[folder]}
    if not runs and not as_json:
        print(f"{path} is finished, so nothing is left to do; see it: grace report {path}")
        return
    begun = {name: RunDir(path / name) for name in runs if RunDir(path / name).asking.exists()}
    known = {name: settled(runs[name], run) for name, run in begun.items()}
    plans = plan_runs([(known.get(name, runs[name]), left[name]) for name in runs])
    if as_json:
        stages = [[step._asdict() for step in steps] for steps in plans]
        print(json.dumps(dict(zip(map(str, runs), stages, strict=True)), indent=2))
    elif len(plans) == 1:
        _show_counts("stage", "answers", plans[0])
    else:
        left_to_do = [len(steps) for steps in plans]
        sums = [sum(step.tokens for step in steps) for steps in plans]
        _show_counts("run", "stages", zip(map(str, runs), left_to_do, sums, strict=True))


def _show_counts(first: str, second: str, rows: Iterable[tuple[str, int, int]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(first)
    for column in (second, "tokens"):
        table.add_column(column, justify="right")
    for name, count, tokens in rows:
        table.add_row(Text(name), f"{count:,}", f"{tokens:,}")
    Console().print(table)
