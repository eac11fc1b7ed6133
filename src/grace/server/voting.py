"""Votes over several samples, and confidences of responses that a client already has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from grace.chat import encode_chat
from grace.model.rules import voting
from grace.records import Decision, Message, Vote, to_json
from grace.server.completing import Ended, Piece
from grace.server.worker import Emit, Finished, Job
from grace.strategies import Strategy

if TYPE_CHECKING:
    from grace.model import Model


class Voted(NamedTuple):
    """A sample has arrived; `leading` is the answer that would win now."""

    vote: Vote
    leading: str | None


class VoteRequest(NamedTuple):
    """What to vote on, and how (see `Model.vote`)."""

    question: str
    choices: Sequence[str]
    strategy: str | None
    budget: int
    threshold: float | None
    parallel: int
    temperature: float
    max_new_tokens: int | None
    seed: int


class Voting(Job):
    """Test-time scaling: `Model.vote`, with every sample shown as it arrives."""

    def __init__(self, model: Model, request: VoteRequest, emit: Emit) -> None:
        super().__init__(emit)
        self._model, self._request = model, request

    def run(self, together: Sequence[Job]) -> None:
        """Sample and vote until the strategy is sure or the budget is spent."""
        model, request = self._model, self._request
        options = request._asdict()
        name, threshold = options.pop("strategy"), options.pop("threshold")
        rule = voting(
            name,
            threshold,
            model.promise,
            request.budget,
            request.temperature,
            request.max_new_tokens,
        )
        decision = model.vote(strategy=_Shown(rule.strategy, self), **options)
        decision = dataclasses.replace(
            decision,
            threshold=getattr(rule.strategy, "threshold", None),
            promise=rule.promise,
            abstains=rule.covers_sure_only and not rule.strategy.done(decision.votes),
        )
        self.emit(Piece(0, _text_of(decision)))
        self.emit(Ended(0, "stop", decision.confidence))
        self.emit(Finished(self._prompt_tokens(), decision.issued_tokens, to_json(decision)))

    def _prompt_tokens(self) -> int:
        asked = self._model.messages(self._request.question, self._request.choices)
        return len(encode_chat(self._model.engine.tokenizer, asked))


def _text_of(decision: Decision) -> str:
    """Return the surest sample with the answer, nothing where no sample has one."""
    agreeing = [v for v in decision.votes if v.answer is not None and v.answer == decision.answer]
    surest = max(agreeing, key=lambda vote: vote.confidence or 0.0, default=None)
    return surest.text if surest else ""


class _Shown:
    """A strategy whose votes are shown as they arrive."""

    def __init__(self, strategy: Strategy, job: Voting) -> None:
        self._strategy, self._job, self._count = strategy, job, 0

    def done(self, votes: Sequence[Vote]) -> bool:
        """Show the newest vote; return whether no further sample is needed."""
        self._show(votes)
        return self._strategy.done(votes)

    def choose(self, votes: Sequence[Vote]) -> str | None:
        """Return the answer; the vote that spent the budget was not shown yet."""
        self._show(votes)
        return self._strategy.choose(votes)

    def _show(self, votes: Sequence[Vote]) -> None:
        for number in range(self._count, len(votes)):
            leading = self._strategy.choose(votes[: number + 1])
            self._job.started = True
            self._job.emit(Voted(votes[number], leading))
        self._count = max(self._count, len(votes))


class Rating(Job):
    """The confidences of given responses: `Model.score`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[Message]],
        responses: Sequence[str],
        emit: Emit,
    ) -> None:
        super().__init__(emit)
        self._model, self._prompts, self._responses = model, prompts, responses

    def run(self, together: Sequence[Job]) -> None:
        """Rate all responses."""
        values = self._model.score(self._prompts, self._responses)
        self.emit(Finished(value=values))
