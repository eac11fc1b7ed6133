"""`grace demo`: run everything on the small model that comes with GrACE, and show the results."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import Json, examples
from grace.cli.showing import show_next

if TYPE_CHECKING:
    from grace.pipeline.study import Study
    from grace.report import Report

EXAMPLES = examples("grace demo", "grace demo runs/look --quick")
DEMO = Path(__file__).parents[1] / "pocket" / "demo.toml"
QUICK = ("data.train=200", "data.validation=100", "data.test=100")
CPU_MINUTES = {True: 7, False: 14}
"""By `quick`: measured on a busy machine; two quiet cores need 7 minutes, and pip 2 more."""

METRICS = (
    "ECE: the average gap between confidence and accuracy. AUROC: how often a right answer has a "
    "higher confidence than a wrong one. Brier score: the mean squared error of the confidence."
)


def demo(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory for the runs and their report.")
    ] = Path("runs/demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Use a fifth of the questions, for a first look.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run everything on the small model that comes with GrACE, and show the results.

    An interrupted command resumes when you repeat it.
    """
    from rich.console import Console

    from grace.pipeline.study import check_packages, check_place, resolve_study
    from grace.report import Report, from_json

    check_packages("grace demo")
    check_place(path)
    study = resolve_study(path, DEMO, QUICK if quick else ())
    if not as_json:
        Console(highlight=False, markup=False).print(_beforehand(study, CPU_MINUTES[quick]))
    result = run_demo(path, study)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
        return
    _show(from_json(Report, result), path)


def run_demo(path: Path, study: Study) -> dict[str, Any]:
    """Fit a confidence to every pocket task, replay votes, and return the common report in `path`.

    As many runs as there are cores go on at a time.
    """
    from grace.pipeline.processes import cores
    from grace.pipeline.scaling import ScaleSettings, replay_run
    from grace.pipeline.study import run_study
    from grace.strategies import BUDGET

    vote = functools.partial(replay_run, chosen=ScaleSettings(samples=BUDGET, fit=False))
    return run_study(path, study, jobs=cores(), scored=vote)


def _beforehand(study: Study, minutes: float) -> str:
    """Describe the work of the demo, and its time on all cores."""
    from grace.pipeline.processes import cores
    from grace.strategies import BUDGET

    main = [own.data for own in study.runs().values() if own.report.name == study.main]
    questions = sum(data.train + data.validation + data.test for data in main)
    answers = sum(data.train + 2 * (data.validation + data.test) for data in main)
    samples = sum(BUDGET * data.test for data in main)
    minutes /= min(cores(), len(main))
    return (
        f"A model with 2.8 million parameters answers {questions:,} questions of "
        f"{len(main)} tasks ({answers:,} answers), learns how sure it is, and votes over "
        f"{samples:,} samples: about {minutes:.0f} minutes on this machine's cores. Stop it at any "
        "moment; the same command resumes."
    )


def _show(report: Report, path: Path) -> None:
    """Print three answers, a table, the verdict, the samples saved, and what to do next."""
    from rich.console import Console

    from grace.report.console import console_table
    from grace.report.sentences import samples_saved, verdict
    from grace.report.tables import overview

    console = Console(highlight=False, markup=False)
    spread = [example for example in report.examples if example.kind == "spread"]
    shown = [example for example in spread if example.task == spread[0].task]
    three = [shown[0], shown[len(shown) // 2], shown[-1]] if len(shown) > 2 else shown
    console.print("\nHow sure is it of answers to questions that it has not seen?", style="bold")
    for example in three:
        console.print(f"  {example.question}")
        graded = "right" if example.correct else f"wrong: {' or '.join(example.accepted)}"
        console.print(f"    {example.answer}   confidence {example.confidence:.2f}   ({graded})")
    table = overview(report)
    if table is not None:
        console.print(f"\nIn short: {table.lead}", style="bold")
        console.print(console_table(table._replace(title="")))
        console.print(METRICS, style="dim")
    for sentence in filter(None, (verdict(report), samples_saved(report))):
        console.print(f"\n{sentence}")
    print(f"\nreport: {path}/report.html")
    show_next(path, three[0].question if three else "your question")
    print("then:   grace run runs/mine --model MODEL --file questions.jsonl   (your own)")
