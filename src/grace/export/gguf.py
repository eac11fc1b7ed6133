"""Writing a GGUF file, which llama.cpp runs: every tensor by its name there, `<CNF>` a row.

A base that came as a GGUF file, with rows alone on top, is copied: its metadata and its tensors
stay as they are, whatever the architecture. Any other model is written from its weights
(`grace.export.gguf_llama`). What is read for c is never quantized: the output head, or the
embedding that it is tied to, stays in float16.

Shapes: V vocabulary, D hidden size, E tokens that are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grace.cnf import TOKENS, find_readout
from grace.engines.llama import DIGEST
from grace.engines.local.loading import load, load_tokenizer
from grace.engines.stops import named_ends
from grace.errors import ConfigError, ModelError, first_line, packages_for
from grace.export.forms import Source, end_ids, trained_rows
from grace.export.gguf_llama import (
    CONTROL,
    NORMAL,
    UNUSED,
    add_read_ends,
    cast,
    finish,
    write_llama,
)
from grace.store import adapter_weights, digest

FILE, ARCHITECTURE = "model.gguf", "general.architecture"
KINDS = ("auto", "float32", "float16", "q8_0", "q4_k_m")


def write_gguf(source: Source, out: Path) -> None:
    """Write `model.gguf`, the tokenizer, and generation_config.json with the ids of all ends.

    Raises:
        ConfigError: no such type, or a package is not installed.
        ModelError: the model cannot be written so; the message says what can be done.
    """
    if source.dtype not in KINDS:
        raise ConfigError(
            f"dtype {source.dtype!r} is unknown for a GGUF file; use {', '.join(KINDS)}"
        )
    with packages_for("--format gguf"):
        import gguf  # noqa: F401
    if source.record["read_at"] == "feed" or "cnf_id" not in source.record:
        raise ModelError(
            "c is read from ten tokens or at <CNF>'s own position, which only grace does; use "
            "--format merged with grace serve"
        )
    rows_ED = trained_rows(source)
    if source.file is not None and source.dtype == "auto" and rows_ED is not None:
        tokenizer = _copy(source, rows_ED.numpy(), out)
    else:
        tokenizer = _write(source, out)
    tokenizer.save_pretrained(out)


def _write(source: Source, out: Path) -> Any:
    """Write a model from its weights, merged in float32; return its tokenizer."""
    from transformers import GenerationConfig

    loaded = load(source.base, adapter=source.adapter, device="cpu", dtype="float32")
    quantized = source.dtype.startswith("q")
    kind = np.float32 if quantized or source.dtype == "float32" else np.float16
    ends = end_ids(loaded.model, loaded.tokenizer, source.record)
    file = out / (f"whole-{FILE}" if quantized else FILE)
    marks = [end for end in ends if end not in source.record.get("stop_ids", ())]
    write_llama(file, loaded.model, loaded.tokenizer, kind, marks, _digest(source))
    GenerationConfig(eos_token_id=ends).save_pretrained(out)
    if quantized:
        _quantize(file, out / FILE, source.dtype)
        file.unlink()
    return loaded.tokenizer


def _copy(source: Source, rows_ED: np.ndarray, out: Path) -> Any:
    """Write the base's own file with the trained rows in its head; return the tokenizer."""
    import gguf
    from transformers import GenerationConfig

    tokenizer, reader = load_tokenizer(source.adapter), gguf.GGUFReader(source.file)
    readout = find_readout(tokenizer)
    assert readout is not None
    writer = gguf.GGUFWriter(out / FILE, reader.fields[ARCHITECTURE].contents())
    rows = _copy_metadata(reader, writer, readout, source.record["rows"])
    add_read_ends(writer, readout)
    writer.add_string(DIGEST, _digest(source))
    names = [tensor.name for tensor in reader.tensors]
    head = "output.weight" if "output.weight" in names else "token_embd.weight"
    for tensor in reader.tensors:
        grown = tensor.name in ("output.weight", "token_embd.weight") and tensor.shape[1] < rows
        data, kind = tensor.data, tensor.tensor_type
        if grown or tensor.name == head:
            weight_VD = gguf.dequantize(data, kind)
            weight_VD = np.pad(weight_VD, ((0, rows - len(weight_VD)), (0, 0)))
            if tensor.name == head:
                weight_VD[list(readout.ids)] = rows_ED
            data, kind = cast(head, weight_VD, np.float16), gguf.GGMLQuantizationType.F16
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    finish(writer)
    known = (tokenizer.eos_token_id, *named_ends(Path(source.base)))
    ends = dict.fromkeys([*known, *source.record.get("stop_ids", ()), *readout.ends])
    ids = [end for end in ends if end is not None]
    GenerationConfig(eos_token_id=ids).save_pretrained(out)
    return tokenizer


def _copy_metadata(reader: Any, writer: Any, readout: Any, rows: int) -> int:
    """Copy all metadata, with the tokens that are read in the vocabulary; return its size."""
    from gguf import GGUFValueType

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    more = max(0, rows - len(tokens))
    longer: dict[str, list[Any]] = {
        "tokens": [*tokens, *(f"[PAD{len(tokens) + i}]" for i in range(more))],
        "token_type": [*_listed(reader, "token_type", len(tokens), NORMAL), *[UNUSED] * more],
        "scores": [*_listed(reader, "scores", len(tokens), 0.0), *[0.0] * more],
    }
    for token, name in zip(readout.ids, TOKENS[readout.head], strict=True):
        longer["tokens"][token], longer["token_type"][token] = name, CONTROL
    for name, field in reader.fields.items():
        marked = readout.ends and name == "tokenizer.ggml.eom_token_id"  # by <CNF> then
        if name.startswith("GGUF.") or name == ARCHITECTURE or marked:
            continue
        key, array = name.removeprefix("tokenizer.ggml."), field.types[0] == GGUFValueType.ARRAY
        value = longer[key] if key in longer else field.contents()
        value = len(longer["tokens"]) if name.endswith(".vocab_size") else value
        writer.add_key_value(name, value, field.types[0], field.types[-1] if array else None)
    return len(longer["tokens"])


def _listed(reader: Any, name: str, count: int, usual: Any) -> list[Any]:
    field = reader.fields.get(f"tokenizer.ggml.{name}")
    return [usual] * count if field is None else list(field.contents())


def _quantize(file: Path, out: Path, kind: str) -> None:
    """Let llama.cpp quantize all but the head and the embedding, which stay in float16.

    Raises:
        ConfigError: llama-cpp-python is not installed.
        ModelError: llama.cpp refuses.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"--dtype {kind} needs llama-cpp-python ({first_line(error)}); pip install it, or "
            "export with --dtype float32 and run llama-quantize --output-tensor-type f16 "
            f"--token-embedding-type f16 IN OUT {kind}"
        ) from None
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.output_tensor_type = params.token_embedding_type = llama_cpp.GGML_TYPE_F16
    if llama_cpp.llama_model_quantize(str(file).encode(), str(out).encode(), params) != 0:
        raise ModelError(f"llama.cpp cannot quantize the model as {kind}; use --dtype float16")


def _digest(source: Source) -> str:
    return digest(adapter_weights(source.adapter))
