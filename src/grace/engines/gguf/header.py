"""What a GGUF file says of itself and where its tensors lie, read without the tensors.

Every length in the file is checked against the file's own size, so a damaged file is refused in
milliseconds whatever its numbers say.

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
FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9


class Tensor(NamedTuple):
    """One tensor: its GGUF name, its element count, its storage type and its place in the data."""

    name: str
    elements: int
    kind: int
    offset: int


class Header(NamedTuple):
    """The metadata of a file, its tensors, and where their data begins.

    Of arrays only the length is kept, except for the tokens of the vocabulary.
    """

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_start: int

    @property
    def elements(self) -> int:
        """How many numbers the tensors hold."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def tokens(self) -> list[str]:
        """The vocabulary, in the order of the ids."""
        tokens = self.metadata.get(TOKENS)
        return tokens if isinstance(tokens, list) else []

    def text(self, key: str) -> str | None:
        """Return what the metadata say as text under a key, if they do."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """Return the integer under a key of the metadata, if there is one."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) else None


def read_header(path: Path) -> Header:
    """Return what stands before the tensors of a GGUF file.

    Raises:
        ModelError: it is not a GGUF file, of another version, damaged, or a part of one.
    """
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
        raise ModelError(f"{path} is cut short or damaged ({error}); get it again") from None
    if (parts := header.number("split.count") or 1) > 1:
        raise ModelError(
            f"{path} is one of {parts} parts; join them first: llama-gguf-split --merge FIRST-PART "
            "WHOLE.gguf"
        )
    return header


class _Damaged(Exception):
    pass


class _Cursor:
    """Reads little-endian values one after the other, and never beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = len(MAGIC)

    def take(self, format: str) -> Any:
        """Return the next number."""
        (value,) = struct.unpack_from(f"<{format}", self.data, self.at)
        self.at += struct.calcsize(f"<{format}")
        return value

    def skip(self, count: int) -> int:
        """Pass over so many bytes, and return where they began."""
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
        """Return the next value; of an array its length, or all of it where it is to be kept."""
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
            f"{path} is of GGUF version {version}, and versions 2 and 3 are read; convert it again "
            "with llama.cpp"
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
