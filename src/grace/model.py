"""The facade: `grace.load(...)`, then `.ask()`, `.vote()` and `.score()`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.chat import encode_chat, encode_text
from grace.config import DataSettings, SampleSettings, from_dict, resolve_model
from grace.engines import Sampling
from grace.errors import ModelError, UserInputError
from grace.records import Decision, Generation, Message, Question, Vote
from grace.store import read_json
from grace.strategies import EarlyStop, Strategy, decide
from grace.tasks import Task, load_task

if TYPE_CHECKING:
    from grace.engines.transformers import TransformersEngine

Prompt = str | Sequence[Message]


class Reply(NamedTuple):
    """An answer and how sure the model is of it.

    `confidence` is P(correct) in [0, 1], or None when the answer was cut (`finish_reason` is
    "length") or the model has no <CNF> token. `trace` is the confidence at every token.
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
            UserInputError: the budget is below one.
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
            prompts: N questions as text, or N conversations as lists of messages.
            responses: N response texts; special tokens inside them are plain text.

        Raises:
            UserInputError: the lengths differ.
        """
        if len(prompts) != len(responses):
            raise UserInputError(
                f"{len(prompts)} prompts but {len(responses)} responses; give one response each"
            )
        tokenizer = self.engine.tokenizer
        encoded = [
            self._encode(p) if isinstance(p, str) else encode_chat(tokenizer, p) for p in prompts
        ]
        return self.engine.confidences(encoded, [encode_text(tokenizer, r) for r in responses])

    def _encode(self, question: str, choices: Sequence[str] = ()) -> list[int]:
        if not question.strip():
            raise UserInputError("the question is empty; ask something")
        row = Question("0", self.task.name, question, (), tuple(choices))
        return encode_chat(self.engine.tokenizer, self.task.messages(row, self.data))

    def _sampling(
        self, temperature: float, max_new_tokens: int | None, seed: int, num_samples: int
    ) -> Sampling:
        longest = self.sample.max_new_tokens if max_new_tokens is None else max_new_tokens
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

    folder = _adapter_folder(Path(path), Path(adapter) if adapter else None)
    card = _read_card(folder or Path(path))
    model = base or (path if adapter or folder is None else card.get("base_model", path))
    engine = TransformersEngine.load(
        resolve_model(str(model)),
        adapter=folder,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    if engine.cnf is None:
        raise ModelError(
            f"{path} has no <CNF> token, so it cannot say how sure it is; train it with "
            "`grace run`, or name its adapter"
        )
    data = from_dict(DataSettings, card.get("data", {"task": "trivia_qa"}))
    sample = from_dict(SampleSettings, card.get("sample", {}))
    return Model(engine, load_task(data.task), data, sample)


def _adapter_folder(path: Path, adapter: Path | None) -> Path | None:
    """Return the adapter directory that `path` and `adapter` mean, None for a whole model."""
    if adapter is not None:
        return adapter
    if (path / "config.json").exists() and (path / "stages").exists():
        if not (path / "adapter" / "grace.json").exists():
            raise ModelError(f"run {path} has no trained adapter yet; finish it: grace run {path}")
        return path / "adapter"
    return path if (path / "adapter_config.json").exists() else None


def _read_card(folder: Path) -> dict[str, Any]:
    card = folder / "grace.json"
    value: dict[str, Any] = read_json(card) if card.exists() else {}
    return value
