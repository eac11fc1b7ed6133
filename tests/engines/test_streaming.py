"""Samples that arrive as they finish: the same ones, from one prefill, and really stopped."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
import torch

import tiny_models
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import Evidence

SAMPLING = Sampling(1, 0.8, 1.0, 24, seed=3)
KEY = "q"


@pytest.fixture(params=["predict", "feed", "prompt", "evidence"])
def engine(request: pytest.FixtureRequest) -> TransformersEngine:
    """A tiny model, once for every way to read c."""
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    if request.param == "evidence":
        shift = Evidence(
            (0.5, 0.1, 0.01, 0.1, 0.2, 0.3, 0.6, 1.2), (-1.0, -2.0, -5.0, 1.0, 0.3, 0.5, 0.6, 0.5)
        )
        return TransformersEngine(model, tokenizer, evidence=shift)
    return TransformersEngine(model, tokenizer, request.param)


@pytest.fixture
def prompt(engine: TransformersEngine) -> list[int]:
    return tiny_models.prompts(engine.tokenizer)[3]


def counted(engine: TransformersEngine) -> list[int]:
    """Return a list that grows by the number of positions of every pass of the whole model."""
    calls: list[int] = []
    engine.confidences([[5, 6]], [[7]])  # an engine tries its head apart from the rest once

    def note(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        if module is engine.model:  # not the copy that applies the head alone
            calls.append(int(options["input_ids"].shape[1]))

    engine.model.register_forward_pre_hook(note, with_kwargs=True)
    return calls


def alone(engine: TransformersEngine, prompt: list[int], number: int) -> Any:
    """Return one sample as a call of its own gives it."""
    sampling = dataclasses.replace(SAMPLING, first_sample=number)
    ((_, (generation,)),) = engine.generate([prompt], sampling, keys=[KEY])
    return generation


def test_one_after_the_other_from_one_prefill_is_bit_for_bit_separate_calls(engine, prompt):
    stream, tokens = engine.stream(prompt, SAMPLING, KEY), 0
    for number in range(4):
        ((arrived, generation),) = stream.start(range(number, number + 1))
        wanted = alone(engine, prompt, number)
        assert (arrived, generation) == (number, wanted)
        tokens += len(wanted.token_ids)
    assert stream.tokens == tokens


def test_side_by_side_is_the_batch_that_generate_gives(engine, prompt):
    sampling = dataclasses.replace(SAMPLING, num_samples=12)
    ((_, together),) = engine.generate([prompt], sampling, keys=[KEY])
    stream = engine.stream(prompt, SAMPLING, KEY)
    arrived = list(stream.start(range(12)))
    assert sorted(number for number, _ in arrived) == list(range(12))
    for number, generation in arrived:
        wanted = together[number]
        if engine.read_at == "feed":  # a second pass, over other rows at a time
            assert generation.confidence == pytest.approx(wanted.confidence, abs=1e-6)
            wanted = dataclasses.replace(wanted, confidence=generation.confidence)
        assert generation == wanted
    assert stream.tokens == sum(len(generation.token_ids) for generation in together)
    second = dict(stream.start(range(4, 12)))
    assert [second[n].token_ids for n in range(4, 12)] == [g.token_ids for g in together[4:]]


def test_what_finishes_first_comes_first_and_cut_ones_last(engine, prompt):
    arrived = list(engine.stream(prompt, SAMPLING, KEY).start(range(12)))
    lengths = [(g.finish_reason == "length", len(g.token_ids)) for _, g in arrived]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3


def test_the_prompt_is_read_once_for_all_that_is_started(engine, prompt):
    calls, stream = counted(engine), engine.stream(prompt, SAMPLING, KEY)
    for numbers in (range(1), range(1, 5), range(5, 6)):
        list(stream.start(numbers))
    assert calls[0] == len(prompt) > 1
    second_pass = engine.read_at == "feed"  # of prompt, response and <CNF>
    assert {count for count in calls[1:] if not second_pass or count < len(prompt)} == {1}


@pytest.mark.parametrize("parallel", [1, 6])
def test_closing_stops_the_computation(engine, prompt, parallel):
    calls, stream = counted(engine), engine.stream(prompt, SAMPLING, KEY)
    threads = threading.active_count()
    running = stream.start(range(parallel))
    assert calls == []  # nothing before it is asked for
    _, first = next(running)
    taken, tokens = len(calls), stream.tokens
    steps = len(first.token_ids) + (first.finish_reason == "stop")
    assert taken <= steps + 1
    running.close()
    assert (len(calls), stream.tokens) == (taken, tokens)
    assert threading.active_count() == threads
    with pytest.raises(StopIteration):
        next(running)
    assert len(calls) == taken


def test_too_many_samples_for_the_memory_are_refused_with_the_way_on(engine, prompt, monkeypatch):
    def full(*arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(engine.model, "forward", full)
    with pytest.raises(ModelError, match=r"5 samples.*--parallel"):
        list(engine.stream(prompt, SAMPLING, KEY).start(range(5)))
