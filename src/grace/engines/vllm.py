"""vLLM in this process: the log-probability of `<CNF>` comes with the tokens, in one request.

No plugin and no second request: `SamplingParams.logprob_token_ids` names the ids whose raw
log-probabilities every step returns (vLLM 0.22 or later). vLLM's random numbers are its own, so
sampled responses are others than the transformers engine's; greedy ones are the same.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from grace.engines import Capability, Opening, Sampling
from grace.engines.checks import Given, StepEngine, check_contexts
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import Reader, Step, read
from grace.engines.stops import stop_ids
from grace.engines.vllm_loading import check_raw, check_version, ends_of, start
from grace.engines.vllm_requests import Requests, VllmStream, last
from grace.errors import ConfigError, ModelError
from grace.records import Generation
from grace.store import LORA_CONFIG, read_card

Ids = Sequence[int]

MOST_IDS = 128  # that vLLM returns log-probabilities of per step
BANNED = -100.0  # the lowest logit bias that vLLM takes


class VllmEngine(StepEngine):
    """Samples from, and reads, a model that vLLM runs.

    Attributes: `tokenizer`, `reader` (what ends a response and how c is read) and `readout` (the
    token that is read).

    Args:
        llm: a `vllm.LLM` with the model.
        tokenizer: the tokenizer with `<CNF>`.
        card: the content of the model's grace.json.
        lora: the `LoRARequest` of the exported LoRA, if the model is its base.
        needs_cnf: refuse a model without `<CNF>`, which can only be sampled.
        stops: ids that end a response besides those that model, tokenizer and card name.

    Raises:
        ModelError: no `<CNF>`, or the engine would return other numbers than c; the message says
            which.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(
        self,
        llm: Any,
        tokenizer: Any,
        card: dict[str, Any] | None = None,
        *,
        lora: Any = None,
        needs_cnf: bool = True,
        stops: Sequence[int] = (),
    ) -> None:
        check_version()
        check_raw(llm)
        config = llm.llm_engine.model_config
        self.tokenizer = tokenizer
        ends = (*ends_of(config), *stops)
        self.reader = Reader.of(tokenizer, card or {}, ends, needs_cnf=needs_cnf)
        cnf, rows = self.reader.cnf, config.get_vocab_size()
        if cnf is not None and cnf >= rows:
            raise ModelError(
                f"the tokenizer knows <CNF> as id {cnf}, but the model has {rows} rows; "
                " give what `grace export` wrote"
            )
        self.limit: int = config.max_model_len
        self._requests = Requests(llm.llm_engine, lora)

    @classmethod
    def open(cls, opening: Opening) -> VllmEngine:
        """Load an export (a merged model or a LoRA), or a model to sample from.

        `opening.path` is the base of a LoRA where `opening.adapter` is set; the options are further
        arguments of `vllm.LLM`, such as `tensor_parallel_size`. The output head runs in float32,
        where this vLLM can do it.

        Raises:
            ConfigError: vLLM is not installed, or a device, which vLLM chooses by itself.
            ModelError: vLLM cannot load it, or not so that c is right.
        """
        if opening.device != "auto":
            raise ConfigError(
                f"device is {opening.device!r}, but vLLM takes what CUDA_VISIBLE_DEVICES shows it; "
                "leave device at auto"
            )
        check_version()
        path, code = opening.adapter or opening.path, opening.trust_remote_code
        folder, card = Path(path), read_card(Path(path))
        lora = (folder / LORA_CONFIG).is_file()
        if lora and card.get("format") != "vllm-lora":
            raise ModelError(
                f"{path} is an adapter with a trained row, which vLLM cannot load; write one that "
                "it can: grace export RUN DIR (or with --format vllm-lora)"
            )
        tokenizer = load_tokenizer(path, trust_remote_code=code, thinking=opening.thinking)
        needs = opening.needs_cnf
        Reader.of(tokenizer, card, needs_cnf=needs)  # refuses before a model loads for minutes
        base = opening.path if opening.adapter else card.get("base_model")
        rows = {"max_num_seqs": opening.batch_size} if opening.batch_size else {}
        options = {**rows, **opening.options, "tokenizer": str(path), "trust_remote_code": code}
        model = str(base if lora else path)
        llm, request = start(model, folder, opening.dtype, options, lora=lora)
        stops = stop_ids(tokenizer, opening.stop)
        return cls(llm, tokenizer, card, lora=request, needs_cnf=needs, stops=stops)

    def close(self) -> None:
        """Let go of vLLM, so that its memory is free for another model."""
        del self._requests
        gc.collect()

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> VllmStream:
        """Return what starts samples of one prompt and yields each as it finishes.

        Raises:
            DataError: an empty prompt.
            ModelError: the prompt and a response could exceed the model's context.
        """
        check_contexts([prompt], self.limit, sampling.max_new_tokens, [key])
        return VllmStream(
            self._requests,
            prompt,
            lambda number: self._drawing(sampling, key, number, in_full=False),
            self._step,
            self.reader,
            self.tokenizer,
            sampling.drop,
        )

    def _samples(
        self, prompts: Sequence[Ids], keys: Sequence[str], sampling: Sampling
    ) -> Generator[list[Generation], None, None]:
        """Yield the samples of each prompt: one request, so it is read once."""
        count = sampling.num_samples

        def ask(index: int) -> Any:
            return self._drawing(sampling, keys[index], sampling.first_sample, n=count)

        for output in self._requests.in_order(prompts, ask, count):
            yield list(map(self._generation, output.outputs))

    def _generation(self, sample: Any) -> Generation:
        return read(map(self._step, sample.token_ids, sample.logprobs), self.reader, self.tokenizer)

    def _next_logprobs(self, contexts: Sequence[Ids], tokens: Ids) -> Iterator[Sequence[float]]:
        parts = [tokens[i : i + MOST_IDS] for i in range(0, len(tokens), MOST_IDS)]
        columns = []
        for part in parts:
            outputs = self._requests.in_order(contexts, lambda _, part=part: _params(part))  # type: ignore[misc]
            columns.append([[last(o)[i].logprob for i in part] for o in outputs])
        return map(list, map(itertools.chain.from_iterable, zip(*columns, strict=True)))

    def _drawing(
        self, sampling: Sampling, key: str, first: int, *, n: int = 1, in_full: bool = True
    ) -> Any:
        """Return vLLM's parameters of `n` samples from number `first` on.

        vLLM gives sample i of a request the seed of the request plus i.
        """
        words = f"{sampling.seed}\0{key}".encode("utf-8", "surrogatepass")
        seed = int.from_bytes(hashlib.blake2b(words, digest_size=7).digest(), "little")
        reader = self.reader
        return _params(
            reader.asked,
            n=n,
            in_full=in_full,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=seed + first,
            stop_token_ids=list(reader.stops),
            logit_bias=dict.fromkeys(reader.banned, BANNED) or None,
        )

    def _after(self, contexts: Sequence[Ids]) -> Generator[Step, None, None]:
        outputs = self._requests.in_order(contexts, lambda _: _params(self.reader.asked))
        return (self._step(self.reader.eos[0], last(output)) for output in outputs)

    def _given(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Given, None, None]:
        self.reader.check_given("vLLM")
        if self.reader.every_step:
            yield from map(self._walk, prompts, responses)
            return
        if self._requests.lora is not None:
            raise ModelError(
                "vLLM does not return log-probabilities of given responses where a LoRA changes "
                "the output head; use an export with format merged"
            )
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        check_contexts(contexts, self.limit, 1)
        params = _params(self.reader.asked, prompt_logprobs=0)
        outputs = self._requests.in_order(contexts, lambda _: params)
        for response, output in zip(responses, outputs, strict=True):
            given = output.prompt_logprobs[len(output.prompt_logprobs) - len(response) :]
            pairs = zip(response, given, strict=True)
            logprobs = [known[token].logprob for token, known in pairs]
            yield [self._step(self.reader.eos[0], last(output))], logprobs

    def _walk(self, prompt: Ids, response: Ids) -> Given:
        """Return what `_given` yields of a response, by a request per step on one prefix."""
        contexts = [[*prompt, *response[:place]] for place in range(len(response) + 1)]
        check_contexts(contexts, self.limit, 1)
        tokens = [*response, self.reader.eos[0]]
        named = [dict.fromkeys([*self.reader.asked, token]) for token in tokens]
        found = map(last, self._requests.in_order(contexts, lambda at: _params(named[at])))
        steps = [self._step(token, known) for token, known in zip(tokens, found, strict=True)]
        logprobs = [step.logprob - self.reader.rest(step.logprobs) for step in steps[:-1]]
        return steps, logprobs

    def _step(self, token: int, known: Mapping[int, Any]) -> Step:
        """Return a step that chose a token, from vLLM's log-probabilities by id."""
        return Step(token, known[token].logprob, {i: known[i].logprob for i in self.reader.asked})


def _params(
    asked: Iterable[int],
    *,
    temperature: float = 0.0,
    max_tokens: int = 1,
    in_full: bool = True,
    **more: Any,
) -> Any:
    """Return the parameters of a request that also returns the log-probabilities of some ids."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        logprob_token_ids=list(asked),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY if in_full else RequestOutputKind.CUMULATIVE,
        **more,
    )


ENGINE = VllmEngine
