"""What GrACE asks of an engine: sample, read probabilities, read hidden states.

Prompts and responses are token ids; text is for people.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from grace.records import Generation

if TYPE_CHECKING:
    import numpy as np

    from grace.cnf import Readout
    from grace.evidence import Evidence

__all__ = [
    "Engine",
    "Features",
    "ModelEngine",
    "Opening",
    "SampleStream",
    "Sampling",
    "StreamingEngine",
]

GREEDY_BELOW = 1e-5  # as vLLM has it
AT_ONCE = 256  # prompts in a unit of work of an engine that makes its own batches

Capability = Literal["states", "training", "relay"]
"""What an engine gives beyond samples and probabilities: hidden states; a model that can be
trained; `relay`: it runs on a server, and this process has no model."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn.

    `temperature` 0 is greedy, and one below `GREEDY_BELOW` counts as 0. Sample number s of a prompt
    with a key depends on (seed, key, s) alone, so `first_sample` goes on where an earlier call
    stopped. `max_new_tokens` counts the end token. A stream aborts a sample once c of what is
    written falls below `drop`; `generate` finishes every sample.
    """

    num_samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    seed: int = 0
    first_sample: int = 0
    drop: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < GREEDY_BELOW:  # logits divided by it would overflow
            object.__setattr__(self, "temperature", 0.0)


class Features(NamedTuple):
    """Last-layer hidden states (after the final norm) of N responses, float32.

    An empty response has the state of the last prompt token in all three.
    """

    mean_ND: np.ndarray  # mean over the response tokens
    last_ND: np.ndarray  # at the last response token
    first_ND: np.ndarray  # at the last prompt token


class StepStates(NamedTuple):
    """Last-layer hidden states at B steps of each of N responses, float32.

    Step k chooses token k of a response, so its state is that of the token before.
    """

    at_NBD: np.ndarray  # at the step
    mean_NBD: np.ndarray  # mean over all steps up to there


class SampleStream(Protocol):
    """Samples of one prompt; `tokens` counts what was generated, those of stopped ones too."""

    tokens: int

    def start(self, numbers: range) -> Generator[tuple[int, Generation], None, None]:
        """Yield (number, response) as each finishes; closing it stops the rest."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Which model an engine opens, and how (see `grace.engines.kinds.load_engine`).

    Attributes:
        path: a model directory or Hub id; for openai, what the server serves, as it was exported.
        adapter: an adapter directory; for vllm, an export with format vllm-lora; not for llama.
        device: auto, cpu, cuda or cuda:N; vLLM chooses by itself.
        dtype: auto, float32, bfloat16 or float16.
        trust_remote_code: run Python code that comes with the model.
        thinking: let a model that came without a card reason before it answers (`grace.chat`).
        batch_size: rows in flight; None: the engine's own choice.
        needs_cnf: refuse a model without `<CNF>`, where the engine does not train one.
        stop: texts that end a response, besides those that the model was trained with.
        options: the engine's own: further arguments of `vllm.LLM` or `llama_cpp.Llama`; for openai
            `url`, and what `OpenAIEngine.connect` takes.
    """

    path: str | Path
    adapter: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    thinking: bool = False
    batch_size: int | None = None
    needs_cnf: bool = True
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def units(count: int) -> list[list[int]]:
    """Return the plan of an engine that makes its own batches: prompts in their order."""
    return [list(range(at, min(at + AT_ONCE, count))) for at in range(0, count, AT_ONCE)]


class Engine(Protocol):
    """A language model that samples responses and says how probable things are."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that made the prompts."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, list[Generation]]]:
        """Yield (prompt index, its samples) as batches complete, in a fixed order."""
        ...

    def next_token_probs(
        self, contexts: Sequence[Sequence[int]], tokens: Sequence[int]
    ) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        ...

    def confidences(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return c of given responses (token ids without the end token)."""
        ...

    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end."""
        ...

    def features(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Features:
        """Return the pooled hidden states of given responses."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine that says how it is read, and whose samples stop when a vote is decided."""

    @property
    def readout(self) -> Readout | None:
        """The tokens that are read for c, None where there are none."""
        ...

    @property
    def read_at(self) -> str:
        """Where c is read: predict, feed or prompt."""
        ...

    @property
    def evidence(self) -> Evidence | None:
        """How the response's own probabilities shift c, if at all."""
        ...

    @property
    def limit(self) -> int | None:
        """The most tokens of a prompt with its response, None where there is no limit."""
        ...

    def traces(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return c at every step of given responses, that of the end last."""
        ...

    def stream(self, prompt: Sequence[int], sampling: Sampling, key: str = "0") -> SampleStream:
        """Return what starts samples of one prompt and yields each as it finishes."""
        ...


class ModelEngine(StreamingEngine, Protocol):
    """What a file of this folder assigns to `ENGINE`: an engine that opens models itself."""

    gives: ClassVar[frozenset[Capability]]

    @classmethod
    def open(cls, opening: Opening) -> ModelEngine:
        """Load a model, or connect to the server that runs it.

        Raises:
            ConfigError: a setting that the engine does not have.
            ModelError: the model cannot be loaded; the message says what to do.
        """
        ...

    def close(self) -> None:
        """Let go of the model, or of the server."""
        ...

    def plan(
        self, prompts: Sequence[Sequence[int]], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of work, the indices of their prompts; it depends on the arguments alone."""
        ...
