"""`Model`: a loaded model with `ask`, `vote`, `score` and `trace`."""

from __future__ import annotations

import asyncio
import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack, overload

from grace import notebook
from grace.chat import encode_chat, encode_response, pieces
from grace.config import DataSettings, SampleSettings
from grace.engines import Ids, Rating, Sampling
from grace.engines.base import ModelEngine
from grace.errors import UserInputError
from grace.evidence.familiar import HALF
from grace.model import arguments
from grace.model.arguments import Asked, AskOptions, Choices, VoteOptions
from grace.model.rules import Answering, answering, drawing, promised, usual_budget, voting
from grace.model.voting import Ballot, OnVote, sampled
from grace.progress import progress
from grace.records import Decision, FieldValue, Message, Question, Response, Threshold
from grace.strategies import TEMPERATURE, FittedVote, Strategy
from grace.tasks import Task
from grace.tasks.conversations import MARK, has_form
from grace.tasks.prompts import conversation


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """An answer and the model's confidence in it.

    Attributes:
        text: the response without surrounding whitespace.
        confidence: P(correct) in [0, 1], None if the answer was cut or is empty.
        answer: the answer as it counts in a vote (the letter, or the normalised short answer),
            None if there is none.
        finish_reason: "stop", or "length" if the answer was cut at `max_new_tokens`.
        tokens: number of tokens of the response, without its end token.
        trace: c at every step, the end step last. With `grace.trace`, `trace[k]` is P(correct | the
            first k tokens); otherwise it is c if the answer ended there.
        threshold: the confidence that the answer must reach, if any.
        promise: the guarantee of the threshold, if it is the run's and the prompt is familiar.
        abstains: the confidence is below the threshold.
        unusual: the token probabilities are far outside the range that the confidence was fitted
            on, so the confidence is a guess.
        familiar: 1 for a prompt like those of training, near 0 for one of a kind that none of the
            sources had, whose confidence is that of its token probabilities; None: not known.
        pieces: the text that each token adds, of a model trained with `grace.trace`.
        fields: of a structured answer the `value` and the `confidence` of each field by its name,
            if the model was fitted to such answers; those of an answer that was cut are complete.
    """

    text: str
    confidence: float | None
    answer: str | None
    finish_reason: str
    tokens: int
    trace: tuple[float, ...]
    threshold: float | None = None
    promise: str = ""
    abstains: bool = False
    unusual: bool = False
    familiar: float | None = None
    pieces: tuple[str, ...] = ()
    fields: Mapping[str, FieldValue] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """Return the answer and its confidence; the fields hold the rest."""
        return notebook.line("Reply", self.text, self.confidence, self._notes())

    def _repr_html_(self) -> str:
        return notebook.card(self.text, self.confidence, self._notes(), self.traced)

    @property
    def traced(self) -> list[tuple[str, float | None]]:
        """The pieces, each with c after it; the last one of a cut answer has none."""
        return list(zip(self.pieces, [*self.trace[1:], None], strict=False))

    def _notes(self) -> list[str]:
        notes = {
            "cut": self.finish_reason == "length",
            "empty": not self.text,
            "abstains": self.abstains,
            "unusual": self.unusual,
            "unfamiliar": self.familiar is not None and self.familiar < HALF,
        }
        return [note for note, holds in notes.items() if holds]


Prompt = str | Sequence[Message]
Value = TypeVar("Value")
UNRATED = Rating(None, None, {})  # a response that says nothing


