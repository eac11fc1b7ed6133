"""`grace run --dry-run`: what would be done, as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from grace.config import RunSettings
from grace.store import RunDir

HEADINGS = {"what": "left", "tokens": "right", "about": "right"}


def show_plans(
    path: Path,
    runs: Mapping[Path, RunSettings],
    *,
    redo: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Print what each run has left to do, with how many tokens, and about how long it takes.

    A single run is shown stage by stage, several by their sums.
    """
    from grace.pipeline import stages_left
    from grace.pipeline.asking import settled
    from grace.pipeline.planning import plan_runs
    from grace.tasks import title_of

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
        stages = [[step._asdict() for step in plan.steps] for plan in plans]
        print(json.dumps(dict(zip(map(str, runs), stages, strict=True)), indent=2))
        return
    if len(plans) == 1:
        rows = [(step.stage, step.what, step.tokens, step.seconds) for step in plans[0].steps]
        _show("stage", rows)
    else:
        sums = [
            (
                str(folder),
                f"{title_of(settings.data)}, seed {settings.seed}",
                plan.tokens,
                plan.seconds,
            )
            for (folder, settings), plan in zip(runs.items(), plans, strict=True)
        ]
        _show("run", sums)
    first = plans[0]
    print(f"{first.parameters:,} parameters on {first.hardware}")
    print(f"about {duration(sum(plan.seconds for plan in plans))} at most, within a factor of two")


def duration(seconds: float) -> str:
    """Return seconds in the unit that a person would use."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _show(first: str, rows: Iterable[tuple[str, str, int, float]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column(first)
    for heading, justify in HEADINGS.items():
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for name, what, tokens, seconds in rows:
        table.add_row(*map(Text, (name, what, f"{tokens:,}", duration(seconds))))
    Console().print(table)
