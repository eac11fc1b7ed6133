"""Labelling at scale: sampled, graded responses to every question of a file.

The questions are divided into shards by their rows. The result of a shard depends on nothing else,
and is written in one rename to a file of its own; a shard whose file exists is done. So a kill
loses only unfinished shards, and any number of workers writes the same rows.

    OUT/_label.json          the settings, and the digest of the questions
    OUT/part-00000.parquet   the responses to the first `shard_size` questions
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from grace import chat
from grace.config import differences
from grace.errors import ConfigError, RunError, first_line
from grace.pipeline.labelling.shards import (
    SECRET,
    Feature,
    Labeller,
    Labelling,
    count_questions,
    digest_questions,
    has_shards,
    shard_path,
)
from grace.progress import progress
from grace.store import RunDir, read_json, write_json
from grace.store.inputs import located

__all__ = ["SECRET", "Feature", "Labelled", "Labelling", "label"]

RECORD = "_label.json"


class Labelled(NamedTuple):
    """The totals after a call; `made` are the shards that it wrote itself."""

    questions: int
    responses: int
    shards: int
    made: int
    graded: int
    right: int
    cut: int
    empty: int


def label(questions: str | Path, out: Path, settings: Labelling, *, workers: int = 1) -> Labelled:
    """Sample and grade responses to every question; resumes what an earlier call has begun."""
    total = count_questions(questions, settings.data)
    with RunDir(out).lock():
        settings = replace(settings, date=_claim(questions, out, settings))
        for leftover in out.glob(".part-*.partial"):
            leftover.unlink()
        shards = range(-(-total // settings.shard_size))
        missing = [shard for shard in shards if not shard_path(out, shard).exists()]
        left = sum(
            min(settings.shard_size, total - shard * settings.shard_size) for shard in missing
        )
        with progress("label", total, done=total - left, unit="questions") as advance:
            for count in _work(questions, out, settings, missing, workers):
                advance(count)
    counts = _count(shard_path(out, shard) for shard in shards)
    return Labelled(total, total * settings.samples, len(shards), len(missing), **counts)


def _count(files: Iterable[Path]) -> dict[str, int]:
    """Return the number of graded, right, cut and empty responses in some shards."""
    from pyarrow import parquet

    counts = dict.fromkeys(("graded", "right", "cut", "empty"), 0)
    for file in files:
        try:
            table = parquet.read_table(file, columns=["correct", "finish_reason", "text"])
        except (OSError, ValueError) as error:
            raise RunError(
                f"{file} is damaged ({first_line(error)}); delete it, and repeat the command, "
                "which makes it again"
            ) from error
        for correct, reason, text in zip(*table.to_pydict().values(), strict=True):
            counts["graded"] += correct is not None
            counts["right"] += bool(correct)
            counts["cut"] += reason == "length"
            counts["empty"] += not text.strip()
    return counts


def _work(
    questions: str | Path, out: Path, settings: Labelling, shards: Sequence[int], workers: int
) -> Iterator[int]:
    """Yield the number of questions of each shard as it is done."""
    if not shards:
        return
    if workers == 1:
        with contextlib.closing(Labeller(questions, out, settings)) as labeller:
            if not has_shards(out):
                labeller.preview()
            yield from map(labeller, shards)
        return
    from grace.pipeline.labelling.cluster import label_shards

    yield from label_shards(located(questions), out.absolute(), settings, shards, workers)


def _claim(questions: str | Path, out: Path, settings: Labelling) -> str:
    """Bind a directory to settings and questions; return the date that its prompts show."""
    path = out / RECORD
    ours = (".lock", f"{RECORD}.partial")
    if not path.exists() and any(file.name not in ours for file in out.iterdir()):
        raise ConfigError(f"{out} is not empty; name a new directory")
    mine: dict[str, Any] = {
        "settings": settings.fixed(),
        "questions": digest_questions(questions, settings.data),
        "files": settings.digests(),
    }
    begun = path.exists() and has_shards(out)
    stored = read_json(path) if begun else mine
    changes = differences(stored["settings"], mine["settings"])
    changed = [f"{key} ({old!r} -> {new!r})" for key, (old, new) in changes.items()]
    if stored["questions"] != mine["questions"]:
        changed.append(f"the content of {questions}")
    if stored.get("files", mine["files"]) != mine["files"]:  # older records have none
        changed.append(f"the content of {settings.adapter or settings.model}")
    date = stored.get("date", "") if begun else settings.date or chat.today()
    if settings.date not in ("", date):
        changed.append(f"model.date ({date!r} -> {settings.date!r})")
    if changed:
        raise RunError(
            f"{out} was begun with other values of {', '.join(changed)}; name a new directory, or "
            "use the old values"
        )
    write_json(path, mine | {"date": date, "how": settings.without_secret()})
    return date
