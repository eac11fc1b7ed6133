"""A run directory: append-only tables joined by id, and stage manifests written last.

A kill at any moment loses at most the unit in flight: rows are appended one unit at a time,
whatever follows the last whole unit is cut off on resume, and a stage counts as done only when
its manifest exists.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from grace.errors import RunError
from grace.records import Confidence, Grade, Question, Response, Target, from_json, to_json

Row = TypeVar("Row")
SPLITS = ("train", "validation", "test")


class Table(Generic[Row]):
    """Rows of one record type in a JSONL file, appended in units and never rewritten."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        self.path = path
        self.row_type = row_type

    def read(self) -> list[Row]:
        """Return all rows.

        Raises:
            RunError: the file is missing, or a line is not a row of this table.
        """
        return [row for row, _ in self._scan(strict=True)]

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
        """Cut the file after its last whole unit and return how many leading units it holds.

        Args:
            units: the ids that each unit will write, in the order of writing.
        """
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
                        raise ValueError("the line is torn")
                    row = from_json(self.row_type, json.loads(line))
                except (ValueError, TypeError, AttributeError) as error:
                    if strict:
                        raise RunError(
                            f"{self.path}:{number}: not a {self.row_type.__name__} row ({error}); "
                            "`--redo` the stage that wrote it"
                        ) from None
                    return
                yield row, end


def _lines(rows: Sequence[Any]) -> bytes:
    lines = (json.dumps(to_json(row), ensure_ascii=False, allow_nan=False) for row in rows)
    return "".join(line + "\n" for line in lines).encode()


class Split:
    """The tables of one split (train, validation or test) or of the tuned model's answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.questions = Table(path / "questions.jsonl", Question)
        self.responses = Table(path / "responses.jsonl", Response)
        self.grades = Table(path / "grades.jsonl", Grade)
        self.targets = Table(path / "targets.jsonl", Target)
        self.features = path / "features.safetensors"

    def confidences(self, estimator: str) -> Table[Confidence]:
        """Return the table of one estimator's confidences."""
        return Table(self.path / "confidences" / f"{estimator}.jsonl", Confidence)


class RunDir:
    """The directory of one run; see `docs/run-directory.md` for every file in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.adapter = path / "adapter"
        self.checkpoints = path / "checkpoints"
        self.target_table = path / "train" / "targets.json"

    def split(self, name: str) -> Split:
        """Return the tables of a split."""
        return Split(self.path / name)

    def tuned(self) -> Split:
        """Return the tables of the tuned model's own answers to the test questions."""
        return Split(self.path / "test" / "tuned")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises:
            RunError: another process is working on it.
        """
        with writing(self.path / ".lock"), (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"another process is working on {self.path}; wait for it, or stop it first"
                ) from None
            yield

    def manifest(self, stage: str) -> dict[str, Any] | None:
        """Return a finished stage's manifest, or None while the stage is not done."""
        path = self._manifest_path(stage)
        if not path.exists():
            return None
        return read_json(path)

    def finish(
        self,
        stage: str,
        settings: dict[str, Any],
        inputs: Sequence[Path],
        outputs: Sequence[Path],
        **extra: Any,
    ) -> None:
        """Write the manifest that makes a stage count as done."""
        write_json(
            self._manifest_path(stage),
            {
                "stage": stage,
                "settings": settings,
                "inputs": self._digests(inputs),
                "outputs": self._digests(outputs),
                **extra,
            },
        )

    def changed_files(self, stage: str) -> list[str]:
        """Return the files of a finished stage that are no longer what it read or wrote."""
        manifest = self.manifest(stage) or {}
        return [
            name
            for recorded in (manifest.get("inputs", {}), manifest.get("outputs", {}))
            for name, value in recorded.items()
            if not (self.path / name).exists() or digest(self.path / name) != value
        ]

    def forget(self, stage: str) -> None:
        """Remove a stage's manifest and everything that it wrote."""
        manifest = self.manifest(stage) or {}
        self._manifest_path(stage).unlink(missing_ok=True)
        for name in manifest.get("outputs", {}):
            (self.path / name).unlink(missing_ok=True)

    def add_time(self, stage: str, unit: str, seconds: float, count: int) -> None:
        """Record how long a unit of `count` answers took; the last record of a unit holds."""
        row = {"stage": stage, "unit": unit, "seconds": round(seconds, 6), "count": count}
        path = self.path / "stages" / "timing.jsonl"
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def seconds_per_answer(self, stage: str, units_of: str = "") -> float | None:
        """Return the measured seconds per answer over a stage's units whose name starts so."""
        path = self.path / "stages" / "timing.jsonl"
        units: dict[str, tuple[float, int]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError, KeyError):
                row = json.loads(line)
                if row["stage"] == stage and row["unit"].startswith(units_of):
                    units[row["unit"]] = (row["seconds"], row["count"])
        count = sum(number for _, number in units.values())
        return sum(seconds for seconds, _ in units.values()) / count if count else None

    def _manifest_path(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.json"

    def _digests(self, paths: Sequence[Path]) -> dict[str, str]:
        return {str(path.relative_to(self.path)): digest(path) for path in paths}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Return a JSON file's content.

    Raises:
        RunError: the file is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); restore it or start a new run") from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees either the old file or the whole new one."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees either the old file or the whole new one."""
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the parent folder, and turn a failing disk into a one-line `RunError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"the disk is full while writing {path}; free some space and run the same command "
                "again, it resumes where it stopped"
            ) from error
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
