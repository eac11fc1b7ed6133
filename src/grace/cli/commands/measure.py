"""`grace measure`: ECE, Brier score and AUROC of graded confidences from any source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import SOURCES, Json, examples, from_one
from grace.cli.showing import show_report

EXAMPLES = (
    examples("grace measure scored.jsonl", "grace measure scored.jsonl verbal.jsonl --out measured")
    + "\n\nECE is the average gap between confidence and accuracy, the Brier score the mean squared"
    " error of the confidence, and AUROC the chance that a right answer has a higher confidence"
    ' than a wrong one. A line is {"confidence": 0.8, "correct": true}; null stands for no'
    " confidence or no grade. Several files are compared question by question if their lines have"
    ' "question_id", "question" or "id".'
)


def measure(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help=f"Graded confidences: {SOURCES}. `grace label` writes such a directory.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            show_default="only print", help="Directory for report.html, report.md and figures."
        ),
    ] = None,
    bins: Annotated[int, from_one(help="Number of equal-width bins of ECE.")] = 10,
    as_json: Json = False,
) -> None:
    """Measure ECE, Brier score and AUROC of graded confidences, whatever their source."""
    from grace.measuring import measure as measure_all
    from grace.report import to_json

    report = measure_all(*files, out=out, bins=bins)
    show_report(to_json(report), out, as_json=as_json)
