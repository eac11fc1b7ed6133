"""Scaled rotary positions, which transformers' GGUF loader leaves out.

Llama 3.1 and later divide low rotary frequencies by a factor. A GGUF file holds the divisors
themselves, one per frequency; they are turned back into the settings they were made of.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from grace.engines.gguf.header import Header
from grace.errors import ModelError

DIVISORS = "rope_freqs.weight"
LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def scale_positions(file: Path, header: Header, config: Any) -> None:
    """Set in a model's config how its rotary positions are scaled, if they are.

    Raises:
        ModelError: they are scaled in a way that cannot be told from the file.
    """
    scaling = header.text(f"{header.text('general.architecture')}.rope.scaling.type")
    divisors = _divisors(file, header)
    known = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if known != "default" or (divisors is None and scaling in (None, "none")):
        return
    if divisors is not None and _set_llama_3(config, divisors):
        return
    raise ModelError(
        f"{file} scales its rotary positions ({scaling or DIVISORS}), which transformers "
        f"{version('transformers')} leaves out; give the model as a Hugging Face directory or Hub "
        "id"
    )


def _divisors(file: Path, header: Header) -> np.ndarray | None:
    """Return what each rotary frequency is divided by, None if the file does not say."""
    for tensor in header.tensors:
        if tensor.name == DIVISORS:
            start = header.data_start + tensor.offset
            return np.fromfile(file, np.float32, count=tensor.elements, offset=start)
    return None


def _set_llama_3(config: Any, divisors: np.ndarray) -> bool:
    """Scale as Llama 3.1 does, and return whether that gives these divisors."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {**LLAMA_3, "rope_theta": theta, "factor": float(divisors.max())}
    scaled = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = theta ** -(np.arange(len(scaled)) / len(scaled))
    return len(divisors) == len(scaled) and bool(np.allclose(plain / scaled, divisors, rtol=1e-3))
