"""`Model`: what one does with a loaded model: `ask`, `vote`, `score` and `trace`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from grace.chat import encode_chat, encode_response
from grace.chat.detokenizer import pieces
from grace.config import DataSettings, SampleSettings
from grace.engines import Sampling, StreamingEngine
from grace.errors import UserInputError
from grace.model.checks import check_question, check_text, checked_chat
from grace.model.reply import Reply as Reply
from grace.model.rules import answering, usual_budget, voting
from grace.records import Decision, Generation, Message, Question, Threshold, Vote
from grace.strategies import TEMPERATURE, Strategy, Waves, chosen, decide, stopped
from grace.tasks import Task
from grace.tasks.prompts import conversation

Prompt = str | Sequence[Message]
OnVote = Callable[[Vote, str | None], None]


class Model:
    """A model that says how sure it is; made by `load`.

    `promise` is the threshold that `grace threshold` has chosen for it, if any; `shots` are the
    examples that go before every question.
    """

    def __init__(
        self,
        engine: StreamingEngine,
        task: Task,
        data: DataSettings,
        sample: SampleSettings,
        promise: Threshold | None = None,
        shots: Sequence[Question] = (),
    ) -> None:
        self.engine = engine
        self.task = task
        self.data = data
        self.sample = sample
        self.promise = promise
        self.shots = shots

    def messages(self, question: str, choices: Sequence[str] = ()) -> list[Message]:
        """Return the conversation that asks a question, with the prompt of the training run.

        Raises:
            UserInputError: an empty question, or choices that do not suit the task.
        """
        check_question(question, choices)
        row = Question("0", self.task.name, question, (), tuple(choices))
        return conversation(self.task, row, self.data, self.shots)

    def ask(
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        threshold: float | None = None,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Reply:
        """Return one answer with its confidence, greedy unless a temperature is given.

        Args:
            question: the question as text; it is asked with the prompt of the training run.
            choices: the option texts of a multiple-choice question.
            threshold: confidence below which the reply abstains; None: the one that `grace
                threshold` has chosen for single answers, if any.
            temperature: sampling temperature; the confidence never depends on it.
            max_new_tokens: longest answer in tokens; None: as in the training run.
            seed: seed of the sampling.

        Raises:
            UserInputError: an empty question, choices that do not suit the task, or an impossible
                threshold, temperature or length.
            ModelError: the question is longer than the model's context.
        """
        sampling = self._sampling(temperature, max_new_tokens, seed)
        use = answering(threshold, self.promise, temperature, max_new_tokens)
        prompt = self.encode(question, choices)
        ((_, (generation,)),) = self.engine.generate([prompt], sampling, keys=["0"])
        reply = self._reply(generation)
        return reply._replace(
            threshold=use.tau,
            promise=use.promise,
            abstains=use.abstains(reply.confidence),
            pieces=pieces(self.engine.tokenizer, generation.token_ids),
        )

    def vote(
        self,
        question: str,
        *,
        strategy: Strategy | str | None = None,
        budget: int | None = None,
        parallel: int = 1,
        threshold: float | None = None,
        choices: Sequence[str] = (),
        temperature: float = TEMPERATURE,
        max_new_tokens: int | None = None,
        seed: int = 0,
        on_vote: OnVote | None = None,
        prompt: Sequence[int] | None = None,
    ) -> Decision:
        """Sample answers until the strategy is sure or the budget is spent, and choose one.

        Args:
            question: the question as text.
            strategy: a strategy, or the name of one (`sc`, `asc`, `esc`, `es`, `grace-sc`, ...;
                see `grace.strategies`); None: early stopping.
            budget: most samples to take, at least 1; None: that of the run's threshold, or 8.
            parallel: samples in flight at a time. The decision is that of one after the other;
                what is not needed for it is cancelled.
            threshold: the strategy's threshold; None: its own, and for early stopping the one that
                `grace threshold` has chosen for this budget and temperature, if any.
            choices: the option texts of a multiple-choice question.
            temperature: sampling temperature.
            max_new_tokens: longest answer in tokens; None: as in the training run.
            seed: seed of the sampling.
            on_vote: called with every vote that is used, and the answer that would win then.
            prompt: what `encode` returns for the question and its choices, where it is known.

        Raises:
            UserInputError: an impossible budget, threshold or number in flight, or as for `ask`.
            ConfigError: no such strategy.
            ModelError: the question is longer than the model's context.
        """
        budget = usual_budget(self.promise, strategy) if budget is None else budget
        rule = voting(strategy, threshold, self.promise, budget, temperature, max_new_tokens)
        sampling = self._sampling(temperature, max_new_tokens, seed)
        sampling = dataclasses.replace(sampling, drop=getattr(rule.strategy, "drop", 0.0))
        prompt = self.encode(question, choices) if prompt is None else prompt
        stream = self.engine.stream(prompt, sampling)

        def issue(numbers: range) -> Iterator[tuple[int, Vote]]:
            with contextlib.closing(stream.start(numbers)) as running:
                for number, generation in running:
                    reply = self._reply(generation)
                    answer = None if generation.finish_reason == "dropped" else reply.answer
                    yield number, Vote(answer, reply.confidence, reply.tokens, reply.text)

        waves = Waves(issue, budget, parallel)
        votes = waves if on_vote is None else _told(waves, rule.strategy, on_vote)
        decision = decide(rule.strategy, votes, budget)
        return dataclasses.replace(
            decision,
            issued=waves.issued,
            issued_tokens=stream.tokens,
            promise=rule.promise,
            abstains=rule.covers_sure_only and not stopped(rule.strategy, decision.votes),
        )

    @property
    def traces(self) -> bool:
        """Whether c is known at every token, not at the end of a response alone."""
        evidence = getattr(self.engine, "evidence", None)
        return evidence is not None and evidence.trace is not None

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
        return self.engine.confidences(*self.encode_all(prompts, responses))

    def trace(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[list[float]]:
        """Return c along responses that one already has: a list for each, that of its end last.

        Number k is P(right | the question and the first k tokens). The arguments are those of
        `score`, whose confidence the last number is.

        Raises:
            UserInputError: as for `score`.
            ModelError: as for `score`, or the model knows c at the end only.
        """
        return self.engine.traces(*self.encode_all(prompts, responses))

    def encode(self, question: str, choices: Sequence[str] = ()) -> list[int]:
        """Return the token ids of the prompt that asks a question; the model is not called.

        Raises:
            UserInputError: as for `messages`.
            ModelError: the question is longer than the model's context.
        """
        engine = self.engine
        return encode_chat(engine.tokenizer, self.messages(question, choices), context=engine.limit)

    def encode_all(
        self, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids of prompts and responses (see `score`); the model is not called.

        Raises:
            UserInputError, ModelError: as for `score`.
        """
        if isinstance(prompts, str) or isinstance(responses, str):
            raise UserInputError("prompts and responses are lists; put a single one in brackets")
        if len(prompts) != len(responses):
            raise UserInputError(
                f"{len(prompts)} prompts but {len(responses)} responses; give one response each"
            )
        tokenizer, context = self.engine.tokenizer, self.engine.limit
        chats = [self.messages(p) if isinstance(p, str) else checked_chat(p) for p in prompts]
        for text in responses:
            check_text(text)
        pairs = zip(chats, responses, strict=True)
        return (
            [encode_chat(tokenizer, chat, context=context) for chat in chats],
            [encode_response(tokenizer, *pair, context=context) for pair in pairs],
        )

    def _sampling(self, temperature: float, max_new_tokens: int | None, seed: int) -> Sampling:
        longest = self.sample.longest if max_new_tokens is None else max_new_tokens
        if not 0 <= temperature < math.inf:
            raise UserInputError(f"the temperature is {temperature}; use 0 (greedy) or more")
        if longest < 1:
            raise UserInputError(f"max_new_tokens is {longest}; an answer needs at least 1")
        return Sampling(1, temperature, self.sample.top_p, longest, seed)

    def _reply(self, generation: Generation) -> Reply:
        evidence = getattr(self.engine, "evidence", None)
        return Reply(
            text=generation.text.strip(),
            confidence=generation.confidence,
            answer=self.task.answer(generation.text),
            finish_reason=generation.finish_reason,
            tokens=len(generation.token_ids),
            trace=generation.trace,
            unusual=evidence is not None and evidence.outside(generation.logprobs),
        )


def _told(votes: Waves, strategy: Strategy, on_vote: OnVote) -> Iterator[Vote]:
    """Yield the votes, telling of each before it is used."""
    taken: list[Vote] = []
    with contextlib.closing(votes):
        for vote in votes:
            taken.append(vote)
            on_vote(vote, chosen(strategy, taken))
            yield vote
