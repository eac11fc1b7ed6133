"""An exported model behind a server: vLLM 0.26 or later, SGLang, or llama-server.

Prompts are sent as token ids, so no text in them becomes a special token. A request is one sample.
Greedy responses are the transformers engine's; sampled ones have the server's random numbers.
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

import numpy as np

from grace.chat.saved import SavedTokenizer
from grace.cnf import find_readout
from grace.engines import Capability, Opening, Sampling, units
from grace.engines.checks import NoStates, check_contexts
from grace.engines.http.background import Background, Calls, in_order
from grace.engines.http.dialect import Names, Request
from grace.engines.http.probing import probe
from grace.engines.http.remote import Remote, RemoteStream, Served, seed_of
from grace.engines.http.said import UpstreamError
from grace.engines.http.upstream import Upstream
from grace.engines.reading import Reader, named_ends, named_rows
from grace.engines.stops import stop_ids
from grace.errors import ConfigError
from grace.records import Generation

Ids = Sequence[int]
Value = TypeVar("Value")


class OpenAIEngine(NoStates):
    """Samples from, and reads, a model that a server runs.

    Attributes: `tokenizer`, `reader` (what ends a response and how c is read), `readout`,
    `served` (what the server can do) and `remote` (the same model for coroutines; see `wait`).

    Args:
        upstream: the server.
        tokenizer: the tokenizer with `<CNF>`.
        card: the content of the model's grace.json.
        eos: ids that end a response besides the tokenizer's EOS and the stop ids of `card`.
        rows: of the model's vocabulary, where it is known to be larger than the tokenizer's.
        model: what the server calls the model; None: the only one that it has.
        needs_cnf: refuse a model without `<CNF>`, which can only be sampled.

    Raises:
        ModelError: no `<CNF>`, or the server would return other numbers than c; the message says
            which.
        UpstreamError: the server cannot be reached or does not have the model.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset({"relay"})

    def __init__(
        self,
        upstream: Upstream,
        tokenizer: Any,
        card: dict[str, Any] | None = None,
        *,
        eos: Sequence[int] = (),
        rows: int = 0,
        model: str | None = None,
        needs_cnf: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.readout = find_readout(tokenizer)
        self.reader = Reader.of(tokenizer, card or {}, eos, needs_cnf=needs_cnf)
        self._upstream = upstream
        self._background = Background("grace-upstream")
        self._calls = Calls(self._background)
        names = Names.of(tokenizer, rows)
        try:
            self.remote: Remote = self._calls.run(
                probe(upstream, self.reader, names, tokenizer, card or {}, model)
            )
        except BaseException as error:
            self.close()
            if isinstance(error, UpstreamError):
                raise UpstreamError(f"{upstream.url}: {error}", error.why) from None
            raise
        self.served: Served = self.remote.served
        self.limit = self.served.context

    @classmethod
    def connect(
        cls,
        url: str,
        folder: str | Path,
        *,
        model: str | None = None,
        needs_cnf: bool = True,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> OpenAIEngine:
        """Return the engine of a server that serves an export.

        Args:
            url: the server's address, with or without `/v1`.
            folder: what the server serves, or its run's adapter: for its tokenizer and JSON files.
            model: what the server calls the model; None: the only one that it has.
            needs_cnf: refuse a model without `<CNF>`, which can only be sampled.
            stop: texts that end a response, besides those that the model was trained with.
            options: of `Upstream`.
        """
        from grace.store import CARD, read_json

        place = Path(folder)
        card = read_json(place / CARD) if (place / CARD).is_file() else {}
        tokenizer = SavedTokenizer(place)
        base = Path(str(card.get("base_model", place)))
        return cls(
            Upstream(url, **options),
            tokenizer,
            card,
            eos=(*(named_ends(place) or named_ends(base)), *stop_ids(tokenizer, stop)),
            rows=named_rows(place) or named_rows(base),
            model=model,
            needs_cnf=needs_cnf,
        )

    @classmethod
    def open(cls, opening: Opening) -> OpenAIEngine:
        """Connect to the server that the option `url` names; GRACE_UPSTREAM_KEY may hold its key.

        Raises:
            ConfigError: no url, or a device or type, which are the server's own.
        """
        if (opening.device, opening.dtype) != ("auto", "auto"):
            raise ConfigError("device and dtype are the server's own; leave both at auto")
        options = dict(opening.options)
        if not (url := options.pop("url", "")):
            raise ConfigError("engine openai needs the address of a server: url=http://HOST:PORT")
        if key := os.environ.get("GRACE_UPSTREAM_KEY"):
            options.setdefault("api_key", key)
        if opening.batch_size:
            options["max_in_flight"] = opening.batch_size
        folder = opening.adapter or opening.path
        return cls.connect(url, folder, needs_cnf=opening.needs_cnf, stop=opening.stop, **options)

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of work; the server makes its own batches in each."""
        return units(len(prompts))

    @property
    def cnf(self) -> int | None:
        """Return the id of `<CNF>`, None where there is none."""
        return self.reader.cnf

    @property
    def read_at(self) -> str:
        """Return where c is read."""
        return self.reader.read_at

    @property
    def evidence(self) -> Any:
        """Return how the response's own probabilities shift the logit of `<CNF>`, if at all."""
        return self.reader.evidence

    @property
    def max_in_flight(self) -> int:
        """Return how many requests the server is sent at a time."""
        return self._upstream.max_in_flight

    def caller(self, deadline: float) -> OpenAIEngine:
        """Return this engine for one caller, who waits until then at most (`time.monotonic`).

        `cancel` stops it.
        """
        mine = copy.copy(self)
        mine._calls = Calls(self._background)
        mine.remote = replace(self.remote, upstream=self._upstream.until(deadline))
        return mine

    def cancel(self) -> None:
        """Hang up on everything that this caller waits for (see `caller`)."""
        self._calls.cancel()

    def wait(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Wait for a coroutine on the event loop of the server's connections."""
        return self._calls.run(coroutine)

    def reachable(self) -> Future[str]:
        """Find out whether the server answers; the result is what is wrong, or nothing."""
        return self._background.start(self._upstream.trouble())

    def close(self) -> None:
        """Close all connections; the engine and its callers are of no use after this."""
        self._calls.run(self._upstream.close())
        self._background.close()

    def generate(
        self,
        prompts: Sequence[Ids],
        sampling: Sampling,
        *,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (prompt index, its samples) in the order of the prompts.

        A closed iterator hangs up on what is still being sampled.

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
            UpstreamError: the server fails.
        """
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        self.check(prompts, sampling.max_new_tokens, keys)
        work = (
            self._samples(prompt, sampling, key) for prompt, key in zip(prompts, keys, strict=True)
        )
        with closing(self._in_order(work)) as arriving:
            yield from enumerate(arriving)

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> RemoteStream:
        """Return what starts samples of one prompt and yields each as it finishes.

        Raises:
            DataError: an empty prompt.
            ModelError: the prompt and a response could exceed the model's context.
        """
        self.check([prompt], sampling.max_new_tokens, [key])
        return RemoteStream(self.remote, self._calls, prompt, sampling, key)

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        self.check(contexts, 1)
        work = (self.remote.next_logprobs(context, tokens) for context in contexts)
        rows = list(self._in_order(work))
        return np.exp(np.array(rows, dtype=np.float32).reshape(len(contexts), len(tokens)))

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token).

        Raises:
            UpstreamError: the server does not return what c is made of.
        """
        self.check([[*p, *r] for p, r in zip(prompts, responses, strict=True)], 1)
        pairs = zip(prompts, responses, strict=True)
        return list(self._in_order(self.remote.confidence(p, r) for p, r in pairs))

    def traces(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[list[float]]:
        """Return c at every step of given responses, that of the end last.

        Raises:
            ModelError: the model knows c at the end only.
            UpstreamError: the server does not return what c is made of.
        """
        self.check([[*p, *r] for p, r in zip(prompts, responses, strict=True)], 1)
        pairs = zip(prompts, responses, strict=True)
        return list(self._in_order(self.remote.trace(p, r) for p, r in pairs))

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end.

        Raises:
            ModelError: c is read at the prompt; `<CNF>` is then no part of what is drawn.
            UpstreamError: the server does not return them.
        """
        self.reader.check_given("a server")
        self.check([[*p, *r] for p, r in zip(prompts, responses, strict=True)], 1)
        pairs = zip(prompts, responses, strict=True)
        return list(self._in_order(self.remote.rating(p, r) for p, r in pairs))

    def check(self, contexts: Sequence[Ids], new_tokens: int = 0, keys: Sequence[str] = ()) -> None:
        """Refuse what the model cannot hold; `keys` are the names of the contexts, if any."""
        check_contexts(contexts, self.limit, new_tokens, keys)

    def _in_order(self, work: Iterable[Coroutine[Any, Any, Value]]) -> Generator[Value, None, None]:
        ahead = 2 * self.max_in_flight
        return self._calls.iterate(in_order(work, ahead))

    async def _samples(self, prompt: Ids, sampling: Sampling, key: str) -> list[Generation]:
        """Return all samples of a prompt; greedy ones are equal, so one is made."""
        count = 1 if sampling.temperature == 0 else sampling.num_samples
        numbers = range(sampling.first_sample, sampling.first_sample + count)
        work = (
            self.remote.generation(Request(prompt, sampling, seed_of(sampling, key, number)))
            for number in numbers
        )
        async with aclosing(in_order(work, count)) as arriving:
            made = [generation async for generation in arriving]
        return made * (sampling.num_samples // count)


ENGINE = OpenAIEngine
