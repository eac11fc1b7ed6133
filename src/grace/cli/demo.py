"""`grace demo`: what it is going to do, and one screen on what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.cli.options import Json, examples
from grace.cli.showing import show_next

if TYPE_CHECKING:
    from grace.pipeline.demo import Total
    from grace.report import Report

DEMO = examples("grace demo", "grace demo runs/look --quick")
METRICS = (
    "ECE: distance between confidence and accuracy. AUROC: how often a right answer is surer than "
    "a wrong one. Brier score: the mean squared error of the confidence, both in one."
)


def demo(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="where to write")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option(help="a tenth of the questions, for a first look")] = False,
    as_json: Json = False,
) -> None:
    """Run every step on the small model that comes with GrACE, and show what came of it."""
    from grace.pipeline.demo import plan_demo, run_demo
    from grace.report import Report, from_json
    from grace.running import check_packages, check_place

    check_packages("grace demo")
    check_place(path)
    study, total = plan_demo(path, quick=quick)
    if not as_json:
        print(_beforehand(total), flush=True)
    result = run_demo(path, study)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    _show(from_json(Report, result), path)


def _beforehand(total: Total) -> str:
    return (
        f"A model with 2.8 million parameters answers {total.questions:,} questions of "
        f"{total.tasks} tasks ({total.answers:,} answers), learns\nhow sure it is, and votes over "
        f"{total.samples:,} samples: about {total.minutes:.0f} minutes on this machine's cores.\n"
        "Stop it at any moment; the same command resumes."
    )


def _show(report: Report, path: Path) -> None:
    """Print three answers, a table, the verdict, what was saved, and what to do next."""
    from rich.console import Console

    from grace.report.text import console_table
    from grace.report.verdict import overview, samples_saved, verdict

    console = Console(highlight=False, markup=False)
    spread = [example for example in report.examples if example.kind == "spread"]
    shown = [example for example in spread if example.task == spread[0].task]
    three = [shown[0], shown[len(shown) // 2], shown[-1]] if len(shown) > 2 else shown
    console.print("\nHow sure is it of answers to questions that it has not seen?", style="bold")
    for example in three:
        console.print(f"  {example.question}")
        graded = "right" if example.correct else f"wrong: {' or '.join(example.accepted)}"
        console.print(f"    {example.answer}   confidence {example.confidence:.2f}   ({graded})")
    made = overview(report)
    if made is not None:
        console.print(f"\nIn short: {made.lead}", style="bold")
        console.print(console_table(made._replace(title="")))
        console.print(METRICS, style="dim")
    for said in filter(None, (verdict(report), samples_saved(report))):
        console.print(f"\n{said}")
    print(f"\nreport: {path}/report.html")
    show_next(path, three[0].question if three else "your question")
    print("then:   grace run runs/mine --model MODEL --file questions.jsonl   (your own)")
