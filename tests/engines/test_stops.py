"""Stop texts: every token that holds one ends a response, and counts in p(end)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiny_models
from grace.cnf import TOKENS, Readout, add_cnf
from grace.engines import Sampling
from grace.engines.reading import LISTED_ENDS, MOST_IDS, Reader, Step, read, stop_ids
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError

LONGEST = 24


@pytest.fixture
def engine() -> TransformersEngine:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    return TransformersEngine(model, tokenizer, stops=stop_ids(tokenizer, ["e"]))


def test_every_token_that_holds_the_text_is_an_end_and_no_other(tokenizer: Any) -> None:
    found = stop_ids(tokenizer, ["e"])
    texts = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
    special = set(tokenizer.all_special_ids)
    assert set(found) == {i for i, text in texts.items() if "e" in text and i not in special}
    assert len(found) > 3
    assert texts[found[0]] == "e"
    begins = [texts[token].startswith("e") for token in found]
    assert begins == sorted(begins, reverse=True) and len(set(begins)) == 2  # those first
    for first in (True, False):
        lengths = [len(texts[i]) for i, own in zip(found, begins, strict=True) if own is first]
        assert lengths == sorted(lengths)
    assert stop_ids(tokenizer, []) == ()
    assert stop_ids(tokenizer, ["\n", "e"])[:2] == tuple(sorted(tokenizer.encode("e\n")))


def test_a_special_tokens_name_is_no_text(tokenizer: Any) -> None:
    names = {tokenizer.convert_tokens_to_ids(name) for name in ("<s>", "<|im_start|>")}
    assert not names & set(stop_ids(tokenizer, ["s"]))


def test_a_text_that_no_token_holds_is_refused_with_a_remedy(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"no token .* contains the stop text 'xyzzy.*shorter"):
        stop_ids(tokenizer, ["\n", "xyzzy and more"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_responses_end_before_the_stop_text(engine: TransformersEngine, temperature: float):
    prompts = tiny_models.prompts(engine.tokenizer)
    sampling = Sampling(4, temperature, max_new_tokens=LONGEST)
    made = [g for _, samples in engine.generate(prompts, sampling) for g in samples]
    assert not any("e" in generation.text for generation in made)
    assert not any(set(generation.token_ids) & set(engine.reader.stops) for generation in made)
    assert any(g.finish_reason == "stop" and g.token_ids for g in made)


def test_p_end_is_the_sum_over_eos_stop_tokens_and_cnf(engine: TransformersEngine) -> None:
    prompts = tiny_models.prompts(engine.tokenizer)
    tokenizer = engine.tokenizer
    ends = [tokenizer.eos_token_id, *stop_ids(tokenizer, ["e"]), engine.reader.cnf]
    assert sorted(engine.reader.stops) == sorted(ends)
    ended = 0
    for index, (generation,) in engine.generate(prompts, Sampling(max_new_tokens=LONGEST)):
        if generation.end_logprob is None:
            continue
        context = [*prompts[index], *generation.token_ids]
        p_end = engine.next_token_probs([context], ends).sum()
        assert generation.end_logprob == pytest.approx(np.log(p_end), abs=1e-5)
        ((_, given_end),) = engine.logprobs([prompts[index]], [generation.token_ids])
        assert given_end == pytest.approx(generation.end_logprob, abs=1e-5)
        ended += 1
    assert ended > 3


def test_other_engines_know_the_stop_ids_from_grace_json(tokenizer: Any) -> None:
    stops = stop_ids(tokenizer, ["e"])
    reader = Reader.of(tokenizer, {"stop_ids": list(stops)}, needs_cnf=False)
    assert reader.stops == (tokenizer.eos_token_id, *stops)
    assert len(reader.requested) == min(LISTED_ENDS, 1 + len(stops))


def test_a_response_of_another_engine_ends_at_a_stop_token_that_it_did_not_list(
    tokenizer: Any,
) -> None:
    reader = Reader(Readout((319,)), (3, *range(20, 190)))
    assert reader.requested == (3, *range(20, 19 + LISTED_ENDS), 319)
    listed = {i: -9.0 for i in reader.requested}
    steps = [Step(200, -0.5, listed), Step(189, -0.2, listed), Step(201, -0.1, listed)]
    made = read(steps, reader, tokenizer)
    assert (made.token_ids, made.finish_reason) == ((200,), "stop")
    total = np.exp(-0.2) + len(reader.requested) * np.exp(-9.0)
    assert made.end_logprob == pytest.approx(np.log(total))
    assert made.confidence == pytest.approx(np.exp(-9.0))


@pytest.mark.parametrize("head", ["linear", "token"])
def test_an_engine_is_asked_for_no_more_ids_than_it_lists(head: Any) -> None:
    readout = Readout(tuple(range(300, 300 + len(TOKENS[head]))))
    reader = Reader(readout, tuple(range(20, 250)))
    scored = 1  # the token of a given response
    assert len(reader.requested) + scored <= MOST_IDS


def test_stop_tokens_do_not_move_c(engine: TransformersEngine) -> None:
    prompts = tiny_models.prompts(engine.tokenizer, 4)
    responses = [[30, 31], [32], [], [33, 34, 35]]
    plain = TransformersEngine(engine.model, engine.tokenizer)
    assert engine.confidences(prompts, responses) == plain.confidences(prompts, responses)
    assert torch.get_num_threads() == 1