@dataclass(eq=False, repr=False)
class Model:
    """A model with a calibrated confidence; created by `grace.load`.

    Attributes:
        engine: runs the model.
        task: makes prompts of questions, and answers of responses.
        data, sample: the settings of the training run's prompt and sampling.
        promise: the threshold that `grace threshold` chose for the model, if any.
        shots: examples that precede every question in the prompt.
        fitted: what `grace scale` fitted for the strategy `grace-vote`, if it did.
        forms: the forms of all prompts of the fit, if conversations were among them.
    """

    engine: ModelEngine
    task: Task
    data: DataSettings
    sample: SampleSettings
    promise: Threshold | None = None
    shots: Sequence[Question] = ()
    fitted: FittedVote | None = None
    forms: Sequence[Sequence[Message]] = ()

    def messages(self, question: str, choices: Sequence[str] = ()) -> list[Message]:
        """Return the messages of a question, with the prompt (and no outer space) of the run.

        Raises:
            UserInputError: an empty question, or choices that do not suit the task.
        """
        arguments.check_question(question, choices)
        options = tuple(choice.strip() for choice in choices)
        row = Question("0", self.task.name, question.strip(), (), options)
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
        """Answer a question, with the confidence of the answer.

        A list of questions gets a list of the same answers, in much less time than one by one.

        Args:
            question: a question, which gets the prompt of the training run; or a list of them.
            choices: the option texts of a multiple-choice question; for a list, a list of lists.
            threshold: confidence below which the reply abstains; None: the threshold that `grace
                threshold` chose for single answers, if any.
            temperature: sampling temperature, 0 for greedy; the confidence does not depend on it.
            max_new_tokens: maximum length of the answer in tokens; None: as in the training run.
            seed: random seed of the sampling.

        Raises:
            UserInputError: an empty question, unsuitable choices, or an impossible option.
            ModelError: the question is longer than the model's context.
        """
        rules = self._rules(threshold, temperature, max_new_tokens, seed)
        if arguments.is_many(question):
            return list(
                self._replies(arguments.encode_each(question, choices, self._asked), *rules)
            )
        (reply,) = self._replies([self._asked(question, choices)], *rules)
        return reply

    def ask_many(
        self,
        questions: Iterable[str],
        *,
        choices: Choices = (),
        progress: bool = False,
        **options: Unpack[AskOptions],
    ) -> Iterator[Reply]:
        """Yield the answers to any number of questions, in order, as they arrive.

        Args:
            questions: the questions, read as they are needed.
            choices: the option texts of each question.
            progress: show progress on standard error, if the number of questions is known.
            options: the options of `ask`.

        Raises:
            UserInputError, ModelError: as `ask`, when the question's turn comes.
        """
        rules = self._rules(**options)
        total = len(questions) if progress and isinstance(questions, Sized) else 0
        return self._replies(arguments.encode_each(questions, choices, self._asked), *rules, total)

    async def aask(self, question: str, **options: Any) -> Reply:
        """Call `ask` without blocking the event loop.

        A model on a server takes many calls at a time, and a cancelled one hangs up. A model in
        this process takes one call at a time; call `ask` with a list instead.
        """
        return await self._in_thread(lambda model: model.ask(question, **options))

    async def avote(self, question: str, **options: Any) -> Decision:
        """Call `vote` without blocking the event loop (see `aask`)."""
        return await self._in_thread(lambda model: model.vote(question, **options))

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
        """Sample answers until the strategy stops or the budget is spent, and choose one.

        A list of questions gets a list of decisions; all questions are sampled together.

        Args:
            question: a question, or a list of them.
            strategy: a strategy, or its name (`sc`, `asc`, `esc`, `es`, `grace-sc`, ...; see
                `grace.strategies`); None: that of the run's threshold, else `grace-vote` if it was
                fitted, else early stopping.
            budget: maximum number of samples; None: the budget of the run's threshold, or 8.
            parallel: number of samples of a question in flight at a time; it does not change the
                decision. What it does not need is cancelled (with a list, finished first).
            threshold: the strategy's threshold; None: its default, and for early stopping the
                threshold that `grace threshold` chose for this budget and temperature, if any.
            choices: the option texts of a multiple-choice question; for a list, a list of lists.
            temperature: sampling temperature.
            max_new_tokens: maximum length of an answer in tokens; None: as in the training run.
            seed: random seed of the sampling.
            on_vote: for a single question, called with every vote that is used and the answer that
                would win at that point.
            prompt: for a single question, its token ids from `encode`, if known.

        Raises:
            UserInputError: budget, threshold or parallel is out of range, or as for `ask`.
            ConfigError: there is no such strategy.
            ModelError: the question is longer than the model's context.
        """
        budget = usual_budget(self.promise, strategy) if budget is None else budget
        about = (budget, temperature, max_new_tokens, self.fitted)
        rule = voting(strategy, threshold, self.promise, *about)
        sampling = drawing(self.sample, temperature, max_new_tokens, seed)
        ballot = Ballot(self.engine, self.task.answer, rule, budget, parallel, sampling)
        if arguments.is_many(question):
            if on_vote is not None or prompt is not None:
                raise UserInputError("on_vote and prompt are for one question; call vote for each")
            return ballot.decide_all(list(arguments.encode_each(question, choices, self._asked)))
        asked = self._asked(question, choices) if prompt is None else Asked(prompt, tuple(choices))
        return ballot.decide(asked, on_vote)

    @property
    def traces(self) -> bool:
        """Whether the model has a confidence at every token (`grace.trace`)."""
        evidence = self.engine.evidence
        return evidence is not None and evidence.trace is not None

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float | None]:
        """Return the confidence of responses that you already have.

        Args:
            prompts: N questions, which get the prompt of the training run, or N conversations as
                lists of messages.
            responses: N response texts; special tokens inside them are plain text.

        Returns:
            N values of P(correct) in [0, 1], each independent of the others; None for a response
            that is empty or blank, which is no answer.

        Raises:
            UserInputError: the lengths differ, or a question or a message is not text.
            ModelError: a prompt with its response is longer than the model's context.
        """
        return [one.confidence for one in self.ratings(prompts, responses)]

    def ratings(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Rating]:
        """Return the confidence of each response, how familiar its prompt is, and its fields.

        The arguments and errors are those of `score`.
        """
        asked, written = self.encode_all(prompts, responses)
        return rated(self.engine.rated, asked, written, responses, blank=UNRATED)

    def trace(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[list[float]]:
        """Return the confidence along responses (arguments as for `score`), one list each.

        Value k is P(correct | the question and the first k tokens), the last one that of `score`.
        The list of a blank response is empty.

        Raises:
            UserInputError: as for `score`.
            ModelError: as for `score`, or the model was not trained with `grace.trace`.
        """
        asked, written = self.encode_all(prompts, responses)
        return rated(self.engine.traces, asked, written, responses, blank=[])

    @functools.cached_property
    def trained_prompt(self) -> list[Message]:
        """The prompt of the training run with `MARK` for a question; empty for multiple choice."""
        try:
            return self.messages(MARK)
        except UserInputError:  # no question without options
            return []

    def is_trained_on(self, messages: Sequence[Message]) -> bool:
        """Return whether messages are a prompt like those of the fit.

        That is a question with the prompt of the training run or, if the fit has seen
        conversations, one with the same system prompt that has, or has not, earlier turns as they
        do. For no other prompt is the confidence calibrated.
        """
        return any(has_form(messages, form) for form in self.forms or [self.trained_prompt])

    @property
    def asks_as_trained(self) -> bool:
        """Whether the prompt of `messages` is one of the fit, not of its conversations alone."""
        return not self.forms or self.is_trained_on(self.trained_prompt)

    def encode(self, question: str, choices: Sequence[str] = ()) -> list[int]:
        """Return the token ids of a question's prompt; the model is not called.

        Raises:
            UserInputError: as for `messages`.
            ModelError: the chat template refuses it.
        """
        return encode_chat(self.engine.tokenizer, self.messages(question, choices))

    def encode_all(
        self, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids of prompts and responses (see `score`); the model is not called.

        Raises:
            UserInputError, ModelError: as for `score`.
        """
        arguments.check_pairs(prompts, responses)
        asked, written = [], []
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            with arguments.located(f"prompt {number}" if len(prompts) > 1 else ""):
                chat = self.messages(prompt) if isinstance(prompt, str) else prompt
                asked.append(encode_chat(self.engine.tokenizer, chat))
                written.append(encode_response(self.engine.tokenizer, chat, response))
        return asked, written

    def _asked(self, question: str, choices: Sequence[str]) -> Asked:
        return Asked(self.encode(question, choices), tuple(choices))

    def _rules(
        self,
        threshold: float | None = None,
        temperature: float = 0.0,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> tuple[Sampling, Answering]:
        """Return how single answers are sampled, and the threshold that they must reach."""
        sampling = drawing(self.sample, temperature, max_new_tokens, seed)
        return sampling, answering(threshold, self.promise, temperature, max_new_tokens)

    def _replies(
        self, asked: Iterable[Asked], sampling: Sampling, rule: Answering, total: int = 0
    ) -> Iterator[Reply]:
        with progress("ask", total, unit="questions") as advance:
            for one, (generation,) in sampled(self.engine, asked, sampling):
                yield self._reply(generation, one.choices, rule)
                advance(1)

    def _reply(self, generation: Response, choices: Sequence[str], rule: Answering) -> Reply:
        evidence = self.engine.evidence
        return Reply(
            text=generation.text.strip(),
            confidence=generation.confidence,
            answer=self.task.answer(generation.text, choices),
            finish_reason=generation.finish_reason,
            tokens=len(generation.token_ids),
            trace=tuple(generation.trace),
            threshold=rule.tau,
            promise=promised(rule.promise, generation.familiar),
            abstains=rule.abstains(generation.confidence),
            unusual=evidence is not None and evidence.outside(generation.logprobs),
            familiar=generation.familiar,
            pieces=pieces(self.engine.tokenizer, generation.token_ids) if self.traces else (),
            fields=generation.fields,
        )

    async def _in_thread(self, work: Callable[[Model], Value]) -> Value:
        """Run work in another thread and return its result; if cancelled, hang up on the server."""
        mine, hang_up = for_caller(self)
        try:
            return await asyncio.wrap_future(self._threads.submit(work, mine))
        except asyncio.CancelledError:
            hang_up()
            raise

    @functools.cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(getattr(self.engine, "max_in_flight", 1), "grace-model")


def for_caller(model: Model, deadline: float = math.inf) -> tuple[Model, Callable[[], None]]:
    """Return the model for one caller until a deadline, and a function that hangs up."""
    call = getattr(model.engine, "caller", None)
    if call is None:
        return model, lambda: None
    mine, engine = copy.copy(model), call(deadline)
    mine.engine = engine
    return mine, engine.cancel


def rated(
    rate: Callable[[list[Ids], list[Ids]], list[Value]],
    prompts: Sequence[Ids],
    responses: Sequence[Ids],
    texts: Sequence[str],
    blank: Value,
) -> list[Value]:
    """Return what `rate` gives the responses that say something, and `blank` for the others."""
    rows = [row for row, text in enumerate(texts) if text.strip()]
    values = rate([prompts[row] for row in rows], [responses[row] for row in rows]) if rows else []
    found = dict(zip(rows, values, strict=True))
    return [found.get(row, blank) for row in range(len(texts))]
