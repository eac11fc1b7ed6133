"""The tokens that all prompts of a batch begin with are read once, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from alike import assert_alike
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.local import forward
from grace.engines.local.batching import group
from grace.engines.local.forward import begin, shared
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence

CLOSE = 1e-5
EVIDENCE = Evidence((0.1, -0.2, 0.3, 0.0, 0.2, -0.1, 0.6, 1.2), (0.0,) * 8, 0.3)
models = pytest.mark.parametrize("name", ["llama_untied", "gpt_neox", "gemma2", "gemma3"])


def engine_of(name: str, read_at: str = "predict", **options: Any) -> TransformersEngine:
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    return TransformersEngine(model, tokenizer, read_at, **options)


def prompts_of(tokenizer: Any, count: int = 9) -> list[list[int]]:
    """Return prompts of ragged lengths after examples that exceed the sliding window."""
    examples = "".join(f"Q: What is {n} and {n}?\nA: {2 * n}\n" for n in (1, 17, 40))
    lead = tokenizer.encode(examples, add_special_tokens=False)
    assert len(lead) > 40
    return [[*lead, *own] for own in tiny_models.prompts(tokenizer, count)]


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "SHORTEST", 10**9)


def columns_read(engine: TransformersEngine) -> list[int]:
    """Return a list that the model adds the number of tokens of each call to."""
    read: list[int] = []
    layer = engine.model.get_input_embeddings()
    layer.register_forward_hook(lambda _, inputs, out: read.append(inputs[0].numel()))
    return read


@models
@pytest.mark.parametrize(
    ("read_at", "sampling"),
    [
        ("predict", Sampling(1, 0.0, 1.0, 12)),
        ("feed", Sampling(2, 1.0, 0.9, 12)),
        ("prompt", Sampling(2, 1.0, 0.9, 12)),
    ],
)
def test_sampling_gives_the_same_tokens_and_c(
    name: str, read_at: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(name, read_at)
    prompts = prompts_of(engine.tokenizer)
    fast = dict(engine.generate(prompts, sampling))
    without(monkeypatch)
    slow = dict(engine.generate(prompts, sampling))
    for index in range(len(prompts)):
        for one, other in zip(fast[index], slow[index], strict=True):
            assert_alike(one, other)


@models
@pytest.mark.parametrize("evidence", [None, EVIDENCE])
def test_given_responses_are_read_the_same(
    name: str, evidence: Evidence | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(name, evidence=evidence)
    prompts = prompts_of(engine.tokenizer)
    responses = [[30 + n] * (n % 5) for n in range(len(prompts))]

    def read() -> tuple[Any, ...]:
        logprobs = engine.logprobs(prompts, responses)
        return (
            engine.next_token_probs(prompts, [5, 30, 70]),
            np.array(engine.confidences(prompts, responses)),
            np.concatenate([np.array([*own, end]) for own, end in logprobs]),
            *engine.features(prompts, responses),
        )

    fast = read()
    without(monkeypatch)
    for one, other in zip(fast, read(), strict=True):
        np.testing.assert_allclose(one, other, rtol=CLOSE, atol=CLOSE)  # log-probabilities to -30


@models
def test_the_prefix_is_read_once_for_all_rows(name: str) -> None:
    engine = engine_of(name)
    prompts = prompts_of(engine.tokenizer, 7)
    length, longest = shared(prompts), max(map(len, prompts))
    read = columns_read(engine)
    engine.next_token_probs(prompts, [5])
    assert read == [length, len(prompts) * (longest - length)]


def test_prompts_that_share_little_or_stand_alone_are_read_whole() -> None:
    engine = engine_of("llama_tied")
    read = columns_read(engine)
    (long, *_) = prompts_of(engine.tokenizer, 1)
    engine.next_token_probs([long], [5])
    engine.next_token_probs([[5] * 15 + [6, 7], [5] * 15 + [7]], [5])
    assert read == [len(long), 2 * 17]


def test_answers_to_one_prompt_share_it_but_what_is_asked_of_them_is_read() -> None:
    engine = engine_of("llama_untied")
    (prompt, *_) = prompts_of(engine.tokenizer, 1)
    responses = [[40, 41, 42], [40, 41, 42], [40, 41, 43]]
    read = columns_read(engine)
    together = engine.features([prompt] * 3, responses)
    assert read == [len(prompt) - 1, 3 * 4]  # the prompt's last state is wanted, too
    alone = [engine.features([prompt], [response]) for response in responses]
    means = np.concatenate([one.mean_ND for one in alone])
    np.testing.assert_allclose(together.mean_ND, means, rtol=0, atol=CLOSE)


def test_a_shorter_sequence_has_its_padding_in_front(tokenizer: Any) -> None:
    engine = engine_of("llama_untied")
    prompts = [[*range(20, 60), 9, 9, 9, 9], [*range(20, 60), 8], [*range(20, 60)]]
    given = begin(engine.forward, prompts, engine.device, keep=1)
    assert given.ids_BC.tolist() == [[9, 9, 9, 9], [57, 58, 59, 8], [56, 57, 58, 59]]
    assert given.positions_BC[:, -1].tolist() == [43, 40, 39]
    assert given.mask_BL is not None
    assert given.mask_BL.sum(1).tolist() == [44, 41, 40]
    keys = given.cache.layers[0].keys
    torch.testing.assert_close(keys[1, :, 3:], keys[0, :, :-3])


def test_a_model_with_another_memory_than_keys_and_values_reads_prompts_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of("llama_tied")
    prompts = prompts_of(engine.tokenizer, 7)
    monkeypatch.setattr(type(engine.model), "_is_stateful", True)
    read = columns_read(engine)
    engine.next_token_probs(prompts, [5])
    assert read == [len(prompts) * max(map(len, prompts))]


def test_shared_counts_the_common_tokens() -> None:
    lead = list(range(20))
    assert shared([[*lead, 2, 3], [*lead, 2, 4], [*lead, 2]]) == 21
    assert shared([lead, lead]) == 20
    assert shared([[2, *lead], [1, *lead]]) == 0
    assert shared([lead[:15], lead]) == 0  # too few to be worth while


def test_a_batch_ends_where_most_of_what_is_left_would_be_padding() -> None:
    lead = list(range(40))
    sizes = [30] * 8 + [16] * 3 + [14] * 9
    prompts = [[*lead, *[n] * size] for n, size in enumerate(sizes)]
    budget = {"max_rows": 64, "max_tokens": 10_000}
    assert list(map(len, group(prompts, **budget))) == [11, 9]
    assert list(map(len, group([prompt[30:] for prompt in prompts], **budget))) == [20]
