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
    + '\n\nLines: {"confidence": 0.8, "correct": true}; null: no confidence, or not graded. With'
    ' "question_id", "question" or "id" several files are compared question by question.'
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
    """Measure confidences of graded responses, from any source: ECE, Brier, AUROC, diagrams."""
    from grace.measuring import measure as measure_all
    from grace.report import to_json

    made = measure_all(*files, out=out, bins=bins)
    show_report(to_json(made), out or Path(), as_json=as_json)
