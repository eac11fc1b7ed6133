"""`grace score`: JSONL of responses in, the same lines with their confidence out."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from grace.cli.answers import InputLine, open_input, read_lines
from grace.errors import DataError, GraceError
from grace.progress import progress
from grace.store import writing

if TYPE_CHECKING:
    from grace.model import Model


def score_file(
    model_path: str,
    file: Path,
    out: Path | None,
    *,
    batch_size: int,
    trace: bool,
    options: Mapping[str, Any],
) -> None:
    """Rate every line of `file`; with `out`, go on after the lines that it already holds.

    Args:
        model_path: what to load.
        file: JSON Lines of responses; `-` is standard input.
        out: the file to write; None: standard output.
        batch_size: responses per forward pass.
        trace: add c at every token, too.
        options: further arguments of `grace.load`.

    Raises:
        DataError: a line is not a response; the lines before it are written.
    """
    lines, total = read_lines(file), _count(file)
    done = _resume(lines, file, out) if out else 0
    first = next(lines, None)
    if first is None:
        print(f"{file}: nothing left to score ({done} lines done)", file=sys.stderr)
        return
    from grace.model import load

    model = load(model_path, **options)
    with _output(out) as target, progress("score", total, done=done, unit="lines") as advance:
        for batch in _batches(itertools.chain([first], lines), batch_size):
            for line, found in _rate(model, batch, trace):
                with writing(out) if out else contextlib.nullcontext():
                    row = {**line.fields, **found}
                    target.write(json.dumps(row, ensure_ascii=False) + "\n")
                    target.flush()
            advance(len(batch))


def _rate(
    model: Model, batch: Sequence[InputLine], trace: bool
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
        if len(batch) == 1:
            raise DataError(f"{batch[0].where}: {error}") from error
        for line in batch:
            yield from _rate(model, [line], trace)
        return
    yield from zip(batch, found, strict=True)


def _chat(model: Model, line: InputLine) -> Any:
    asked = line.fields[line.asks]
    if line.asks == "question":
        return model.messages(asked, line.fields.get("choices", ()))
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


def _resume(lines: Iterator[InputLine], file: Path, out: Path) -> int:
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
        line = next(lines, None)
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
    return json.dumps(fields, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def _count(file: Path) -> int:
    if str(file) == "-":
        return 0
    with open_input(file) as source:
        return sum(1 for data in source if data.strip())


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with writing(out):
        target = out.open("a", encoding="utf-8", newline="\n")
    with target:
        yield target
