"""A module that speaks vLLM's dialect of 0.32, in front of a transformers model.

One full forward per token, no cache: slow, and easily seen to be right.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

VERSION = "0.32.0+cpu"


class ValidationError(Exception):
    """In vLLM 0.32 no ValueError."""


@dataclass
class SamplingParams:
    """The parameters that are used here; another is a TypeError, as it is in vLLM."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    detokenize: bool = True
    output_kind: str = "cumulative"

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.n > 1:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}.")
        if len(self.logprob_token_ids or ()) > 128:
            raise ValueError("logprob_token_ids is limited to 128 ids")
        if self.temperature > 2:
            raise ValidationError(f"temperature must be in [0, 2], got {self.temperature}.")


@dataclass
class Sample:
    """A sample in the making, then vLLM's `CompletionOutput`."""

    generator: torch.Generator
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Request:
    prompt: list[int]
    params: SamplingParams
    lora: Any
    samples: list[Sample]


class Engine:
    """`vllm.LLMEngine`: every step gives each running sample one token."""

    def __init__(self, model: Any, **config: Any) -> None:
        self.model = model
        self.model_config = SimpleNamespace(
            logprobs_mode=config.get("logprobs_mode", "raw_logprobs"),
            max_model_len=config.get("max_model_len", 128),
            hf_text_config=model.config,
            get_vocab_size=lambda: model.config.vocab_size,
            try_get_generation_config=dict,
        )
        self.vllm_config = SimpleNamespace(
            model_config=self.model_config,
            scheduler_config=SimpleNamespace(max_num_seqs=config.get("max_num_seqs", 4)),
            speculative_config=config.get("speculative_config"),
        )
        self.running: dict[str, Request] = {}
        self.asked: list[SamplingParams] = []
        self.aborted: list[str] = []

    def add_request(
        self, name: str, prompt: Any, params: SamplingParams, lora_request: Any
    ) -> None:
        first = 0 if params.seed is None else params.seed
        samples = [Sample(torch.Generator().manual_seed(first + i)) for i in range(params.n)]
        self.running[name] = Request(prompt["prompt_token_ids"], params, lora_request, samples)
        self.asked.append(params)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.running.pop(name, None)  # vLLM takes names of requests that have ended, too

    def step(self) -> list[Any]:
        outputs = []
        for name, request in list(self.running.items()):
            for sample in request.samples:
                if sample.finish_reason is None:
                    self._extend(request, sample)
            finished = all(sample.finish_reason for sample in request.samples)
            if finished:
                del self.running[name]
            if finished or request.params.output_kind != "final only":
                outputs.append(self._output(name, request, finished))
        return outputs

    @torch.inference_mode()
    def _logprobs(self, ids: list[int]) -> torch.Tensor:
        logits = self.model(torch.tensor([ids])).logits[0].float()
        return logits.log_softmax(-1)

    def _extend(self, request: Request, sample: Sample) -> None:
        params = request.params
        raw = self._logprobs([*request.prompt, *sample.token_ids])[-1]
        logits = raw.clone()
        for token, bias in (params.logit_bias or {}).items():
            logits[token] += bias
        token = int(logits.argmax())
        if params.temperature > 0:
            probs = (logits / params.temperature).softmax(-1)
            token = int(torch.multinomial(probs, 1, generator=sample.generator))
        sample.token_ids.append(token)
        shown = {token, *(params.logprob_token_ids or ())}
        sample.logprobs.append({i: SimpleNamespace(logprob=float(raw[i])) for i in shown})
        if token in {*params.stop_token_ids, self.model.config.eos_token_id}:
            sample.finish_reason = "stop"
        elif len(sample.token_ids) == params.max_tokens:
            sample.finish_reason = "length"

    def _output(self, name: str, request: Request, finished: bool) -> Any:
        given = None
        if request.params.prompt_logprobs is not None:
            raw = self._logprobs(request.prompt)
            pairs = enumerate(request.prompt[1:])
            given = [None, *({i: SimpleNamespace(logprob=float(raw[t, i]))} for t, i in pairs)]
        return SimpleNamespace(
            request_id=name, outputs=request.samples, prompt_logprobs=given, finished=finished
        )


def llm(model: Any, **config: Any) -> Any:
    """Return what `vllm.LLM` is to the engine."""
    return SimpleNamespace(llm_engine=Engine(model, **config))


def load(model: str, **options: Any) -> Any:
    """Stand for `vllm.LLM` of a model directory."""
    import transformers

    return llm(transformers.AutoModelForCausalLM.from_pretrained(model), max_model_len=256)


def install(monkeypatch: pytest.MonkeyPatch, make: Any = None, version: str = VERSION) -> None:
    """Put the fake where `import vllm` finds it; `make` stands for `vllm.LLM`."""
    parts: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": version, "SamplingParams": SamplingParams, "LLM": make},
        "vllm.sampling_params": {
            "RequestOutputKind": SimpleNamespace(FINAL_ONLY="final only", CUMULATIVE="cumulative")
        },
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": lambda *values: values},
    }
    for name, values in parts.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
