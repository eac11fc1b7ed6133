"""`grace label`: sampled, rated and graded responses to every question of a file, as Parquet.

The questions are divided into shards by their rows. The result of a shard depends on nothing else,
and is written in one rename to a file of its own; a shard whose file exists is done. So a kill
loses only unfinished shards, and any number of processes, on all machines that see the directory,
share the work: each makes a shard that no other has locked.

    OUT/_label.json          the settings, and the digests of the questions and of the model
    OUT/part-00000.parquet   the responses to the first `shard_size` questions

Shapes: N responses, D hidden size.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from grace import chat
from grace.chat import encode_chat
from grace.config import DataSettings, RunSettings, differences, flatten, to_dict
from grace.engines.base import check_contexts
from grace.errors import ConfigError, DataError, ModelError, RunError, first_line
from grace.grading import grader_of
from grace.pipeline.context import load_sampler
from grace.pipeline.processes import side_by_side
from grace.pipeline.stages.answers import plan_units, sampling_for, show_first
from grace.progress import progress
from grace.records import Message, Question, Response, to_json
from grace.store import CARD, RunDir, adapter_weights, digest, read_json, write_json, writing
from grace.store.files import locked
from grace.store.inputs import located
from grace.tasks import graded_task
from grace.tasks.prompts import conversation
from grace.tasks.rows import Faults, note
from grace.tasks.values import parse, question_rows

if TYPE_CHECKING:
    import pyarrow

RECORD = "_label.json"
SECTIONS = ("seed", "model", "data", "sample", "grade")  # settings that responses depend on
FREE = ("model.device", "model.date", "model.engine_options", "sample.batch_size")  # but for these

Feature = Literal["mean", "last"]


class Labelling(NamedTuple):
    """The settings of labelling: those of a run's test questions, and what the model brings."""

    settings: RunSettings
    adapter: str = ""  # directory on top of `model.path`, if any
    key: str = ""  # of the server that `model.engine` asks
    shots: tuple[Question, ...] = ()  # examples before each question
    votes: str = ""  # kind of answer that votes compare, if not text
    features: tuple[Feature, ...] = ()  # hidden states to keep of every response
    shard_size: int = 256  # questions per file

    def record(self, questions: str | Path) -> dict[str, Any]:
        """Return what the responses depend on, JSON-ready."""
        tree, own = to_dict(self.settings), self._asdict()
        kept = flatten({name: tree[name] for name in SECTIONS})
        kept |= {name: own[name] for name in ("adapter", "votes", "shard_size")}
        kept |= {"features": list(self.features), "shots": [to_json(one) for one in self.shots]}
        return {
            "settings": {key: value for key, value in kept.items() if key not in FREE},
            "questions": digest_questions(questions, self.settings.data),
            "files": self._digests(),
        }

    def _digests(self) -> dict[str, str]:
        """Return the digests of the files that hold the model's confidence, by their names."""
        folder = Path(self.adapter or self.settings.model.path)
        names = ["config.json", CARD]
        if self.adapter:
            names.append(adapter_weights(folder).name)
        return {name: digest(folder / name) for name in names if (folder / name).is_file()}


class Labelled(NamedTuple):
    """The totals of a directory after a call; `made` are the shards that came meanwhile."""

    questions: int
    responses: int
    shards: int
    made: int
    left: int  # to other processes that are still at work
    graded: int
    right: int
    cut: int
    empty: int


