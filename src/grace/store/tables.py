"""Tables of records: JSONL files that are appended in units, and the tables of one split."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from grace.errors import RunError
from grace.records import Confidence, Grade, Question, Response, Target, from_json, to_json
from grace.store.files import write_bytes, writing

Row = TypeVar("Row")
SPLITS: tuple[Literal["train", "validation", "test"], ...] = ("train", "validation", "test")


class RowFile(Generic[Row]):
    """Rows of one record type in a JSONL file, appended in units and never rewritten."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        self.path = path
        self.row_type = row_type

    def read(self) -> list[Row]:
        """Return all rows."""
        return [row for row, _ in self._scan(strict=True)]

    def ids(self) -> list[str] | None:
        """Return the ids of all rows, None if the table is missing or damaged."""
        try:
            return [row.id for row in self.read()]  # type: ignore[attr-defined]
        except RunError:
            return None

    def append(self, rows: Sequence[Row]) -> None:
        """Append one unit of rows and wait until it is on disk."""
        with writing(self.path), self.path.open("ab") as file:
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())

    def write(self, rows: Sequence[Row]) -> None:
        """Write all rows at once; a reader sees the whole table or none."""
        write_bytes(self.path, _lines(rows))

    def resume(self, units: Sequence[Sequence[str]]) -> int:
        """Cut the file after its last whole unit and return how many leading units it holds."""
        if not self.path.exists():
            return 0
        ends: dict[int, int] = {0: 0}
        ids: list[str] = []
        for row, end in self._scan(strict=False):
            ids.append(row.id)  # type: ignore[attr-defined]
            ends[len(ids)] = end
        done, position = 0, 0
        for unit in units:
            if ids[position : position + len(unit)] != list(unit):
                break
            done, position = done + 1, position + len(unit)
        with writing(self.path), self.path.open("r+b") as file:
            file.truncate(ends[position])
        return done

    def left(self, ids: Sequence[str], size: int) -> list[range]:
        """Cut the file after its last whole unit of `size` rows; return the rows that it lacks."""
        units = [range(at, min(at + size, len(ids))) for at in range(0, len(ids), size)]
        return units[self.resume([[ids[row] for row in unit] for unit in units]) :]

    def _scan(self, *, strict: bool) -> Iterator[tuple[Row, int]]:
        """Yield (row, byte offset after it); stop at the first bad line, or raise if strict."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            raise RunError(f"{self.path} is missing; run the stage that writes it again") from None
        with file:
            end = 0
            for number, line in enumerate(file, 1):
                end += len(line)
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError("the line is incomplete")
                    row = from_json(self.row_type, json.loads(line))
                except (ValueError, TypeError, AttributeError) as error:
                    if strict:
                        raise RunError(
                            f"{self.path}:{number}: not a {self.row_type.__name__} row ({error}); "
                            "do the stage again that wrote it: --redo STAGE"
                        ) from None
                    return
                yield row, end


def _lines(rows: Sequence[Any]) -> bytes:
    lines = (json.dumps(to_json(row), ensure_ascii=False, allow_nan=False) for row in rows)
    return "".join(line + "\n" for line in lines).encode()


class Split:
    """The tables of one split, or of other responses to its questions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.questions = RowFile(path / "questions.jsonl", Question)
        self.shots = RowFile(path / "shots.jsonl", Question)
        self.responses = RowFile(path / "responses.jsonl", Response)
        self.grades = RowFile(path / "grades.jsonl", Grade)
        self.targets = RowFile(path / "targets.jsonl", Target)
        self.features = path / "features.safetensors"

    @property
    def tuned(self) -> Split:
        """The tuned model's own answers to the same questions."""
        return self._beside("tuned")

    def by(self, answers: str) -> Split:
        """Return the responses of the backbone ("base") or of the tuned model ("tuned")."""
        return self.tuned if answers == "tuned" else self

    def pool(self, count: int, temperature: float) -> Split:
        """Return the tables of `count` samples of each question, to vote over or to compare."""
        return self._beside(f"pool-{count}-t{temperature:g}")

    def confidences(self, estimator: str) -> RowFile[Confidence]:
        """Return the table of one estimator's confidences."""
        return RowFile(self.path / "confidences" / f"{estimator}.jsonl", Confidence)

    def cost(self, estimator: str) -> Path:
        """Return the file with the cost of an estimator's confidences."""
        return self.path / "confidences" / f"{estimator}.cost.json"

    def _beside(self, name: str) -> Split:
        """Return the tables of other responses to the same questions, in a folder of their own."""
        split = Split(self.path / name)
        split.questions = self.questions
        return split
