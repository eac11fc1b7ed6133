"""An exported model on a server: vLLM 0.26 or later, SGLang, or llama-server.

Prompts are sent as token ids, so no text in them becomes a special token. Each sample is a request.
Greedy responses are those of the transformers engine; sampled ones differ, since the server has
random numbers of its own.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from grace.chat import with_date, with_thinking
from grace.chat.saved import SavedTokenizer
from grace.engines import Capability, Ids, Opening, Sampling, seed_from
from grace.engines.base import SampleStream, StepEngine
from grace.engines.http.background import Background, Calls, as_finished, in_order
from grace.engines.http.probing import probe
from grace.engines.http.remote import Remote, Request, Served
from grace.engines.http.upstream import Upstream, UpstreamError
from grace.engines.reading import Reader, Scored, named_ends, named_rows, stop_ids
from grace.errors import ConfigError, ModelError
from grace.records import Response
from grace.store import adapter_weights, digest, read_card

Value = TypeVar("Value")
OPTIONS = ("model", "api_key", "timeout_s", "retries", "max_in_flight")


class RemoteStream(SampleStream):
    """Samples of one prompt, a request each."""

    def start(self, numbers: range) -> Generator[tuple[int, Response], None, None]:
        """Sample these numbers side by side; closing the iterator ends the other requests."""
        running = self._engine._calls.iterate(as_finished(map(self._sample, numbers)))
        with closing(running):
            yield from running

    async def _sample(self, number: int) -> tuple[int, Response]:
        seed = seed_from(self._sampling.seed, number, self._key)
        request = Request(self._prompt, self._sampling, seed, stream=True)
        return number, await self._engine.remote.generation(request, self._count)

    def _count(self, tokens: int) -> None:
        self.tokens += tokens


class OpenAIEngine(StepEngine):
    """Samples from a model on a server; `folder` has the export's tokenizer and JSON files."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"relay"})
    streams = RemoteStream

    def __init__(
        self,
        url: str,
        folder: str | Path,
        *,
        model: str | None = None,
        needs_cnf: bool = True,
        stop: Sequence[str] = (),
        thinking: bool = False,
        date: str = "",
        **options: Any,
    ) -> None:
        place, card = Path(folder), read_card(Path(folder))
        base = Path(str(card.get("base_model", place)))
        ends = named_ends(place) or tuple(card.get("end_ids") or named_ends(base))
        if card and not ends and "end_ids" not in card and not base.is_dir():
            raise ModelError(
                f"{place} does not say where answers of {base} end; name what `grace export` wrote"
            )
        self.tokenizer = SavedTokenizer(place)
        template = self.tokenizer.chat_template
        if isinstance(template, str) and not card:
            self.tokenizer.chat_template = with_thinking(with_date(template, date), thinking)
        known = 1 + max(self.tokenizer.get_vocab().values(), default=-1)
        rows = max(known, named_rows(place) or named_rows(base))
        ends = (*ends, *stop_ids(self.tokenizer, stop))
        self.reader = Reader.of(self.tokenizer, card, ends, rows=rows, needs_cnf=needs_cnf)
        self._upstream = Upstream(url, **options)
        self._background = Background("grace-upstream")
        self._calls = Calls(self._background)
        try:
            self.remote: Remote = self._calls.run(
                probe(self._upstream, self.reader, self.tokenizer, card, model)
            )
            self.served: Served = self.remote.served
            _refuse_other(self._upstream.url, self.served.root, place)
        except BaseException as error:
            self.close()
            if isinstance(error, UpstreamError):
                raise UpstreamError(f"{self._upstream.url}: {error}", error.why) from None
            raise
        self.limit = self.served.context

    @classmethod
    def open(cls, opening: Opening) -> OpenAIEngine:
        """Connect to the server at the option `url`, with the key in GRACE_UPSTREAM_KEY if any."""
        if (opening.device, opening.dtype) != ("auto", "auto"):
            raise ConfigError(
                f"device {opening.device!r} and dtype {opening.dtype!r} cannot be set for a "
                "server, which has its own; leave both at auto"
            )
        options = dict(opening.options)
        if not (url := options.pop("url", "")):
            raise ConfigError(
                "the openai engine needs the address of a server: url=http://HOST:PORT"
            )
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise ConfigError(
                f"the openai engine has no {', '.join(unknown)}; it has url, {', '.join(OPTIONS)}"
            )
        if key := os.environ.get("GRACE_UPSTREAM_KEY"):
            options.setdefault("api_key", key)
        if opening.batch_size:
            options["max_in_flight"] = opening.batch_size
        folder = opening.adapter or opening.path
        options |= {"needs_cnf": opening.needs_cnf, "thinking": opening.thinking}
        options["date"] = opening.date
        return cls(url, folder, stop=opening.stop, **options)

    @property
    def max_in_flight(self) -> int:
        """The most requests to the server at a time."""
        return self._upstream.max_in_flight

    def caller(self, deadline: float) -> OpenAIEngine:
        """Return this engine for a caller who waits until a deadline; `cancel` stops requests."""
        mine = copy.copy(self)
        mine._calls = Calls(self._background)
        mine.remote = replace(self.remote, upstream=self._upstream.until(deadline))
        return mine

    def cancel(self) -> None:
        """End all requests of this caller (see `caller`)."""
        self._calls.cancel()

    def wait(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine on the event loop of the connections, and return its value."""
        return self._calls.run(coroutine)

    def reachable(self) -> Future[str]:
        """Check whether the server answers; the result is what is wrong, empty if nothing is."""
        return self._background.start(self._upstream.trouble())

    def close(self) -> None:
        """Close all connections; the engine and its callers cannot be used afterwards."""
        self._calls.run(self._upstream.close())
        self._background.close()

    def _samples(
        self, prompts: Sequence[Ids], keys: Sequence[str], sampling: Sampling
    ) -> Generator[list[Response], None, None]:
        pairs = zip(prompts, keys, strict=True)
        return self._in_order(self._drawn(prompt, key, sampling) for prompt, key in pairs)

    def _next_logprobs(self, contexts: Sequence[Ids], tokens: Ids) -> Iterator[Sequence[float]]:
        return self._in_order(self.remote.next_logprobs(context, tokens) for context in contexts)

    def _score(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Scored, None, None]:
        return self._in_order(map(self.remote.scored, prompts, responses))

    def _in_order(self, work: Iterable[Coroutine[Any, Any, Value]]) -> Generator[Value, None, None]:
        return self._calls.iterate(in_order(work, ahead=2 * self.max_in_flight))

    async def _drawn(self, prompt: Ids, key: str, sampling: Sampling) -> list[Response]:
        """Return all samples of a prompt, a request each."""
        work = (
            self.remote.generation(Request(prompt, sampling, seed_from(sampling.seed, number, key)))
            for number in sampling.numbers
        )
        async with aclosing(in_order(work, sampling.num_samples)) as arriving:
            return [generation async for generation in arriving]


def _refuse_other(url: str, root: str, folder: Path) -> None:
    """Refuse a server whose model, if it is in a directory here, has another adapter."""
    here, there = _adapter_digest(folder), _adapter_digest(Path(root)) if root else ""
    if here and there and here != there:
        raise ModelError(
            f"{url} serves {root}, which was made from another adapter than {folder}, so "
            "confidences would be wrong; name the export that it serves, or its run"
        )


def _adapter_digest(folder: Path) -> str:
    """Return the digest of the adapter that a directory was made from, empty if unknown."""
    weights = adapter_weights(folder)
    recorded = str(read_card(folder).get("adapter_digest", ""))
    return recorded or (digest(weights) if weights.is_file() else "")


ENGINE = OpenAIEngine
