"""`grace score`: JSONL of responses in, the same lines with their confidence out."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.answers import InputLine, checked_line
from grace.cli.options import Base, Device, Dtype, ModelPath, examples
from grace.errors import DataError, GraceError
from grace.progress import progress
from grace.store import writing
from grace.store.inputs import Bad, read_rows

if TYPE_CHECKING:
    from grace.model import Model


SCORE = (
    examples("grace score runs/qwen responses.jsonl --out scored.jsonl")
    + '\n\nLines: {"question": "...", "response": "..."}, with "choices" for multiple choice, or'
    ' "prompt" (a user turn as it stands) or "messages" (a conversation) instead of "question".'
    " Other fields are kept. A file is checked as a whole before the model is loaded."
)


def score(
    path: ModelPath,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="responses: .jsonl, .csv, .parquet, hf:OWNER/NAME; - for stdin"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="JSONL file to write or to resume; default: standard output")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="responses per forward pass")] = 32,
    trace: Annotated[
        bool, typer.Option("--trace", help="also write the confidence at every token (train.trace)")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="leave out lines that cannot be rated")
    ] = False,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Add a confidence to responses that you already have, and write them as JSONL. Resumes."""
    bad = _leave_out if skip_bad else None
    checked = () if str(file) == "-" else _lines(file, bad and (lambda error: None))
    total, lines = sum(1 for _ in checked), _lines(file, bad)
    done = _resume(lines, file, out, skip_bad=skip_bad) if out else 0
    first = next(lines, None)
    if first is None:
        print(f"{file}: nothing left to score ({done} lines done)", file=sys.stderr)
        return
    from grace.model import load

    model = load(path, base=base, device=device, dtype=dtype)
    with _output(out) as target, progress("score", total, done=done, unit="lines") as advance:
        for batch in _batches(itertools.chain([first], lines), batch_size):
            for line, found in _rate(model, batch, trace, bad):
                with writing(out) if out else contextlib.nullcontext():
                    row = {**line.fields, **found}
                    target.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                    target.flush()
            advance(len(batch))


def _lines(file: Path, bad: Bad | None) -> Iterator[InputLine]:
    """Yield the lines that are responses; others go to `bad`, or are an error."""
    for row in read_rows(file, bad=bad):
        try:
            yield checked_line(row)
        except DataError as error:
            if bad is None:
                raise
            bad(error)


def _leave_out(error: GraceError) -> None:
    print(f"left out: {error}", file=sys.stderr)


def _rate(
    model: Model, batch: Sequence[InputLine], trace: bool, bad: Bad | None
) -> Iterator[tuple[InputLine, dict[str, Any]]]:
    """Yield each line with what was found; a line that cannot be rated is named by its place."""
    given = [_chat(model, line) for line in batch], [line.response for line in batch]
    found: list[dict[str, Any]]
    try:
        if trace:
            found = [{"confidence": one[-1], "trace": one} for one in model.trace(*given)]
        else:
            found = [{"confidence": value} for value in model.score(*given)]
    except GraceError as error:
        if len(batch) > 1:
            for line in batch:
                yield from _rate(model, [line], trace, bad)
            return
        told = DataError(f"{batch[0].where}: {error}")
        if bad is None:
            raise told from error
        bad(told)
        return
    yield from zip(batch, found, strict=True)


def _chat(model: Model, line: InputLine) -> Any:
    asked = line.fields[line.asks]
    if line.asks == "question":
        return model.messages(asked, line.fields.get("choices") or ())
    return asked if line.asks == "messages" else [{"role": "user", "content": asked}]


def _batches(lines: Iterator[InputLine], size: int) -> Iterator[list[InputLine]]:
    """Yield batches; a bad line ends the last batch early, so that the lines before it are kept."""
    batch: list[InputLine] = []
    try:
        for line in lines:
            batch.append(line)
            if len(batch) == size:
                yield batch
                batch = []
    except DataError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _resume(lines: Iterator[InputLine], file: Path, out: Path, *, skip_bad: bool) -> int:
    """Cut a torn last line off `out`, pass over the lines that it holds, and return their number.

    Raises:
        DataError: the lines of `out` do not continue those of `file`.
    """
    if not out.exists():
        return 0
    if str(file) != "-" and file.exists() and out.samefile(file):
        raise DataError(
            f"--out is {file} itself; name another file, the responses stay as they are"
        )
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    rows = whole.split(b"\n")[:-1]
    for number, row in enumerate(rows, 1):
        line = next((one for one in lines if not skip_bad or _is_scored(row, one)), None)
        if line is None or not _is_scored(row, line):
            raise DataError(
                f"{out}:{number} is not the scored line {number} of {file}; "
                "name another --out, or remove this one"
            )
    if len(whole) < len(data):
        with writing(out), out.open("r+b") as handle:
            handle.truncate(len(whole))
    return len(rows)


def _is_scored(row: bytes, line: InputLine) -> bool:
    """Return whether a row of the output is the input line with a confidence."""
    try:
        fields = json.loads(row)
    except ValueError:
        return False
    if not isinstance(fields, dict) or "confidence" not in fields:
        return False
    found = {key: fields[key] for key in ("confidence", "trace") if key in fields}
    wanted = {**line.fields, **found}
    return json.dumps(fields, sort_keys=True) == json.dumps(wanted, sort_keys=True, default=str)


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with writing(out):
        target = out.open("a", encoding="utf-8", newline="\n")
    with target:
        yield target
