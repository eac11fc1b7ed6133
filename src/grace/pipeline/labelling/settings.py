"""What is asked, of which model, and how: the same in every process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from grace.config import DataSettings, GradeSettings, to_dict
from grace.records import Question

SECRET = "api_key"  # among the options of an engine
FREE = ("batch_size", "device", "engine_options")  # settings of how, not what

Feature = Literal["mean", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """The settings of labelling.

    Attributes:
        model: a model directory or Hub id; `adapter` a directory on top, empty for none.
        engine: see `grace.engines.kinds`; `engine_options` are for vLLM, or the server's.
        data: how questions are asked, after the examples `shots`; `grade` how responses are judged.
        stop: texts that end a response.
        samples: responses per question, drawn at `temperature` with `top_p`.
        features: which hidden states of every response are kept (see `grace.engines.Features`).
        shard_size: questions per file.
    """

    model: str
    adapter: str = ""
    engine: str = "transformers"
    engine_options: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    batch_size: int = 0
    data: DataSettings
    shots: tuple[Question, ...] = ()
    stop: tuple[str, ...] = ()
    grade: GradeSettings = field(default_factory=GradeSettings)
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 50
    seed: int = 0
    features: tuple[Feature, ...] = ()
    shard_size: int = 256

    def fixed(self) -> dict[str, Any]:
        """Return what the files depend on, JSON-ready."""
        return {key: value for key, value in to_dict(self).items() if key not in FREE}

    def told(self) -> dict[str, Any]:
        """Return all settings but a server's key, JSON-ready."""
        options = {k: v for k, v in self.engine_options.items() if k != SECRET}
        return to_dict(self) | {"engine_options": options}