def label(questions: str | Path, out: Path, how: Labelling, *, workers: int = 1) -> Labelled:
    """Sample and grade responses to every question; resumes what an earlier call has begun."""
    total = count_questions(questions, how.settings.data)
    record = _bind(out, how, how.record(questions))
    model = replace(how.settings.model, date=record["date"])
    how = how._replace(settings=replace(how.settings, model=model))
    shards, before = -(-total // how.shard_size), len(shards_in(out))
    if before < shards:
        _check_questions(questions, out, how)
        workers = min(workers, shards - before)
        work = functools.partial(_work, located(questions), out.absolute(), how, record, total)
        shares = _gpus_of(workers) if model.device == "auto" else [""] * workers
        names = [f"worker {number}" for number in range(workers)]
        side_by_side(work, list(enumerate(shares)), names, workers, as_one=True)
    made = len(files := shards_in(out))
    return Labelled(total, shards=made, made=made - before, left=shards - made, **_count(files))


def _gpus_of(workers: int) -> list[str]:
    """Return the GPUs that each worker may see, "" where there is nothing to share."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    every = named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]
    if workers == 1 or not every:
        return [""] * workers
    return [",".join(every[n::workers]) or every[n % len(every)] for n in range(workers)]


def _work(
    questions: str,
    out: Path,
    how: Labelling,
    record: dict[str, Any],
    total: int,
    worker: tuple[int, str],
) -> None:
    """Make the shards that are missing and that no other process makes."""
    number, gpus = worker
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    size = how.shard_size
    labeller = Labeller(questions, how)
    with contextlib.closing(labeller.engine):
        if not shards_in(out):  # whoever wrote the first one has checked all questions
            labeller.check_lengths()
            if number == 0:
                labeller.preview()
        done = min(total, size * len(shards_in(out)))
        shown = 0 if number else total
        with progress("label", shown, done=done, unit="questions") as advance:
            for start in range(0, total, size):
                path = shard_path(out, start // size)
                if path.exists():
                    continue
                with _taken(path) as partial:
                    if partial is not None:
                        table = labeller.table(start, start + size)
                        if read_json(out / RECORD) != record:
                            raise RunError(
                                f"{out} was begun again meanwhile, with other settings; name "
                                "another directory"
                            )
                        _write(table, partial, path)
                before, done = done, min(total, size * len(shards_in(out)))
                advance(done - before)


@contextlib.contextmanager
def _taken(shard: Path) -> Iterator[Path | None]:
    """Yield the file to write a shard into; None where another process makes it, or has."""
    partial = shard.with_name(f".{shard.name}.partial")
    with locked(partial) as ours:
        if ours and shard.exists():
            partial.unlink(missing_ok=True)
            ours = False
        yield partial if ours else None


def _count(files: Sequence[Path]) -> dict[str, int]:
    """Return the number of responses in some shards: all, graded, right, cut and empty ones."""
    counts = dict.fromkeys(("responses", "graded", "right", "cut", "empty"), 0)
    for file in files:
        for correct, reason, text in _read(file, "correct", "finish_reason", "text"):
            counts["responses"] += 1
            counts["graded"] += correct is not None
            counts["right"] += bool(correct)
            counts["cut"] += reason == "length"
            counts["empty"] += not text.strip()
    return counts


def _read(shard: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Return rows of some columns of a shard."""
    from pyarrow import parquet

    try:
        table = parquet.read_table(shard, columns=list(columns))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{shard} is damaged ({first_line(error)}); delete it, and repeat the command, "
            "which makes it again"
        ) from error
    return zip(*table.to_pydict().values(), strict=True)


def _check_questions(questions: str | Path, out: Path, how: Labelling) -> None:
    """Refuse questions that read otherwise than in a shard, such as below their passages now."""
    for shard in shards_in(out)[:1]:
        start = int(shard.stem.removeprefix("part-")) * how.shard_size
        rows = read_questions(questions, how.settings.data, start, start + how.shard_size)
        texts = {question.id: question.text for question in rows}
        for name, text in _read(shard, "question_id", "question"):
            if text not in (None, texts.get(name)) or name not in texts:
                raise RunError(
                    f"{shard} was made by an earlier version, which read the question {name!r} in "
                    "another way; its answers can be used as they are, name a new directory to ask "
                    "as this version does"
                )


def _bind(out: Path, how: Labelling, mine: dict[str, Any]) -> dict[str, Any]:
    """Bind a directory to settings and questions; return its record, with the prompts' date."""
    path = out / RECORD
    ours = (".lock", f"{RECORD}.partial")
    with RunDir(out).lock(wait=True):
        if not path.exists() and any(file.name not in ours for file in out.iterdir()):
            raise ConfigError(f"{out} is not empty; name a new directory")
        asked = how.settings.model.date
        if not (path.exists() and shards_in(out)):
            write_json(path, mine | {"date": asked or chat.today()})
    stored: dict[str, Any] = read_json(path)
    if "how" in stored:
        raise RunError(
            f"{out} was begun by an earlier version; its files can be read as they are, name a new "
            "directory for others"
        )
    changes = differences(stored["settings"], mine["settings"])
    changed = [f"{key} ({old!r} -> {new!r})" for key, (old, new) in changes.items()]
    if stored["questions"] != mine["questions"]:
        changed.append("the content of the questions")
    if stored["files"] != mine["files"]:
        changed.append(f"the content of {how.adapter or how.settings.model.path}")
    if asked not in ("", stored["date"]):
        changed.append(f"model.date ({stored['date']!r} -> {asked!r})")
    if changed:
        raise RunError(
            f"{out} was begun with other values of {', '.join(changed)}; name a new directory, or "
            "use the old values"
        )
    return stored


