"""`grace run`, `grace report` and `grace train`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import AnswerField, Json, QuestionField, RunDevice, RunPath, Set, examples
from grace.cli.showing import show_next, show_report
from grace.config import RunSettings
from grace.store import RunDir

RUN_EXAMPLES = (
    examples(
        "grace run runs/mine --model Qwen/Qwen2.5-7B-Instruct --file questions.jsonl",
        "grace run runs/paper --recipe paper/qwen2.5-7b --dry-run",
        "grace run runs/mine --set grade.grader=exact --redo grade",
    )
    + "\n\nThe second command only prints what would be done; the third grades the answers of a"
    " finished run again, with another grader, and repeats the stages after that."
)
REPORT_EXAMPLES = examples(
    "grace report runs/mine",
    "grace report runs/phi runs/mine --out runs/both",
)
TRAIN_EXAMPLES = (
    examples(
        "grace run runs/mine --model Qwen/Qwen2.5-7B-Instruct --file questions.jsonl "
        "--set method=paper --until features",
        "torchrun --nproc-per-node 8 --no-python grace train runs/mine",
        "grace run runs/mine",
    )
    + "\n\nThe first command does the stages before the training, the last one those after it."
    " In place of torchrun: accelerate launch --no_python grace train runs/mine"
)


def run(
    path: RunPath,
    recipe: Annotated[
        Path | None,
        typer.Option(help="TOML file of settings, or the name of one of `grace list recipes`."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Base model: a directory, a GGUF file or a Hub id.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Built-in question set; `grace list tasks` shows all. With a recipe of several "
            "tasks: run only this one."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder from which to read the task's questions (TASK/SPLIT.jsonl)."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your own questions, in place of a task: a .jsonl, .json, .csv, .tsv or "
            ".parquet file, a folder of them (splits, or sources), or hf:OWNER/NAME.",
        ),
    ] = None,
    question_field: QuestionField = "",
    answer_field: AnswerField = "",
    device: RunDevice = None,
    seed: Annotated[
        int | None, typer.Option(show_default="0", help="Seed of everything random.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Run with N seeds, each in RUN/seed-N, and write a joint report.",
        ),
    ] = None,
    settings: Set = None,
    redo: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="Repeat this stage and all later ones, in this order: sample, grade, features, "
            "fit, answer, score, report.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="STAGE", help="Stop after this stage (the same names as for --redo)."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of runs (tasks, seeds) to do at a time.")
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only check what the run needs, and print the stages left to do and their tokens.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Sample and grade answers, fit a confidence to them, and report how good it is.

    An interrupted command resumes when you repeat it.
    """
    from grace.pipeline.study import resolve, run_study

    named = {"model": model, "task": task, "data": data, "file": file, "seed": seed}
    named |= {"device": device, "question_field": question_field, "answer_field": answer_field}
    study = resolve(path, recipe, named, settings or [], seeds=seeds, redo=redo)
    if dry_run:
        _show_plans(path, study.runs(), redo=redo, until=until, as_json=as_json)
        return
    content = run_study(path, study, redo=redo, until=until, jobs=jobs)
    if until and not content:
        print("{}" if as_json else _done(path, until))
        return
    show_report(content, path, as_json=as_json)
    if not as_json:
        show_next(path / next(iter(study.runs())))


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            show_default="only print", help="Directory for a common report of all these runs."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the report of a run, or of several runs side by side."""
    from grace.pipeline.stages.report import report_runs
    from grace.report import check_report_place

    check_report_place(out)
    page = out or (paths[0] if len(paths) == 1 else None)
    show_report(report_runs(paths, out), page, as_json=as_json)


def train(path: RunPath) -> None:
    """Train the paper's method on several GPUs, started by torchrun or accelerate launch.

    The stages of the run up to `features` must be done. Interrupted training
    resumes.
    """
    from grace.pipeline.processes import train_together

    train_together(path)
    if os.environ.get("RANK", "0") == "0":
        print(f"{path}: trained; next: grace run {path}")


def _done(path: Path, until: str) -> str:
    return f"{path}: stage {until} is done; next: grace run {shlex.quote(str(path))}"


def _show_plans(
    path: Path,
    runs: Mapping[Path, RunSettings],
    *,
    redo: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Print the answers and tokens that are left: of one run by stage, of several by run.

    What the run would refuse is refused here, too: a model that is not there, or edited files.
    """
    from grace.pipeline import STAGES, hardware, refuse_edited, stages_left
    from grace.pipeline.planning import plan_runs
    from grace.pipeline.settings import settled

    pending = []
    for folder, settings in runs.items():
        directory = RunDir(path / folder)
        stages = stages_left(directory, settings, redo=redo, until=until)
        for stage in STAGES:
            if stage not in stages and directory.done(stage):
                refuse_edited(directory, stage)
        if stages:
            begun = directory.asking.exists()
            pending.append((folder, settled(settings, directory) if begun else settings, stages))
    if not pending and not as_json:
        finished = f"{path} is finished, so nothing is left to do; see it: grace report {path}"
        print(_done(path, until) if until else finished)
        return
    names = [str(folder) for folder, _, _ in pending]
    plans = plan_runs([(settings, stages) for _, settings, stages in pending])
    if not as_json:
        free = shutil.disk_usage(next(p for p in (path, *path.absolute().parents) if p.is_dir()))
        print(f"on {hardware()}; {free.free / 2**30:,.0f} GiB free for {path}")
    if as_json:
        steps = [[step._asdict() for step in plan] for plan in plans]
        print(json.dumps(dict(zip(names, steps, strict=True)), indent=2))
    elif len(runs) == 1:
        _show_counts("stage", "answers", plans[0])
    else:
        totals = [(len(plan), sum(step.tokens for step in plan)) for plan in plans]
        rows = [(name, *total) for name, total in zip(names, totals, strict=True)]
        _show_counts("run", "stages", rows)


def _show_counts(first: str, second: str, rows: Iterable[tuple[str, int, int]]) -> None:
    """Print a table of a name, a count and a number of tokens per row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(first)
    for column in (second, "tokens"):
        table.add_column(column, justify="right")
    for name, count, tokens in rows:
        table.add_row(Text(name), f"{count:,}", f"{tokens:,}")
    Console().print(table)
