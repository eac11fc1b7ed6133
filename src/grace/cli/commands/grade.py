"""`grace grade`: grade responses in a file, and show what is read in each; no model is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from grace.cli.options import SOURCES, AnswerField, Json, QuestionField, examples
from grace.errors import ConfigError, DataError, GraceError
from grace.progress import progress

if TYPE_CHECKING:
    from grace.grading import Grader
    from grace.records import Question
    from grace.tasks.answered import Answered

WIDTH = 60  # characters of a response or an answer that are shown
NAMES = {"choice": "options", "number": "numbers", "yes_no": "yes or no", "open": "texts"}
EXAMPLES = (
    examples(
        "grace grade responses.jsonl",
        "grace grade responses.jsonl --grader exact --out graded.jsonl",
    )
    + '\n\nA line is {"question": "...", "answers": ["..."], "response": "..."}, with "choices" for'
    ' multiple choice, or {"response": "...", "correct": true} if it is graded already. A response'
    " that cannot be read has no vote. `grace list graders` shows the graders."
)


class Verdict(NamedTuple):
    """A row, its grade, and the answer that votes would count.

    `given` is the file's grade, which holds where nothing is accepted. `field` names that of a
    structured answer, whose value is then the response.
    """

    row: Answered
    response: str
    question: Question
    kind: str
    answer: str | None
    given: bool | None = None
    field: str | None = None
    correct: bool = False

    @property
    def accepted(self) -> tuple[str, ...]:
        """The accepted answers."""
        return self.question.answers

    @property
    def differs(self) -> bool:
        """Whether the file says otherwise."""
        return bool(self.accepted) and self.given not in (None, self.correct)

    def graded(self, grader: Grader) -> Verdict:
        """Return the verdict with its grade; a field that the response lacks is wrong."""
        lacks = self.field is not None and not self.response
        graded = not lacks and grader(self.response, self.question) if self.accepted else self.given
        return self._replace(correct=bool(graded))


def grade(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"Responses: {SOURCES}.")],
    grader: Annotated[
        str, typer.Option(help="A grader of `grace list graders`, or module:function.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            show_default="only print",
            help="JSONL file to write: the rows with `correct` and `answer` added.",
        ),
    ] = None,
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to print.")] = 50,
    question_field: QuestionField = "",
    answer_field: AnswerField = "",
    as_json: Json = False,
) -> None:
    """Grade responses, and show the answer that is read in each.

    Look at a grader before a run spends hours, or grade responses from
    anywhere for `grace fit` and `grace measure`. With --json only the counts
    are printed.
    """
    from grace.config import DataSettings
    from grace.grading import load_grader
    from grace.store import check_vacant, write_bytes
    from grace.tasks.answered import read_answers
    from grace.tasks.rows import Faults

    if out:
        check_vacant(out)
    data = DataSettings(question_field=question_field, answer_field=answer_field)
    grade_one, faults = load_grader(grader), Faults()
    rows = list(read_answers(file, every=True, bad=faults.add))
    faults.refuse(some=bool(rows))
    ungraded, graded = list[list[Verdict]](), list[str]()
    for row in rows:
        with faults.of(row.where), _located(row):
            ungraded.append(_ungraded(row, data, file, grader))
    faults.refuse(some=bool(ungraded))
    if not rows:
        wanted = '{"answers": [...], "response": "..."}'
        raise DataError(f"{file} has no row to grade; write {wanted}")
    count: Counter[tuple[str, str]] = Counter()
    with progress("grade", len(rows), unit="rows") as advance:
        for row, read in zip(rows, ungraded, strict=True):
            with faults.of(row.where), _located(row):
                verdicts = [verdict.graded(grade_one) for verdict in read]
                for verdict in verdicts:
                    if count["all", "rows"] < show and not as_json:
                        print(_line(verdict))
                    _count(count, verdict)
                graded.append(json.dumps(_row(verdicts), ensure_ascii=False, default=str) + "\n")
            advance(1)
    faults.refuse(some=bool(graded))
    if out:
        write_bytes(out, "".join(graded).encode())
    if as_json:
        print(json.dumps(_summary(count), indent=2))
        return
    if (left := count["all", "rows"] - show) > 0:
        print(f"... and {left} more" + ("" if out else "; --out FILE writes all, --show N more"))
    _print_summary(_summary(count), out)


@contextlib.contextmanager
def _located(row: Answered) -> Iterator[None]:
    """Let an error about a row begin with its place."""
    try:
        yield
    except GraceError as error:
        if str(error).startswith(row.where) or isinstance(error, ConfigError):
            raise
        raise DataError(f"{row.where}: {error}") from error


def _ungraded(row: Answered, data: Any, file: Path, name: str) -> list[Verdict]:
    """Return what is read in a row, or in the fields of a structured answer, before it is graded.

    A grade of the file holds where no accepted answer is known.
    """
    from grace.answers import kind_of, read
    from grace.tasks import KINDS

    if structured := _accepted_fields(row, data):
        return [*_fields(row, structured, name)]
    question = _question(row, data, file)
    given = row.correct if "correct" in row.known else None
    kind = name if name in KINDS else kind_of(question.answers, question.choices)
    answer = read(row.response, kind, question.choices)  # type: ignore[arg-type]
    if given is not None and row.known.get("answers") is None and row.known.get("answer") == answer:
        question = dataclasses.replace(question, answers=())  # GrACE has read it: not one accepted
    if not question.answers and given is None:
        raise DataError(
            f'{row.where}: neither accepted answers nor a grade; add "answers", name their column '
            '(--answer-field NAME), or add "correct": true or false'
        )
    return [Verdict(row, row.response, question, kind, answer, given)]


def _accepted_fields(row: Answered, data: Any) -> dict[str, tuple[str, ...]]:
    """Return what the fields of a structured answer accept, {} for an answer of another kind."""
    from grace.tasks.values import field_answers

    usual = next((key for key in ("answers", "answer") if key in row.known), "")
    given = row.known.get(data.answer_field or usual)
    return {} if isinstance(given, str) and "{" not in given else field_answers(given, row.where)


def _fields(row: Answered, accepted: dict[str, tuple[str, ...]], name: str) -> Iterator[Verdict]:
    """Yield what is read in each field."""
    from grace.answers import kind_of, read
    from grace.answers.fields import fields_in
    from grace.grading import said_in
    from grace.records import Question
    from grace.tasks import KINDS

    found = fields_in(row.response)
    for field, right in accepted.items():
        said = said_in(found[field].value) if field in found else ""
        kind = name if name in KINDS else kind_of(right)
        answer = read(said, kind) if said else None  # type: ignore[arg-type]
        question = Question(f"{row.where} {field}", "jsonl", "", right)
        yield Verdict(row, said, question, kind, answer, field=field)


def _question(row: Answered, data: Any, file: Path) -> Question:
    """Return the question of a row, which needs no text to be graded."""
    from grace.store.inputs import QUESTION, plain
    from grace.tasks.values import SourceRow, parse

    fields = row.written
    if not data.question_field and not any(
        plain(name) in QUESTION and value is not None for name, value in fields.items()
    ):
        fields = {**fields, "question": row.where}
    if not data.answer_field and row.known.get("answers") is not None and "answer" in row.known:
        data = dataclasses.replace(data, answer_field="answers")
    source = SourceRow(row.where, fields)
    source.source, source.data = str(file), data
    return parse(source, data, graded=False)


def _row(verdicts: list[Verdict]) -> dict[str, Any]:
    """Return a row with its grade; what is accepted moves to `answers`, if it was in `answer`."""
    verdict = verdicts[0]
    row = {name: value for name, value in verdict.row.written.items() if value == value}
    if not verdict.accepted and isinstance(row.get("correct"), dict):
        return row  # the grades of its fields
    if verdict.field is not None:
        return row | {"correct": {one.field: one.correct for one in verdicts}}
    if verdict.accepted and "answer" in row:
        row["answers"] = list(verdict.accepted)
    return row | {"correct": verdict.correct, "answer": verdict.answer}


def _line(verdict: Verdict) -> str:
    accepted = " / ".join(verdict.accepted[:3]) or "as given"
    grade = "right" if verdict.correct else "wrong"
    answer = "(nothing read)" if verdict.answer is None else _short(verdict.answer)
    differs = "; the file says otherwise" if verdict.differs else ""
    said = _short(verdict.response) or "(empty)"
    said = said if verdict.field is None else f"{verdict.field}: {said}"
    return f"{grade}  {answer:<14}  <- {said}   ({_short(accepted)}{differs}; {verdict.row.where})"


def _short(text: str) -> str:
    """Return a text on one line, its middle left out if it is long."""
    line = " ".join(text.split())
    half = WIDTH // 2
    return line if len(line) <= WIDTH else f"{line[: half - 3]} ... {line[-half + 2 :]}"


def _count(count: Counter[tuple[str, str]], verdict: Verdict) -> None:
    empty = not verdict.response.strip()
    found = {
        "rows": True,
        "right": verdict.correct,
        "unreadable": verdict.answer is None and not empty,
        "empty": empty,
        "given": not verdict.accepted,
        "differ": verdict.differs,
    }
    for of in ("all", verdict.kind):
        count.update({(of, name): int(is_so) for name, is_so in found.items()})


def _summary(count: Counter[tuple[str, str]]) -> dict[str, Any]:
    names = ("rows", "right", "unreadable", "empty", "given", "differ")
    by_kind = {
        kind: {name: count[kind, name] for name in names[:4]}
        for kind in NAMES
        if count[kind, "rows"]
    }
    return {**{name: count["all", name] for name in names}, "kinds": by_kind}


def _print_summary(summary: dict[str, Any], out: Path | None) -> None:
    rows, right = summary["rows"], summary["right"]
    print(f"\n{rows} responses: {right} right ({100 * right / rows:.1f}%), {rows - right} wrong")
    print(f"{'read as':<10} {'rows':>7} {'right':>7} {'unreadable':>11} {'empty':>7}")
    for kind, found in summary["kinds"].items():
        cells = (found["rows"], found["right"], found["unreadable"], found["empty"])
        print("{:<10} {:>7} {:>7} {:>11} {:>7}".format(NAMES[kind], *cells))
    if summary["given"]:
        print(f'{summary["given"]} have no accepted answers and keep the "correct" of the file')
    if summary["differ"]:
        print(f'{summary["differ"]} grades differ from "correct" in the file')
    if out:
        print(f"written: {out}")
