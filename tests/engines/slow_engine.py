"""What an engine should do, one full forward per token, in float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grace.cnf import TIE
from grace.engines.local.sampling import uniforms


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


def by_hand(engine, ids):
    """Return c as the definitions say, from the probabilities after some token ids."""
    p = probabilities(engine, ids)[list(engine.readout.ids)]
    if len(p) == 1:
        return p[0]
    interval = int(np.flatnonzero(p >= p.max() * (1 - TIE))[0])
    return (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)[interval]


def naive(engine, prompt, key, sample, sampling):
    """Return tokens, log-probabilities, trace, end and c of a response, without any padding."""
    draws = uniforms(sampling.seed, [key], range(sample, sample + 1), 64)[0]
    tokens, logprobs, trace = [], [], []
    for step in range(sampling.max_new_tokens):
        p = probabilities(engine, [*prompt, *tokens])
        trace.append(by_hand(engine, [*prompt, *tokens]))
        if engine.read_at == "prompt":
            p[list(engine.readout.ids)] = 0
            p /= p.sum()
        token = choose(p, sampling, draws[step])
        if token in engine.reader.stops:
            c = trace[0 if engine.read_at == "prompt" else -1]
            if engine.read_at == "feed":
                c = by_hand(engine, [*prompt, *tokens, engine.reader.cnf])
            return tokens, logprobs, trace, float(np.log(p[list(engine.reader.stops)].sum())), c
        tokens.append(token)
        logprobs.append(float(np.log(p[token])))
    return tokens, logprobs, trace, None, None


def assert_naive(engine, prompts, results, sampling, tolerance):
    """Check that samples of prompts are what full forwards give, in tokens and numbers."""
    for i, generations in enumerate(results):
        for sample, got in enumerate(generations):
            tokens, logprobs, trace, end, c = naive(engine, prompts[i], str(i), sample, sampling)
            assert list(got.token_ids) == tokens
            said = c if got.text.strip() else None
            for found, wanted in (
                (got.logprobs, logprobs),
                (got.trace, trace),
                (got.end_logprob, end),
                (got.confidence, said),
            ):
                assert found == (None if wanted is None else pytest.approx(wanted, abs=tolerance))
