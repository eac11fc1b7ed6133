"""Read the header of a GGUF file: its metadata, and the places of its tensors.

Every length is checked against the size of the file, so that a damaged file is refused within
milliseconds.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
TOKENS = "tokenizer.ggml.tokens"
FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # of `struct`, by GGUF type
STRING, ARRAY = 8, 9


class Tensor(NamedTuple):
    """A tensor: its GGUF name, its element count, its storage type and its offset in the data."""

    name: str
    elements: int
    kind: int
    offset: int


class Header(NamedTuple):
    """The metadata of a file, its tensors, and the offset of their data.

    Arrays in the metadata are represented by their length, except for the vocabulary's tokens.
    """

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_start: int

    @property
    def elements(self) -> int:
        """The number of parameters in all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

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
    """Return the header of a GGUF file."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelError(
                    f"{path} is not a GGUF file (it does not begin with GGUF); give one, or a "
                    "directory with config.json"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _parse(_Cursor(data), path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except (struct.error, _Damaged) as error:
        raise ModelError(f"{path} is cut short or damaged ({error}); download it again") from None
    if (parts := header.number("split.count") or 1) > 1:
        raise ModelError(
            f"{path} is one of {parts} parts; join them first: llama-gguf-split --merge FIRST-PART "
            "WHOLE.gguf"
        )
    return header


class _Damaged(Exception):
    pass


class _Cursor:
    """Reads little-endian values one after the other, never beyond the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = len(MAGIC)

    def take(self, format: str) -> Any:
        """Return the next number."""
        (value,) = struct.unpack_from(f"<{format}", self.data, self.at)
        self.at += struct.calcsize(f"<{format}")
        return value

    def skip(self, count: int) -> int:
        """Skip `count` bytes, and return the offset where they start."""
        start = self.at
        if count > len(self.data) - start:
            raise _Damaged(f"{count} bytes announced, {len(self.data) - start} left")
        self.at += count
        return start

    def text(self) -> str:
        """Return the next string."""
        start = self.skip(self.take("Q"))
        return self.data[start : self.at].decode("utf-8", errors="replace")

    def value(self, kind: int, keep: bool) -> Any:
        """Return the next value; for an array its length, or all of it if `keep` is set."""
        if kind == STRING:
            return self.text()
        if kind in FORMATS:
            return self.take(FORMATS[kind])
        if kind != ARRAY:
            raise _Damaged(f"a value of unknown type {kind}")
        inner, length = self.take("I"), self.take("Q")
        if inner in FORMATS:
            self.skip(length * struct.calcsize(FORMATS[inner]))
            return length
        if inner != STRING:
            raise _Damaged(f"an array of unknown type {inner}")
        if keep:
            return [self.text() for _ in range(length)]
        for _ in range(length):
            self.skip(self.take("Q"))
        return length


def _parse(cursor: _Cursor, path: Path) -> Header:
    version = cursor.take("I")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} has GGUF version {version}, but only versions 2 and 3 are supported; convert "
            "it again with llama.cpp"
        )
    tensor_count, metadata_count = cursor.take("Q"), cursor.take("Q")
    metadata = {}
    for _ in range(metadata_count):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.take("I"), keep=key == TOKENS)
    tensors = tuple(_tensor(cursor) for _ in range(tensor_count))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _Damaged(f"alignment {alignment}")
    return Header(metadata, tensors, math.ceil(cursor.at / alignment) * alignment)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text()
    shape = [cursor.take("Q") for _ in range(cursor.take("I"))]
    return Tensor(name, math.prod(shape), cursor.take("I"), cursor.take("Q"))
