"""vLLM in this process: the log-probability of `<CNF>` comes with the tokens, in one request.

No plugin and no second request: `SamplingParams.logprob_token_ids` names the ids whose raw
log-probabilities every step returns (vLLM 0.22 or later). vLLM's random numbers are its own, so
sampled responses are others than the transformers engine's; greedy ones are the same.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from grace.cnf import find_readout
from grace.engines import Capability, Opening, Sampling, units
from grace.engines.checks import ReadsSteps, check_contexts
from grace.engines.local.loading import load_tokenizer, read_manifest
from grace.engines.reading import Reader, Step, read
from grace.engines.stops import stop_ids
from grace.engines.vllm_loading import check_raw, check_version, ends_of, start
from grace.engines.vllm_requests import Requests, VllmStream, last
from grace.errors import ConfigError, ModelError
from grace.records import Generation
from grace.store import LORA_CONFIG

Ids = Sequence[int]

MOST_IDS = 128  # that vLLM returns log-probabilities of per step
BANNED = -100.0  # the lowest logit bias that vLLM takes


class VllmEngine(ReadsSteps):
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
        self.readout = find_readout(tokenizer)
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
        folder, card = Path(path), read_manifest(Path(path))
        lora = (folder / LORA_CONFIG).is_file()
        if lora and card.get("format") != "vllm-lora":
            raise ModelError(
                f"{path} is an adapter with a trained row, which vLLM cannot load; write one that "
                "it can: grace export RUN DIR (or with --format vllm-lora)"
            )
        tokenizer = load_tokenizer(path, trust_remote_code=code)
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

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of work; vLLM makes its own batches in each."""
        return units(len(prompts))

    def generate(
        self,
        prompts: Sequence[Ids],
        sampling: Sampling,
        *,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (prompt index, its samples) in the order of the prompts.

        The samples of a prompt are one request, so it is read once. A closed iterator stops what
        is still being sampled.

        Raises:
            DataError: an empty prompt.
            ModelError: a prompt and its response could exceed the model's context.
        """
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        check_contexts(prompts, self.limit, sampling.max_new_tokens, keys)
        greedy = sampling.temperature == 0
        count = 1 if greedy else sampling.num_samples

        def ask(index: int) -> Any:
            return self._drawing(sampling, keys[index], sampling.first_sample, n=count)

        for index, output in enumerate(self._requests.in_order(prompts, ask, count)):
            made = [self._generation(sample) for sample in output.outputs]
            yield index, made * sampling.num_samples if greedy else made

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

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        check_contexts(contexts, self.limit, 1)
        parts = [tokens[i : i + MOST_IDS] for i in range(0, len(tokens), MOST_IDS)]
        columns = []
        for part in parts:
            outputs = self._requests.in_order(contexts, lambda _, part=part: _params(part))  # type: ignore[misc]
            columns.append([[last(o)[i].logprob for i in part] for o in outputs])
        shape = (len(contexts), 0)
        found_NT = np.concatenate([np.zeros(shape), *map(np.array, columns)], axis=1)
        probs_NT: np.ndarray = np.exp(found_NT).astype(np.float32)
        return probs_NT

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token).

        Raises:
            ModelError: there is no `<CNF>`, or c needs the responses' own probabilities and the
                model is a LoRA.
        """
        reader, cnf = self.reader, self.reader.read_id
        if reader.evidence is None:
            contexts: Sequence[Ids] = prompts
            if not reader.at_prompt:
                contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
            return [float(c) for c in self.next_token_probs(contexts, [cnf])[:, 0]]
        return super().confidences(prompts, responses)

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end.

        Raises:
            ModelError: c is read at the prompt; `<CNF>` is then no part of what is drawn. Or the
                model is a LoRA.
        """
        self.reader.check_given("vLLM")
        return super().logprobs(prompts, responses)

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

    def _generation(self, sample: Any) -> Generation:
        return read(map(self._step, sample.token_ids, sample.logprobs), self.reader, self.tokenizer)

    def _given(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Iterator[tuple[list[Step], list[float]]]:
        """Yield the steps of each response that are read, the end's last, and its tokens' log p."""
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

    def _walk(self, prompt: Ids, response: Ids) -> tuple[list[Step], list[float]]:
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
