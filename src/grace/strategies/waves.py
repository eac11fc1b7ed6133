"""Several samples in flight: votes in order, and what is no longer needed is cancelled."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from grace.errors import ModelError, UserInputError
from grace.records import Vote
from grace.strategies.tally import Indices

Issue = Callable[[range], Iterator[tuple[int, Vote]]]


class Waves:
    """An iterator of votes that are sampled `parallel` at a time; for `decide`.

    `issue(numbers)` starts the samples of these numbers and yields (number, vote) as they
    finish; it must end all their work when it is closed. Votes are handed on in the order of
    their numbers, whichever finishes first: so the decision is the one of sampling them one by
    one, and short answers have no advantage. A wave starts when the one before it is used up.

    `issued` counts the samples that were started; the decision counts those that were used.
    """

    def __init__(self, issue: Issue, budget: int, parallel: int) -> None:
        check_parallel(parallel)
        self.issued = 0
        self._issue = issue
        self._budget = budget
        self._parallel = parallel
        self._votes = self._run()

    def __iter__(self) -> Iterator[Vote]:
        return self

    def __next__(self) -> Vote:
        return next(self._votes)

    def close(self) -> None:
        """Cancel what is in flight; no further vote will come."""
        self._votes.close()

    def _run(self) -> Generator[Vote, None, None]:
        while self.issued < self._budget:
            wave = range(self.issued, min(self.issued + self._parallel, self._budget))
            self.issued = wave.stop
            yield from self._in_order(wave)

    def _in_order(self, wave: range) -> Generator[Vote, None, None]:
        finished: dict[int, Vote] = {}
        expected = wave.start
        arriving = self._issue(wave)
        try:
            for number, vote in arriving:
                finished[number] = vote
                while expected in finished:
                    yield finished.pop(expected)
                    expected += 1
        finally:
            close = getattr(arriving, "close", None)
            if close is not None:
                close()
        if expected != wave.stop:
            raise ModelError(
                f"sample {expected} of the wave {wave.start} to {wave.stop - 1} never came; "
                "the engine must return every sample that it was asked for"
            )


def check_parallel(parallel: int) -> None:
    """Refuse fewer than one sample in flight.

    Raises:
        UserInputError: names the number.
    """
    if parallel < 1:
        raise UserInputError(f"parallel is {parallel}; at least one sample is in flight")


def issued_samples(used: Indices, parallel: int, budget: int) -> Indices:
    """Return how many samples `Waves` has issued when `used` of them were needed."""
    issued: Indices = np.minimum(-(-used // parallel) * parallel, budget)
    return issued
