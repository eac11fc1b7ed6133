"""A GGUF file whose residual stream is a little wider, as `grace.export.widening` makes a model.

Every matrix stays as it is stored: its rows grow by blocks of zero bytes, which stand for zeros in
every type. Only the matrix that carries the readings becomes float32.

Shapes: D hidden size, E tokens that are read, H width of an MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grace.errors import ModelError
from grace.export.gguf_weights import ARCHITECTURES, in_rotary_order
from grace.export.widening import READINGS_SCALE

GEMMA, LARGE_GEMMA = "gemma3", 62  # and the number of blocks of the one with 27 B parameters
READING = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
WRITING = ("attn_output", "ffn_down")
NORMS = ("attn_norm", "ffn_norm", "output_norm")
WRITING_NORMS = ("post_attention_norm", "post_ffw_norm")  # of Gemma 3
OTHERS = ("attn_q_norm", "attn_k_norm", "rope_freqs")  # of heads


@dataclass(frozen=True)
class Widening:
    """How a file gets wider."""

    base: str  # architecture of the file
    size: int  # hidden size
    more: int  # dimensions to add
    heads: dict[str, int]  # numbers of heads of queries and of keys
    head_size: int
    layer: int  # block whose MLP c reads, from 1
    rows_EH: np.ndarray  # what the logits of the tokens gain from it
    ids: tuple[int, ...]  # of the tokens that are read
    head: str  # name of the output head

    @property
    def architecture(self) -> str:
        """The architecture of the wider file: Llama's for a Qwen 2, whose heads keep their size."""
        return "llama" if self.base == "qwen2" else self.base

    @property
    def part(self) -> float:
        """The part of the dimensions that the base has, over which its norms average."""
        return self.size / (self.size + self.more)

    def entry(self, name: str, value: Any) -> tuple[str, Any]:
        """Return an entry of the metadata as the wider file has it."""
        owner, _, rest = name.partition(".")
        if owner != self.base:
            return name, value
        if rest == "embedding_length":
            value += self.more
        elif rest == "attention.layer_norm_rms_epsilon":
            value *= self.part
        return f"{self.architecture}.{rest}", value

    def head_sizes(self) -> dict[str, int]:
        """Return entries that a base may leave out if they follow from its hidden size."""
        names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        return {f"{self.base}.{name}": self.head_size for name in names}

    def tensor(self, name: str, data: np.ndarray, kind: Any) -> tuple[np.ndarray, Any]:
        """Return a tensor and its type as the wider file has them."""
        import gguf

        owner, _, what = name.rpartition(".")
        leaf = owner.rpartition(".")[2]
        norms = leaf in (*NORMS, *WRITING_NORMS)
        block = f"blk.{self.layer - 1}"
        exact = norms or name == f"{block}.ffn_down.weight"
        if exact:
            data, kind = gguf.dequantize(data, kind), gguf.GGMLQuantizationType.F32
        if self.base == "qwen2" and leaf in self.heads:
            data = in_rotary_order(data, self.heads[leaf])
        places = slice(self.size, self.size + len(self.ids))
        if leaf in WRITING_NORMS:
            data = np.pad(data, (0, self.more), constant_values=1)
            if name == f"{block}.post_ffw_norm.weight":
                data[places] = 1 / READINGS_SCALE
        elif leaf in NORMS:
            data = np.pad(data * np.float32(self.part**0.5), (0, self.more))
            if leaf == "output_norm":
                data[places] = 1 / READINGS_SCALE
        elif leaf in WRITING:
            data = np.pad(data, [(0, self.more), *[(0, 0)] * (data.ndim - 1)])
            if exact:
                scale = READINGS_SCALE**2 if self.base == GEMMA else READINGS_SCALE  # as in `widen`
                data[places] = scale * self.part**0.5 * self.rows_EH
        elif leaf in READING and what == "weight":
            row = data.shape[1]  # numbers, or the bytes of blocks
            data = np.pad(data, ((0, 0), (0, self.more * row // self.size)))
            if name == self.head:
                data[list(self.ids), range(places.start, places.stop)] = 1.0
        elif leaf not in (*READING, *OTHERS):
            raise refusal(f"has a tensor {name}", self.layer)
        return data, kind


def widening(
    reader: Any, layer: int, rows_EH: np.ndarray, ids: tuple[int, ...], head: str
) -> Widening:
    """Return how a file gets wider: by as much as its rows can be quantized together."""
    import gguf

    base = reader.fields["general.architecture"].contents()
    if base not in (*ARCHITECTURES, GEMMA):
        raise refusal(f"is of type {base}", layer)
    if base == GEMMA and reader.fields[f"{base}.block_count"].contents() == LARGE_GEMMA:
        raise refusal("is of a Gemma 3 whose attention depends on its hidden size", layer)

    def of_base(name: str, otherwise: Any = None) -> Any:
        field = reader.fields.get(f"{base}.{name}")
        return otherwise if field is None else field.contents()

    size, queries = of_base("embedding_length"), of_base("attention.head_count")
    keys = of_base("attention.head_count_kv", queries)
    head_size = of_base("attention.key_length", size // queries)
    more = max(
        32, *(gguf.GGML_QUANT_SIZES[t.tensor_type][0] for t in reader.tensors if t.shape[0] == size)
    )
    heads = {"attn_q": queries, "attn_k": keys}
    return Widening(base, size, more, heads, head_size, layer, rows_EH, ids, head)


def refusal(reason: str, layer: int) -> ModelError:
    """Return what is raised where a file cannot carry the MLP of a block to its end."""
    known = ", ".join((*ARCHITECTURES, GEMMA))
    return ModelError(
        f"the confidence reads the MLP of block {layer}, and the base's GGUF file {reason}, which "
        f"cannot carry that to its end (only {known} can); use --format merged or adapter, or fit "
        "with grace.layer=0"
    )
