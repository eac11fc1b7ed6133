"""Training of Apricot's auxiliary model: squared error between softmax(logits)[1] and the target.

Shapes: N responses, B responses of a batch.
Source: the published code of arXiv 2403.05973 (optimizer, schedule, clipping).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from grace.errors import TrainingError
from grace.estimators.apricot.encoder import Text, TextModel
from grace.estimators.apricot.settings import Settings
from grace.progress import progress

MAX_GRAD_NORM = 10.0
WARMUP, MAX_WARMUP = 0.1, 100  # share of the steps, and steps
HORIZON = 1.1  # the cosine reaches zero after this multiple of the steps
GROUP = 16  # batches of like lengths are made among this many batches' responses


class Best:
    """The weights with the smallest validation Brier score so far."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.brier = math.inf
        self.looks_since = 0
        self._network = network
        self._weights: dict[str, Any] = {}

    def look(self, brier: float) -> None:
        """Keep the weights as they are now if this score is the smallest."""
        self.looks_since += 1
        if brier < self.brier:
            self.brier, self.looks_since = brier, 0
            self._weights = copy.deepcopy(self._network.state_dict())

    def restore(self) -> None:
        """Put the kept weights back."""
        self._network.load_state_dict(self._weights)


def train(
    model: TextModel,
    texts: Sequence[Text],
    target_N: Sequence[float],
    validation_brier: Callable[[], float],
    settings: Settings,
    seed: int,
) -> None:
    """Fine-tune a classifier in place; it ends as the best on validation answers, or the last.

    Raises:
        TrainingError: the loss or the validation score is not finite.
    """
    rows, best = model.tokens(texts), Best(model.network)
    step = _stepper(model, settings)
    order = batches([len(ids) for ids in rows], settings.batch_size, seed)
    last = settings.steps
    with progress("apricot: train", last, unit="steps") as advance:
        for number, at in zip(range(1, last + 1), order, strict=False):
            step([rows[row] for row in at], [target_N[row] for row in at])
            looked = number % settings.validate_every == 0 or number == last
            if looked and not settings.apricot_compat:
                best.look(_finite("validation Brier score", validation_brier(), number))
                if 0 < settings.patience <= best.looks_since:
                    break
            advance(1, f"best validation Brier {best.brier:.4f}" if best.brier < 1 else "")
    if not settings.apricot_compat:
        best.restore()


def batches(lengths: Sequence[int], size: int, seed: int) -> Iterator[list[int]]:
    """Yield rows of batches without end: every row once per pass, like lengths together."""
    random = np.random.default_rng(seed)
    while True:
        shuffled, made = random.permutation(len(lengths)), []
        for start in range(0, len(shuffled), size * GROUP):
            group = sorted(shuffled[start : start + size * GROUP].tolist(), key=lengths.__getitem__)
            made += [group[at : at + size] for at in range(0, len(group), size)]
        for index in random.permutation(len(made)):
            yield made[index]


def rate_at(step: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step: warm-up, then a cosine."""
    warmup = int(min(WARMUP * steps, MAX_WARMUP))
    if step < warmup:
        return step / warmup
    passed = (step - warmup) / max(1.0, HORIZON * steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * passed))


def _stepper(
    model: TextModel, settings: Settings
) -> Callable[[Sequence[Sequence[int]], Sequence[float]], None]:
    """Return what takes one optimizer step on a batch of token ids and their targets."""
    weights = list(model.network.parameters())
    optimizer = torch.optim.AdamW(
        weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_at(step, settings.steps)
    )

    def step(rows: Sequence[Sequence[int]], targets: Sequence[float]) -> None:
        model.network.train(not settings.apricot_compat)
        confidence_B = torch.softmax(model.forward(rows), dim=-1)[:, 1]
        target_B = torch.tensor(targets, device=confidence_B.device)
        loss = torch.nn.functional.mse_loss(confidence_B, target_B)
        _finite("loss", loss.item(), schedule.last_epoch + 1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()

    return step


def _finite(what: str, value: float, step: int) -> float:
    if not math.isfinite(value):
        raise TrainingError(
            f"apricot: the {what} is {value} at step {step}; lower estimators.apricot.learning_rate"
        )
    return value
