"""What a user asks and scores: text, one question or many, each with its choices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TypedDict

from grace.errors import GraceError, UserInputError
from grace.grading import LETTERS
from grace.records import Message
from grace.strategies import Strategy

Choices = Iterable[Sequence[str]]
Ids = Sequence[int]


class AskOptions(TypedDict, total=False):
    """What `Model.ask` takes besides a question and its choices."""

    threshold: float | None
    temperature: float
    max_new_tokens: int | None
    seed: int


class VoteOptions(AskOptions, total=False):
    """What `Model.vote` takes besides a question and its choices."""

    strategy: Strategy | str | None
    budget: int | None
    parallel: int


def is_many(question: object) -> bool:
    """Return whether an argument holds several questions."""
    return isinstance(question, Iterable) and not isinstance(question, str)


def encoded(
    questions: Iterable[str],
    choices: Choices,
    encode: Callable[[str, Sequence[str]], list[int]],
) -> Iterator[list[int]]:
    """Yield the prompt of each question; without choices at all, every question is open.

    Raises:
        GraceError: what `encode` raises, with the number of the question, from 0.
        UserInputError: one text in place of a list, or more questions than choices, or fewer.
    """
    if not is_many(questions):
        raise UserInputError(f"questions is {questions!r}; give a list, or use ask for one")
    if isinstance(choices, Sized) and len(choices) == 0:
        choices = itertools.repeat(())
    own, number = iter(choices), -1
    for number, question in enumerate(questions):
        try:
            yield encode(question, next(own))
        except StopIteration:
            raise UserInputError(
                f"there are choices for {number} questions only; give every question a list of its "
                "own, an empty one where it has none"
            ) from None
        except GraceError as error:
            raise type(error)(f"question {number}: {error}") from error
    if not isinstance(own, itertools.repeat) and next(own, None) is not None:
        raise UserInputError(f"there are {number + 1} questions, but choices for more")


def check_question(question: str, choices: Sequence[str]) -> None:
    """Refuse a question or choices without text.

    Raises:
        UserInputError: names what is wrong.
    """
    if isinstance(choices, str):
        raise UserInputError("choices is one text; give a list with the text of every option")
    for text, what in ((question, "question"), *((choice, "choice") for choice in choices)):
        check_text(text)
        if not text.strip():
            raise UserInputError(f"the {what} is empty; write some text")
    if choices and not 2 <= len(choices) <= len(LETTERS):
        raise UserInputError(
            f"the question has {len(choices)} choice{'s' * (len(choices) != 1)}; give 2 to "
            f"{len(LETTERS)}, or none for an open question"
        )


def check_pairs(prompts: Sequence[object], responses: Sequence[str]) -> None:
    """Refuse what is not a list of prompts with a response each.

    Raises:
        UserInputError: names what is wrong.
    """
    if isinstance(prompts, str) or isinstance(responses, str):
        raise UserInputError("prompts and responses are lists; put a single one in brackets")
    if len(prompts) != len(responses):
        raise UserInputError(
            f"{len(prompts)} prompts but {len(responses)} responses; give one response each"
        )
    for text in responses:
        check_text(text)


def checked_chat(chat: Sequence[Message]) -> Sequence[Message]:
    """Return a conversation; raise an error if it is malformed.

    Raises:
        UserInputError: a message lacks a part or is no text.
    """
    for message in chat:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise UserInputError(f"message {message!r} lacks a role or a content; give both")
        check_text(message["content"])
    return chat


def check_text(text: str) -> None:
    """Refuse what is no text or cannot be written as UTF-8.

    Raises:
        UserInputError: names what is wrong.
    """
    if not isinstance(text, str):
        raise UserInputError(f"got {text!r} where a text belongs; give a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserInputError(
            f"character {error.start + 1} of {text[:40]!r} cannot be written as UTF-8 (half a "
            "surrogate pair); replace it"
        ) from None
