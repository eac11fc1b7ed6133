"""The facade: `grace.load(...)`, then `.ask()`, `.vote()` and `.score()`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grace.chat import encode_chat, encode_text
from grace.config import DataSettings, SampleSettings, from_dict, resolve_model
from grace.engines import Sampling
from grace.errors import ModelError, UserInputError
from grace.grading import LETTERS
from grace.model.places import adapter_folder, read_card, recorded_base
from grace.records import Decision, Generation, Message, Question, Vote
from grace.strategies import EarlyStop, Strategy, decide
from grace.tasks import Task, load_task

if TYPE_CHECKING:
    from grace.engines.transformers import TransformersEngine

Prompt = str | Sequence[Message]
DEFAULT_TASK = "trivia_qa"  # of a model whose grace.json names none: a short open answer


class Reply(NamedTuple):
    """An answer and how sure the model is of it.

    `text` is the response without surrounding space. `confidence` is P(correct) in [0, 1], None
    when the answer was cut. `answer` is what counts in a vote (the letter, or the short answer
    normalised), None if there is none. `finish_reason` is "stop", or "length" for an answer that
    was cut at `max_new_tokens`. `tokens` counts the response without its end token. `trace` is
    c as it reads at every step, the end step last.
    """

    text: str
    confidence: float | None
    answer: str | None
    finish_reason: str
    tokens: int
    trace: tuple[float, ...]


class Model:
    """A model that says how sure it is; made by `load`."""

    def __init__(
        self, engine: TransformersEngine, task: Task, data: DataSettings, sample: SampleSettings
    ) -> None:
        self.engine = engine
        self.task = task
        self.data = data
        self.sample = sample

    def messages(self, question: str, choices: Sequence[str] = ()) -> list[Message]:
        """Return the conversation that asks a question, with the prompt of the training run.

        Raises:
            UserInputError: an empty question, or choices that do not suit the task.
        """
        _check_question(question, choices)
        row = Question("0", self.task.name, question, (), tuple(choices))
        return self.task.messages(row, self.data)

    def ask(
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Reply:
        """Return one answer with its confidence, greedy unless a temperature is given.

        Args:
            question: the question as text; it is asked with the prompt of the training run.
            choices: the option texts of a multiple-choice question.
            temperature: sampling temperature; the confidence never depends on it.
            max_new_tokens: longest answer in tokens; None: as in the training run.
            seed: seed of the sampling.

        Raises:
            UserInputError: an empty question, choices that do not suit the task, or an impossible
                temperature or length.
            ModelError: the question is longer than the model's context.
        """
        sampling = self._sampling(temperature, max_new_tokens, seed, 1)
        prompt = self._encode(question, choices)
        ((_, (generation,)),) = self.engine.generate([prompt], sampling, keys=["0"])
        return self._reply(generation)

    def vote(
        self,
        question: str,
        *,
        strategy: Strategy | None = None,
        budget: int = 8,
        choices: Sequence[str] = (),
        temperature: float = 0.8,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Decision:
        """Sample answers until the strategy is sure or the budget is spent, and choose one.

        Args:
            question: the question as text.
            strategy: `EarlyStop()` unless given; see `grace.strategies`.
            budget: most samples to take, at least 1.
            choices: the option texts of a multiple-choice question.
            temperature: sampling temperature.
            max_new_tokens: longest answer in tokens; None: as in the training run.
            seed: seed of the sampling.

        Raises:
            UserInputError: the budget is below one, or as for `ask`.
            ModelError: the question is longer than the model's context.
        """
        prompt = self._encode(question, choices)
        shared = self._sampling(temperature, max_new_tokens, seed, 1)

        def votes() -> Iterator[Vote]:
            for number in range(budget):
                sampling = dataclasses.replace(shared, first_sample=number)
                ((_, (generation,)),) = self.engine.generate([prompt], sampling, keys=["0"])
                reply = self._reply(generation)
                yield Vote(reply.answer, reply.confidence, reply.tokens, reply.text)

        return decide(strategy or EarlyStop(), votes(), budget)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        """Return the confidence of responses that one already has.

        Args:
            prompts: N questions as text (asked as `ask` does), or N conversations as lists of
                messages.
            responses: N response texts; special tokens inside them are plain text.

        Returns:
            N values of P(correct) in [0, 1], each independent of the others.

        Raises:
            UserInputError: the lengths differ, or a question or a message is no text.
            ModelError: a prompt with its response is longer than the model's context.
        """
        if isinstance(prompts, str) or isinstance(responses, str):
            raise UserInputError("prompts and responses are lists; put a single one in brackets")
        if len(prompts) != len(responses):
            raise UserInputError(
                f"{len(prompts)} prompts but {len(responses)} responses; give one response each"
            )
        tokenizer = self.engine.tokenizer
        chats = [self.messages(p) if isinstance(p, str) else _checked(p) for p in prompts]
        for text in responses:
            _check_text(text)
        encoded = [encode_chat(tokenizer, chat) for chat in chats]
        return self.engine.confidences(encoded, [encode_text(tokenizer, r) for r in responses])

    def _encode(self, question: str, choices: Sequence[str] = ()) -> list[int]:
        return encode_chat(self.engine.tokenizer, self.messages(question, choices))

    def _sampling(
        self, temperature: float, max_new_tokens: int | None, seed: int, num_samples: int
    ) -> Sampling:
        longest = self.sample.max_new_tokens if max_new_tokens is None else max_new_tokens
        if not 0 <= temperature < math.inf:
            raise UserInputError(f"the temperature is {temperature}; use 0 (greedy) or more")
        if longest < 1:
            raise UserInputError(f"max_new_tokens is {longest}; an answer needs at least 1")
        return Sampling(num_samples, temperature, self.sample.top_p, longest, seed)

    def _reply(self, generation: Generation) -> Reply:
        return Reply(
            text=generation.text.strip(),
            confidence=generation.confidence,
            answer=self.task.answer(generation.text),
            finish_reason=generation.finish_reason,
            tokens=len(generation.token_ids),
            trace=generation.trace,
        )


def load(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    base: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> Model:
    """Load a model that says how sure it is.

    Args:
        path: a run directory, an adapter directory, an exported model, or a Hub id.
        adapter: an adapter directory for the model at `path`.
        base: the backbone's new place, when it is no longer where the adapter was trained.
        device: auto, cpu, cuda or cuda:N.
        dtype: auto, float32, bfloat16 or float16.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        ModelError: nothing loadable there, or a model without <CNF>.
    """
    from grace.engines.transformers import TransformersEngine

    if not str(path):
        raise ModelError("no model is named; give a run, a model directory or a Hub id")
    folder = adapter_folder(Path(path), Path(adapter) if adapter else None)
    card = read_card(folder or Path(path))
    model = base or (path if adapter or folder is None else recorded_base(folder, card))
    engine = TransformersEngine.load(
        resolve_model(str(model)),
        adapter=folder,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    if engine.readout is None:
        raise ModelError(
            f"{path} has no <CNF> token, so it cannot say how sure it is; train it with "
            "`grace run`, or name its adapter"
        )
    where = f"{folder or path}/grace.json"
    data = from_dict(DataSettings, card.get("data", {"task": DEFAULT_TASK}), where)
    sample = from_dict(SampleSettings, card.get("sample", {}), where)
    return Model(engine, load_task(data.task), data, sample)


def _check_question(question: str, choices: Sequence[str]) -> None:
    if isinstance(choices, str):
        raise UserInputError("choices is one text; give a list with the text of every option")
    for text, what in ((question, "question"), *((choice, "choice") for choice in choices)):
        _check_text(text)
        if not text.strip():
            raise UserInputError(f"the {what} is empty; write some text")
    if choices and not 2 <= len(choices) <= len(LETTERS):
        raise UserInputError(f"got {len(choices)} choices; give 2 to {len(LETTERS)}")


def _checked(chat: Sequence[Message]) -> Sequence[Message]:
    for message in chat:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise UserInputError(f"message {message!r} lacks a role or a content; give both")
        _check_text(message["content"])
    return chat


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise UserInputError(f"got {text!r} where a text belongs; give a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserInputError(
            f"character {error.start + 1} of {text[:40]!r} is half a surrogate pair or no UTF-8; "
            "write it whole"
        ) from None
