"""How good confidences are that one already has, whatever they come from."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ConfigError, DataError
from grace.report import (
    EstimatorResult,
    RatedAnswer,
    Report,
    ReportInput,
    build_report,
    summarize,
)
from grace.store import is_run, is_study
from grace.store.inputs import Row, read_rows

TASK = "given answers"
DRAWN = 10**8  # responses in all resamples: very many answers need fewer of these


QUESTION = ("question_id", "question", "prompt", "messages", "id")
"""Fields that name the question of a response; the first one that is there counts."""
FIELDS = (*QUESTION, "response", "text", "confidence", "correct", "logprobs", "end_logprob")


class GradedAnswer(NamedTuple):
    """One graded response; `id` is QUESTION#k for the k-th response, empty where none is named.

    `logprobs` are those of its tokens and, last, of its end; None where the file has none.
    """

    id: str
    question: str
    response: str
    confidence: float | None
    correct: bool
    logprobs: tuple[float, ...] | None = None


class Answers(NamedTuple):
    """The graded responses of one file, and how many it has without a grade."""

    rated: list[GradedAnswer]
    ungraded: int


def measure(
    *sources: str | Path | Iterable[Mapping[str, Any]],
    out: str | Path | None = None,
    bins: int = 10,
) -> Report:
    """Measure the confidences of graded responses: ECE, Brier score, AUROC, with intervals.

    Args:
        sources: files (JSON Lines, CSV, Parquet), directories that `grace label` wrote, or rows
            with `confidence` and `correct`, such as a list of dicts or a `datasets.Dataset`.
            Several are compared, question by question where rows have a `question`.
        out: a directory for report.html, report.md and figures; None: nothing is written.
        bins: equal-width bins of ECE.

    Raises:
        DataError: a source cannot be read, a row has no confidence or grade, or none is graded.
        ConfigError: `out` is a file, or has a report of its own.
    """
    from grace import __version__

    place = None if out is None else Path(out)
    check_report_place(place)
    read = dict(zip(_names(sources), map(read_answers, sources), strict=True))
    data = ReportInput(
        name=", ".join(read),
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        version=__version__,
        hardware="from given files",
        results=[_result(*pair) for pair in read.items()],
        notes=[note for pair in read.items() for note in _notes(*pair)],
        examples=_examples(*read.values()) if len(read) == 1 else (),
    )
    most = max((len(answers.rated) for answers in read.values()), default=1)
    how = {"bins": bins, "resamples": max(100, min(1000, DRAWN // most))}
    return summarize(data, **how) if place is None else build_report(data, place, **how)


def read_answers(source: str | Path | Iterable[Mapping[str, Any]]) -> Answers:
    """Read the graded responses of a file, of the shards in a directory, or of given rows.

    Raises:
        DataError: it cannot be read, a line has no confidence or grade, or none is graded; the
            message names the line.
    """
    rated: list[GradedAnswer] = []
    count: Counter[str] = Counter()
    ungraded = 0
    for where, fields in _rows(source):
        confidence, correct = confidence_in(fields, where), grade_in(fields, where)
        question = question_in(fields)
        number, count[question] = count[question], count[question] + 1
        if correct is None:
            ungraded += 1
            continue
        response = str(fields.get("response", fields.get("text", "")))
        name = f"{question}#{number}" if question else ""
        logprobs = logprobs_in(fields, where)
        rated.append(GradedAnswer(name, question, response, confidence, correct, logprobs))
    if not rated:
        why = f"all {ungraded} responses have correct: null" if ungraded else "it has no responses"
        name = str(source) if isinstance(source, str | Path) else "the rows"
        raise DataError(f"{name}: nothing to measure, {why}; grade some")
    return Answers(rated, ungraded)


def _rows(source: str | Path | Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    if isinstance(source, str | Path):
        yield from answer_rows(source)
        return
    for number, fields in enumerate(source):
        if not isinstance(fields, Mapping):
            raise DataError(
                f"row {number} is {type(fields).__name__}; give each as a dict, or name a file"
            )
        yield Row(f"row {number}", dict(fields))


def _names(sources: Sequence[str | Path | Iterable[Mapping[str, Any]]]) -> list[str]:
    """Return a name for each: of files without folder and ending, where that tells them apart."""
    files = [source if isinstance(source, str | Path) else None for source in sources]
    given = [f"rows {number}" if file is None else str(file) for number, file in enumerate(files)]
    short = [
        name if file is None else "stdin" if name == "-" else Path(file).resolve().stem
        for file, name in zip(files, given, strict=True)
    ]
    return short if len(set(short)) == len(short) else given


def _result(name: str, answers: Answers) -> EstimatorResult:
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


def _examples(answers: Answers) -> list[RatedAnswer]:
    """Return the responses whose lines hold a question and a text, to show on the page."""
    return [
        RatedAnswer(row.question, row.response, row.correct, row.confidence, TASK)
        for row in answers.rated
        if row.question and row.response
    ]


def answer_rows(file: str | Path, fields: Sequence[str] = FIELDS) -> Iterator[Row]:
    """Yield the rows of a file of responses; of a table, the columns that are named.

    Raises:
        DataError: as `read_rows`.
    """
    return read_rows(file, choose=lambda names: [name for name in fields if name in names])


def check_report_place(out: Path | None) -> None:
    """Refuse to write a report over the one that belongs to a run.

    Raises:
        ConfigError: the place is a file, a run or a study.
    """
    if out is None:
        return
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a directory for the report")
    if is_run(out) or is_study(out):
        raise ConfigError(f"{out} is a run with a report of its own; name another directory")


def confidence_in(fields: dict[str, Any], where: str) -> float | None:
    """Return the confidence of a response, None where it is null.

    Raises:
        DataError: there is no field for it, or it is not a probability.
    """
    if "confidence" not in fields:
        raise DataError(f"{where}: no field confidence; `grace score` adds it")
    value = _spelt(fields["confidence"])
    if value is None:
        return None
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:
        raise DataError(
            f"{where}: confidence is {json.dumps(value, default=str)}; a confidence lies between 0 "
            "and 1 (null: none)"
        )
    return float(value)


def logprobs_in(fields: dict[str, Any], where: str) -> tuple[float, ...] | None:
    """Return the log-probabilities of a response's tokens and its end, None where one is missing.

    Raises:
        DataError: they are not numbers.
    """
    tokens, end = (_spelt(fields.get(key)) for key in ("logprobs", "end_logprob"))
    if tokens is None or end is None:
        return None
    try:
        return (*map(float, tokens), float(end))
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: logprobs and end_logprob are not a list of numbers and a number; "
            "leave them out, or give what `grace label` writes"
        ) from None


def grade_in(fields: dict[str, Any], where: str) -> bool | None:
    """Return whether a response is right, None where it is null.

    Raises:
        DataError: there is no field for it, or it is neither true nor false.
    """
    if "correct" not in fields:
        raise DataError(f"{where}: no field correct; write true or false (null: not known)")
    value = _spelt(fields["correct"])
    if value is not None and value not in (True, False):
        shown = json.dumps(value, default=str)
        raise DataError(f"{where}: correct is {shown}; write true or false (null: not known)")
    return None if value is None else bool(value)


def _spelt(value: Any) -> Any:
    """Return what a cell of a CSV file spells: true, false, or a number; anything else as it is."""
    try:
        return json.loads(value.lower()) if isinstance(value, str) else value
    except ValueError:
        return value


def question_in(fields: dict[str, Any]) -> str:
    """Return the question of a response as a text, empty if the line does not name it."""
    found = next((fields[key] for key in QUESTION if fields.get(key) is not None), "")
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
