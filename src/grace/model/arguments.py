"""The arguments of `Model`: their types, and checks of what the user wrote."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import NamedTuple, TypedDict

from grace.answers import LETTERS
from grace.errors import GraceError, UserInputError
from grace.records import Message
from grace.strategies import Strategy

Choices = Iterable[Sequence[str]]


class AskOptions(TypedDict, total=False):
    """The options of `Model.ask`."""

    threshold: float | None
    temperature: float
    max_new_tokens: int | None
    seed: int


class VoteOptions(AskOptions, total=False):
    """The options of `Model.vote`."""

    strategy: Strategy | str | None
    budget: int | None
    parallel: int


class Asked(NamedTuple):
    """A question as an engine gets it, the token ids of its prompt, and its options."""

    prompt: Sequence[int]
    choices: tuple[str, ...]


def is_many(question: object) -> bool:
    """Return whether an argument is a list of questions, not a single one."""
    return isinstance(question, Iterable) and not isinstance(question, str | bytes | Mapping)


def encode_each(
    questions: Iterable[str], choices: Choices, encode: Callable[[str, Sequence[str]], Asked]
) -> Iterator[Asked]:
    """Yield each question with its prompt encoded; empty `choices`: all questions are open."""
    if not is_many(questions):
        raise UserInputError(f"questions is {questions!r}; give a list, or use ask for one")
    open_questions = isinstance(choices, Sized) and len(choices) == 0
    if not is_many(choices):
        raise UserInputError(f"choices is {choices!r}; give one list of texts per question")
    own, number = itertools.repeat(()) if open_questions else iter(choices), -1
    for number, question in enumerate(questions):
        try:
            chosen = next(own)
        except StopIteration:
            raise UserInputError(
                f"there are choices for {number} questions only; give one list per question, "
                "an empty one for a question without choices"
            ) from None
        with located(f"question {number}"):
            yield encode(question, chosen)
    if not open_questions and next(own, None) is not None:
        raise UserInputError(
            f"there are {number + 1} questions, but choices for more; give one list per question"
        )


def check_question(question: str, choices: Sequence[str]) -> None:
    """Check the text of a question and its choices."""
    if not is_many(choices) or not isinstance(choices, Sized):
        raise UserInputError(f"choices is {choices!r}; give a list of texts, one per option")
    for text, what in ((question, "question"), *((choice, "choice") for choice in choices)):
        _check_text(text)
        if not text.strip():
            raise UserInputError(f"the {what} is empty; write some text")
    if len(choices) and not 2 <= len(choices) <= len(LETTERS):
        raise UserInputError(
            f"the question has {len(choices)} choice{'s' * (len(choices) != 1)}; give 2 to "
            f"{len(LETTERS)}, or none for an open question"
        )


def check_pairs(prompts: Sequence[str | Sequence[Message]], responses: Sequence[str]) -> None:
    """Check prompts, which are questions or conversations, and a response to each."""
    if not all(is_many(one) and isinstance(one, Sized) for one in (prompts, responses)):
        raise UserInputError("prompts and responses are lists; put a single one in brackets")
    if len(prompts) != len(responses):
        raise UserInputError(
            f"{len(prompts)} prompts but {len(responses)} responses; give one response each"
        )
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        with located(f"prompt {number}" if len(prompts) > 1 else ""):
            if not isinstance(prompt, str):  # `Model.messages` checks questions
                _check_chat(prompt)
            _check_text(response)


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Begin an error with the place that it is about, if there are several ("": there is one)."""
    try:
        yield
    except GraceError as error:
        if not where:
            raise
        raise type(error)(f"{where}: {error}") from error


def _check_chat(chat: Sequence[Message]) -> None:
    if isinstance(chat, Mapping) or not isinstance(chat, Iterable):
        raise UserInputError(
            f"prompt {chat!r} is neither a question nor a list of messages; give one of them"
        )
    for message in chat:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise UserInputError(f"message {message!r} lacks a role or a content; give both")
        _check_text(message["content"])


def _check_text(text: str) -> None:
    """Check that a value is text that can be encoded as UTF-8."""
    if not isinstance(text, str):
        raise UserInputError(f"got {text!r} instead of a text; give a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserInputError(
            f"character {error.start + 1} of {text[:40]!r} is half a surrogate pair, which is not "
            "valid UTF-8; write the whole character"
        ) from None
