"""Unpack a GGUF file into a Hugging Face directory, and check that nothing was lost.

transformers' loader silently ignores metadata that it does not know. So everything that decides how
the model is prompted and where its answers end is compared with the file: all weights, the scaling
of rotary positions, the ids of the vocabulary, BOS, the chat template, and all end tokens.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from grace.cnf import count_rows
from grace.engines.gguf.header import Header
from grace.engines.local.loading import DTYPES, no_progress_bar
from grace.engines.reading import ids_in
from grace.errors import GraceError, ModelError, first_line
from grace.progress import say

ENDS = ("eos", "eot", "eom")
"""The end tokens: end of text, end of turn, end of a message before a tool's answer."""

ONE_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Pre-tokenizers that split numbers into digits before GPT-2's rule; transformers does not."""

PLAIN = ("default", "gpt-2", "gpt2", "mpt", "olmo")
"""Pre-tokenizers with GPT-2's rule alone."""

DIVISORS = "rope_freqs.weight"
LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def unpack(file: Path, header: Header, out: Path, place: Path, dtype: str) -> None:
    """Write the model of a GGUF file to the directory `out`, which is renamed to `place` later."""
    start, kind = time.monotonic(), DTYPES[dtype]
    say(
        f"{file.name}: unpacking {file.stat().st_size / 1e6:,.0f} MB into "
        f"{kind.itemsize * header.elements / 1e9:.2g} GB of {dtype} weights, once "
        f"(about {_minutes(header)} min on one core); kept in {place}"
    )
    with _loading(file) as folder:
        model = _load_model(file, folder, kind)
        tokenizer = _load_tokenizer(folder)
    scale_positions(file, header, model.config)
    _check_vocabulary(file, header, model, tokenizer)
    _set_ends(header, model)
    _complete(file, header, tokenizer)
    with no_progress_bar():
        model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "README.md").write_text(_card(file, header, dtype), encoding="utf-8")
    ends = " ".join(tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id or []))
    template = "with" if tokenizer.chat_template else "without"
    say(
        f"{file.name}: unpacked in {time.monotonic() - start:.0f} s; {template} a chat template; "
        f"answers end at {ends or 'a token that the file does not name'}"
    )


def describe(file: Path, header: Header, out: Path) -> None:
    """Write the config and the tokenizer of a GGUF file to a directory, without its weights."""
    from transformers import AutoConfig

    with _loading(file) as folder:
        config = AutoConfig.from_pretrained(folder, gguf_file="model.gguf")
        tokenizer = _load_tokenizer(folder)
    _complete(file, header, tokenizer)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _complete(file: Path, header: Header, tokenizer: Any) -> None:
    """Give a tokenizer what transformers' loader leaves out."""
    tokenizer.chat_template = header.text("tokenizer.chat_template")
    _split_digits(file, header, tokenizer)


def _minutes(header: Header) -> int:
    """Return a rough estimate of the time; the vocabulary takes longer than the weights."""
    listed = len(header.tokens) * (2 if header.number("tokenizer.ggml.scores") is None else 3)
    merging = 0.0 if header.number("tokenizer.ggml.merges") else 2.4e-4 * len(header.tokens)
    return math.ceil((15 + 1.2e-4 * listed + merging + 6e-8 * header.elements) / 60)


@contextlib.contextmanager
def _loading(file: Path) -> Iterator[Path]:
    """Yield a folder with the file alone, and turn errors of transformers into a `ModelError`."""
    quiet = contextlib.nullcontext()
    if not sys.stderr.isatty():
        quiet = contextlib.redirect_stderr(io.StringIO())  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(file.resolve(), Path(folder) / "model.gguf")
        try:
            with quiet:
                yield Path(folder)
        except GraceError:
            raise
        except Exception as error:  # transformers raises many kinds here
            raise ModelError(
                f"transformers {version('transformers')} cannot read {file} "
                f"({first_line(error)}); give the model as a Hugging Face directory or Hub id"
            ) from error


def _load_model(file: Path, folder: Path, kind: Any) -> Any:
    import transformers

    options = {"gguf_file": "model.gguf", "dtype": kind, "output_loading_info": True}
    if hasattr(transformers, "GgufConfig"):  # else weights stay packed wherever it finds a kernel
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{file} lacks {len(missing)} of the model's tensors ({missing[0]}, ...); download it "
            "again"
        )
    # Otherwise transformers takes it for quantized, and refuses to save it.
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    return model


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")


