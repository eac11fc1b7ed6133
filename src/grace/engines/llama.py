"""A GGUF file in this process: llama.cpp computes logits, and everything is read off them here.

llama-cpp-python gives all logits of a step, so tokens are drawn as the transformers engine draws
them, with the same random numbers: with the same weights both give the same samples. One token of
one sequence is computed at a time; what a context shares with the one before is not computed again.

Shapes: V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from grace.cnf import find_readout
from grace.engines import Capability, Opening, Sampling
from grace.engines.checks import Given, StepEngine, check_contexts
from grace.engines.gguf.header import Header, read_header
from grace.engines.local.draws import Draws, Part
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import Reader, Step, named_ends, read
from grace.engines.stops import stop_ids
from grace.engines.watching import Watch, dropped
from grace.errors import ConfigError, ModelError, first_line
from grace.records import Generation
from grace.store import read_card

Ids = Sequence[int]

LONGEST = 4096  # tokens of a context, where n_ctx is not set: the memory for it is taken at once
DIGEST = "grace.adapter_digest"  # in the file: which adapter its rows are from
CPU = torch.device("cpu")


class LlamaEngine(StepEngine):
    """Samples from, and reads, a model that llama.cpp runs in this process.

    Attributes: `tokenizer`, `reader` (what ends a response and how c is read), `readout` (the
    tokens that are read) and `limit` (the most tokens of a prompt with its response).

    Args:
        llama: a `llama_cpp.Llama` with the model.
        tokenizer: the tokenizer with `<CNF>`.
        card: the content of the model's grace.json.
        ends: ids that end a response besides the tokenizer's EOS and the stop ids of `card`.
        needs_cnf: refuse a model without `<CNF>`, which can only be sampled.

    Raises:
        ModelError: no `<CNF>`, or no row for it.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(
        self,
        llama: Any,
        tokenizer: Any,
        card: dict[str, Any] | None = None,
        *,
        ends: Sequence[int] = (),
        needs_cnf: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.reader = Reader.of(tokenizer, card or {}, ends, needs_cnf=needs_cnf)
        self.limit: int = llama.n_ctx()
        self._llama, self._rows = llama, llama.n_vocab()
        self._known: list[int] = []  # the context that llama.cpp holds
        read_ids = self.readout.ids if self.readout else ()
        self._asked = [i for i in (*self.reader.eos, *read_ids) if i < self._rows]
        if max(read_ids, default=0) >= self._rows:
            raise ModelError(
                f"the tokenizer knows <CNF> as id {read_ids[0]}, but the file has {self._rows} "
                "rows; give what `grace export --format gguf` wrote"
            )

    @classmethod
    def open(cls, opening: Opening) -> LlamaEngine:
        """Load what `grace export --format gguf` wrote, or a GGUF file beside its tokenizer.

        The options are further arguments of `llama_cpp.Llama`, such as `n_ctx`, `n_threads` and
        `n_gpu_layers`.

        Raises:
            ConfigError: llama-cpp-python is not installed, or a device or type, which the file and
                the options say.
            ModelError: an adapter, a file of another export than grace.json, or one that llama.cpp
                cannot load.
        """
        if (opening.device, opening.dtype) not in (("auto", "auto"), ("cpu", "auto")):
            raise ConfigError(
                "the type is the file's own, and the device llama.cpp's; leave device and dtype at "
                "auto, and for a GPU give n_gpu_layers=-1"
            )
        if opening.adapter is not None:
            raise ModelError(
                f"{opening.adapter} is an adapter, which llama.cpp cannot load; write one file: "
                "grace export RUN DIR --format gguf"
            )
        file = _file_of(Path(opening.path))
        folder, header, card = file.parent, read_header(file), read_card(file.parent)
        if not (folder / "tokenizer.json").is_file():
            raise ModelError(
                f"no tokenizer.json beside {file}; give what `grace export --format gguf` wrote"
            )
        tokenizer = load_tokenizer(folder, trust_remote_code=opening.trust_remote_code)
        _check_file(file, header, tokenizer, card)
        llama = _load(file, header, dict(opening.options))
        ends = (*named_ends(folder), *stop_ids(tokenizer, opening.stop))
        return cls(llama, tokenizer, card, ends=ends, needs_cnf=opening.needs_cnf)

    def close(self) -> None:
        """Let go of the model and its memory."""
        self._llama.close()

    def stream(self, prompt: Ids, sampling: Sampling, key: str = "0") -> LlamaStream:
        """Return what makes samples of one prompt, one after the other.

        Raises:
            DataError: an empty prompt.
            ModelError: the prompt and a response could exceed the context.
        """
        check_contexts([prompt], self.limit, sampling.max_new_tokens, [key])
        return LlamaStream(self, prompt, sampling, key)

    def steps(self, prompt: Ids, sampling: Sampling, key: str, number: int) -> Iterator[Step]:
        """Yield the steps of one sample, that of its end last unless it is cut."""
        alone = replace(sampling, num_samples=1, first_sample=number)
        draws, row_R = Draws.of([Part([prompt], alone, [key])], CPU), torch.zeros(1).long()
        context, banned = list(prompt), list(self.reader.banned)
        for count in range(sampling.max_new_tokens):
            logits_V = self._logits(context)
            step_logprobs = _log_softmax(logits_V)
            logits_V[banned] = -np.inf
            token = int(draws.choose(torch.from_numpy(logits_V)[None], row_R, count))
            yield self._step(token, step_logprobs)
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

    def _after(self, contexts: Sequence[Ids]) -> Generator[Step, None, None]:
        return (self._step(self.reader.eos[0], _log_softmax(self._logits(c))) for c in contexts)

    def _given(
        self, prompts: Sequence[Ids], responses: Sequence[Ids]
    ) -> Generator[Given, None, None]:
        pairs = list(zip(prompts, responses, strict=True))
        check_contexts([[*p, *r] for p, r in pairs], self.limit, 1)
        for prompt, response in pairs:
            steps = [
                self._step(token, _log_softmax(self._logits([*prompt, *response[:place]])))
                for place, token in enumerate([*response, self.reader.eos[0]])
            ]
            yield steps, [step.logprob - self.reader.rest(step.logprobs) for step in steps[:-1]]

    def _step(self, token: int, logprobs_V: np.ndarray) -> Step:
        known = {i: float(logprobs_V[i]) for i in self._asked}
        return Step(token, float(logprobs_V[token]), known)

    def _logits(self, context: Ids) -> np.ndarray:
        """Return the logits after a context, shape (V,); the caller may change them."""
        import llama_cpp

        shared = 0
        for known, token in zip(self._known, context[:-1], strict=False):
            if known != token:
                break
            shared += 1
        self._known, self._llama.n_tokens = [], shared
        try:
            self._llama.eval(list(context[shared:]))
        except RuntimeError as error:
            raise ModelError(
                f"llama.cpp cannot compute a context of {len(context)} tokens "
                f"({first_line(error)}); give it less memory to use, e.g. n_ctx=1024"
            ) from error
        self._known = list(context)
        pointer = llama_cpp.llama_get_logits_ith(self._llama.ctx, -1)
        logits_V: np.ndarray = np.ctypeslib.as_array(pointer, shape=(self._rows,)).copy()
        return logits_V


class LlamaStream:
    """Samples of one prompt, one after the other: a vote that is decided has cost no token more.

    `tokens` counts the response tokens that were generated, those of stopped samples too.
    """

    def __init__(self, engine: LlamaEngine, prompt: Ids, sampling: Sampling, key: str) -> None:
        self.tokens = 0
        self._engine, self._prompt, self._sampling, self._key = engine, prompt, sampling, key

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Make these samples; yield (number, response) as each finishes.

        A sample is the one that `generate` gives the same prompt, key and number.
        """
        for number in numbers:
            yield number, self._sample(number)

    def _sample(self, number: int) -> Generation:
        engine, reader = self._engine, self._engine.reader
        watch, steps = Watch(reader.evidence, self._sampling.drop), list[Step]()
        for step in engine.steps(self._prompt, self._sampling, self._key, number):
            steps.append(step)
            self.tokens += step.token not in reader.stops
            if self._sampling.drop and watch.falls(steps, reader):
                return dropped(steps, reader, engine.tokenizer)
        return read(steps, reader, engine.tokenizer)


def _log_softmax(logits_V: np.ndarray) -> np.ndarray:
    values_V = logits_V.astype(np.float64) - logits_V.max()
    found: np.ndarray = values_V - np.log(np.exp(values_V).sum())
    return found


def _file_of(path: Path) -> Path:
    """Return the GGUF file that a path means.

    Raises:
        ModelError: there is none, or several.
    """
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if len(files) != 1 or files[0].suffix != ".gguf":
        has = f"{len(files)} GGUF files" if path.is_dir() else "no GGUF file"
        raise ModelError(
            f"{path} has {has}; the engine llama takes one: grace export RUN DIR --format gguf"
        )
    return files[0]


def _check_file(file: Path, header: Header, tokenizer: Any, card: dict[str, Any]) -> None:
    """Refuse a file that is not the one that tokenizer and grace.json are for.

    Raises:
        ModelError: says what differs.
    """
    readout, tokens = find_readout(tokenizer), header.tokens
    names = tokenizer.convert_ids_to_tokens(list(readout.ids)) if readout else []
    for token, name in zip(readout.ids if readout else (), names, strict=True):
        if token >= len(tokens) or tokens[token] != name:
            raise ModelError(f"{file} has no {name} as token {token}; export it again")
    made, wanted = header.text(DIGEST), card.get("adapter_digest")
    if wanted and made != wanted:
        raise ModelError(
            f"{file} holds the rows of another adapter than its grace.json is of, so c would be "
            "read by the wrong weights; export it again"
        )


def _load(file: Path, header: Header, options: dict[str, Any]) -> Any:
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"the llama engine needs llama-cpp-python ({first_line(error)}); pip install "
            "llama-cpp-python"
        ) from None
    trained = header.number(f"{header.text('general.architecture')}.context_length") or LONGEST
    exact = {"type_k": 0, "type_v": 0, "swa_full": True}  # a cache in float32, of all positions
    cores = os.environ.get("OMP_NUM_THREADS", "")  # PyTorch's limit is llama.cpp's
    threads = int(cores) if cores.isdecimal() else os.cpu_count()
    usual = {
        "n_ctx": min(trained, LONGEST),
        "n_threads": threads,
        "n_threads_batch": threads,
        "verbose": False,
    }
    try:
        return llama_cpp.Llama(str(file), **{**usual, **exact, **options})
    except (ValueError, RuntimeError, TypeError) as error:
        raise ModelError(f"llama.cpp cannot load {file} ({first_line(error)})") from error


ENGINE = LlamaEngine
