"""The settings of labelling, and one shard: from questions to a Parquet file.

Shapes: N responses, D hidden size.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from grace.chat import encode_chat
from grace.config import DataSettings, GradeSettings, to_dict
from grace.engines import Sampling
from grace.engines.base import ModelEngine, check_contexts
from grace.engines.kinds import load_engine
from grace.errors import DataError, ModelError
from grace.grading import grader_of
from grace.pipeline.sampling import plan_units
from grace.pipeline.stages.grade import show_first
from grace.records import Message, Question, Response, to_json
from grace.store import CARD, adapter_weights, digest, writing
from grace.tasks import graded_task
from grace.tasks.prompts import conversation
from grace.tasks.rows import note
from grace.tasks.values import parse, question_rows

if TYPE_CHECKING:
    import pyarrow

SECRET = "api_key"  # among the options of an engine
FREE = ("batch_size", "device", "engine_options")  # settings that do not change the responses

Feature = Literal["mean", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """The settings of labelling."""

    model: str  # directory or Hub id
    adapter: str = ""  # directory on top, if any
    engine: str = "transformers"  # see `grace.engines.kinds`
    engine_options: dict[str, Any] = field(default_factory=dict)  # for vLLM or the client
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    thinking: bool = False  # of a model without a grace.json
    date: str = ""  # in such a model's template; empty: of the first call
    batch_size: int = 0
    data: DataSettings  # of the prompts
    shots: tuple[Question, ...] = ()  # examples before each
    stop: tuple[str, ...] = ()  # texts that end a response
    votes: str = ""  # kind of answer that votes compare, if not text
    grade: GradeSettings = field(default_factory=GradeSettings)
    samples: int = 1  # per question
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 50
    seed: int = 0
    features: tuple[Feature, ...] = ()  # hidden states to keep of every response
    shard_size: int = 256  # questions per file

    def fixed(self) -> dict[str, Any]:
        """Return the settings that the responses depend on, JSON-ready."""
        free = (*FREE, "date")  # which is kept beside them
        return {key: value for key, value in to_dict(self).items() if key not in free}

    def digests(self) -> dict[str, str]:
        """Return the digests of the files that hold the model's confidence, by their names."""
        folder = Path(self.adapter or self.model)
        names = ["config.json", CARD]
        if self.adapter:
            names.append(adapter_weights(folder).name)
        return {name: digest(folder / name) for name in names if (folder / name).is_file()}

    def without_secret(self) -> dict[str, Any]:
        """Return all settings but a server's key, JSON-ready."""
        options = {k: v for k, v in self.engine_options.items() if k != SECRET}
        return to_dict(self) | {"engine_options": options}


class Labeller:
    """Labels shards, with one engine that it loads."""

    def __init__(self, questions: str | Path, out: Path, settings: Labelling) -> None:
        self._questions, self._out, self._settings = questions, out, settings
        votes = settings.votes or settings.grade.grader
        self._task = graded_task(settings.data, replace(settings.grade, grader=votes))
        self._grade = grader_of(settings.grade, self._task.grader)
        drawn = settings.samples, settings.temperature, settings.top_p
        self._sampling = Sampling(*drawn, settings.max_new_tokens, settings.seed)
        self._engine: ModelEngine = load_engine(
            settings.engine,
            settings.model,
            adapter=Path(settings.adapter) if settings.adapter else None,
            device=settings.device,
            dtype=settings.dtype,
            trust_remote_code=settings.trust_remote_code,
            thinking=settings.thinking,
            date=settings.date,
            batch_size=settings.batch_size or None,
            needs_cnf=False,
            stop=settings.stop,
            **settings.engine_options,
        )
        if not has_shards(out):  # whoever wrote the first one has checked all questions
            self._check_lengths()

    def __call__(self, shard: int) -> int:
        """Label a shard, write its file, and return the number of its questions."""
        start = shard * self._settings.shard_size
        stop = start + self._settings.shard_size
        rows = list(question_rows(self._questions, self._settings.data, start, stop))
        questions = [parse(row, self._settings.data, graded=False) for row in rows]
        table = self._label(questions, [row.where for row in rows])
        write_table(shard_path(self._out, shard), table)
        return len(questions)

    def preview(self) -> None:
        """Show the first prompt, its answer and the grade."""
        (question,) = read_questions(self._questions, self._settings.data, 0, 1)
        show_first(self._engine, question, self._chat(question), self._sampling, self._grade)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def _chat(self, question: Question) -> list[Message]:
        settings = self._settings
        return conversation(self._task, question, settings.data, settings.shots)

    def _check_lengths(self) -> None:
        """Refuse a prompt that is too long before there are shards: then no question may change."""
        data, engine, new = self._settings.data, self._engine, self._sampling.max_new_tokens
        if engine.limit is None:
            return
        template = 0  # at most as many tokens as the first prompt
        long: dict[str, Sequence[int]] = {}
        for row in question_rows(self._questions, data):
            chat = self._chat(parse(row, data, graded=False))
            size = sum(len(turn["content"].encode()) for turn in chat)
            if not template or template + size + new > engine.limit:
                prompt = encode_chat(engine.tokenizer, chat)
                template = template or len(prompt)
                if len(prompt) + new > engine.limit:
                    long[row.where] = prompt
        check_contexts(list(long.values()), engine.limit, new, list(long))

    def _label(self, questions: Sequence[Question], places: Sequence[str]) -> pyarrow.Table:
        import pyarrow

        engine = self._engine
        prompts = [encode_chat(engine.tokenizer, self._chat(question)) for question in questions]
        check_contexts(prompts, engine.limit, self._sampling.max_new_tokens, places)
        units = plan_units(engine, questions, prompts, self._sampling)
        place = {question.id: row for row, question in enumerate(questions)}
        responses = [response for unit in units for response in unit.answer(engine)]
        responses.sort(key=lambda response: place[response.question_id])
        at = [place[response.question_id] for response in responses]
        rows = [self._row(questions[i], row) for i, row in zip(at, responses, strict=True)]
        table = pyarrow.Table.from_pylist(rows, _schema())
        if not self._settings.features:
            return table
        pooled = engine.features([prompts[i] for i in at], [row.token_ids for row in responses])
        kept = {"mean": pooled.mean_ND, "last": pooled.last_ND}
        for name in self._settings.features:
            table = table.append_column(name, _vectors(kept[name]))
        return table

    def _row(self, question: Question, response: Response) -> dict[str, Any]:
        return {
            **to_json(response),
            "question": None if question.messages else question.text,
            "messages": list(question.messages) or None,
            "choices": list(question.choices),
            "answer": self._task.answer(response.text, question.choices),
            "correct": self._grade(response.text, question) if question.answers else None,
        }


