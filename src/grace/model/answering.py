"""`Model`: what one does with a loaded model: `ask`, `vote`, `score` and `trace`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Unpack, overload

from grace.chat import encode_chat, encode_response
from grace.chat.detokenizer import pieces
from grace.config import DataSettings, SampleSettings
from grace.engines import Sampling, StreamingEngine
from grace.errors import UserInputError
from grace.model import questions as asked
from grace.model.calls import in_thread
from grace.model.questions import AskOptions, Choices, VoteOptions
from grace.model.reply import Reply as Reply
from grace.model.rules import Answering, answering, drawing, usual_budget, voting
from grace.model.voting import Ballot, OnVote, sampled
from grace.progress import progress
from grace.records import Decision, Generation, Message, Question, Threshold, Vote
from grace.strategies import TEMPERATURE, Strategy
from grace.tasks import Task
from grace.tasks.prompts import conversation

Prompt = str | Sequence[Message]


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
        asked.check_question(question, choices)
        row = Question("0", self.task.name, question, (), tuple(choices))
        return conversation(self.task, row, self.data, self.shots)

    @overload
    def ask(  # type: ignore[overload-overlap]
        self, question: str, *, choices: Sequence[str] = (), **options: Unpack[AskOptions]
    ) -> Reply: ...

    @overload
    def ask(
        self, question: Iterable[str], *, choices: Choices = (), **options: Unpack[AskOptions]
    ) -> list[Reply]: ...

    def ask(
        self,
        question: Any,
        *,
        choices: Any = (),
        threshold: float | None = None,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Return an answer with its confidence, greedy unless a temperature is given.

        Of a list, return the list of the same answers, which takes much less time than one by one.

        Args:
            question: the question as text, asked with the prompt of the training run; or a list.
            choices: the option texts of a multiple-choice question; for each one of a list.
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
        how = self._asking(threshold, temperature, max_new_tokens, seed)
        if asked.is_many(question):
            return list(self._replies(asked.encoded(question, choices, self.encode), *how))
        (reply,) = self._replies([self.encode(question, choices)], *how)
        return reply

    def ask_many(
        self,
        questions: Iterable[str],
        *,
        choices: Choices = (),
        progress: bool = False,
        **options: Unpack[AskOptions],
    ) -> Iterator[Reply]:
        """Yield the answers to any number of questions in their order, as they are made.

        Args:
            questions: the questions, read as they are needed.
            choices: the option texts of each question.
            progress: show how far it is on standard error, if the number of questions is known.
            options: of `ask`.

        Raises:
            UserInputError, ModelError: as for `ask`, when the question's turn comes.
        """
        how = self._asking(**options)
        total = len(questions) if progress and isinstance(questions, Sized) else 0
        return self._replies(asked.encoded(questions, choices, self.encode), *how, total)

    async def aask(self, question: str, **options: Any) -> Reply:
        """Return what `ask` returns, without holding up the event loop.

        On a server many calls are in flight, and a cancelled one hangs up. A model in this process
        takes one call at a time: give `ask` a list there.
        """
        return await in_thread(self, self._threads, lambda model: model.ask(question, **options))

    async def avote(self, question: str, **options: Any) -> Decision:
        """Return what `vote` returns, without holding up the event loop (see `aask`)."""
        return await in_thread(self, self._threads, lambda model: model.vote(question, **options))

    @overload
    def vote(  # type: ignore[overload-overlap]
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        on_vote: OnVote | None = None,
        prompt: Sequence[int] | None = None,
        **options: Unpack[VoteOptions],
    ) -> Decision: ...

    @overload
    def vote(
        self, question: Iterable[str], *, choices: Choices = (), **options: Unpack[VoteOptions]
    ) -> list[Decision]: ...

    def vote(
        self,
        question: Any,
        *,
        strategy: Strategy | str | None = None,
        budget: int | None = None,
        parallel: int = 1,
        threshold: float | None = None,
        choices: Any = (),
        temperature: float = TEMPERATURE,
        max_new_tokens: int | None = None,
        seed: int = 0,
        on_vote: OnVote | None = None,
        prompt: Sequence[int] | None = None,
    ) -> Any:
        """Sample answers until the strategy is sure or the budget is spent, and choose one.

        Of a list of questions, return the list of decisions: all questions are sampled together.

        Args:
            question: the question as text, or a list.
            strategy: a strategy, or the name of one (`sc`, `asc`, `esc`, `es`, `grace-sc`, ...;
                see `grace.strategies`); None: early stopping.
            budget: most samples to take, at least 1; None: that of the run's threshold, or 8.
            parallel: samples of a question in flight at a time. The decision is that of one after
                the other; what is not needed for it is cancelled (of a list, once it is there).
            threshold: the strategy's threshold; None: its own, and for early stopping the one that
                `grace threshold` has chosen for this budget and temperature, if any.
            choices: the option texts of a multiple-choice question; for each one of a list.
            temperature: sampling temperature.
            max_new_tokens: longest answer in tokens; None: as in the training run.
            seed: seed of the sampling.
            on_vote: called with every vote on a single question that is used, and the answer that
                would win then.
            prompt: what `encode` returns for a single question and its choices, where it is known.

        Raises:
            UserInputError: an impossible budget, threshold or number in flight, or as for `ask`.
            ConfigError: no such strategy.
            ModelError: the question is longer than the model's context.
        """
        budget = usual_budget(self.promise, strategy) if budget is None else budget
        rule = voting(strategy, threshold, self.promise, budget, temperature, max_new_tokens)
        sampling = drawing(self.sample, temperature, max_new_tokens, seed)
        sampling = dataclasses.replace(sampling, drop=getattr(rule.strategy, "drop", 0.0))
        ballot = Ballot(self.engine, self._vote, rule, budget, parallel, sampling)
        if asked.is_many(question):
            if on_vote is not None or prompt is not None:
                raise UserInputError("on_vote and prompt are for one question; vote on each alone")
            return ballot.decide_all(list(asked.encoded(question, choices, self.encode)))
        prompt = self.encode(question, choices) if prompt is None else prompt
        return ballot.decide(prompt, on_vote)

    @property
    def traces(self) -> bool:
        """Whether c is known at every token, not at the end of a response alone."""
        evidence = self.engine.evidence
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
        asked.check_pairs(prompts, responses)
        tokenizer, context = self.engine.tokenizer, self.engine.limit
        chats = [self.messages(p) if isinstance(p, str) else asked.checked_chat(p) for p in prompts]
        pairs = zip(chats, responses, strict=True)
        return (
            [encode_chat(tokenizer, chat, context=context) for chat in chats],
            [encode_response(tokenizer, *pair, context=context) for pair in pairs],
        )

    def _asking(
        self,
        threshold: float | None = None,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> tuple[Sampling, Answering]:
        """Return how single answers are drawn and judged."""
        sampling = drawing(self.sample, temperature, max_new_tokens, seed)
        return sampling, answering(threshold, self.promise, temperature, max_new_tokens)

    def _replies(
        self, prompts: Iterable[list[int]], sampling: Sampling, use: Answering, total: int = 0
    ) -> Iterator[Reply]:
        tokenizer, traces = self.engine.tokenizer, self.traces
        with progress("ask", total, unit="questions") as advance:
            for (generation,) in sampled(self.engine, prompts, sampling):
                reply = self._reply(generation)
                yield dataclasses.replace(
                    reply,
                    threshold=use.tau,
                    promise=use.promise,
                    abstains=use.abstains(reply.confidence),
                    pieces=pieces(tokenizer, generation.token_ids) if traces else (),
                )
                advance(1)

    def _vote(self, generation: Generation) -> Vote:
        reply = self._reply(generation)
        answer = None if generation.finish_reason == "dropped" else reply.answer
        return Vote(answer, reply.confidence, reply.tokens, reply.text)

    def _reply(self, generation: Generation) -> Reply:
        evidence = self.engine.evidence
        return Reply(
            text=generation.text.strip(),
            confidence=generation.confidence,
            answer=self.task.answer(generation.text),
            finish_reason=generation.finish_reason,
            tokens=len(generation.token_ids),
            trace=generation.trace,
            unusual=evidence is not None and evidence.outside(generation.logprobs),
        )

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(getattr(self.engine, "max_in_flight", 1), "grace-model")
