"""Write a trained model as a GGUF file for llama.cpp.

A base that came as a GGUF file and got only new rows is copied: all its metadata and tensors stay
the same, whatever its architecture, or get a little wider (`grace.export.gguf_widening`).
Any other model is written from its weights (`grace.export.gguf_weights`). The output head, or the
embedding that it is tied to, is float16 at least, because c is read from it.

Shapes: V vocabulary, D hidden size, E tokens that are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from grace.cnf import TOKENS, find_readout
from grace.engines.gguf import gguf_file
from grace.engines.local.adapters import read_rows, read_tensors
from grace.engines.local.loading import load, load_tokenizer
from grace.engines.reading import named_ends
from grace.errors import ConfigError, ModelError, packages_for
from grace.export.forms import Source, carry_layer, end_ids
from grace.export.gguf_weights import CONTROL, NORMAL, UNUSED, cast, write_file, write_weights
from grace.export.gguf_widening import Widening, widening
from grace.store import ROWS

FILE, ARCHITECTURE = "model.gguf", "general.architecture"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"  # tied models have no HEAD
DTYPES = ("auto", "float32", "float16")
GGUF_BLOCK = 32  # numbers that llama.cpp quantizes together, in most of its types


def write_gguf(source: Source, out: Path) -> None:
    """Write `model.gguf`, the tokenizer, and generation_config.json with the ids of all ends."""
    from transformers import GenerationConfig

    if source.dtype not in DTYPES:
        raise ConfigError(
            f"dtype {source.dtype!r} is unknown for a GGUF file; use {', '.join(DTYPES)}"
        )
    with packages_for("--format gguf"):
        import gguf  # noqa: F401
    if source.record["read_at"] == "feed" or "cnf_id" not in source.record:
        raise ModelError(
            "the confidence is read from ten bin tokens or at <CNF>'s own position, which only "
            "`grace serve` does; use --format merged with it"
        )
    base_file, alone = gguf_file(Path(source.base_name)), (source.adapter / ROWS).is_file()
    if base_file is not None and source.dtype == "auto" and alone:
        tokenizer, ends = _copy_base(source, base_file, out / FILE)
    else:
        tokenizer, ends = _write_weights(source, out / FILE)
    GenerationConfig(eos_token_id=ends).save_pretrained(out)
    tokenizer.save_pretrained(out)


def _write_weights(source: Source, file: Path) -> tuple[Any, list[int]]:
    """Write a model that is merged in float32; return its tokenizer and its end tokens."""
    loaded = load(source.base, adapter=source.adapter, device="cpu", dtype="float32")
    model, carrier = carry_layer(loaded, more=GGUF_BLOCK)
    ends = end_ids(model, loaded.tokenizer, source.record)
    named = [end for end in ends if end not in source.record.get("stop_ids", ())]
    kind = np.float32 if source.dtype == "float32" else np.float16
    write_weights(file, model, loaded.tokenizer, kind, named, carrier)
    return loaded.tokenizer, ends


def _copy_base(source: Source, base_file: Path, file: Path) -> tuple[Any, list[int]]:
    """Write the base's file with trained rows; return the tokenizer and the base's end tokens."""
    import gguf

    tokenizer, reader = load_tokenizer(source.adapter), gguf.GGUFReader(base_file)
    readout = find_readout(tokenizer)
    assert readout is not None
    rows_ED = read_rows(source.adapter).numpy()
    head = HEAD if HEAD in [tensor.name for tensor in reader.tensors] else EMBEDDING
    carrying = None
    if layer := source.record.get("layer", 0):
        rows_EH = read_tensors(source.adapter / ROWS)["layer_rows"].float().numpy()
        carrying = widening(reader, layer, rows_EH, readout.ids, head)
    base = reader.fields[ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(file, carrying.architecture if carrying else base)
    rows = _copy_metadata(reader, writer, readout, source.record["rows"], carrying)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        grows = tensor.name in (HEAD, EMBEDDING) and tensor.shape[1] < rows
        if grows or tensor.name == head:
            weight_VD = gguf.dequantize(data, kind)
            weight_VD = np.pad(weight_VD, ((0, rows - len(weight_VD)), (0, 0)))
            if tensor.name == head:
                weight_VD[list(readout.ids)] = rows_ED
            data, kind = cast(head, weight_VD, np.float16), gguf.GGMLQuantizationType.F16
        if carrying is not None:
            data, kind = carrying.tensor(tensor.name, data, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    write_file(writer)
    named = (tokenizer.eos_token_id, *named_ends(Path(source.base)))
    ends = dict.fromkeys((*named, *source.record.get("stop_ids", ())))
    return tokenizer, [end for end in ends if end is not None]


def _copy_metadata(
    reader: Any, writer: Any, readout: Any, rows: int, carrying: Widening | None
) -> int:
    """Copy metadata with a vocabulary of at least `rows` tokens, and return its size."""
    from gguf import GGUFValueType

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = _per_token(reader, "tokenizer.ggml.token_type", len(tokens), NORMAL)
    scores = _per_token(reader, "tokenizer.ggml.scores", len(tokens), 0.0)
    more = max(0, rows - len(tokens))
    padded: dict[str, list[Any]] = {
        "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{len(tokens) + i}]" for i in range(more))],
        "tokenizer.ggml.token_type": [*types, *[UNUSED] * more],
        "tokenizer.ggml.scores": [*scores, *[0.0] * more],
    }
    for token, name in zip(readout.ids, TOKENS[readout.head], strict=True):
        padded["tokenizer.ggml.tokens"][token] = name
        padded["tokenizer.ggml.token_type"][token] = CONTROL
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == ARCHITECTURE:
            continue  # the writer has them already, or gets its own
        value = padded[name] if name in padded else field.contents()
        if name.endswith(".vocab_size"):
            value = len(tokens) + more
        if carrying is not None:
            name, value = carrying.entry(name, value)
        item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], item)
    if carrying is not None:
        for name, head_size in carrying.head_sizes().items():
            if name not in reader.fields:
                writer.add_uint32(carrying.entry(name, head_size)[0], head_size)
    return len(tokens) + more


def _per_token(reader: Any, name: str, count: int, default: Any) -> list[Any]:
    """Return a list of the file with an entry per token, `default` for each if it has none."""
    field = reader.fields.get(name)
    return [default] * count if field is None else list(field.contents())
