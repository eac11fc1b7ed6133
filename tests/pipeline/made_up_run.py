"""A run directory with a few graded responses made by hand, and models that nobody loads.

In training, sure answers are right; among the validation questions, unsure ones are. So whatever
is fitted on the wrong split comes out the other way round.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import tiny_models
import tiny_run
from grace.config import override_settings
from grace.pipeline.context import Context
from grace.records import Grade, Question, Response, Target, response_id
from grace.store import RunDir, Split

QUESTIONS, SAMPLES = 24, 3  # of the training split
SURE, UNSURE = -0.1, -3.0
CUT = 5  # every fifth response, from the third, is cut
PAPER = (
    "method=paper",
    "paper.folds=4",
)
WIDTH = 40  # of the hidden states, more than there are questions


def make(folder: Path, *changes: str) -> Context:
    """Write the tables up to stage `targets` and return the run's context."""
    file = tiny_run.write_questions(folder / "questions.jsonl")
    where = ("data.task=jsonl", f"data.file={file}", "data.prompt=short")
    settings = override_settings({}, [*where, *PAPER, *changes])
    directory = RunDir(folder / "run")
    base = SimpleNamespace(
        tokenizer=tiny_models.tokenizer(), reader=SimpleNamespace(stops=(3,)), evidence=None
    )
    engines: Any = SimpleNamespace(
        prompt_settings=settings,
        base=base,
        sampling=base,
        forget_base=lambda: None,
        load_trainable=lambda: SimpleNamespace(
            model=tiny_models.model("llama_untied"), tokenizer=tiny_models.tokenizer()
        ),
    )
    train, validation = directory.split("train"), directory.split("validation")
    write(train, "train", QUESTIONS, SAMPLES)
    write(validation, "validation", QUESTIONS, 1)
    _write_features(train)
    rows = enumerate(train.responses.read(), 1)
    train.targets.write([Target(r.id, 0.5, 5, round(n * 0.013, 3)) for n, r in rows])
    return Context(directory, settings, engines)


def echoes(text: str, question: Question) -> bool:
    """Grade an answer that says which question it was asked: by its key, and in the prompt."""
    key, _, heard = text.partition(" heard ")
    return key == question.id and question.text in heard


def response(question: str, sample: int, number: int, *, confidence: float = 0.5) -> Response:
    """Return a response whose first token is its own number, and every other one of them sure."""
    cut = number % CUT == 2
    logprob = SURE if number % 2 else UNSURE
    return Response(
        id=response_id(question, sample),
        question_id=question,
        sample=sample,
        text=f"answer {number}",
        token_ids=(6 + number, 7),
        finish_reason="length" if cut else "stop",
        logprobs=(logprob, logprob - 0.01 * number),
        end_logprob=None if cut else -0.02 * (number % 7),
        confidence=None if cut else confidence,
    )


def write(split: Split, name: str, questions: int, samples: int, first: int = 0) -> None:
    """Write the tables of a split; the samples of a question are numbered from `first`."""
    split.questions.write(
        [Question(f"{name}{q}", "jsonl", f"{name} {q}?", (str(q),)) for q in range(questions)]
    )
    rows = [
        response(f"{name}{q}", first + sample, q * samples + sample)
        for q in range(questions)
        for sample in range(samples)
    ]
    split.responses.write(rows)
    split.grades.write(
        [
            Grade(r.id, r.question_id, (r.logprobs[0] == SURE) == (name == "train"), "x")
            for r in rows
        ]
    )


def _write_features(split: Split) -> None:
    """Write states that are nearly equal for all responses to one question."""
    rng = np.random.default_rng(0)
    question = np.repeat(rng.normal(size=(QUESTIONS, WIDTH)), SAMPLES, axis=0)
    states = question + 0.01 * rng.normal(size=question.shape)
    arrays = {name: states.astype(np.float32) for name in ("mean", "last", "first")}
    save_file(arrays, split.features)
