"""`grace score`: copy responses from a file to JSONL lines, with a confidence on each."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import (
    SOURCES,
    Base,
    Device,
    Dtype,
    ModelPath,
    check_traces,
    examples,
    from_one,
)
from grace.errors import DataError, GraceError
from grace.progress import progress
from grace.records import EMPTY
from grace.store import writing
from grace.store.inputs import Bad
from grace.tasks.answered import LIKELIHOODS, Answered, read_answers
from grace.tasks.rows import Faults

if TYPE_CHECKING:
    from grace.engines import Rating
    from grace.model import Model


ADDED = ("confidence", "trace", "no_confidence", "familiar", "fields")  # to each line
SAME = 0.02  # difference of two confidences of one model, in other batches or on another device
EXAMPLES = (
    examples(
        "grace score runs/mine responses.jsonl --out scored.jsonl",
        "grace score runs/mine responses.csv --out scored.jsonl --skip-bad",
    )
    + '\n\nA line is {"question": "...", "response": "..."}, with "choices" for multiple choice.'
    ' Instead of "question" it may have "prompt", the text of a user turn, or "messages", a whole'
    " conversation. Other fields are copied. The whole file is checked before the model is loaded."
)


def score(
    path: ModelPath,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"Responses: {SOURCES}.")],
    out: Annotated[
        Path | None,
        typer.Option(show_default="standard output", help="JSONL file to write, or to resume."),
    ] = None,
    batch_size: Annotated[int, from_one(help="Responses per forward pass.")] = 32,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Also write the confidence at every token; needs a model fitted with --trace.",
        ),
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that cannot be rated.")
    ] = False,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Add a confidence to responses that you already have.

    With --out, an interrupted command resumes when you repeat it.
    """

    def report(error: DataError) -> None:
        print(f"left out: {error}", file=sys.stderr)

    bad = report if skip_bad else None
    total = 0
    if str(file) != "-":  # check the whole file before the model is loaded, and say nothing yet
        faults = Faults()
        total = sum(1 for _ in _rows(file, faults.add))
        if not skip_bad:
            faults.refuse(some=total > 0, remedy="--skip-bad goes on without them")
    rows = _rows(file, bad)
    done, last = _resume(rows, file, out, skip_bad=skip_bad) if out else (0, None)
    first = next(rows, None)
    if first is None and not done:
        wanted = '{"question": ..., "response": ...}'
        raise DataError(f"{file} has no line to score; write {wanted}")
    from grace.model import load

    model = load(path, base=base, device=device, dtype=dtype)
    if trace:
        check_traces(model, path)
    if out and last:
        _check_model(model, *last, out, trace=trace)
    if first is None:
        print(f"{file}: nothing left to score ({done} lines done)", file=sys.stderr)
        return
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(_opened(out)) if out else sys.stdout
        advance = stack.enter_context(progress("score", total, done=done, unit="lines"))
        for batch in _batches(itertools.chain([first], rows), batch_size):
            for row, rating in _rate(model, batch, trace, bad):
                line = json.dumps({**_kept(row), **rating}, ensure_ascii=False, default=str)
                with writing(out) if out else contextlib.nullcontext():
                    target.write(f"{line}\n")
                    target.flush()
            advance(len(batch))


def _rows(file: Path, bad: Bad | None) -> Iterator[Answered]:
    """Yield the rows that hold a response; other rows go to `bad`, or are an error."""
    for row in read_answers(file, every=True, bad=bad):
        try:
            _ = row.asked, row.choices, row.response
            yield row
        except DataError as error:
            if bad is None:
                raise
            bad(error)


