"""`grace recalibrate`: a trained confidence for other questions, from some graded answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.cli.options import Json, examples
from grace.errors import DataError

if TYPE_CHECKING:
    from grace.measuring import Answers

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
    """Adjust a trained confidence to other questions by two numbers, fitted to graded answers.

    Answers and their order by confidence stay as they are. Nothing is trained; OUT loads, serves
    and exports like any adapter.
    """
    from grace.measuring import read_answers
    from grace.model.recalibrating import fit_recalibration, recalibratable, write_recalibrated

    folder = recalibratable(Path(path))
    confidence, correct, questions = _usable(read_answers(file), file)
    made = fit_recalibration(confidence, correct, questions)
    write_recalibrated(folder, out, made)
    found = _compare(confidence, made.unseen, correct, questions)
    fitted = {"slope": made.slope, "offset": made.offset, "answers": len(correct)}
    if as_json:
        print(json.dumps({**fitted, "out": str(out), **found}, indent=2))
        return
    _show(found, fitted, out, len(set(questions)))


def _usable(answers: Answers, file: Path) -> tuple[list[float], list[bool], list[str]]:
    """Return confidence, grade and question of every answer that has a confidence.

    Raises:
        DataError: none has.
    """
    rated = [row for row in answers.rated if row.confidence is not None]
    if not rated:
        raise DataError(f"{file}: no graded answer has a confidence; rate them with this model")
    return (
        [row.confidence for row in rated if row.confidence is not None],
        [row.correct for row in rated],
        [row.question or str(number) for number, row in enumerate(rated)],
    )


def _compare(
    before: list[float], after: list[float], correct: list[bool], questions: list[str]
) -> dict[str, dict[str, list[float]]]:
    """Return value, low and high of each metric before and after, and of the difference.

    Not of AUROC: the map keeps the order.
    """
    from grace.metrics import Resamples, interval

    names = ("ece", "brier")
    resamples = Resamples(questions)
    old, new = (resamples.evaluate(side, correct, questions, names) for side in (before, after))
    change = {name: new[name] - old[name] for name in names}
    return {
        side: {
            name: [float(v[0]), *interval(name, v, difference=side == "change")]
            for name, v in draws.items()
        }
        for side, draws in (("before", old), ("after", new), ("change", change))
    }


def _show(
    found: dict[str, dict[str, list[float]]], fitted: dict[str, float], out: Path, questions: int
) -> None:
    from rich.console import Console

    from grace.report.tables import Cell, Table, percent, points
    from grace.report.text import console_table

    rows = []
    for name, title in (("ece", "ECE"), ("brier", "Brier")):
        sides = (found[side][name] for side in ("before", "after"))
        value, low, high = found["change"][name]
        shown = (percent(value, (low, high)) for value, low, high in sides)
        rows.append([Cell(title), *shown, points(name, value, (low, high))])
    title = f"{fitted['answers']} graded answers to {questions} questions"
    heads = ("", "as it is", "recalibrated", "change")
    Console().print(console_table(Table(title, "", heads, rows, texts=1)))
    _, low, high = found["change"]["brier"]
    change = "clearly better" if high < 0 else "clearly worse" if low > 0 else "no clear change"
    print(f"{change}; every answer rated by a fit that has not seen its question (5 folds)")
    if high >= 0:
        print("recalibration is not needed: keep using the model as it is for these questions")
    print(f"log-odds of c: {fitted['slope']:.2f} times as it is {fitted['offset']:+.2f}")
    print(f'written: {out}; next:   grace ask {out} "your question"')
