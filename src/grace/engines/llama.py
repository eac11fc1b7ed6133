"""A GGUF file in this process, run by llama.cpp.

llama-cpp-python returns all logits of a step. Tokens are drawn from them as in the transformers
engine, with the same random numbers, so that the same weights give the same samples. One token of
one sequence is computed at a time; the prefix that a context shares with the last one is reused.

Shapes: V vocabulary.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import os
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import log_softmax

from grace.cnf import find_readout
from grace.config import SampleSettings, from_dict
from grace.engines import Capability, Ids, Opening, Sampling
from grace.engines.base import StepEngine, check_contexts
from grace.engines.gguf.header import Header, read_header
from grace.engines.local.draws import Draws, Part
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import Reader, Scored, Step, check_rows
from grace.engines.responses import Watch, dropped, read
from grace.engines.stops import named_ends, stop_ids
from grace.errors import ComputeError, ConfigError, ModelError, first_line
from grace.records import Generation
from grace.store import read_card

# Default of n_ctx, since llama.cpp allocates the whole context at once. It is more if the answers
# could be longer than half of it, and less if the model's own context is.
LONGEST = 4096
DIGEST = "grace.adapter_digest"  # key in the file: the digest of the adapter with its rows
OURS = {"model_path", "vocab_only"}  # arguments of `llama_cpp.Llama` that are no options here
CPU = torch.device("cpu")


class LlamaEngine(StepEngine):
    """Samples from a model that llama.cpp runs in this process, and scores responses.

    See `StepEngine`.

    Args:
        llama: a `llama_cpp.Llama` with the model.
        tokenizer: the tokenizer with `<CNF>`.
        card: the content of the model's grace.json.
        ends: ids that end a response besides the tokenizer's EOS and the stop ids of `card`.
        needs_cnf: refuse a model without `<CNF>`, which can only be sampled.

    Raises:
        ModelError: there is no `<CNF>`, or no row for it.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset({"gguf"})

    def __init__(
        self,
        llama: Any,
        tokenizer: Any,
        card: dict[str, Any] | None = None,
        *,
        ends: Ids = (),
        needs_cnf: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self._llama, self._rows = llama, llama.n_vocab()
        self.reader = Reader.of(tokenizer, card or {}, ends, rows=self._rows, needs_cnf=needs_cnf)
        remedy = "give what `grace export --format gguf` wrote"
        check_rows(self.readout, self._rows, "the file", remedy)
        # llama.cpp rounds its context up, but llama-cpp-python keeps the tokens in a list of n_ctx.
        self.limit: int = min(llama.n_ctx(), len(llama.input_ids))
        self._held: list[int] = []  # the context in llama.cpp's KV cache
        self._requested = (*self.reader.eos, *(self.readout.ids if self.readout else ()))

    @classmethod
    def open(cls, opening: Opening) -> LlamaEngine:
        """Load what `grace export --format gguf` wrote, or a GGUF file beside its tokenizer.

        The options are further arguments of `llama_cpp.Llama`, such as `n_ctx`, `n_threads` and
        `n_gpu_layers`.
        """
        if (opening.device, opening.dtype) not in (("auto", "auto"), ("cpu", "auto")):
            raise ConfigError(
                f"the llama engine cannot set device {opening.device!r} and dtype "
                f"{opening.dtype!r}; leave device and dtype at auto, and for a GPU use "
                "n_gpu_layers=-1"
            )
        if opening.adapter is not None:
            raise ModelError(
                f"{opening.adapter} is an adapter, which llama.cpp cannot load; export it first: "
                "grace export RUN DIR --format gguf"
            )
        file = _file_of(Path(opening.path))
        folder, header, card = file.parent, read_header(file), read_card(file.parent)
        if not (folder / "tokenizer.json").is_file():
            raise ModelError(
                f"no tokenizer.json beside {file}; give what `grace export --format gguf` wrote"
            )
        tokenizer = load_tokenizer(
            folder, trust_remote_code=opening.trust_remote_code, thinking=opening.thinking
        )
        _check_file(file, header, tokenizer, card)
        sample = from_dict(SampleSettings, card.get("sample", {}), f"{folder}/grace.json")
        longest = max(LONGEST, 2 * sample.longest)
        llama = _load(file, header, longest, dict(opening.options))
        ends = (*named_ends(folder), *stop_ids(tokenizer, opening.stop))
        engine = cls(llama, tokenizer, card, ends=ends, needs_cnf=opening.needs_cnf)
        weakref.finalize(engine, llama.close)  # its own destructor fails at the end of a process
        return engine

    def close(self) -> None:
        """Free the model and its memory."""
        self._llama.close()

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> LlamaStream:
        """Return the samples of one prompt, which are drawn one after the other."""
        check_contexts([prompt], self.limit, sampling.max_new_tokens)
        return LlamaStream(self, prompt, sampling, key)

    def steps(self, prompt: Ids, sampling: Sampling, key: str, number: int) -> Iterator[Step]:
        """Yield the steps of one sample, its end step last unless it is cut."""
        alone = replace(sampling, num_samples=1, first_sample=number)
        draws, row_R = Draws.of([Part([prompt], alone, [key])], CPU), torch.zeros(1).long()
        context, banned = list(prompt), list(self.reader.banned)
        for count in range(sampling.max_new_tokens):
            logits_V = self._logits(context)
            logprobs_V = _log_softmax(logits_V)
            logits_V[banned] = -np.inf
            token = int(draws.choose(torch.from_numpy(logits_V)[None], row_R, count))
            yield self._step(token, logprobs_V)
            if token in self.reader.stops:
                return
            context.append(token)

    def _samples(
        self, prompts: Sequence[Ids], keys: Sequence[str], sampling: Sampling
    ) -> Generator[list[Generation], None, None]:
        first = sampling.first_sample
        for prompt, key in zip(prompts, keys, strict=True):
            yield [
                read(self.steps(prompt, sampling, key, number), self.reader, self.tokenizer)
                for number in range(first, first + sampling.num_samples)
            ]

    def _next_logprobs(self, contexts: Sequence[Ids], tokens: Ids) -> Iterator[Sequence[float]]:
        return (_log_softmax(self._logits(one))[list(tokens)].tolist() for one in contexts)

    def _score(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Scored, None, None]:
        for prompt, response in zip(prompts, responses, strict=True):
            steps = [
                self._step(token, _log_softmax(self._logits([*prompt, *response[:place]])))
                for place, token in enumerate([*response, self.reader.eos[0]])
            ]
            yield self.reader.scored(steps)

    def _step(self, token: int, logprobs_V: np.ndarray) -> Step:
        requested = {i: float(logprobs_V[i]) for i in self._requested}
        return Step(token, float(logprobs_V[token]), requested)

    def _logits(self, context: Ids) -> np.ndarray:
        """Return a copy of the logits after a context, shape (V,)."""
        import llama_cpp

        # The last token is always computed, since its logits are needed.
        alike = map(operator.eq, self._held, context[:-1])
        shared = sum(1 for _ in itertools.takewhile(bool, alike))
        if not self._llama._ctx.kv_cache_seq_rm(-1, shared, -1):
            shared = 0  # a recurrent state cannot be taken back to an earlier token
        self._held, self._llama.n_tokens = [], shared
        try:
            self._llama.eval(list(context[shared:]))
        except RuntimeError as error:
            raise ComputeError(
                f"llama.cpp cannot compute a context of {len(context)} tokens "
                f"({first_line(error)}); let it use less memory, e.g. n_ctx=1024"
            ) from error
        self._held = list(context)
        pointer = llama_cpp.llama_get_logits_ith(self._llama.ctx, -1)
        logits_V: np.ndarray = np.ctypeslib.as_array(pointer, shape=(self._rows,)).copy()
        return logits_V


class LlamaStream:
    """Samples of one prompt, drawn one after the other, so that none is in vain when a vote stops.

    `tokens` counts the response tokens generated so far, those of stopped samples too.
    """

    def __init__(self, engine: LlamaEngine, prompt: Ids, sampling: Sampling, key: str) -> None:
        self.tokens = 0
        self._engine, self._prompt, self._sampling, self._key = engine, prompt, sampling, key

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Draw these samples; yield (number, response) as each finishes.

        A sample is the one that `generate` returns for the same prompt, key and number.
        """
        for number in numbers:
            yield number, self._sample(number)

    def _sample(self, number: int) -> Generation:
        engine, reader = self._engine, self._engine.reader
        watch, steps = Watch(reader.evidence, self._sampling.drop), list[Step]()
        for step in engine.steps(self._prompt, self._sampling, self._key, number):
            steps.append(step)
            self.tokens += step.token not in reader.stops
            if watch.falls(steps, reader):
                return dropped(steps, reader, engine.tokenizer)
        return read(steps, reader, engine.tokenizer)


def _log_softmax(logits_V: np.ndarray) -> np.ndarray:
    logprobs_V: np.ndarray = log_softmax(logits_V.astype(np.float64))
    return logprobs_V


def _file_of(path: Path) -> Path:
    """Return the GGUF file at a path, or the only one in a directory."""
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if len(files) != 1 or files[0].suffix != ".gguf":
        has = f"{len(files)} GGUF files" if path.is_dir() else "no GGUF file"
        raise ModelError(
            f"{path} has {has}; the llama engine needs one: grace export RUN DIR --format gguf"
        )
    return files[0]


def _check_file(file: Path, header: Header, tokenizer: Any, card: dict[str, Any]) -> None:
    """Refuse a file that does not belong to the tokenizer and the grace.json beside it."""
    readout, tokens = find_readout(tokenizer), header.tokens
    names = tokenizer.convert_ids_to_tokens(list(readout.ids)) if readout else []
    for token, name in zip(readout.ids if readout else (), names, strict=True):
        if token >= len(tokens) or tokens[token] != name:
            raise ModelError(f"{file} has no {name} as token {token}; export it again")
    wanted = card.get("adapter_digest")
    if wanted and header.text(DIGEST) != wanted:
        raise ModelError(
            f"{file} has the rows of another adapter than the grace.json beside it, so c would be "
            "read with the wrong weights; export it again"
        )


def _load(file: Path, header: Header, longest: int, options: dict[str, Any]) -> Any:
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"the llama engine needs llama-cpp-python ({first_line(error)}); pip install "
            "llama-cpp-python"
        ) from None
    known = inspect.signature(llama_cpp.Llama).parameters.keys() - OURS
    if unknown := sorted(options.keys() - known):
        raise ConfigError(f"the llama engine has no option {unknown[0]!r}; check its name")
    trained = header.number(f"{header.text('general.architecture')}.context_length") or longest
    exact = {"type_k": 0, "type_v": 0, "swa_full": True}  # a float32 KV cache of all positions
    cores = os.environ.get("OMP_NUM_THREADS", "")  # the limit of PyTorch holds for llama.cpp, too
    threads = int(cores) if cores.isdecimal() else os.cpu_count()
    usual = {
        "n_ctx": min(trained, longest),
        "n_threads": threads,
        "n_threads_batch": threads,
        "verbose": False,
    }
    try:
        return llama_cpp.Llama(str(file), **{**usual, **exact, **options})
    except (ValueError, RuntimeError, TypeError) as error:
        raise ModelError(f"llama.cpp cannot load {file} ({first_line(error)})") from error


ENGINE = LlamaEngine
