"""vLLM in this process: the log-probability of `<CNF>` comes with the tokens, in one request.

No plugin and no second request: `SamplingParams.logprob_token_ids` names the ids whose raw
log-probabilities every step returns (vLLM 0.22 or later). vLLM's random numbers are its own, so
sampled responses are others than the transformers engine's; greedy ones are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grace.cnf import find_readout
from grace.engines import Features, Sampling
from grace.engines.checks import check_contexts
from grace.engines.loading import first_line, load_tokenizer, read_manifest
from grace.engines.reading import Reader, Step, read
from grace.engines.vllm_requests import Requests
from grace.errors import ConfigError, ModelError
from grace.evidence import confidence
from grace.records import Generation

Ids = Sequence[int]

OLDEST = (0, 22)  # before it, log-probabilities of single ids depend on the temperature
MOST_IDS = 128  # that vLLM returns log-probabilities of per step
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what max_lora_rank takes
BANNED = -100.0  # the lowest logit bias that vLLM takes


class VllmEngine:
    """Samples from, and reads, a model that vLLM runs.

    Attributes: `tokenizer`, `reader` (what ends a response and how c is read) and `readout` (the
    token that is read).

    Args:
        llm: a `vllm.LLM` with the model.
        tokenizer: the tokenizer with `<CNF>`.
        card: the content of the model's grace.json.
        lora: the `LoRARequest` of the exported LoRA, if the model is its base.

    Raises:
        ModelError: no `<CNF>`, or the engine would return other numbers than c; the message says
            which.
    """

    def __init__(
        self,
        llm: Any,
        tokenizer: Any,
        card: dict[str, Any] | None = None,
        *,
        lora: Any = None,
    ) -> None:
        check_version()
        _check_raw(llm)
        config = llm.llm_engine.model_config
        self.tokenizer = tokenizer
        self.reader = Reader.of(tokenizer, card or {}, _named_ends(config))
        self.readout = find_readout(tokenizer)
        if self.reader.cnf >= (rows := config.get_vocab_size()):
            raise ModelError(
                f"the tokenizer knows <CNF> as id {self.reader.cnf}, but the model has {rows} "
                "rows; give what `grace export` wrote"
            )
        self._limit: int = config.max_model_len
        self._requests = Requests(llm.llm_engine, lora)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        base: str | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        **options: Any,
    ) -> VllmEngine:
        """Load an export: a merged model (directory or Hub id), or a LoRA and its base.

        Args:
            path: what `grace export` wrote with format merged or vllm-lora.
            base: where the base of a LoRA is now; None: where it was when it was exported.
            dtype: auto (float32 without a GPU), float32, bfloat16 or float16; the output head
                runs in float32 in any case, where this vLLM can do it.
            trust_remote_code: run Python code that comes with the model.
            options: further arguments of `vllm.LLM`, such as `tensor_parallel_size`.

        Raises:
            ConfigError: vLLM is not installed.
            ModelError: vLLM cannot load it, or not so that c is right.
        """
        check_version()
        folder, card = Path(path), read_manifest(Path(path))
        lora = (folder / "adapter_config.json").is_file()
        if lora and card.get("format") != "vllm-lora":
            raise ModelError(
                f"{path} is an adapter with a trained row, which vLLM cannot load; write one that "
                "it can: grace export RUN DIR (or with --format vllm-lora)"
            )
        tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
        Reader.of(tokenizer, card)  # refuses before a model is loaded for minutes
        model = str(base or card["base_model"]) if lora else str(path)
        options = {
            "tokenizer": str(path),
            "trust_remote_code": trust_remote_code,
            "logprobs_mode": "raw_logprobs",
            **_types(dtype),
            **(_lora_options(folder) if lora else {}),
            **options,
        }
        llm = _start(model, options)
        return cls(llm, tokenizer, card, lora=_lora_request(folder) if lora else None)

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
        check_contexts(prompts, self._limit, sampling.max_new_tokens, keys)
        greedy = sampling.temperature == 0
        count = 1 if greedy else sampling.num_samples

        def ask(index: int) -> Any:
            return self._drawing(sampling, keys[index], sampling.first_sample, n=count)

        for index, output in enumerate(self._requests.in_order(prompts, ask, count)):
            made = [self._generation(sample, greedy) for sample in output.outputs]
            yield index, made * sampling.num_samples if greedy else made

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> VllmStream:
        """Return what starts samples of one prompt and yields each as it finishes.

        Raises:
            DataError: an empty prompt.
            ModelError: the prompt and a response could exceed the model's context.
        """
        check_contexts([prompt], self._limit, sampling.max_new_tokens, [key])
        greedy = sampling.temperature == 0
        return VllmStream(
            self._requests,
            prompt,
            lambda number: self._drawing(sampling, key, number, in_full=False),
            lambda sample: self._generation(sample, greedy),
        )

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        check_contexts(contexts, self._limit, 1)
        parts = [tokens[i : i + MOST_IDS] for i in range(0, len(tokens), MOST_IDS)]
        columns = []
        for part in parts:
            outputs = self._requests.in_order(contexts, lambda _, part=part: _params(part))  # type: ignore[misc]
            columns.append([[_last(o)[i].logprob for i in part] for o in outputs])
        shape = (len(contexts), 0)
        found_NT = np.concatenate([np.zeros(shape), *map(np.array, columns)], axis=1)
        return np.exp(found_NT).astype(np.float32)

    def confidences(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> list[float]:
        """Return c of given responses (token ids without the end token).

        Raises:
            ModelError: c needs the responses' own probabilities and the model is a LoRA.
        """
        reader = self.reader
        if reader.evidence is None:
            contexts: Sequence[Ids] = prompts
            if not reader.at_prompt:
                contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
            return [float(c) for c in self.next_token_probs(contexts, [reader.cnf])[:, 0]]
        return [
            confidence(end[reader.cnf].logprob, logprobs, reader.evidence)
            for logprobs, end in self._score(prompts, responses)
        ]

    def logprobs(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end.

        Raises:
            ModelError: c is read at the prompt; `<CNF>` is then no part of what is drawn. Or the
                model is a LoRA.
        """
        if self.reader.at_prompt:
            raise ModelError(
                "with read_at=prompt, log-probabilities of given responses need the transformers "
                "engine; vLLM returns those of <CNF> only while it generates"
            )
        return [
            (logprobs, float(np.logaddexp.reduce([end[i].logprob for i in self.reader.stops])))
            for logprobs, end in self._score(prompts, responses)
        ]

    def features(self, prompts: Sequence[Ids], responses: Sequence[Ids]) -> Features:
        """Refuse: vLLM does not return hidden states while it generates.

        Raises:
            ModelError: always; names the engine that can.
        """
        raise ModelError(
            "vLLM does not return hidden states here; use the transformers engine for features"
        )

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
            logit_bias={reader.cnf: BANNED} if reader.at_prompt else None,
        )

    def _generation(self, sample: Any, greedy: bool) -> Generation:
        steps = (
            Step(token, known[token].logprob, {i: known[i].logprob for i in self.reader.asked})
            for token, known in zip(sample.token_ids, sample.logprobs, strict=True)
        )
        return read(steps, self.reader, self.tokenizer, greedy=greedy)

    def _score(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Iterator[tuple[list[float], dict[int, Any]]]:
        """Yield the log-probabilities of each response's tokens, and those at its end by id."""
        if self._requests.lora is not None:
            raise ModelError(
                "vLLM does not return log-probabilities of given responses where a LoRA changes "
                "the output head; use an export with format merged"
            )
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        check_contexts(contexts, self._limit, 1)
        params = _params(self.reader.asked, prompt_logprobs=0)
        outputs = self._requests.in_order(contexts, lambda _: params)
        for response, output in zip(responses, outputs, strict=True):
            given = output.prompt_logprobs[len(output.prompt_logprobs) - len(response) :]
            pairs = zip(response, given, strict=True)
            yield [known[token].logprob for token, known in pairs], _last(output)


class VllmStream:
    """Samples of one prompt, a request each; vLLM reads the prompt once, as they share it.

    `tokens` counts the response tokens that were generated, those of stopped samples too.
    """

    def __init__(
        self,
        requests: Requests,
        prompt: Ids,
        ask: Callable[[int], Any],
        finish: Callable[[Any], Generation],
    ) -> None:
        self.tokens = 0
        self._requests = requests
        self._prompt = prompt
        self._ask = ask
        self._finish = finish

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Sample these numbers side by side; yield (number, response) as each finishes.

        A sample has the seed that `generate` gives the same prompt, key and number. Closing the
        iterator aborts the others: they free their place in the batch at once.
        """
        waiting = {self._requests.add(self._prompt, self._ask(n)): n for n in numbers}
        written = dict.fromkeys(waiting, 0)
        try:
            while waiting:
                for name, output in self._requests.wait(waiting):
                    (sample,) = output.outputs
                    written[name] = len(sample.token_ids)
                    if output.finished:
                        generation = self._finish(sample)
                        written[name] = len(generation.token_ids)
                        yield waiting.pop(name), generation
        finally:
            self.tokens += sum(written.values())
            self._requests.abort(waiting)


def check_version() -> None:
    """Refuse where vLLM is missing or too old.

    Raises:
        ConfigError: vLLM is not installed.
        ModelError: it is older than 0.22.
    """
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"the vllm engine needs vLLM ({first_line(error)}); pip install vllm, in an "
            "environment of its own, as it pins torch and transformers"
        ) from None
    found = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        raise ModelError(
            f"vLLM {vllm.__version__} returns log-probabilities that depend on the temperature, "
            "so c would be wrong; install 0.22 or later"
        )


def _check_raw(llm: Any) -> None:
    config = llm.llm_engine.vllm_config
    mode = config.model_config.logprobs_mode
    if mode != "raw_logprobs":
        raise ModelError(
            f"vLLM runs with logprobs_mode={mode}, so c would depend on temperature and top-p; "
            "use raw_logprobs, the default"
        )
    if config.speculative_config is not None:
        raise ModelError(
            "vLLM does not return the log-probability of <CNF> with speculative decoding; start "
            "it without speculative_config"
        )


def _named_ends(config: Any) -> tuple[int, ...]:
    """Return the ids that a model's configs name as ends."""
    found: list[int] = []
    generation = config.try_get_generation_config()
    for named in (generation.get("eos_token_id"), config.hf_text_config.eos_token_id):
        found += [named] if isinstance(named, int) else list(named or ())
    return tuple(dict.fromkeys(i for i in found if 0 <= i < config.get_vocab_size()))


def _types(dtype: str) -> dict[str, Any]:
    import torch

    if dtype == "auto" and not torch.cuda.is_available():
        dtype = "float32"
    exact = {} if dtype == "float32" else {"hf_overrides": {"head_dtype": "float32"}}
    return {"dtype": dtype, **exact}


def _lora_options(folder: Path) -> dict[str, Any]:
    rank = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"]
    most = next((known for known in LORA_RANKS if known >= rank), rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": most}


def _lora_request(folder: Path) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(folder.name, 1, str(folder.absolute()))


def _start(model: str, options: dict[str, Any]) -> Any:
    from vllm import LLM

    try:
        return LLM(model=model, **options)
    except Exception as error:  # vLLM raises many kinds here
        raise ModelError(
            f"vLLM cannot load {model} ({first_line(error)}); its own log says more"
        ) from error


def _params(
    asked: Ids, *, temperature: float = 0.0, max_tokens: int = 1, in_full: bool = True, **more: Any
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


def _last(output: Any) -> dict[int, Any]:
    """Return the log-probabilities by id of the last step of a request's only sample."""
    known: dict[int, Any] = output.outputs[0].logprobs[-1]
    return known
