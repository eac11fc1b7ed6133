"""What a request is shown while its samples are drawn equals what the engine returns."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny_models
from grace.chat import Detokenizer
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.local.sampling import SampleRequest
from grace.engines.reading import StepResult
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.server.counters import Counters
from grace.server.jobs.backends import draw
from grace.server.jobs.completion import Completion, CompletionParams, Ended, Piece, Stops, name_of
from grace.server.jobs.queue import Finished, Together
from grace.server.replies import Answer, Envelope, Writer
from made_up_evidence import EVIDENCE
from test_chat import metaspace
from test_trace import EVIDENCE as TRACED

PROMPTS = [[10, 11, 12, 13], [20, 21]]
SAMPLING = Sampling(3, 0.8, max_new_tokens=16, seed=2)
READINGS = [
    ("predict", None, "token"),
    ("predict", EVIDENCE, "token"),
    ("feed", EVIDENCE, "token"),
    ("prompt", None, "token"),
    ("predict", None, "bins"),
]


def make(read_at: str = "predict", evidence: Any = None, head: Any = "token") -> TransformersEngine:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, head=head)
    return TransformersEngine(model, tokenizer, read_at, evidence=evidence)


def completion(engine: TransformersEngine, **options: Any) -> tuple[Completion, list[Any]]:
    """Return a job that is ready to run, and the list of its events."""
    events: list[Any] = []
    options = {"sampling": SAMPLING, "key": None, "prompts": PROMPTS, **options}
    prompts = options.pop("prompts")
    job = Completion(engine, CompletionParams(lambda: prompts, len(prompts), **options), draw)
    job.emit = events.append  # type: ignore[method-assign]
    job.prepare()
    return job, events


def run(engine: TransformersEngine, **options: Any) -> tuple[dict[int, Any], list[Any]]:
    """Return the (text, end, tokens) of every choice, and all events."""
    job, events = completion(engine, **{"top": 2, **options})
    job.run(Together([job]))
    choices = {}
    for end in (event for event in events if isinstance(event, Ended)):
        pieces = [e for e in events if isinstance(e, Piece) and e.choice == end.choice]
        tokens = [token for piece in pieces for token in piece.tokens]
        choices[end.choice] = ("".join(piece.text for piece in pieces), end, tokens)
    return choices, events


@pytest.mark.parametrize("read_at, evidence, head", READINGS)
def test_choices_are_the_samples_of_generate(read_at: str, evidence: Any, head: str) -> None:
    engine = make(read_at, evidence, head)
    choices, events = run(engine)
    generated = [g for _, found in sorted(engine.generate(PROMPTS, SAMPLING)) for g in found]
    assert sorted(choices) == list(range(6))
    ended = 0
    for number, generation in enumerate(generated):
        text, end, tokens = choices[number]
        assert text == generation.text
        assert end.finish_reason == generation.finish_reason
        assert end.confidence == pytest.approx(generation.confidence, abs=1e-6)
        chosen = [token.logprob for token in tokens][: len(generation.token_ids)]
        assert chosen == pytest.approx(generation.logprobs, abs=1e-5)
        ended += end.finish_reason == "stop"
        if end.finish_reason == "stop" and head == "token":
            assert len(tokens) == len(chosen) + 1
            name, logprob = tokens[-1].top[-1]
            assert name == "<CNF>"
            assert math.exp(logprob) == pytest.approx(end.confidence, abs=1e-6)
        if head == "bins":
            assert all(len(token.top) == 2 for token in tokens)
    assert ended > 1
    lengths = sum(len(generation.token_ids) for generation in generated)
    assert events[-1] == Finished(sum(map(len, PROMPTS)), lengths + ended)


@pytest.mark.parametrize("read_at", ["predict", "feed", "prompt"])
def test_a_stop_string_cuts_and_the_rest_goes_on(read_at: str) -> None:
    engine = make(read_at)
    whole, _ = run(engine)
    stop = next(text[2:4] for text, end, _ in whole.values() if len(text) > 6)
    cut, _ = run(engine, stop=(stop,))
    stopped = 0
    for number, (text, end, _) in whole.items():
        shorter, its_end, _ = cut[number]
        if stop not in text:
            assert (shorter, its_end.finish_reason) == (text, end.finish_reason)
            continue
        stopped += 1
        assert shorter == text[: text.index(stop)]
        assert its_end.finish_reason == "stop"
        assert 0 <= its_end.confidence <= 1
    assert 0 < stopped < len(whole)


MIXED = [
    Sampling(1, 0.0, max_new_tokens=12),
    Sampling(3, 0.8, 0.7, max_new_tokens=5, seed=2),
    Sampling(2, 1.5, max_new_tokens=16, seed=7),
    Sampling(2, 1.5, 0.9, max_new_tokens=1, seed=8),
]


@pytest.mark.parametrize(
    "read_at, evidence, every",
    [("predict", EVIDENCE, 0), ("predict", EVIDENCE, 3), ("feed", None, 1), ("prompt", None, 3)],
)
def test_requests_that_join_others_at_any_step_get_what_they_get_alone(
    read_at: str, evidence: Any, every: int
) -> None:
    engine = make(read_at, evidence)
    asked: list[dict[str, Any]] = [
        {"sampling": sampling, "prompts": [[*range(7, 20 + 9 * number)], *PROMPTS]}
        for number, sampling in enumerate(MIXED)
    ]
    leaving, of_leaving = completion(engine, sampling=Sampling(2, 2.0, max_new_tokens=240))
    jobs, seen = zip(*(completion(engine, **one) for one in asked), strict=True)
    later, steps = list(jobs) if every else [], []

    def more(_: Together, room: int) -> list[Any]:
        steps.append(room)
        if len(steps) == 7:
            leaving.cancel()
        return [later.pop(0)] if later and len(steps) % every == 0 else []

    together = Together([leaving] if every else [leaving, *jobs], more=more)
    leaving.run(together)
    assert steps[-1] == engine.batch_size and len(steps) < 100, "who leaves frees its rows"
    assert not any(isinstance(event, Finished) for event in of_leaving)
    for one, events in zip(asked, seen, strict=True):
        alone, told = run(engine, **one, top=None)
        for number, (text, end, _) in alone.items():
            (mine,) = (e for e in events if isinstance(e, Ended) and e.choice == number)
            pieces = [e.text for e in events if isinstance(e, Piece) and e.choice == number]
            assert ("".join(pieces), mine.finish_reason) == (text, end.finish_reason)
            assert mine.confidence == pytest.approx(end.confidence, abs=1e-5)
        assert events[-1] == told[-1]


def test_evidence_costs_the_same_at_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    monkeypatch.setattr("grace.evidence._clipped", lambda value: looked_at.append(value) or value)
    engine = SimpleNamespace(
        tokenizer=SimpleNamespace(decode=lambda ids, **_: "a" * len(ids)),
        evidence=EVIDENCE, readout=SimpleNamespace(cnf=7), read_at="predict", limit=None,
    )  # fmt: skip
    long = dataclasses.replace(SAMPLING, max_new_tokens=300)
    params = CompletionParams(lambda: [[1]], 1, long, None, top=0)
    job = Completion(engine, params, draw)  # type: ignore[arg-type]
    job.emit = lambda _: None
    job.prepare()
    choice = job.choices()[0]
    for _ in range(300):
        choice.add(StepResult(0, 5, -0.5, (0.5,), -1.0, False), ())
    assert len(looked_at) == 600  # the token and the end of each step


def test_running_out_of_memory_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(type(engine.forward), "__call__", full)
    with pytest.raises(ModelError, match="samples at a time; ask for fewer"):
        list(engine.batch([SampleRequest(PROMPTS, SAMPLING, ["0", "1"])]))


@pytest.mark.parametrize("text", ["naïve café", "日本語のテキスト", "👩‍🚀 in 🚀", " two  spaces "])
def test_text_that_arrives_by_tokens_is_the_text(text: str) -> None:
    tokenizer = tiny_models.tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    words = Detokenizer(tokenizer)
    pieces = [words.add(token) for token in ids]
    assert "".join(pieces) + words.rest() == tokenizer.decode(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    torn = Detokenizer(tokenizer)
    shown = "".join(torn.add(token) for token in ids[:-1]) + torn.rest()
    assert shown == tokenizer.decode(ids[:-1])


def test_stop_strings_are_found_across_pieces_and_never_shown() -> None:
    stops = Stops(["END", "\n\n", "ENTER"])
    assert stops.add("a E") == ("a ", False)
    assert stops.add("N") == ("", False)
    assert stops.add("J") == ("ENJ", False)
    assert stops.add("\n") == ("", False)
    assert stops.add("\nmore") == ("", True)
    last = Stops(["END"])
    assert last.add("the EN") == ("the ", False)
    assert last.add("", last=True) == ("EN", False)
    assert Stops([]).add("anything") == ("anything", False)


@pytest.mark.parametrize("scheme", ["always", "normalizer"])
def test_a_token_is_named_with_the_space_before_it(scheme: str) -> None:
    tokenizer = metaspace(scheme, False)
    ids = tokenizer.encode("the small cat", add_special_tokens=False)
    assert "".join(name_of(tokenizer, token) for token in ids) == " the small cat"


def test_pieces_carry_the_confidence_so_far_of_a_model_that_knows_it() -> None:
    for evidence in (TRACED, dataclasses.replace(TRACED, trace=None)):
        engine = make("predict", evidence, "linear")
        _, events = run(engine, top=2)
        generated = [g for _, found in sorted(engine.generate(PROMPTS, SAMPLING)) for g in found]
        for number, generation in enumerate(generated):
            pieces = [e for e in events if isinstance(e, Piece) and e.choice == number]
            found = [piece.so_far for piece in pieces]
            # As log-probabilities are asked for, tokens without a text go with the text before.
            ends = list(itertools.accumulate(len(piece.tokens) for piece in pieces))
            drawn = len(generation.token_ids)
            assert ends[-1] == drawn + (generation.finish_reason == "stop")
            if evidence.trace is None:
                assert set(found) <= {None}
            else:
                last = [
                    generation.trace[min(end, drawn) - 1]
                    if end - len(piece.tokens) < drawn
                    else None
                    for end, piece in zip(ends, pieces, strict=True)
                ]
                assert found == pytest.approx(last, abs=1e-6)


async def arriving(events):
    for event in events:
        yield event


@pytest.mark.parametrize("chat", [True, False])
def test_content_starts_without_the_space_that_follows_a_prompt(chat: bool) -> None:
    texts = [" ", " Kanen", " Feandova "]
    events = [Piece(0, text) for text in texts] + [Ended(0, "stop", 0.5), Finished()]

    def answer() -> Answer:
        counters = Counters(lambda: 0)
        return Answer(Envelope(chat, "m"), counters, lambda text, _: {"text": text}, Writer())

    def content(choice: dict[str, Any], delta: str) -> str:
        return choice.get(delta, {}).get("content", "") if chat else choice["text"]

    async def lines() -> list[Any]:
        stream = answer().lines(events[0], arriving(events[1:]), usage_wanted=False)
        return [json.loads(line[6:]) async for line in stream if b"[DONE]" not in line]

    whole = asyncio.run(answer().whole(arriving(events)))
    streamed = [choice for chunk in asyncio.run(lines()) for choice in chunk["choices"]]
    expected = "Kanen Feandova " if chat else "".join(texts)
    assert content(whole["choices"][0], "message") == expected
    assert "".join(content(choice, "delta") for choice in streamed) == expected
    assert whole["grace"]["text"] == "".join(texts)  # graders read the answer as it was sampled
