"""`grace measure`: how good confidences are that one already has, whatever they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Json, examples
from grace.cli.showing import show_report

MEASURE = (
    examples(
        "grace measure scored.jsonl",
        "grace measure scored.jsonl verbal.jsonl --out measured",
        "grace measure labelled/ --json",
    )
    + "\n\nECE is the average gap between confidence and accuracy, the Brier score the mean squared"
    " error of the confidence, and AUROC the chance that a right answer has a higher confidence"
    ' than a wrong one. A line is {"confidence": 0.8, "correct": true}; null stands for no'
    ' confidence or no grade. Files whose lines have "question_id", "question" or "id" are'
    " compared question by question."
)


def measure(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help=".jsonl, .csv, .parquet, or what `grace label` wrote; - for stdin",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="write report.html, report.md and figures here; default: only print"),
    ] = None,
    bins: Annotated[int, typer.Option(min=1, help="equal-width bins of ECE")] = 10,
    as_json: Json = False,
) -> None:
    """Measure how good confidences of graded responses are, whatever their source."""
    from grace.measuring import measure as measure_all
    from grace.report import to_json

    made = measure_all(*files, out=out, bins=bins)
    show_report(to_json(made), out or Path(), as_json=as_json)
