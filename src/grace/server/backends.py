"""What answers the requests: a model in this process, or a server upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from grace.engines.openai import OpenAIEngine
from grace.records import Message
from grace.server.completing import Asked
from grace.server.jobs import Emit, Job
from grace.server.settings import ServerSettings
from grace.server.voting import VoteRequest

if TYPE_CHECKING:
    from grace.model import Model


class Backend(Protocol):
    """Makes jobs and does them."""

    model: Model

    @property
    def waiting(self) -> int:
        """How many jobs wait."""

    @property
    def alive(self) -> bool:
        """Whether it works without a restart."""

    async def trouble(self) -> str:
        """Return why no request is answered, empty where nothing is wrong."""

    def start(self) -> None:
        """Start to work."""

    def close(self) -> None:
        """Take no more jobs, and wait for what runs."""

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            ApiError: too many wait already (429), or the server is shutting down (503).
        """

    def completion(self, asked: Asked, emit: Emit) -> Job:
        """Return the job that draws samples."""

    def voting(self, request: VoteRequest, emit: Emit) -> Job:
        """Return the job that votes."""

    def rating(
        self, prompts: Sequence[Sequence[Message]], responses: Sequence[str], emit: Emit
    ) -> Job:
        """Return the job that rates given responses."""


def backend(model: Model, settings: ServerSettings) -> Backend:
    """Return what answers the requests to a model; only for one in this process torch is loaded."""
    if isinstance(model.engine, OpenAIEngine):
        from grace.server.relay import Relay

        return Relay(model, settings)
    from grace.server.local import Local

    return Local(model, settings)
