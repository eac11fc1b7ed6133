"""A tiny model directory, a file of questions, and a finished run, for tests of what users touch.

The model is random, so its answers are noise; the grader tosses a coin per response, which makes
about half of them right.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import tiny_models
from grace.records import Question

NUM_QUESTIONS = 40
FAST = (
    "data.train=20",
    "data.validation=10",
    "data.test=10",
    "data.prompt=short",
    "sample.max_new_tokens=24",
    "grade.grader=tiny_run:coin",
    "method=paper",
    "paper.folds=4",
    "paper.balance=none",
    "paper.batch_size=8",
    "paper.epochs=1",
    "paper.learning_rate=0.01",
    "report.bootstrap=10",
)


def coin(text: str, question: Question) -> bool:
    """Grade by a coin that only the question and the response can move."""
    return zlib.crc32(f"{question.text}{text}".encode()) % 2 == 0


def right(text: str, question: Question) -> bool:
    """Find every response right."""
    return True


def lakeless(text: str, question: Question) -> bool:
    """Find every response right, but of those to questions about lakes a quarter."""
    return "lake" not in question.text or zlib.crc32(question.text.encode()) % 4 == 0


def failing(text: str, question: Question) -> bool:
    """Fail, as a grader of one's own may."""
    return 1 / 0 > 0


def settings() -> list[str]:
    """Return the command-line options of a run that takes seconds."""
    return [part for setting in FAST for part in ("--set", setting)]


def write_model(folder: Path, name: str = "llama_untied", **tokenizer: Any) -> Path:
    """Save a tiny model with its tokenizer."""
    tiny_models.model(name).save_pretrained(folder)
    tiny_models.tokenizer(**tokenizer).save_pretrained(folder)
    return folder


def write_questions(file: Path, number: int = NUM_QUESTIONS) -> Path:
    """Write open questions, one per line."""
    rows = [
        {"id": f"q{n}", "question": f"What is {n} and {n * 7}?", "answers": [f"{n}"]}
        for n in range(number)
    ]
    write_lines(file, rows)
    return file


def write_lines(file: Path, rows: list[Any]) -> Path:
    """Write rows as JSON Lines; text and bytes are written as they are."""
    with file.open("wb") as out:
        for row in rows:
            text = row if isinstance(row, str | bytes) else json.dumps(row, ensure_ascii=False)
            out.write((text if isinstance(text, bytes) else text.encode()) + b"\n")
    return file


def run_arguments(run: Path, model: Path, file: Path) -> list[str]:
    """Return the arguments of `grace run` for a tiny run."""
    where = ["--model", str(model), "--task", "jsonl", "--file", str(file)]
    return ["run", str(run), *where, *settings()]


def finished(folder: Path) -> Path:
    """Make a tiny `model`, `questions.jsonl` and a finished `run` in a folder, and return it."""
    from grace.config import override_settings
    from grace.pipeline import run

    model = write_model(folder / "model")
    file = write_questions(folder / "questions.jsonl")
    where = (f"model.path={model}", "data.task=jsonl", f"data.file={file}")
    run(folder / "run", override_settings({}, [*where, *FAST]))
    return folder
