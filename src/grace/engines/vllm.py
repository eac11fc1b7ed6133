"""vLLM in this process.

The log-probability of `<CNF>` comes with the tokens, without a plugin or a second request:
`SamplingParams.logprob_token_ids` names the ids whose raw log-probabilities every step returns
(vLLM 0.22 or later). Greedy responses are those of the transformers engine; sampled ones differ,
since vLLM has random numbers of its own.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from grace import plugins
from grace.engines import Capability, Ids, Opening, Sampling, seed_from
from grace.engines.base import SampleStream, StepEngine
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import MOST_IDS, Reader, Scored, Step, check_rows, ids_in, read, stop_ids
from grace.errors import ComputeError, ConfigError, ModelError, first_line
from grace.records import Response
from grace.store import LORA_CONFIG, ROWS, read_card, read_json

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


BANNED = -100.0  # the lowest logit bias that vLLM accepts


class VllmStream(SampleStream):
    """Samples of one prompt, a request each."""

    def start(self, numbers: range) -> Generator[tuple[int, Response], None, None]:
        """Yield (number, response) as each finishes; closing the iterator aborts the others."""
        engine, reader, requests = self._engine, self._engine.reader, self._engine._requests
        waiting = {requests.add(self._prompt, self._params(n)): n for n in numbers}
        drawn = {name: list[Step]() for name in waiting}
        try:
            while waiting:
                for name, output in requests.wait(waiting):
                    (sample,) = output.outputs
                    steps = drawn[name]
                    new = slice(len(steps), None)  # an output has all tokens so far
                    steps += map(engine._step, sample.token_ids[new], sample.logprobs[new])
                    if output.finished:
                        generation = read(steps, reader, engine.tokenizer)
                        self.tokens += len(generation.token_ids)
                        yield waiting.pop(name), generation
        finally:
            self.tokens += sum(len(drawn[name]) for name in waiting)
            requests.abort(waiting)

    def _params(self, number: int) -> Any:
        return self._engine._sampling_params(self._sampling, self._key, number, in_full=False)


class VllmEngine(StepEngine):
    """Samples from a model that vLLM runs, and scores responses (see `StepEngine`)."""

    gives: ClassVar[frozenset[Capability]] = frozenset()
    streams = VllmStream

    def __init__(
        self,
        llm: Any,
        tokenizer: Any,
        card: dict[str, Any] | None = None,
        *,
        lora: Any = None,
        needs_cnf: bool = True,
        stops: Ids = (),
    ) -> None:
        check_version()
        check_raw(llm)
        config = llm.llm_engine.model_config
        self.tokenizer = tokenizer
        ends, rows = (*ends_of(config), *stops), config.get_vocab_size()
        self.reader = Reader.of(tokenizer, card or {}, ends, rows=rows, needs_cnf=needs_cnf)
        check_rows(self.readout, rows, "the model", "give what `grace export` wrote")
        self.limit: int = config.max_model_len
        self._requests = Requests(llm.llm_engine, lora)

    @classmethod
    def open(cls, opening: Opening) -> VllmEngine:
        """Load an export (with `adapter` the LoRA's base model) or a model to sample from."""
        if opening.device != "auto":
            raise ConfigError(
                f"device is {opening.device!r}, but vLLM runs on the devices in "
                "CUDA_VISIBLE_DEVICES; leave device at auto"
            )
        check_version()
        path = opening.adapter or opening.path
        code = opening.trust_remote_code or plugins.trusts(path)
        folder, card = Path(path), read_card(Path(path))
        lora = (folder / LORA_CONFIG).is_file()
        if (lora and card.get("format") != "vllm-lora") or (folder / ROWS).is_file():
            raise ModelError(
                f"{path} is an adapter with trained rows, which vLLM cannot load; export it "
                "first: grace export RUN DIR (or with --format vllm-lora)"
            )
        tokenizer = load_tokenizer(
            path, trust_remote_code=code, thinking=opening.thinking, date=opening.date
        )
        needs = opening.needs_cnf
        Reader.of(tokenizer, card, needs_cnf=needs)  # fails before the model loads for minutes
        base = opening.path if opening.adapter else card.get("base_model")
        rows = {"max_num_seqs": opening.batch_size} if opening.batch_size else {}
        options = {**rows, **opening.options, "tokenizer": str(path), "trust_remote_code": code}
        model = str(base if lora else path)
        llm, request = start(model, folder, opening.dtype, options, lora=lora)
        stops = stop_ids(tokenizer, opening.stop)
        return cls(llm, tokenizer, card, lora=request, needs_cnf=needs, stops=stops)

    def close(self) -> None:
        """Free the memory of vLLM for another model."""
        del self._requests
        gc.collect()

    def _samples(
        self, prompts: Sequence[Ids], keys: Sequence[str], sampling: Sampling
    ) -> Generator[list[Response], None, None]:
        """Yield the samples of each prompt, one request each, so that it is prefilled once."""
        count = sampling.num_samples

        def params(index: int) -> Any:
            return self._sampling_params(sampling, keys[index], sampling.first_sample, n=count)

        for output in self._requests.in_order(prompts, params, count):
            yield list(map(self._generation, output.outputs))

    def _generation(self, sample: Any) -> Response:
        return read(map(self._step, sample.token_ids, sample.logprobs), self.reader, self.tokenizer)

    def _next_logprobs(self, contexts: Sequence[Ids], tokens: Ids) -> Iterator[Sequence[float]]:
        parts = [tokens[i : i + MOST_IDS] for i in range(0, len(tokens), MOST_IDS)]
        columns = []
        for part in parts:
            outputs = self._requests.in_order(contexts, lambda _, part=part: _params(part))  # type: ignore[misc]
            columns.append([[_last(output)[i].logprob for i in part] for output in outputs])
        return map(list, map(itertools.chain.from_iterable, zip(*columns, strict=True)))

    def _sampling_params(
        self, sampling: Sampling, key: str, first: int, *, n: int = 1, in_full: bool = True
    ) -> Any:
        """Return vLLM's parameters; sample i has the seed of the request plus i."""
        return _params(
            self.reader.requested,
            n=n,
            in_full=in_full,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=seed_from(sampling.seed, key) + first,
            stop_token_ids=list(self.reader.stops),
            logit_bias=dict.fromkeys(self.reader.banned, BANNED) or None,
        )

    def _score(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Scored, None, None]:
        if self.reader.banned:
            yield from map(self._score_stepwise, prompts, responses)
            return
        given = any(map(len, responses))
        if given and self._requests.lora is not None:
            raise ModelError(
                "vLLM does not return log-probabilities of given responses with a LoRA that "
                "changes the output head; use an export with format merged"
            )
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        params = _params(self.reader.requested, prompt_logprobs=0 if given else None)
        outputs = self._requests.in_order(contexts, lambda _: params)
        for response, output in zip(responses, outputs, strict=True):
            read = output.prompt_logprobs or []
            rows = read[len(read) - len(response) :]
            logprobs = [row[token].logprob for token, row in zip(response, rows, strict=True)]
            yield self.reader.scored([self._step(self.reader.eos[0], _last(output))], logprobs)

    def _score_stepwise(self, prompt: Ids, response: Ids) -> Scored:
        contexts = [[*prompt, *response[:place]] for place in range(len(response) + 1)]
        tokens = [*response, self.reader.eos[0]]
        requested = [dict.fromkeys([*self.reader.requested, token]) for token in tokens]
        outputs = self._requests.in_order(contexts, lambda at: _params(requested[at]))
        steps = [self._step(t, _last(output)) for t, output in zip(tokens, outputs, strict=True)]
        return self.reader.scored(steps)

    def _step(self, token: int, logprobs: Mapping[int, Any]) -> Step:
        """Return a step that chose a token, from vLLM's log-probabilities by id."""
        requested = {i: logprobs[i].logprob for i in self.reader.requested}
        return Step(token, logprobs[token].logprob, requested)


def _params(
    ids: Iterable[int],
    *,
    temperature: float = 0.0,
    max_tokens: int = 1,
    in_full: bool = True,
    **more: Any,
) -> Any:
    """Return vLLM's parameters for a request; `in_full`: one output, at its end."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    try:
        return SamplingParams(
            temperature=temperature,
            max_tokens=max_tokens,
            logprob_token_ids=list(ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY if in_full else RequestOutputKind.CUMULATIVE,
            **more,
        )
    except Exception as error:  # its type depends on vLLM's version
        raise ConfigError(
            f"vLLM does not sample like this ({first_line(error)}); use another value, or the "
            "transformers engine"
        ) from error


def _last(output: Any) -> Mapping[int, Any]:
    """Return the log-probabilities by id of the last step of a request's only sample."""
    logprobs: Mapping[int, Any] = output.outputs[0].logprobs[-1]
    return logprobs


# --- starting vLLM so that c can be read, and refusing settings with which c would be wrong

OLDEST = (0, 22)  # older ones return log-probabilities that depend on the temperature
# On a CPU vLLM 0.32 dies in a seeded sample whose prompt it splits between two steps.
WHOLE_PROMPTS = 32_768  # tokens of a step
SAID = 300  # characters of its errors, whose first lines say little
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values of max_lora_rank that vLLM accepts


def check_version() -> None:
    """Import vLLM, whose log goes to standard error; refuse one that is missing or too old."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for results
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"the vllm engine needs vLLM ({first_line(error)}); pip install vllm, in an "
            "environment of its own, as it pins torch and transformers"
        ) from None
    match = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    if match and (int(match[1]), int(match[2])) < OLDEST:
        raise ModelError(
            f"vLLM {vllm.__version__} returns log-probabilities that depend on the temperature, "
            "so confidences would be wrong; install 0.22 or later"
        )


def check_raw(llm: Any) -> None:
    """Refuse a vLLM whose log-probabilities are not those of the model at temperature 1."""
    config = llm.llm_engine.vllm_config
    mode = config.model_config.logprobs_mode
    if mode != "raw_logprobs":
        raise ModelError(
            f"vLLM runs with logprobs_mode={mode}, so confidences would depend on temperature and "
            "top-p; use raw_logprobs, the default"
        )
    if config.speculative_config is not None:
        raise ModelError(
            "vLLM does not return the log-probability of <CNF> with speculative decoding; start "
            "it without speculative_config"
        )


def ends_of(config: Any) -> tuple[int, ...]:
    """Return the end tokens that a model's configurations name."""
    named = config.try_get_generation_config().get("eos_token_id")
    return tuple(ids_in(named, getattr(config.hf_text_config, "eos_token_id", None)))


def start(
    model: str, folder: Path, dtype: str, options: dict[str, Any], *, lora: bool
) -> tuple[Any, Any]:
    """Return a `vllm.LLM`, and the request for the LoRA in `folder`, None without one."""
    from vllm import LLM

    options = {"logprobs_mode": "raw_logprobs", **_types(dtype), **options}
    request = None
    if lora:
        from vllm.lora.request import LoRARequest

        rank = max_lora_rank(folder)
        options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank, **options}
        request = LoRARequest(folder.name, 1, str(folder.absolute()))
    try:
        return LLM(model=model, **options), request
    except Exception as error:  # vLLM raises many kinds here
        said = " ".join(str(error).split())[:SAID] or type(error).__name__
        raise ModelError(f"vLLM cannot load {model} ({said}); its own log says more") from error


def max_lora_rank(folder: Path) -> int:
    """Return the value of vLLM's `max_lora_rank` for the LoRA in a folder."""
    rank: int = read_json(folder / LORA_CONFIG)["r"]
    return next((allowed for allowed in LORA_RANKS if allowed >= rank), rank)


def _types(dtype: str) -> dict[str, Any]:
    """Return vLLM's options for a dtype, with the output head in float32."""
    import torch

    cpu: dict[str, Any] = {}
    if not torch.cuda.is_available():
        cpu["max_num_batched_tokens"] = WHOLE_PROMPTS
        dtype = "float32" if dtype == "auto" else dtype
    exact = {} if dtype == "float32" else {"hf_overrides": {"head_dtype": "float32"}}
    return {"dtype": dtype, **exact, **cpu}


ENGINE = VllmEngine
