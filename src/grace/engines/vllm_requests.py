"""The requests in flight of one vLLM engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from grace.engines import Ids
from grace.errors import ComputeError, ModelError, first_line

LOG = "its own log says why"


class Requests:
    """Adds requests, and hands each output to the iterator that waits for it."""

    def __init__(self, engine: Any, lora: Any = None) -> None:
        self._engine, self.lora = engine, lora
        self._numbers = itertools.count()
        self._outputs: dict[str, Any] = {}  # the latest output of every request

    def in_order(
        self, prompts: Sequence[Ids], params: Callable[[int], Any], samples: int = 1
    ) -> Iterator[Any]:
        """Yield the finished output of each prompt in order; closing this aborts the rest."""
        most = max(1, 2 * self._engine.vllm_config.scheduler_config.max_num_seqs // samples)
        running: dict[str, int] = {}
        done: dict[int, Any] = {}
        upcoming = iter(range(len(prompts)))
        try:
            for index in range(len(prompts)):
                while index not in done:
                    for new in itertools.islice(upcoming, most - len(running)):
                        running[self.add(prompts[new], params(new))] = new
                    done |= {running.pop(name): output for name, output in self.wait(running)}
                yield done.pop(index)
        finally:
            self.abort(running)

    def add(self, prompt: Ids, params: Any) -> str:
        """Start a request and return its name."""
        name = f"grace-{next(self._numbers)}"
        inputs = {"prompt_token_ids": list(prompt)}
        self._engine.add_request(name, inputs, params, lora_request=self.lora)
        return name

    def wait(self, names: Collection[str]) -> list[tuple[str, Any]]:
        """Run the engine until some requests have an output; return (name, output) pairs."""
        while True:
            outputs = [(name, self._outputs.pop(name)) for name in names if name in self._outputs]
            if outputs:
                return outputs
            if not self._engine.has_unfinished_requests():
                raise ModelError(f"vLLM has lost a request; {LOG}")
            try:
                made = self._engine.step()
            except Exception as error:  # also of the process that runs the model, if it has died
                raise ComputeError(f"vLLM failed ({first_line(error)}); {LOG}") from error
            self._outputs |= {output.request_id: output for output in made}

    def abort(self, names: Collection[str]) -> None:
        """Stop requests and drop their outputs."""
        if names:
            self._engine.abort_request(list(names))
        for name in names:
            self._outputs.pop(name, None)