class Labeller:
    """Labels rows of a file, with one engine that it loads."""

    def __init__(self, questions: str | Path, how: Labelling) -> None:
        self._questions, self._how, self._data = questions, how, how.settings.data
        grade = how.settings.grade
        self._task = graded_task(self._data, replace(grade, grader=how.votes or grade.grader))
        self._grade = grader_of(grade, self._task.grader)
        self._sampling = sampling_for(how.settings, "test")
        own = {"api_key": how.key} if how.key else {}
        adapter = Path(how.adapter) if how.adapter else None
        self.engine = load_sampler(how.settings, adapter=adapter, **own)

    def preview(self) -> None:
        """Show the first prompt, its answer and the grade."""
        (question,) = read_questions(self._questions, self._data, 0, 1)
        show_first(self.engine, question, self._chat(question), self._sampling, self._grade)

    def _chat(self, question: Question) -> list[Message]:
        return conversation(self._task, question, self._data, self._how.shots)

    def check_lengths(self) -> None:
        """Refuse a prompt that is too long before there are shards: then no question may change."""
        engine, new = self.engine, self._sampling.max_new_tokens
        if engine.limit is None:
            return
        template = 0  # at most as many tokens as the first prompt
        long: dict[str, Sequence[int]] = {}
        for row in question_rows(self._questions, self._data):
            turns = self._chat(parse(row, self._data, graded=False))
            size = sum(len(turn["content"].encode()) for turn in turns)
            if not template or template + size + new > engine.limit:
                prompt = encode_chat(engine.tokenizer, turns)
                template = template or len(prompt)
                if len(prompt) + new > engine.limit:
                    long[row.where] = prompt
        check_contexts(list(long.values()), engine.limit, new, list(long))

    def table(self, start: int, stop: int) -> pyarrow.Table:
        """Return the responses to the questions in rows `start` to `stop`."""
        import pyarrow

        rows = list(question_rows(self._questions, self._data, start, stop))
        questions = [parse(row, self._data, graded=False) for row in rows]
        engine, sampling = self.engine, self._sampling
        prompts = [encode_chat(engine.tokenizer, self._chat(question)) for question in questions]
        places = [row.where for row in rows]
        check_contexts(prompts, engine.limit, sampling.max_new_tokens, places)
        units = plan_units(engine, questions, prompts, sampling)
        place = {question.id: row for row, question in enumerate(questions)}
        responses = [response for unit in units for response in unit.answer(engine)]
        responses.sort(key=lambda response: place[response.question_id])
        at = [place[response.question_id] for response in responses]
        found = [self._row(questions[i], row) for i, row in zip(at, responses, strict=True)]
        table = pyarrow.Table.from_pylist(found, _schema())
        if not self._how.features:
            return table
        pooled = engine.features([prompts[i] for i in at], [row.token_ids for row in responses])
        kept = {"mean": pooled.mean_ND, "last": pooled.last_ND}
        for name in self._how.features:
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


def shards_in(out: Path) -> list[Path]:
    """Return the files of the shards that are done."""
    return sorted(out.glob("part-*.parquet"))


def _write(table: pyarrow.Table, partial: Path, shard: Path) -> None:
    from pyarrow import parquet

    with writing(shard):
        with partial.open("wb") as file:
            parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(shard)


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
    unanswered, faults = 0, Faults()
    for number, row in enumerate(question_rows(source, data, bad=faults.add)):
        name = ""
        with faults.of(row.where):
            question = parse(row, data, graded=False)
            name, unanswered = question.id, unanswered + (not question.answers)
        if name in seen:
            (other,) = question_rows(source, data, seen[name], seen[name] + 1)
            raise DataError(
                f"{other.where} and {row.where} have the same id {name!r}; give every question an "
                "id of its own, and ask each once"
            )
        if name:
            seen[name] = number
    faults.refuse(some=bool(seen))
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
