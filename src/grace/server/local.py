"""A model in this process: threads call it in turns, and requests wait for it in a queue."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, cast

from grace.engines.draws import Part
from grace.engines.reading import LOWEST
from grace.server.completing import Asked, Choice, Completion, Top, name_of
from grace.server.jobs import Emit, Job
from grace.server.settings import ServerSettings
from grace.server.voting import Rating, VoteRequest, Voting
from grace.server.worker import Worker

if TYPE_CHECKING:
    from grace.engines.drawing import Drawing
    from grace.engines.transformers import TransformersEngine
    from grace.model import Model
    from grace.records import Message


SHORT = 64  # tokens; shorter prompts are drawn together, whatever their lengths


class Local:
    """The backend of a model that sits in this process (see `Backend`)."""

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        self.model = model
        self._engine = cast("TransformersEngine", model.engine)
        self._worker = Worker(
            self._engine.model,
            max_waiting=settings.max_waiting,
            max_together=self._engine.batch_size,
        )

    @property
    def waiting(self) -> int:
        """Return how many jobs wait."""
        return len(self._worker.waiting)

    @property
    def alive(self) -> bool:
        """Return whether it works without a restart."""
        return self._worker.alive

    async def trouble(self) -> str:
        """Return why no request is answered, empty where nothing is wrong."""
        return self._worker.trouble()

    def start(self) -> None:
        """Start to work."""
        self._worker.start()

    def close(self) -> None:
        """Take no more jobs, and wait for the one that runs."""
        self._worker.close()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._worker.submit(job)

    def completion(self, asked: Asked, emit: Emit) -> Job:
        """Return the job that draws samples."""
        return LocalCompletion(self._engine, asked, emit)

    def voting(self, request: VoteRequest, emit: Emit) -> Job:
        """Return the job that votes."""
        return Voting(self.model, request, emit)

    def rating(
        self, prompts: Sequence[Sequence[Message]], responses: Sequence[str], emit: Emit
    ) -> Job:
        """Return the job that rates given responses."""
        return Rating(self.model, prompts, responses, emit)


class LocalCompletion(Completion):
    """Samples of the model in this process, those of several requests side by side."""

    reads: TransformersEngine

    @property
    def group(self) -> Hashable:  # type: ignore[override]
        """Requests of any settings are drawn together, if their prompts are of similar length.

        A batch is as long as its longest prompt: 58 short ones took 14 times as long beside a
        single one of 400 tokens. From `SHORT` on, lengths within a factor of two are similar.
        """
        return (max(map(len, self.prompts), default=0) // SHORT).bit_length()

    def run(self, together: Sequence[Job]) -> None:
        """Draw the samples of all these requests."""
        jobs = [job for job in together if isinstance(job, LocalCompletion)]
        rows = [choice for job in jobs for choice in job.choices()]
        tops = [job.asked.top for job in jobs for _ in range(job.size)]
        parts = [Part(job.prompts, job.asked.sampling, job.prompt_keys()) for job in jobs]
        drawing = self.reads.draw(parts)
        for step in drawing:
            for drawn in step:
                choice = rows[drawn.row]
                if not choice.add(drawn, self._most_probable(drawn.row, tops[drawn.row], drawing)):
                    drawing.stop(drawn.row)
                self._rate(choice)
        for choice, generation in zip(rows, drawing.generations(), strict=True):
            choice.close(generation.confidence)
            self._rate(choice)

    def _rate(self, choice: Choice) -> None:
        if choice.to_rate is not None:
            (c,) = self.reads.confidences([choice.prompt], [choice.to_rate])
            choice.rated(c)

    def _most_probable(self, row: int, count: int | None, drawing: Drawing) -> Top:
        found = drawing.most_probable(row, count) if count else []
        tokenizer = self.reads.tokenizer
        return tuple((name_of(tokenizer, token), max(value, LOWEST)) for token, value in found)