def shard_path(out: Path, shard: int) -> Path:
    """Return the file of a shard."""
    return out / f"part-{shard:05d}.parquet"


def has_shards(out: Path) -> bool:
    """Return whether a directory holds the file of any shard."""
    return any(out.glob("part-*.parquet"))


def write_table(path: Path, table: pyarrow.Table) -> None:
    """Write a Parquet file in one rename; two processes may write the same shard."""
    from pyarrow import parquet

    partial = path.with_name(f".{path.stem}-{uuid.uuid4().hex}.partial")
    with writing(path):
        with partial.open("wb") as file:
            parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    return pa.schema(
        {
            "id": pa.string(),
            "question_id": pa.string(),
            "question": pa.string(),
            "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "choices": pa.list_(pa.string()),
            "sample": pa.int32(),
            "text": pa.string(),
            "token_ids": pa.list_(pa.int32()),
            "finish_reason": pa.string(),
            "logprobs": pa.list_(pa.float32()),
            "end_logprob": pa.float32(),
            "confidence": pa.float64(),
            "answer": pa.string(),
            "correct": pa.bool_(),
        }
    )


def _vectors(states_ND: np.ndarray) -> pyarrow.Array:
    """Return N vectors of D half-precision numbers."""
    import pyarrow

    with np.errstate(over="ignore"):
        halves_ND = states_ND.astype(np.float16)
    if not np.isfinite(halves_ND).all():
        raise ModelError(
            f"a hidden state of {np.abs(states_ND).max():.3g} does not fit into float16; label "
            "without features"
        )
    flat = pyarrow.array(halves_ND.ravel())
    return pyarrow.FixedSizeListArray.from_arrays(flat, states_ND.shape[1])


def count_questions(source: str | Path, data: DataSettings) -> int:
    """Read and check all questions of a source, and return their number."""
    seen: dict[str, int] = {}
    unanswered = 0
    for number, row in enumerate(question_rows(source, data)):
        question = parse(row, data, graded=False)
        name, unanswered = question.id, unanswered + (not question.answers)
        if name in seen:
            (other,) = question_rows(source, data, seen[name], seen[name] + 1)
            raise DataError(
                f"{other.where} and {row.where} have the same id {name!r}; give every question an "
                "id of its own, and ask each once"
            )
        seen[name] = number
    if not seen:
        raise DataError(f"{source} has no rows; write one question per row")
    if 0 < unanswered < len(seen):
        note(f"{source}: {unanswered} of {len(seen)} questions have no answer to grade by")
    return len(seen)


def read_questions(
    source: str | Path, data: DataSettings, start: int = 0, stop: int | None = None
) -> Iterator[Question]:
    """Yield the questions in rows `start` to `stop`; only their part of the source is parsed."""
    for row in question_rows(source, data, start, stop):
        yield parse(row, data, graded=False)


def digest_questions(source: str | Path, data: DataSettings) -> str:
    """Return the SHA-256 of a file, or of the questions in a directory or a Hub data set."""
    if Path(source).is_file():
        return digest(Path(source))
    content = hashlib.sha256()
    for question in read_questions(source, data):
        content.update(repr(question).encode())
    return content.hexdigest()
