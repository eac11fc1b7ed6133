"""The commands. Each one parses, calls the library, and prints; heavy imports stay inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from grace.cli import demo
from grace.cli.commands import fit, label, measure, recalibrate, scale, score, serve, train
from grace.cli.options import (
    AnswerField,
    Base,
    Device,
    Dtype,
    Json,
    ModelPath,
    QuestionField,
    RunDevice,
    RunPath,
    Set,
    examples,
)
from grace.cli.showing import show_next, show_plans, show_report
from grace.errors import ConfigError
from grace.progress import LEVEL, set_level

app = typer.Typer(
    name="grace",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="How sure is this LLM of this answer, and how many samples do I still need?",
    epilog="Start with: [bold]grace demo[/bold] - a model learns how sure it is, in minutes.",
)


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    log_level: Annotated[
        str, typer.Option(envvar=LEVEL, help="how much to report: debug, info, warning or error")
    ] = "info",
) -> None:
    """How sure is this LLM of this answer, and how many samples do I still need?"""
    set_level(log_level)
    if version:
        from grace import __version__

        print(f"grace {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command(epilog=demo.EXAMPLES)(demo.demo)


@app.command(
    epilog=examples(
        "grace run runs/own --model Qwen/Qwen2.5-7B-Instruct --file questions.jsonl",
        "grace run runs/qwen --recipe paper/qwen2.5-7b",
        "grace run runs/small --recipe laptop/smollm2-135m --dry-run",
        "grace run runs/qwen",
        "grace run runs/qwen --set train.epochs=5 --redo train",
    )
    + "\n\nThe third command only shows the plan, the fourth resumes a run that stopped, and the"
    " fifth trains it again."
)
def run(
    path: RunPath,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file of settings, or a name of `grace list recipes`")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="backbone: directory, GGUF file or Hub id")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="which questions: a task of `grace list tasks`; of a recipe with several tasks, "
            "the only one to run"
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="read TASK/SPLIT.jsonl in this folder, not the Hub")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="your own questions: .jsonl, .csv, .parquet, or hf:OWNER/NAME"
        ),
    ] = None,
    question_field: QuestionField = "",
    answer_field: AnswerField = "",
    device: RunDevice = None,
    seed: Annotated[int | None, typer.Option(help="seed of everything random; default: 0")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="run this many seeds, each in RUN/seed-N, with one common report"),
    ] = None,
    settings: Set = None,
    redo: Annotated[
        str | None, typer.Option(metavar="STAGE", help="do this stage and all later ones again")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="STAGE", help="stop after this stage")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="tasks and seeds to run at a time, each in its own process")
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="only say what would be done, and with how many tokens"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Sample and grade answers, fit a confidence to them, and report how good it is. Resumes."""
    from grace.pipeline.study import run_study
    from grace.running import resolve

    named = {"model": model, "task": task, "data": data, "file": file, "seed": seed}
    named |= {"device": device, "question_field": question_field, "answer_field": answer_field}
    study = resolve(path, recipe, named, settings or [], seeds=seeds)
    if dry_run:
        show_plans(path, study.runs(), redo=redo, until=until, as_json=as_json)
        return
    report = run_study(path, study, redo=redo, until=until, jobs=jobs)
    if until and not report:
        print(f"{path}: stage {until} is done; next: grace run {path}")
        return
    show_report(report, path, as_json=as_json)
    if not as_json:
        show_next(path)


@app.command(
    epilog=examples(
        'grace ask runs/qwen "Who wrote Middlemarch?"',
        'grace ask runs/qwen "Who wrote Middlemarch?" --budget 8',
        'grace ask runs/qwen "Who wrote Middlemarch?" --strategy es --threshold 0.9 --parallel 4',
        'grace ask runs/arc "Which is a prime?" --choice 4 --choice 7',
        'grace ask runs/qwen "Who wrote Middlemarch?" --trace',
    )
)
def ask(
    path: ModelPath,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="the question")],
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="an option of a multiple-choice question; repeat"),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="most samples to vote over; default: 1, 8 with a strategy")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="how to vote: es, sc, ...; see `grace list strategies`"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="abstain below it, or stop a vote at it; default: `grace threshold`, else 0.8 "
            "in a vote"
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="samples to generate at the same time")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(help="sampling temperature; default: 0 (greedy), 0.8 for a vote"),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the sampling")] = 0,
    trace: Annotated[
        bool, typer.Option("--trace", help="show the confidence at every token (train.trace)")
    ] = False,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Ask one question; print the answer and its confidence."""
    from grace.cli.commands.ask import Query, ask_often, ask_once

    asked = Query(question, choice or (), threshold, temperature, seed)
    loading = {"base": base, "device": device, "dtype": dtype}
    if trace and (strategy is not None or budget not in (None, 1)):
        raise ConfigError("--trace shows one answer; leave out --strategy and --budget")
    if strategy is None and budget in (None, 1):
        ask_once(path, asked, loading, trace=trace, as_json=as_json)
    else:
        ask_often(path, asked, loading, strategy, budget, parallel, as_json=as_json)


@app.command(
    epilog=examples("grace report runs/qwen", "grace report runs/phi runs/qwen --out runs/both")
)
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="finished runs")],
    out: Annotated[
        Path | None, typer.Option(help="write one common report here; default: only print")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the report of one run, or several runs side by side."""
    from grace.measuring import check_report_place
    from grace.pipeline.stages.report import report_runs

    check_report_place(out)
    show_report(report_runs(paths, out), out or paths[0], as_json=as_json)


app.command(epilog=score.SCORE)(score.score)
app.command(epilog=measure.MEASURE)(measure.measure)
app.command(epilog=recalibrate.RECALIBRATE)(recalibrate.recalibrate)
app.command(epilog=fit.FIT)(fit.fit)
app.command(epilog=scale.SCALE)(scale.scale)
app.command(epilog=scale.THRESHOLD)(scale.threshold)
app.command(epilog=train.TRAIN)(train.train)
app.command(epilog=label.LABEL)(label.label)
app.command(epilog=serve.SERVE)(serve.serve)
app.command(epilog=serve.PROXY)(serve.proxy)
app.command(epilog=serve.EXPORT)(serve.export)


@app.command(name="list", epilog=examples("grace list tasks", "grace list runs"))
def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="tasks, estimators, strategies, engines, graders, recipes, settings or runs",
        ),
    ] = "runs",
    path: Annotated[Path, typer.Option(help="folder in which to look for runs")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List tasks, estimators, strategies, engines, graders, recipes, settings or runs."""
    from grace.cli.commands.listing import listing

    rows = listing(what, path)
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if not rows:
        print(f"no {what} found" + f" in {path}; `grace demo` makes some" * (what == "runs"))
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['about']}".rstrip())


@app.command(epilog=examples("grace check", "grace check runs/demo"))
def check(
    path: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="a run, or a folder of runs")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the installation and, given a run, its files; exit code 1 if anything is wrong."""
    from grace.cli.commands.check import examine

    findings = examine(path)
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.detail}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
