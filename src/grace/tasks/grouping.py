"""Which answers stay together in folds and resamples: those to one question, or of one group."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

from grace.records import Message, Question
from grace.tasks.draw import identity

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