def _rate(
    model: Model, batch: Sequence[Answered], trace: bool, bad: Bad | None
) -> Iterator[tuple[Answered, dict[str, Any]]]:
    """Yield each row with its confidence; an error names the row that cannot be rated."""
    responses = [row.response for row in batch]
    ratings: list[dict[str, Any]]
    try:
        prompts = [
            model.messages(row.asked, row.choices) if isinstance(row.asked, str) else row.asked
            for row in batch
        ]
        if trace:
            traces = model.trace(prompts, responses)
            ratings = [
                {**_rating(steps[-1] if steps else None), "trace": steps} for steps in traces
            ]
        else:
            ratings = [
                _rating(one.confidence)
                | ({} if one.familiar is None else {"familiar": one.familiar})
                | ({"fields": _fields(one)} if one.fields else {})
                for one in model.ratings(prompts, responses)
            ]
    except GraceError as error:
        if len(batch) > 1:  # find the row
            for row in batch:
                yield from _rate(model, [row], trace, bad)
            return
        located = DataError(f"{batch[0].where}: {error}")
        if bad is None:
            raise located from error
        bad(located)
        return
    yield from zip(batch, ratings, strict=True)


def _rating(confidence: float | None) -> dict[str, Any]:
    return {"confidence": confidence, **({"no_confidence": EMPTY} if confidence is None else {})}


def _fields(rated: Rating) -> dict[str, Any]:
    """Return the fields with what their tokens say, to which `grace measure` compares c."""
    pairs = {name: zip(LIKELIHOODS, rated.likelihoods[name], strict=True) for name in rated.fields}
    return {name: {**rated.fields[name], **dict(pairs[name])} for name in rated.fields}


def _batches(rows: Iterator[Answered], size: int) -> Iterator[list[Answered]]:
    """Yield batches; a bad row ends the last batch early, so that the rows before it are kept."""
    batch: list[Answered] = []
    try:
        for row in rows:
            batch.append(row)
            if len(batch) == size:
                yield batch
                batch = []
    except DataError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _resume(
    rows: Iterator[Answered], file: Path, out: Path, *, skip_bad: bool
) -> tuple[int, tuple[Answered, bytes] | None]:
    """Cut a torn last line off `out`, and skip the rows that it already has."""
    if not out.exists():
        return 0, None
    if str(file) != "-" and file.exists() and out.samefile(file):
        raise DataError(f"--out is {file} itself; name another file, so that yours is kept")
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    lines, last = whole.splitlines(), None
    for number, line in enumerate(lines, 1):
        row = next((row for row in rows if not skip_bad or _is_scored(line, row)), None)
        if row is None or not _is_scored(line, row):
            raise DataError(
                f"{out}:{number} is not the scored line {number} of {file}; "
                "name another --out, or remove this one"
            )
        last = row, line
    if len(whole) < len(data):
        with writing(out), out.open("r+b") as handle:
            handle.truncate(len(whole))
    return len(lines), last


def _check_model(model: Model, row: Answered, line: bytes, out: Path, *, trace: bool) -> None:
    """Refuse to go on after lines that another model has scored, or with another `trace`."""
    scored = json.loads(line)
    if ("trace" in scored) != trace:
        problem, remedy = ("without", "leave out") if trace else ("with", "add")
        raise DataError(
            f"{out} has lines {problem} a trace; {remedy} --trace, or name another --out"
        )
    earlier = scored["confidence"]
    ((_, rating),) = _rate(model, [row], False, None)
    found = rating["confidence"]
    same = isinstance(earlier, int | float) and found is not None and abs(found - earlier) <= SAME
    if not same and not earlier is found is None:
        raise DataError(
            f"{out} has scores of another model ({row.where}: {earlier}, now {found}); "
            "name another --out, or remove this one"
        )


def _kept(row: Answered) -> dict[str, Any]:
    """Return the fields of a row without those that another model may have left there.

    A missing number, nan in a table, is null.
    """
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.written.items()
        if name not in ADDED[1:]
    }


def _is_scored(line: bytes, row: Answered) -> bool:
    """Return whether a line of the output is this row with a confidence."""
    try:
        fields = json.loads(line)
    except ValueError:
        return False
    if not isinstance(fields, dict) or "confidence" not in fields:
        return False
    rating = {key: fields[key] for key in ADDED if key in fields}
    wanted = {**_kept(row), **rating}
    return json.dumps(fields, sort_keys=True) == json.dumps(wanted, sort_keys=True, default=str)


def _opened(out: Path) -> IO[str]:
    with writing(out):
        return out.open("a", encoding="utf-8", newline="\n")
