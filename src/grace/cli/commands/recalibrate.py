"""`grace recalibrate`: a trained confidence for other questions, from some graded answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.options import Json, examples
from grace.errors import DataError

TITLES = {"ece": "ECE", "brier": "Brier", "auroc": "AUROC"}

RECALIBRATE = (
    examples(
        "grace recalibrate runs/qwen labelled adapted",
        "grace label others.jsonl labelled --model runs/qwen",
    )
    + "\n\nThe second command makes what the first one reads: the model's own confidences in its"
    " answers to the other questions, with their grades. Graded answers from `grace score` will do"
    " as well. About a hundred are enough; see also `grace measure --help`."
)


def recalibrate(
    path: Annotated[str, typer.Argument(metavar="MODEL", help="run or adapter directory")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="its graded answers, as for `grace measure`")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the adapter to write")],
    as_json: Json = False,
) -> None:
    """Adjust a trained confidence to other questions by three numbers, fitted to graded answers.

    Two weigh what the hidden states say of an answer and what its log-probabilities say, one shifts
    their sum. Answers stay as they are. Nothing is trained; OUT loads, serves and exports like any
    adapter.
    """
    from grace.evidence import Evidence
    from grace.measuring import read_answers
    from grace.model.recalibrating import (
        fit_recalibration,
        parts,
        recalibratable,
        write_recalibrated,
    )
    from grace.store import read_card

    folder = recalibratable(Path(path))
    rated = [row for row in read_answers(file).rated if row.confidence is not None]
    if not rated:
        raise DataError(f"{file}: no graded answer has a confidence; rate them with this model")
    confidence = [row.confidence or 0.0 for row in rated]
    correct = [row.correct for row in rated]
    questions = [row.question or str(number) for number, row in enumerate(rated)]
    evidence = Evidence.in_card(read_card(folder))
    parts_PN = parts(evidence, confidence, [row.logprobs for row in rated])
    made = fit_recalibration(parts_PN, correct, questions)
    write_recalibrated(folder, out, made)
    ordered = len(parts_PN) == 1 or len(set(correct)) == 1  # as before, or there is no order
    metrics = ("ece", "brier") if ordered else ("ece", "brier", "auroc")
    found = _compare(metrics, confidence, made.unseen, correct, questions)
    *numbers, _ = made
    fitted = dict(zip(("rows", "evidence", "offset"), numbers, strict=True))
    if as_json:
        told = {**fitted, "answers": len(rated), "out": str(out), **found}
        print(json.dumps(told, indent=2))
        return
    _show(found, f"{len(rated)} graded answers to {len(set(questions))} questions")
    if len(parts_PN) == 1:
        print(f"log-odds of c: {made.rows:.2f} times as it is {made.offset:+.2f}")
        print(f"{file} has no log-probabilities (`grace label` writes them): one slope for all")
    else:
        print(
            f"log-odds of c: {made.rows:.2f} times what the hidden states say, {made.evidence:.2f} "
            f"times what the log-probabilities say, {made.offset:+.2f}"
        )
    print(f'written: {out}; next:   grace ask {out} "your question"')


def _compare(
    metrics: Sequence[str],
    before: list[float],
    after: list[float],
    correct: list[bool],
    questions: list[str],
) -> dict[str, dict[str, list[float]]]:
    """Return value, low and high of each metric before and after, and of the difference."""
    from grace.metrics import Resamples, interval

    resamples = Resamples(questions)
    old, new = (resamples.evaluate(side, correct, questions, metrics) for side in (before, after))
    change = {name: new[name] - old[name] for name in metrics}
    return {
        side: {
            name: [float(v[0]), *interval(name, v, difference=side == "change")]
            for name, v in draws.items()
        }
        for side, draws in (("before", old), ("after", new), ("change", change))
    }


def _show(found: dict[str, dict[str, list[float]]], title: str) -> None:
    from rich.console import Console

    from grace.report.console import console_table
    from grace.report.tables import Cell, Table, percent, points

    rows = []
    for name, (value, low, high) in found["change"].items():
        sides = (found[side][name] for side in ("before", "after"))
        shown = (percent(value, (low, high)) for value, low, high in sides)
        rows.append([Cell(TITLES[name]), *shown, points(name, value, (low, high))])
    heads = ("", "as it is", "recalibrated", "change")
    Console().print(console_table(Table(title, "", heads, rows, texts=1)))
    _, low, high = found["change"]["brier"]
    change = "clearly better" if high < 0 else "clearly worse" if low > 0 else "no clear change"
    print(f"{change}; every answer rated by a fit that has not seen its question (5 folds)")
    if high >= 0:
        print("recalibration is not needed: keep using the model as it is for these questions")
