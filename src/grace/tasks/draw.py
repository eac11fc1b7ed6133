"""Draw the questions of three disjoint splits.

Questions are ranked by a hash of the seed and their ids. So a question's place depends neither on
the order nor on the size of the pool, and a smaller draw is part of a larger one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Sequence

from grace.answers import normalise
from grace.config import DataSettings
from grace.errors import DataError
from grace.records import Message, Question
from grace.store.inputs import SPLIT_NAMES
from grace.tasks.rows import Pools, Row, note

Parse = Callable[[Row], Question | None]
MOST = {"train": 2000, "validation": 500, "test": 1000}  # without settings
PARTS = {"train": 3, "validation": 1, "test": 2}  # shares of a pool that is divided
_SIGNS = re.compile(  # all but punctuation, which counts within numbers, as a minus does
    r"[^\w\s.,;:?!'\"`\u2018\u2019\u201c\u201d\u00b4-]|(?<!\w)-(?=[\s\d])|(?<=\d)[.,:](?=\d)"
)


def draw(
    name: str, pools: Pools, parse: Parse, split: str, data: DataSettings, seed: int
) -> list[Question]:
    """Return a split's questions, test first, so that one in two pools stays in the test split."""
    readers = {"test": pools.test, "validation": pools.validation or list, "train": pools.train}
    held_out = pools.validation is None
    last = "train" if held_out and split == "validation" else split
    needed = list(readers)[: list(readers).index(last) + 1]
    kept = disjoint(parse_rows(name, readers[part](), parse) for part in needed)
    questions = dict(zip(needed, kept, strict=True))
    if held_out and split != "test":
        questions |= _hold_out(name, questions["train"], data, seed)
    pool = questions[split]
    wanted: int = getattr(data, split) or max(1, min(MOST[split], len(pool)))
    if not pool:
        others = " and ".join(other for other in SPLIT_NAMES if other != split)
        raise DataError(f"{name} has no {split} questions besides those of {others}; add some")
    if len(pool) < wanted:
        raise DataError(
            f"{name} has {len(pool)} {split} questions without repeats, but data.{split} is "
            f"{wanted}; set it to at most {len(pool)}"
        )
    return rank(pool, f"{split}/{seed}")[:wanted]


def _hold_out(
    name: str, train: list[Question], data: DataSettings, seed: int
) -> dict[str, list[Question]]:
    """Divide a training pool into validation and training questions."""
    if len(train) < data.train + data.validation:
        raise DataError(
            f"{name} has {len(train)} questions for train and validation together, but the "
            f"settings ask for {data.train} + {data.validation}; lower data.train or "
            "data.validation"
        )
    ranked = rank(train, f"validation/{seed}")
    size = cut(ranked, sizes(len(train), data, ("train", "validation"))["validation"])
    return {"validation": ranked[:size], "train": ranked[size:]}


def sizes(
    available: int, data: DataSettings, splits: Sequence[str] = SPLIT_NAMES
) -> dict[str, int]:
    """Return the sizes of splits of one pool: those that are set, else half, a sixth, a third."""
    named = {split: int(getattr(data, split)) for split in splits}
    if named.get("train"):
        named["train"] += max(data.shots, 0)
    left = max(0, available - sum(named.values()))
    whole = sum(PARTS[split] for split in splits if not named[split])
    size = {
        split: count or max(1, min(MOST[split], left * PARTS[split] // whole))
        for split, count in named.items()
    }
    if "train" in named and not named["train"]:  # train also gets what rounding and MOST leave
        others = sum(size.values()) - size["train"]
        size["train"] = max(1, min(MOST["train"], available - others))
    return size


def rank(questions: Iterable[Question], salt: str) -> list[Question]:
    """Return the questions in a pseudo-random order that depends on the salt, group by group."""
    return sorted(questions, key=lambda q: (_digest(salt, q.cluster), _digest(salt, q.id)))


def cut(ranked: Sequence[Question], size: int) -> int:
    """Return where to cut ranked questions such that no group is on both sides."""
    while 0 < size < len(ranked) and ranked[size].cluster == ranked[size - 1].cluster:
        size += 1
    return size


def content_id(name: str, text: str, choices: Iterable[str] = ()) -> str:
    """Return an id made from the content of a question, for one that has none."""
    return f"{name}-{_digest(*map(_told_apart, (text, *choices)))[:16]}"


def identity(question: Question) -> tuple[str, ...]:
    """Return what makes two questions the same: their turns but a system prompt, their options."""
    before = [turn["content"] for turn in question.messages[:-1] if turn["role"] != "system"]
    options = sorted(map(_told_apart, question.choices))
    return (_told_apart(question.text), *options, *map(_told_apart, before))


def _told_apart(text: str) -> str:
    """Return a text as `normalise` does, with the signs that may make another question of it."""
    return " ".join([normalise(text), *_SIGNS.findall(text)])


def parse_rows(name: str, rows: Sequence[Row], parse: Parse) -> list[Question]:
    """Return the question in each row; leave out, and count, those that `parse` makes None."""
    questions = []
    for row in rows:
        try:
            question = parse(row)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{row.where}: not a row of {name}: {reason}; expected the fields of the data "
                "set on the Hugging Face Hub"
            ) from error
        if question is not None and not question.answers:
            raise DataError(f"{row.where}: a question of {name} has no accepted answer; add one")
        if question is not None:
            questions.append(question)
    if len(questions) < len(rows):
        note(f"{name}: {len(rows) - len(questions)} of {len(rows)} rows cannot be used")
    return questions


def disjoint(pools: Iterable[list[Question]]) -> list[list[Question]]:
    """Return the pools without repeated questions (id, or text and options); the first stays."""
    seen: set[tuple[str, ...]] = set()
    ids: set[str] = set()
    kept: list[list[Question]] = []
    for pool in pools:
        own: list[Question] = []
        for question in pool:
            key = identity(question)
            if key not in seen and question.id not in ids:
                own.append(question)
                seen.add(key)
                ids.add(question.id)
        kept.append(own)
    return kept


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


# --- which answers stay together in folds and resamples: those to one question, or of one group

_MARK = re.compile(  # the last of these begins the question of a prompt with examples
    r"^[ \t]*(?:q|question|problem|query|input|user|human)[ \t]*\d*[ \t]*[:.)]", re.I | re.M
)
_LABEL = re.compile(r"\n[ \t]*\w+[ \t]*:\s*$")  # such as "A:", for the answer to follow


def asked_key(asked: str | Sequence[Message], choices: Iterable[str] = ()) -> tuple[str, ...]:
    """Return what makes two questions the same, of a question or of a conversation's last turn."""
    if not isinstance(asked, str):
        turns = [turn["content"] for turn in asked if turn["role"] == "user"]
        last = (turns or [turn["content"] for turn in asked])[-1]
        marks = [*_MARK.finditer(last)]
        asked = _LABEL.sub("", last[marks[-1].end() :] if marks else last)
    return identity(Question("", "", asked, (), tuple(choices)))


def together(keys_N: Iterable[Iterable[Hashable]]) -> list[int]:
    """Number the rows: those that share a key, also by way of others, have the same number."""
    of_key: dict[Hashable, int] = {}
    parent: list[int] = []

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for row, keys in enumerate(keys_N):
        parent.append(row)
        for key in keys:
            first, other = root(of_key.setdefault(key, row)), root(row)
            parent[max(first, other)] = min(first, other)
    return [root(row) for row in range(len(parent))]
