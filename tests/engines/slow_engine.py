"""What an engine should do, one full forward per token, in float64 numpy."""

from __future__ import annotations

import numpy as np
import torch


def probabilities(engine, ids):
    """Return the next token's probabilities after some token ids."""
    with torch.inference_mode():
        logits = engine.model(torch.tensor([list(ids)])).logits[0, -1]
    return logits.double().softmax(-1).numpy()


def choose(p, sampling, draw):
    """Return the token that a uniform number in [0, 1) picks."""
    if sampling.temperature == 0:
        return int(p.argmax())
    choice = p ** (1 / sampling.temperature)
    choice /= choice.sum()
    order = np.argsort(-choice, kind="stable")
    above = np.cumsum(choice[order]) - choice[order]
    choice[order[above >= sampling.top_p]] = 0
    return int(np.searchsorted(np.cumsum(choice), draw * choice.sum(), "right"))
