"""Conversations in place of questions: how a file has them, and which of them a fit has seen.

A form stands for conversations that are alike: a conversation with `MARK` for what differs, and the
role `EARLIER` for any number of turns before the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from grace.errors import DataError, ModelError
from grace.records import Message

MARK = "\ue0f2"
EARLIER = "earlier"
ROLES = ("system", "user", "assistant")


def is_conversation(value: Any) -> bool:
    """Return whether a value of a file is a list of objects, as conversations are."""
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) for turn in value)


def read_conversation(value: Any, what: str) -> list[Message]:
    """Return the turns of a conversation that the model is to answer; `what` names its place."""
    if not is_conversation(value) or not all(
        isinstance(turn.get(key), str) for turn in value for key in ("role", "content")
    ):
        raise DataError(f'{what} must be a list of {{"role": ..., "content": ...}}')
    roles = [turn["role"] for turn in value]
    if others := sorted({*roles} - {*ROLES}):
        raise DataError(f"{what} has the role {others[0]!r}; use one of {', '.join(ROLES)}")
    if "system" in roles[1:]:
        raise DataError(f"{what} has a system turn after the first turn; move it to the front")
    if roles[-1] != "user" or not value[-1]["content"].strip():
        last = "an empty turn" if roles[-1] == "user" else f"a turn of the {roles[-1]}"
        raise DataError(f"{what} ends with {last}; end with the user's, which the model answers")
    return [Message(role=turn["role"], content=turn["content"]) for turn in value]


def forms_of(conversations: Iterable[Sequence[Message]]) -> list[list[Message]]:
    """Return the forms of conversations, most frequent first; system prompts may vary a little."""
    chats = list(conversations)
    systems = {chat[0]["content"] for chat in chats if chat[0]["role"] == "system"}
    frame = _framed(sorted(systems)) if systems else ""
    is_one = 2 * len(frame.replace(MARK, "")) > max(map(len, systems), default=0)
    alike: dict[tuple[str | None, bool], list[str]] = {}
    for *before, last in chats:
        own = before[0]["content"] if before and before[0]["role"] == "system" else None
        earlier = len(before) > (own is not None)
        system = frame if is_one and own is not None else own
        alike.setdefault((system, earlier), []).append(last["content"])
    forms = []
    for (system, earlier), texts in sorted(alike.items(), key=lambda one: -len(one[1])):
        first = [] if system is None else [Message(role="system", content=system)]
        turns = [Message(role=EARLIER, content=MARK)] if earlier else []
        forms.append([*first, *turns, Message(role="user", content=_framed(texts))])
    return forms


def prompt_of(forms: Sequence[Sequence[Message]]) -> dict[str, Any]:
    """Return the data settings with which a question is asked in one of the forms."""
    form = min(forms, key=lambda form: any(turn["role"] == EARLIER for turn in form))
    system = form[0]["content"] if form[0]["role"] == "system" else ""
    last = form[-1]["content"]
    return {
        "prompt": "short",
        "shots": 0,
        "system": "" if MARK in system else system,
        "template": last.replace(MARK, "{question}") if MARK in last else "",
    }


def recorded_forms(card: dict[str, Any]) -> list[list[Message]]:
    """Return the forms of the conversations in grace.json, [] where it has none."""
    forms: list[list[Message]] = card.get("conversations", [])
    for form in forms:
        if not all(isinstance(turn, dict) and {"role", "content"} <= {*turn} for turn in form):
            raise ModelError(
                "the conversations in grace.json are damaged; restore the file, or fit again"
            )
    return forms


def has_form(chat: Sequence[Message], form: Sequence[Message]) -> bool:
    """Return whether a conversation is of a form."""
    turns = list(chat)
    roles = [turn["role"] for turn in form]
    if EARLIER in roles and len(turns) >= len(form):
        start, end = roles.index(EARLIER), len(turns) - 1
        if all(turn["role"] != "system" for turn in turns[start:end]):
            turns[start:end] = [Message(role=EARLIER, content="some")]
    return len(turns) == len(form) and all(
        one["role"] == its["role"] and _fills(one["content"], its["content"])
        for one, its in zip(turns, form, strict=True)
    )


def _fills(text: str, framed: str) -> bool:
    """Return whether a text is a framed one with something in place of the mark."""
    before, mark, after = framed.partition(MARK)
    if not mark:
        return text == framed
    inside = len(text) - len(before) - len(after)
    return inside > 0 and text.startswith(before) and text.endswith(after)


def _framed(texts: Sequence[str]) -> str:
    """Return the whole words with which all texts begin and end, and a mark between them."""
    if len({*texts}) == 1:
        return texts[0]
    before = _start(texts)
    ends = _start([text[len(before) :][::-1] for text in texts])
    return before + MARK + ends[::-1]


def _start(texts: Sequence[str]) -> str:
    """Return with what all texts start, up to a space: all lie between the first and the last."""
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(min(texts), max(texts), strict=False)
    )
    start = "".join(sign for sign, _ in pairs)
    return start[: max((at for at, sign in enumerate(start, 1) if sign.isspace()), default=0)]
