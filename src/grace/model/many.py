"""Many questions at once: each with its choices, in batches, the answers in their order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TypedDict

from grace.engines import AT_ONCE, Sampling, StreamingEngine
from grace.engines.checks import check_contexts
from grace.errors import GraceError, UserInputError
from grace.records import Generation
from grace.strategies import Strategy

Choices = Iterable[Sequence[str]]
Ids = Sequence[int]
KEY = "0"  # of every question's random numbers: its answer does not depend on the others


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


def sampled(
    engine: StreamingEngine, prompts: Iterable[Ids], sampling: Sampling
) -> Iterator[list[Generation]]:
    """Yield the samples of each prompt in order, as soon as those before it are there.

    `AT_ONCE` prompts are taken at a time, so that there may be any number of them.

    Raises:
        ModelError: a prompt and its response could exceed the model's context.
    """
    source, start = iter(prompts), 0
    while batch := list(itertools.islice(source, AT_ONCE)):
        numbers = [str(start + at) for at in range(len(batch))]
        check_contexts(batch, engine.limit, sampling.max_new_tokens, numbers)
        waiting: dict[int, list[Generation]] = {}
        expected = 0
        for at, made in engine.generate(batch, sampling, keys=[KEY] * len(batch)):
            waiting[at] = made
            while expected in waiting:
                yield waiting.pop(expected)
                expected += 1
        start += len(batch)
