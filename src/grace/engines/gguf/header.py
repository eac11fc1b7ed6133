"""Read the header of a GGUF file with the `gguf` package: its metadata and its tensors.

The package trusts every count in the file, and would loop over 2^60 values that are not there. Here
each read must lie within the file and their number is bounded, so that a damaged or hostile file is
refused within seconds.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from grace.errors import ModelError

if TYPE_CHECKING:
    from gguf import ReaderTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
TOKENS = "tokenizer.ggml.tokens"
MOST_READS = 2_500_000  # a vocabulary of 260,000 tokens with its merges takes 2,100,000


class Header(NamedTuple):
    """The metadata of a file, with the length of an array in its place, and its tensors."""

    metadata: dict[str, Any]
    tensors: tuple[ReaderTensor, ...]

    @property
    def elements(self) -> int:
        """The number of parameters in all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def tokens(self) -> list[str]:
        """The vocabulary, in the order of the ids."""
        tokens = self.metadata.get(TOKENS)
        return tokens if isinstance(tokens, list) else []

    def text(self, key: str) -> str | None:
        """Return the string under a key of the metadata, None if there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """Return the integer under a key of the metadata, None if there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else None


def read_header(path: Path) -> Header:
    """Return the header of a GGUF file whose tensors are all there."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
        if head[:4] != MAGIC:
            raise ModelError(
                f"{path} is not a GGUF file (it does not begin with GGUF); give one, or a "
                "directory with config.json"
            )
        number = int.from_bytes(head[4:], "little")
        if len(head) == 8 and number not in VERSIONS:
            raise ModelError(
                f"{path} has GGUF version {number}, but only versions 2 and 3 are supported; "
                "convert it again with llama.cpp"
            )
        header = _read(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        if unknown := re.search(r"(\d+)\)? is not a valid GGMLQuantizationType", str(error)):
            raise ModelError(
                f"{path} has a tensor of type {unknown[1]}, which gguf {version('gguf')} does not "
                "know; update it: pip install --upgrade gguf"
            ) from None
        raise ModelError(
            f"{path} is cut short or damaged ({str(error)[:100]}); download it again"
        ) from None
    layers = header.number(f"{header.text('general.architecture')}.block_count") or 0
    if layers > len(header.tensors):
        raise ModelError(
            f"{path} announces {layers:,} layers for {len(header.tensors)} tensors; download it "
            "again"
        )
    if (parts := header.number("split.count") or 1) > 1:
        raise ModelError(
            f"{path} is one of {parts} parts; join them first: llama-gguf-split --merge FIRST-PART "
            "WHOLE.gguf"
        )
    return header


def _read(path: Path) -> Header:
    from gguf import GGUFReader, GGUFValueType

    class Bounded(GGUFReader):  # type: ignore[misc]
        """Reads what lies in the file, and so many values at most."""

        data: np.ndarray
        reads = 0

        def _get(
            self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None
        ) -> np.ndarray:
            self.reads += 1
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if self.reads > MOST_READS or end > len(self.data):
                why = "too many values" if end <= len(self.data) else f"{end:,} bytes announced"
                raise ValueError(f"{why} in {len(self.data):,} bytes")
            self.data = self.data.view(np.ndarray)  # a fifth of the time of a memmap
            found: np.ndarray = super()._get(offset, dtype, count, override_order)
            return found

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:  # of numbers: in one read, not one for each
                kind, length = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
                if dtype := self.gguf_scalar_to_np.get(kind[0]):
                    self.reads += int(length[0])
                    values = self._get(orig_offs + 12, dtype, length[0])
                    types = [GGUFValueType.ARRAY, GGUFValueType(kind[0])]
                    return 12 + values.nbytes, [kind, length, values], [2], types
            return super()._get_field_parts(orig_offs, raw_type)

    reader, metadata = Bounded(path), {}
    for key, field in reader.fields.items():
        is_list = field.types[0] == GGUFValueType.ARRAY
        keep = not is_list or (key == TOKENS and field.types[-1] == GGUFValueType.STRING)
        metadata[key] = field.contents() if keep else int(field.parts[4][0])
    return Header(metadata, tuple(reader.tensors))
