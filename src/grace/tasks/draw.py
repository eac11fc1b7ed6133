"""From pools of questions to three disjoint splits of the wanted sizes.

Every draw ranks questions by a hash of the seed and the question's id, so that a question's place
does not depend on the order or the size of the pool, and a smaller draw is part of a larger one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from grace.config import DataSettings
from grace.errors import DataError
from grace.grading import normalise
from grace.records import Question
from grace.tasks.rows import SPLIT_NAMES, Pools, Row, note

Parse = Callable[[Row], Question | None]
MOST = {"train": 2000, "validation": 500, "test": 1000}  # where the settings leave it open
PARTS = {"train": 3, "validation": 1, "test": 2}  # of a pool that is divided


def draw(
    name: str, pools: Pools, parse: Parse, split: str, data: DataSettings, seed: int
) -> list[Question]:
    """Return the questions of one split: `data.train`, `data.validation` or `data.test` many.

    Where that is 0, there are as many as the pool has, up to `MOST`.

    Raises:
        DataError: a row that cannot be parsed, or fewer questions than asked for.
    """
    held_out = pools.validation is None
    readers = [pools.test, pools.validation or list, pools.train]
    needed = 1 if split == "test" else 3 if split == "train" or held_out else 2
    kept = disjoint(parse_rows(name, read(), parse) for read in readers[:needed])
    test, validation, train = kept + [[]] * (3 - needed)
    if held_out and split != "test":
        _check_held_out(name, len(train), data)
        size = sizes(len(train), data, ("train", "validation"))["validation"]
        ranked = rank(train, f"validation/{seed}")
        validation, train = ranked[:size], ranked[size:]
    pool = dict(zip(SPLIT_NAMES, (train, validation, test), strict=True))[split]
    wanted: int = getattr(data, split) or max(1, min(MOST[split], len(pool)))
    if len(pool) < wanted:
        raise DataError(
            f"{name} has {len(pool)} {split} questions, {wanted} were asked for; "
            f"set data.{split} to at most {len(pool)}"
        )
    return rank(pool, f"{split}/{seed}")[:wanted]


def sizes(
    available: int, data: DataSettings, splits: Sequence[str] = SPLIT_NAMES
) -> dict[str, int]:
    """Return how many questions of one pool each split gets: half, a sixth and a third of them.

    What the settings ask for comes first, with the examples that go before every question.
    """
    asked = {name: int(getattr(data, name)) for name in splits}
    if asked.get("train"):
        asked["train"] += max(data.shots, 0)
    left = max(0, available - sum(asked.values()))
    whole = sum(PARTS[name] for name in splits if not asked[name])
    found = {
        name: size or max(1, min(MOST[name], left * PARTS[name] // whole))
        for name, size in asked.items()
    }
    if "train" in asked and not asked["train"]:
        rest = available - sum(found.values()) + found["train"]
        found["train"] = max(1, min(MOST["train"], rest))
    return found


def _check_held_out(name: str, available: int, data: DataSettings) -> None:
    if available < data.train + data.validation:
        raise DataError(
            f"{name} has {available} questions for train and validation together, "
            f"{data.train} + {data.validation} were asked for; lower data.train or data.validation"
        )


def rank(questions: Iterable[Question], salt: str) -> list[Question]:
    """Return the questions in the pseudo-random order that the salt gives."""
    return sorted(questions, key=lambda question: _digest(salt, question.id))


def content_id(name: str, text: str, choices: Iterable[str] = ()) -> str:
    """Return an id for a question that has none: the same for the same normalised content."""
    return f"{name}-{_digest(*map(normalise, (text, *choices)))[:16]}"


def parse_rows(name: str, rows: Sequence[Row], parse: Parse) -> list[Question]:
    """Return the question in each row; rows that `parse` makes None of are left out and counted.

    Raises:
        DataError: a row lacks a field or holds something else in it; the message says where.
    """
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
        if question is not None:
            questions.append(question)
    if len(questions) < len(rows):
        note(f"{name}: {len(rows) - len(questions)} of {len(rows)} rows cannot be used")
    return questions


def disjoint(pools: Iterable[list[Question]]) -> list[list[Question]]:
    """Return the pools without repeats: the first of a pool stays, and the earlier pool wins.

    A repeat has the same text and, whatever their order, the same options.
    """
    seen: set[tuple[str, ...]] = set()
    ids: set[str] = set()
    kept: list[list[Question]] = []
    for pool in pools:
        own: list[Question] = []
        for question in pool:
            key = (normalise(question.text), *sorted(map(normalise, question.choices)))
            if key not in seen and question.id not in ids:
                own.append(question)
                seen.add(key)
                ids.add(question.id)
        kept.append(own)
    return kept


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