def _check_vocabulary(file: Path, header: Header, model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer whose special tokens, or BOS before a text, are not the file's."""
    tokens, rows = header.tokens, count_rows(model)
    for name in ("bos", *ENDS):
        token = header.number(f"tokenizer.ggml.{name}_token_id")
        if token is None or not 0 <= token < len(tokens):
            continue
        got = tokenizer.convert_tokens_to_ids(tokens[token])
        if got != token or token >= rows:
            raise ModelError(
                f"{file} has {tokens[token]!r} as token {token} of {rows}, which becomes {got} in "
                "transformers; give the model as a Hugging Face directory or Hub id"
            )
    wanted = header.metadata.get("tokenizer.ggml.add_bos_token")
    bos = header.number("tokenizer.ggml.bos_token_id")
    starts = tokenizer("a")["input_ids"][:1] == [bos]
    if bos is not None and isinstance(wanted, bool) and wanted != starts:
        raise ModelError(
            f"{file} wants {'a' if wanted else 'no'} BOS before a text, and transformers does the "
            "opposite; give the model as a Hugging Face directory or Hub id"
        )


def _set_ends(header: Header, model: Any) -> None:
    """Set the end tokens that the file names, and the loader's own if its EOS is one of these."""
    rows = count_rows(model)
    named = [header.number(f"tokenizer.ggml.{name}_token_id") for name in ENDS]
    loaders = ids_in(model.generation_config.eos_token_id)
    ends = [*(loaders if named[0] in loaders else ()), *named]
    found = [token for token in ends if token is not None and 0 <= token < rows]
    model.generation_config.eos_token_id = list(dict.fromkeys(found)) or None
    model.config.eos_token_id = model.generation_config.eos_token_id


def _split_digits(file: Path, header: Header, tokenizer: Any) -> None:
    """Split numbers into digits if the file's pre-tokenizer does; print a note if it is unknown."""
    from tokenizers import pre_tokenizers

    kind = header.text("tokenizer.ggml.pre")
    backend = tokenizer.backend_tokenizer
    if header.text("tokenizer.ggml.model") != "gpt2" or kind is None or kind in PLAIN:
        return
    if json.loads(backend.to_str())["pre_tokenizer"]["type"] != "ByteLevel":
        return  # transformers has set the right one
    if kind in ONE_DIGIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    else:
        say(
            f"{file.name}: transformers does not know how it splits words ({kind!r}); rare words "
            "may become other tokens than in training"
        )


def _card(file: Path, header: Header, dtype: str) -> str:
    """Return a model card with the source, and the licence, which exports copy."""
    licence = header.text("general.license") or "other"
    return f"""---
license: {json.dumps(licence)}
---

The weights of `{file.name}`, unpacked to {dtype} by transformers {version("transformers")} and gguf
{version("gguf")}. If they were quantized there, they are a little worse than the original model's.
"""


def scale_positions(file: Path, header: Header, config: Any) -> None:
    """Put the settings that give the file's divisors of rotary frequencies into the config."""
    scaling = header.text(f"{header.text('general.architecture')}.rope.scaling.type")
    divisors = next((tensor.data for tensor in header.tensors if tensor.name == DIVISORS), None)
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind != "default" or (divisors is None and scaling in (None, "none")):
        return
    if divisors is not None and _set_llama_3(config, divisors):
        return
    raise ModelError(
        f"{file} scales its rotary positions ({scaling or DIVISORS}), which transformers "
        f"{version('transformers')} leaves out; give the model as a Hugging Face directory or Hub "
        "id"
    )


def _set_llama_3(config: Any, divisors: np.ndarray) -> bool:
    """Set the scaling of Llama 3.1, and return whether it gives these divisors."""
    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {**LLAMA_3, "rope_theta": theta, "factor": float(divisors.max())}
    given = llama_3_divisors(config)
    return len(divisors) == len(given) and bool(np.allclose(given, divisors, rtol=1e-3))


def llama_3_divisors(config: Any) -> np.ndarray:
    """Return the numbers by which a Llama 3.1 or later divides each rotary frequency."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].double().numpy()
    plain = config.rope_parameters["rope_theta"] ** -(np.arange(len(scaled)) / len(scaled))
    divisors: np.ndarray = plain / scaled
    return divisors
