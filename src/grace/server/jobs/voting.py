"""Votes over several samples, and confidences of responses that a client already has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.records import Decision, Message, Vote, to_json
from grace.server.jobs.completion import Ended, Piece
from grace.server.jobs.queue import Emit, Finished, Job

if TYPE_CHECKING:
    from grace.model import Model


class Voted(NamedTuple):
    """A sample has arrived; `leading` is the answer that would win now."""

    vote: Vote
    leading: str | None


class VoteRequest(NamedTuple):
    """The arguments of a vote (see `Model.vote`)."""

    question: str
    choices: Sequence[str]
    strategy: str | None
    budget: int
    threshold: float | None
    parallel: int
    temperature: float
    max_new_tokens: int | None
    seed: int


class VoteJob(Job):
    """Test-time scaling: `Model.vote`, with every sample shown as it arrives."""

    def __init__(
        self,
        model: Model,
        request: VoteRequest,
        emit: Emit,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(emit, hang_up)
        self._model, self._request = model, request
        self.size = min(request.parallel, request.budget)
        self._prompt: list[int] = []

    def prepare(self) -> None:
        """Encode the question."""
        self._prompt = self._model.encode(self._request.question, self._request.choices)

    def run(self, together: Sequence[Any]) -> None:
        """Sample and vote until the strategy is sure or the budget is spent."""
        options = self._request._asdict()
        decision = self._model.vote(**options, on_vote=self._show, prompt=self._prompt)
        self.emit(Piece(0, _text_of(decision)))
        self.emit(Ended(0, "stop", decision.confidence))
        tokens = decision.issued_tokens + self._ends(decision)
        self.emit(Finished(len(self._prompt), tokens, to_json(decision)))

    def _ends(self, decision: Decision) -> int:
        """Return the number of votes that drew an end token: those below the longest allowed."""
        longest = self._request.max_new_tokens or self._model.sample.max_new_tokens
        return sum(vote.tokens < longest for vote in decision.votes)

    def _show(self, vote: Vote, leading: str | None) -> None:
        self.started = True
        self.emit(Voted(vote, leading))


def _text_of(decision: Decision) -> str:
    """Return the surest sample with the answer, nothing where no sample has one."""
    agreeing = [v for v in decision.votes if v.answer is not None and v.answer == decision.answer]
    surest = max(agreeing, key=lambda vote: vote.confidence or 0.0, default=None)
    return surest.text if surest else ""


class RatingJob(Job):
    """The confidences of given responses: `Model.score`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[Message]],
        responses: Sequence[str],
        emit: Emit,
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(emit, hang_up)
        self._model, self._prompts, self._responses = model, prompts, responses
        self._encoded: tuple[list[list[int]], list[list[int]]] = ([], [])

    def prepare(self) -> None:
        """Encode all prompts and responses."""
        self._encoded = self._model.encode_all(self._prompts, self._responses)

    def run(self, together: Sequence[Any]) -> None:
        """Rate all responses."""
        values = self._model.engine.confidences(*self._encoded)
        tokens = sum(len(ids) for side in self._encoded for ids in side)
        self.emit(Finished(tokens, 0, values))
