"""A module that speaks llama-cpp-python's dialect of 0.3, in front of a transformers model.

transformers' own loader reads the GGUF file. One full forward per token, no cache: slow, and easily
seen to be right.
"""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


class Llama:
    """The parameters and attributes that are used here; another is a TypeError."""

    recurrent = False

    def __init__(
        self,
        model_path: str,
        *,
        n_ctx: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_batch: int = 512,
        type_k: int | None = None,
        type_v: int | None = None,
        swa_full: bool | None = None,
        verbose: bool = True,
        vocab_only: bool = False,
    ) -> None:
        import transformers

        if n_ctx < 0:
            raise ValueError("Failed to create llama_context")
        file = Path(model_path)
        self._folder = file.parent
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        ).eval()
        self.cache_types, self.n_batch = (type_k, type_v), n_batch
        self.threads = (n_threads, n_threads_batch)
        self.n_tokens, self.evaluated, self._n_ctx = 0, 0, n_ctx
        self._ids: list[int] = []
        self.input_ids = np.zeros(n_ctx, np.intc)

    @property
    def ctx(self) -> Llama:
        return self

    def n_ctx(self) -> int:
        """The real one is rounded up to a multiple of 256."""
        return -(-self._n_ctx // 256) * 256

    def n_vocab(self) -> int:
        return int(self.model.config.vocab_size)

    def eval(self, tokens: list[int]) -> None:
        """Forget what comes after the first `n_tokens`, then take more."""
        if self.n_tokens + len(tokens) > self._n_ctx:
            raise RuntimeError("llama_decode returned 1")
        if self.recurrent and 0 < self.n_tokens < len(self._ids):
            raise RuntimeError("llama_decode returned -1")
        self._ids = [*self._ids[: self.n_tokens], *tokens]
        self.input_ids[self.n_tokens : len(self._ids)] = tokens
        self.n_tokens = len(self._ids)
        self.evaluated += len(tokens)

    def reset(self) -> None:
        self.n_tokens = 0

    @property
    def _ctx(self) -> Any:
        """Whether what comes after a token can be forgotten: not in a recurrent state."""
        return types.SimpleNamespace(
            kv_cache_seq_rm=lambda sequence, start, end: not self.recurrent
        )

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """With the tokenizer beside the file, which is the one in the file."""
        assert special and not add_bos
        ids: list[int] = self._tokenizer(text.decode(), add_special_tokens=False)["input_ids"]
        return ids

    def detokenize(self, tokens: list[int]) -> bytes:
        text: str = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return text.encode()

    @functools.cached_property
    def _tokenizer(self) -> Any:
        import transformers

        return transformers.AutoTokenizer.from_pretrained(self._folder)

    @torch.inference_mode()
    def logits(self) -> np.ndarray:
        found: np.ndarray = self.model(torch.tensor([self._ids])).logits[0, -1].float().numpy()
        return found

    def close(self) -> None:
        self.closed = True


def install(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Put the fake where `import llama_cpp` finds it; `changes` replace parts of it."""
    module = types.ModuleType("llama_cpp")
    parts = {"Llama": Llama, "llama_get_logits_ith": lambda ctx, _: ctx.logits()}
    vars(module).update(parts | changes)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
