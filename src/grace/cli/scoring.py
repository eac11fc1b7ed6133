"""`grace score`: JSONL of responses in, the same lines with their confidence out."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from grace.errors import DataError
from grace.progress import progress
from grace.store import writing

PROMPT_KEYS = ("question", "prompt", "messages")


class Line(NamedTuple):
    """One input line: its fields, what was asked, and the response to rate."""

    fields: dict[str, Any]
    prompt: Any
    response: str


def score_file(
    model_path: str, file: Path, out: Path | None, *, batch_size: int, device: str, dtype: str
) -> None:
    """Rate every line of `file`; with `out`, go on after the lines that it already holds.

    Raises:
        DataError: a line is not a response; the lines before it are written.
    """
    total = _count(file)
    done = _resume(file, out) if out else 0
    lines = itertools.islice(read_lines(file), done, None)
    first = next(lines, None)
    if first is None:
        _say(f"{file}: nothing left to score ({done} lines done)")
        return
    from grace.model import load

    model = load(model_path, device=device, dtype=dtype)
    with _output(out) as target, progress("score", total, done=done, unit="lines") as advance:
        for batch in _batches(itertools.chain([first], lines), batch_size):
            values = model.score([line.prompt for line in batch], [line.response for line in batch])
            with writing(out or Path("standard output")):
                for line, value in zip(batch, values, strict=True):
                    row = {**line.fields, "confidence": value}
                    target.write(json.dumps(row, ensure_ascii=False) + "\n")
                target.flush()
            advance(len(batch))


def read_lines(file: Path) -> Iterator[Line]:
    """Yield the lines of a file of responses (`-`: standard input); blank lines are skipped.

    Raises:
        DataError: names the file, the line and what is expected there.
    """
    with _input(file) as source:
        try:
            for number, text in enumerate(source, 1):
                if text.strip():
                    yield _parse(text, f"{file}:{number}")
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 ({error}); convert it") from None


def _parse(text: str, where: str) -> Line:
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error}); write one object per line") from None
    if not isinstance(fields, dict):
        raise DataError(f"{where}: a {type(fields).__name__}, expected an object")
    given = [key for key in PROMPT_KEYS if key in fields]
    if len(given) != 1:
        raise DataError(f"{where}: expected exactly one of {', '.join(PROMPT_KEYS)}, got {given}")
    prompt = fields[given[0]]
    if given[0] == "messages":
        _check_messages(prompt, where)
    elif not isinstance(prompt, str) or not prompt.strip():
        raise DataError(f"{where}: {given[0]} is {prompt!r}, expected text")
    if not isinstance(fields.get("response"), str):
        raise DataError(f"{where}: response is {fields.get('response')!r}, expected text")
    return Line(fields, prompt, fields["response"])


def _check_messages(messages: Any, where: str) -> None:
    good = isinstance(messages, list) and messages
    if not good or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in messages
    ):
        raise DataError(f'{where}: messages must be a list of {{"role": ..., "content": ...}}')


def _batches(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    """Yield batches; a bad line ends the last batch early, so that the lines before it are kept."""
    batch: list[Line] = []
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


def _resume(file: Path, out: Path) -> int:
    """Cut a torn last line off `out` and return how many lines it holds.

    Raises:
        DataError: the lines of `out` do not continue those of `file`.
    """
    if not out.exists():
        return 0
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    rows = whole.decode(errors="replace").splitlines()
    for number, (row, line) in enumerate(zip(rows, read_lines(file), strict=False), 1):
        with contextlib.suppress(json.JSONDecodeError, AttributeError):
            if {k: v for k, v in json.loads(row).items() if k != "confidence"} == {
                k: v for k, v in line.fields.items() if k != "confidence"
            }:
                continue
        raise DataError(
            f"{out}:{number} is not the scored line {number} of {file}; "
            "name another --out, or remove this one"
        )
    if len(whole) < len(data):
        with out.open("r+b") as handle:
            handle.truncate(len(whole))
    return len(rows)


def _count(file: Path) -> int:
    if str(file) == "-":
        return 0
    with _input(file) as source:
        try:
            return sum(1 for text in source if text.strip())
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 ({error}); convert it") from None


@contextlib.contextmanager
def _input(file: Path) -> Iterator[IO[str]]:
    if str(file) == "-":
        yield sys.stdin
        return
    try:
        source = file.open(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}; check the path") from None
    with source:
        yield source


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with writing(out):
        target = out.open("a", encoding="utf-8")
    with target:
        yield target


def _say(message: str) -> None:
    print(message, file=sys.stderr)
