"""One shard of labelled questions: from questions to a Parquet file.

Shapes: N responses, D hidden size.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grace.chat import encode_chat
from grace.engines import ModelEngine, Sampling
from grace.engines.gguf import resolve_model
from grace.engines.kinds import load_engine
from grace.errors import ModelError
from grace.grading import load_grader
from grace.pipeline.labelling.questions import read_questions
from grace.pipeline.labelling.settings import Labelling
from grace.pipeline.sampling import as_response
from grace.records import Question, Response, to_json
from grace.store import writing
from grace.tasks import load_task
from grace.tasks.prompts import conversation

if TYPE_CHECKING:
    import pyarrow


class Labeller:
    """Labels shards with one engine, which is loaded here."""

    def __init__(self, questions: Path, out: Path, settings: Labelling) -> None:
        self._questions, self._out, self._settings = questions, out, settings
        self._task = load_task(settings.data.task)
        grade = settings.grade
        self._grade = load_grader(grade.grader or self._task.grader, grade.rouge_threshold)
        self._engine: ModelEngine = load_engine(
            settings.engine,
            resolve_model(settings.model),
            adapter=Path(settings.adapter) if settings.adapter else None,
            device=settings.device,
            dtype=settings.dtype,
            trust_remote_code=settings.trust_remote_code,
            batch_size=settings.batch_size or None,
            needs_cnf=False,
            stop=settings.stop,
            **settings.engine_options,
        )

    def __call__(self, shard: int) -> int:
        """Label a shard, write its file, and return the number of its questions."""
        start = shard * self._settings.shard_size
        questions = read_questions(self._questions, start, start + self._settings.shard_size)
        write_table(shard_path(self._out, shard), self._label(questions))
        return len(questions)

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.close()

    def _label(self, questions: Sequence[Question]) -> pyarrow.Table:
        import pyarrow

        data, tokenizer = self._settings.data, self._engine.tokenizer
        chats = [conversation(self._task, q, data, self._settings.shots) for q in questions]
        prompts = [encode_chat(tokenizer, chat) for chat in chats]
        responses = self._sample(questions, prompts)
        by_id = {question.id: question for question in questions}
        rows = [self._row(by_id[response.question_id], response) for response in responses]
        table = pyarrow.Table.from_pylist(rows, _schema())
        if not self._settings.features:
            return table
        at = {question.id: prompt for question, prompt in zip(questions, prompts, strict=True)}
        pooled = self._engine.features(
            [at[response.question_id] for response in responses],
            [response.token_ids for response in responses],
        )
        kept = {"mean": pooled.mean_ND, "last": pooled.last_ND}
        for name in self._settings.features:
            table = table.append_column(name, _vectors(kept[name]))
        return table

    def _sample(
        self, questions: Sequence[Question], prompts: Sequence[Sequence[int]]
    ) -> list[Response]:
        settings = self._settings
        sampling = Sampling(
            num_samples=settings.samples,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
        )
        keys = [question.id for question in questions]
        made = dict(self._engine.generate(prompts, sampling, keys=keys))
        return [
            as_response(key, number, generation)
            for index, key in enumerate(keys)
            for number, generation in enumerate(made[index])
        ]

    def _row(self, question: Question, response: Response) -> dict[str, Any]:
        known = bool(question.answers)
        return {
            **to_json(response),
            "question": question.text,
            "choices": list(question.choices),
            "answer": self._task.answer(response.text),
            "correct": self._grade(response.text, question) if known else None,
        }


def shard_path(out: Path, shard: int) -> Path:
    """Return the file of a shard."""
    return out / f"part-{shard:05d}.parquet"


def write_table(path: Path, table: pyarrow.Table) -> None:
    """Write a Parquet file in one rename; two processes at the same shard do not meet."""
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
    """Return N vectors of D half-precision numbers.

    Raises:
        ModelError: a state is too large for half precision, or not finite.
    """
    import pyarrow

    with np.errstate(over="ignore"):
        halves_ND = states_ND.astype(np.float16)
    if not np.isfinite(halves_ND).all():
        raise ModelError(
            f"a hidden state of {np.abs(states_ND).max():.3g} does not fit into 16 bits; label "
            "without features"
        )
    flat = pyarrow.array(halves_ND.ravel())
    return pyarrow.FixedSizeListArray.from_arrays(flat, states_ND.shape[1])
