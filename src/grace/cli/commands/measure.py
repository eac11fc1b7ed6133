"""`grace measure`: how good confidences are that one already has, whatever they come from."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from grace.cli.answers import answer_rows, confidence_in, grade_in, question_in
from grace.cli.options import Json, examples
from grace.cli.preflight import check_report_place
from grace.cli.showing import show_report
from grace.errors import DataError

if TYPE_CHECKING:
    from grace.report import EstimatorResult, Example

MEASURE = (
    examples(
        "grace measure scored.jsonl",
        "grace measure scored.jsonl verbal.jsonl --out measured",
        "grace measure labelled/ --json",
    )
    + '\n\nLines: {"confidence": 0.8, "correct": true}; null: no confidence, or not graded. With'
    ' "question_id", "question" or "id" several files are compared question by question.'
)
TASK = "given answers"
DRAWN = 10**8  # responses in all resamples: very many answers need fewer of these


class GradedAnswer(NamedTuple):
    """One graded response; `id` is QUESTION#k for the k-th response, empty where none is named."""

    id: str
    question: str
    response: str
    confidence: float | None
    correct: bool


class Answers(NamedTuple):
    """The graded responses of one file, and how many it has without a grade."""

    rated: list[GradedAnswer]
    ungraded: int


def measure(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="JSONL or Parquet, or what `grace label` wrote; - for stdin"
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
    from grace import __version__
    from grace.report import ReportInput, build_report, summarize, to_json

    check_report_place(out)
    read = dict(zip(_names(files), map(read_answers, files), strict=True))
    data = ReportInput(
        name=", ".join(read),
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        version=__version__,
        hardware="from given files",
        results=[_result(*pair) for pair in read.items()],
        notes=[note for pair in read.items() for note in _notes(*pair)],
        examples=_examples(*read.values()) if len(read) == 1 else (),
    )
    most = max(len(answers.rated) for answers in read.values())
    how = {"bins": bins, "resamples": max(100, min(1000, DRAWN // most))}
    made = summarize(data, **how) if out is None else build_report(data, out, **how)
    show_report(to_json(made), out or Path(), as_json=as_json)


def read_answers(file: Path) -> Answers:
    """Read the graded responses of a file, or of the shards in a directory.

    Raises:
        DataError: it cannot be read, a line has no confidence or grade, or none is graded; the
            message names the line.
    """
    rated: list[GradedAnswer] = []
    count: Counter[str] = Counter()
    ungraded = 0
    for where, fields in answer_rows(file):
        confidence, correct = confidence_in(fields, where), grade_in(fields, where)
        question = question_in(fields)
        number, count[question] = count[question], count[question] + 1
        if correct is None:
            ungraded += 1
            continue
        response = str(fields.get("response", fields.get("text", "")))
        name = f"{question}#{number}" if question else ""
        rated.append(GradedAnswer(name, question, response, confidence, correct))
    if not rated:
        why = f"all {ungraded} responses have correct: null" if ungraded else "it has no responses"
        raise DataError(f"{file}: nothing to measure, {why}; grade some")
    return Answers(rated, ungraded)


def _names(files: Sequence[Path]) -> list[str]:
    """Return a name for every file: without its folder and ending, where that tells them apart."""
    short = ["stdin" if str(file) == "-" else file.resolve().stem for file in files]
    return short if len(set(short)) == len(short) else [str(file) for file in files]


def _result(name: str, answers: Answers) -> EstimatorResult:
    from grace.report import EstimatorResult

    rated = answers.rated
    return EstimatorResult(
        task=TASK,
        train_task=TASK,
        backbone="",
        estimator=name,
        seed=0,
        confidence=[row.confidence for row in rated],
        correct=[row.correct for row in rated],
        ids=[row.id for row in rated] if all(row.id for row in rated) else (),
    )


def _notes(name: str, answers: Answers) -> Iterator[str]:
    known = [row for row in answers.rated if row.confidence is not None]
    if known:
        mean = 100 * sum(row.confidence or 0.0 for row in known) / len(known)
        right = 100 * sum(row.correct for row in known) / len(known)
        side = "too sure" if mean > right else "not sure enough"
        yield (
            f"{name}: {mean:.1f} % sure on average, {right:.1f} % right: "
            f"{side} by {abs(mean - right):.1f} points."
        )
    if answers.ungraded:
        yield f"{name}: {answers.ungraded} responses have no grade and are left out."


def _examples(answers: Answers) -> list[Example]:
    """Return the responses whose lines hold a question and a text, to show on the page."""
    from grace.report import Example

    return [
        Example(row.question, row.response, row.correct, row.confidence, TASK)
        for row in answers.rated
        if row.question and row.response
    ]
