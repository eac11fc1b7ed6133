"""The requests of one vLLM engine that are in flight, and samples as they finish."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any

from grace.engines.reading import Reader, Step, read
from grace.engines.watching import Watch, dropped
from grace.errors import ModelError
from grace.records import Generation


class Requests:
    """Adds requests and hands out what comes back, each to the iterator that waits for it.

    Args:
        engine: a `vllm.LLMEngine`.
        lora: the LoRA that every request uses, if any.
    """

    def __init__(self, engine: Any, lora: Any = None) -> None:
        self._engine, self.lora = engine, lora
        self._numbers = itertools.count()
        self._news: dict[str, Any] = {}  # the newest output of every request

    def in_order(
        self, prompts: Sequence[Sequence[int]], ask: Callable[[int], Any], samples: int = 1
    ) -> Iterator[Any]:
        """Yield the finished output of each prompt, in their order.

        Enough prompts are in flight to keep the engine busy; closing the iterator aborts them.

        Args:
            prompts: token ids.
            ask: returns the sampling parameters of a prompt, by its index.
            samples: per prompt.
        """
        most = max(1, 2 * self._engine.vllm_config.scheduler_config.max_num_seqs // samples)
        running: dict[str, int] = {}
        done: dict[int, Any] = {}
        upcoming = iter(range(len(prompts)))
        try:
            for index in range(len(prompts)):
                while index not in done:
                    for new in itertools.islice(upcoming, most - len(running)):
                        running[self.add(prompts[new], ask(new))] = new
                    done |= {running.pop(name): output for name, output in self.wait(running)}
                yield done.pop(index)
        finally:
            self.abort(running)

    def add(self, prompt: Sequence[int], params: Any) -> str:
        """Start a request and return its name."""
        name = f"grace-{next(self._numbers)}"
        given = {"prompt_token_ids": list(prompt)}
        self._engine.add_request(name, given, params, lora_request=self.lora)
        return name

    def wait(self, names: Collection[str]) -> list[tuple[str, Any]]:
        """Run the engine until something of these requests comes back; return it by name.

        Raises:
            ModelError: the engine has nothing left to do and none of them has come back.
        """
        while True:
            found = [(name, self._news.pop(name)) for name in names if name in self._news]
            if found:
                return found
            if not self._engine.has_unfinished_requests():
                raise ModelError("vLLM lost a request; its own log says why")
            for output in self._engine.step():
                self._news[output.request_id] = output

    def abort(self, names: Collection[str]) -> None:
        """Stop requests and forget what came back of them."""
        if names:
            self._engine.abort_request(list(names))
        for name in names:
            self._news.pop(name, None)


class VllmStream:
    """Samples of one prompt, a request each; vLLM reads the prompt once, as they share it.

    `tokens` counts the response tokens that were generated, those of stopped samples too.
    """

    def __init__(
        self,
        requests: Requests,
        prompt: Sequence[int],
        ask: Callable[[int], Any],
        step: Callable[[int, Any], Step],
        reader: Reader,
        tokenizer: Any,
        drop: float,
    ) -> None:
        self.tokens = 0
        self._step, self._reader, self._tokenizer = step, reader, tokenizer
        self._drop = drop
        self._requests = requests
        self._prompt = prompt
        self._ask = ask

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Sample these numbers side by side; yield (number, response) as each finishes.

        A sample has the seed that `generate` gives the same prompt, key and number. Closing the
        iterator aborts the others: they free their place in the batch at once.
        """
        waiting = {self._requests.add(self._prompt, self._ask(n)): n for n in numbers}
        written = dict.fromkeys(waiting, 0)
        watches = {name: Watch(self._reader.evidence, self._drop) for name in waiting}
        try:
            while waiting:
                for name, output in self._requests.wait(waiting):
                    (sample,) = output.outputs
                    written[name] = len(sample.token_ids)
                    steps = list(map(self._step, sample.token_ids, sample.logprobs))
                    hopeless = self._drop and watches[name].falls(steps, self._reader)
                    if hopeless or output.finished:
                        generation = read(steps, self._reader, self._tokenizer)
                        if hopeless:
                            generation = dropped(steps[:hopeless], self._reader, self._tokenizer)
                            self._requests.abort([] if output.finished else [name])
                        written[name] = len(generation.token_ids)
                        yield waiting.pop(name), generation
        finally:
            self.tokens += sum(written.values())
            self._requests.abort(waiting)


def last(output: Any) -> dict[int, Any]:
    """Return the log-probabilities by id of the last step of a request's only sample."""
    known: dict[int, Any] = output.outputs[0].logprobs[-1]
    return known
