"""A bounded queue, jobs that join those that run, and work that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from live_server import until

from grace.engines import Sampling
from grace.errors import UserInputError
from grace.model import Model
from grace.records import Decision, Vote
from grace.server.errors import ApiError
from grace.server.jobs.backends import VoteJob, draw
from grace.server.jobs.completion import Completion, CompletionParams, Ended
from grace.server.jobs.queue import Failed, Finished, Job, Queue, Together


class Steps(Job):
    """Calls the model until told to stop, and says which job it ran with."""

    def __init__(self, model: Any, group: Any = None, fails: bool = False, size: int = 1) -> None:
        self.size = self.work = size
        self.events: list[Any] = []
        self.done = threading.Event()
        super().__init__()
        self.emit = self._emit
        self.group = group
        self.release = threading.Event()
        self.calls = 0
        self._model, self._fails = model, fails

    def _emit(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.done.set()

    def prepare(self) -> None:
        """Nothing is to be prepared."""

    def run(self, together: Together) -> None:
        """Call the model until all are released, four samples at a time."""
        running = list(together.jobs)
        while running:
            running += together.join(4 - sum(job.size for job in running))
            for job in running:
                if job._fails:
                    raise UserInputError("no")
                job.calls += 1
            self._model(torch.zeros(1))
            time.sleep(0.001)
            for job in running:
                if job.release.is_set():
                    job.emit(Finished(value=self))
            running = [job for job in running if not job.release.is_set()]


@pytest.fixture
def model() -> Any:
    return torch.nn.Identity()


Start = Callable[..., Queue]


@pytest.fixture
def start(model: Any) -> Iterator[Start]:
    made: list[Queue] = []

    def run(**options: Any) -> Queue:
        worker = Queue(model=model, **{"threads": 4, "max_waiting": 8, **options})
        made.append(worker)
        return worker

    yield run
    for worker in made:
        worker.close()


def busy(worker: Queue, model: Any) -> Steps:
    """Submit a job and wait until it runs."""
    job = Steps(model)
    worker.submit(job)
    until(lambda: job.calls > 0)
    return job


def test_a_job_joins_those_of_its_group_while_they_run(model: Any, start: Start) -> None:
    worker = start()
    groups = ("a", "b", "a", "a", "a", "a")
    first, other, *more, last = [Steps(model, group) for group in groups]
    for job in (first, other, *more, last):
        worker.submit(job)
    until(lambda: all(job.calls for job in (first, other, *more)))
    assert last.calls == 0  # at most four samples at a time
    more[0].release.set()
    until(lambda: last.calls > 0)
    assert not first.done.is_set()
    for job in (first, other, *more, last):
        job.release.set()
        assert job.done.wait(30)
    ran_with = [job.events[-1].value for job in (first, other, *more, last)]
    assert ran_with == [first, other, first, first, first, first]


def test_none_that_joins_overtakes_a_job_that_waits_for_the_end(model: Any, start: Start) -> None:
    worker = start(small=2)
    large = Steps(model, "a", size=3)
    worker.submit(large)
    until(lambda: large.calls > 0)
    other, late, small = Steps(model, "b", size=3), Steps(model, "a", size=3), Steps(model, "a")
    for job in (other, late, small):
        worker.submit(job)
    until(lambda: small.calls > 0)  # beside them
    large.release.set()
    until(lambda: other.calls > 0)
    assert late.calls == 0
    for job in (other, late, small):
        job.release.set()
        assert job.done.wait(30)


def test_no_thread_is_kept_for_ever_by_those_that_join(model: Any, start: Start) -> None:
    worker = start()
    running = [Steps(model, group) for group in "abcd"]
    for job in running:
        worker.submit(job)
    until(lambda: all(job.calls for job in running))
    waiting, late = Steps(model, "e"), Steps(model, "a")
    for job in (waiting, late):
        worker.submit(job)
    calls = running[0].calls
    until(lambda: running[0].calls > calls + 20)
    assert waiting.calls == late.calls == 0
    for job in (*running, waiting, late):
        job.release.set()
        assert job.done.wait(30)


@pytest.fixture
def passes(tiny_model: Model) -> Iterator[list[tuple[int, int]]]:
    """The rows and columns of every pass of the tiny model."""
    seen: list[tuple[int, int]] = []

    def note(_: Any, __: Any, given: dict[str, Any]) -> None:
        seen.append(tuple(given["input_ids"].shape))

    hook = tiny_model.engine.model.register_forward_pre_hook(note, with_kwargs=True)  # type: ignore[attr-defined]
    yield seen
    hook.remove()


def test_short_prompts_are_not_padded_to_the_length_of_a_long_one(
    model: Any, start: Start, tiny_model: Model, passes: list[tuple[int, int]]
) -> None:
    worker = start(small=1000)
    events: list[Any] = []
    for length in (3, 20, 200, 40, 5, 130):
        sampling = Sampling(1, 0.0, 1.0, 2, 0)
        params = CompletionParams(lambda n=length: [[n] * n], 1, sampling, "key")  # type: ignore[misc]
        job = Completion(tiny_model.engine, params, draw)
        job.emit = events.append
        job.prepare()
        worker.submit(job)
    until(lambda: sum(isinstance(event, Finished) for event in events) == 6)
    assert sum(rows for rows, columns in passes if 1 < columns <= 40) == 4
    assert sum(rows for rows, columns in passes if columns > 40) == 2


def test_a_choice_at_its_length_ends_before_longer_ones_of_its_batch(
    tiny_model: Model, passes: list[tuple[int, int]]
) -> None:
    ended: dict[int, int] = {}
    jobs = []
    for longest in (2, 30):
        params = CompletionParams(lambda: [[5, 6, 7]], 1, Sampling(1, 0.0, 1.0, longest, 0), "key")
        job = Completion(tiny_model.engine, params, draw)

        def note(event: Any, longest: int = longest) -> None:
            if isinstance(event, Ended):
                ended[longest] = len(passes)

        job.emit = note  # type: ignore[method-assign]
        job.prepare()
        jobs.append(job)
    jobs[0].run(Together(jobs))
    assert ended[2] <= 3 < ended[30]


def test_a_small_job_ends_while_a_large_one_runs(
    model: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[int] = []
    model.register_forward_pre_hook(lambda *_: passed.append(1))
    clock = SimpleNamespace(monotonic=lambda: float(len(passed)))  # a pass takes a second
    monkeypatch.setattr("grace.server.jobs.queue.time", clock)
    worker = start()
    large = Steps(model, size=64)
    worker.submit(large)
    until(lambda: large.calls > 0)
    small, second = busy(worker, model), Steps(model, size=64)
    worker.submit(second)
    before, begun = large.calls, small.calls  # in this order, since they go on meanwhile
    until(lambda: small.calls > begun + 20)
    assert before < large.calls < before + 12  # it has a seventh of the time
    small.release.set()
    assert small.done.wait(30)
    assert not large.done.is_set()
    assert second.calls == 0  # large ones run one after the other
    large.release.set()
    second.release.set()
    assert second.done.wait(30)


def test_the_tokens_of_a_vote_have_an_end_for_each_sample_that_ended() -> None:
    votes = (Vote("a", 0.9, 3), Vote(None, None, 2), Vote(None, 0.4, 5), Vote("b", None, 9))
    decision = Decision("a", 0.9, 4, 19, votes, 4, 19)  # the second dropped, the last cut
    voting: Any = SimpleNamespace(vote=lambda **_: decision)
    job, events = VoteJob(voting, lambda: None, {"budget": 4}), list[Any]()
    job.emit = events.append  # type: ignore[method-assign]
    job.run(Together([job]))
    assert events[-1].completion_tokens == 19 + 2


def test_a_worker_says_when_its_model_is_stuck_or_dead(
    model: Any, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    assert (worker.trouble(), worker.alive) == ("", True)
    held = threading.Event()
    model.register_forward_pre_hook(lambda *_: held.wait(60))
    job = Steps(model)
    worker.submit(job)
    monkeypatch.setattr("grace.server.jobs.queue.STUCK_S", 0.05)
    until(lambda: "computed nothing" in worker.trouble())
    assert worker.alive
    held.set()
    job.release.set()
    assert job.done.wait(30)
    until(lambda: worker.trouble() == "")  # at rest, no step is no trouble
    worker.close()
    assert (worker.alive, "died" in worker.trouble()) == (False, True)


def test_a_full_queue_refuses_and_cancelled_jobs_make_room(model: Any, start: Start) -> None:
    worker = start(threads=1, max_waiting=1)
    first = busy(worker, model)
    waiting = Steps(model)
    worker.submit(waiting)
    with pytest.raises(ApiError) as refused:
        worker.submit(Steps(model))
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    waiting.cancel()
    last = Steps(model)
    worker.submit(last)
    last.release.set()
    first.release.set()
    assert last.done.wait(30)
    assert waiting.calls == 0


def test_cancelling_stops_the_model_at_its_next_step(model: Any, start: Start) -> None:
    worker = start()
    job = busy(worker, model)
    job.cancel()
    after = busy(worker, model)
    assert job.events == []
    assert not job.done.is_set()
    after.release.set()
    assert after.done.wait(30)
    assert model(torch.ones(1)) == 1  # the hook is gone


def test_a_job_that_fails_takes_no_other_with_it(model: Any, start: Start) -> None:
    worker = start()
    jobs = [Steps(model, "a", fails=number == 1) for number in range(3)]
    for job in jobs:
        worker.submit(job)
    assert jobs[1].done.wait(30)
    until(lambda: jobs[0].calls > 1 and jobs[2].calls > 1)
    for job in jobs:
        job.release.set()
        assert job.done.wait(30)
    kinds = [type(job.events[-1]) for job in jobs]
    assert kinds == [Finished, Failed, Finished]


def test_the_thread_outlives_a_job_that_leaves_the_program(model: Any, start: Start) -> None:
    class Leaving(Steps):
        def run(self, together: Together) -> None:
            raise SystemExit(1)

    worker = start()
    leaving, after = Leaving(model), Steps(model)
    after.release.set()
    for job in (leaving, after):
        worker.submit(job)
        assert job.done.wait(30)
    assert isinstance(leaving.events[-1].error, SystemExit)
    assert isinstance(after.events[-1], Finished)


def test_a_closed_worker_finishes_what_runs_and_takes_no_more(model: Any, start: Start) -> None:
    worker = start(threads=1)
    job = busy(worker, model)
    waiting = Steps(model)
    worker.submit(waiting)
    threading.Timer(0.2, job.release.set).start()
    worker.close()
    assert isinstance(job.events[-1], Finished)
    assert waiting.cancelled.is_set()
    with pytest.raises(ApiError) as refused:
        worker.submit(Steps(model))
    assert refused.value.status == 503
