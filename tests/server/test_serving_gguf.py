"""`grace serve` of a GGUF export: the answers and confidences of the model it was exported from."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from live_server import NAME, Live, running

import fake_llama
import grace
from grace.export import export_model

QUESTION = "What is 3?"
CLOSE = 1e-4

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*"),
]


@pytest.fixture(scope="module")
def gguf(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    adapter = finished / "run" / "adapter"
    base = json.loads((adapter / "grace.json").read_text())["base_model"]
    out = tmp_path_factory.mktemp("gguf") / "out"
    export_model(adapter, adapter, base, out, form="gguf", dtype="float32")
    with pytest.MonkeyPatch.context() as patch:
        fake_llama.install(patch)
        with running(grace.load(out), out) as live:
            yield live


def chat(live: Live, **options: Any) -> Any:
    messages = [{"role": "user", "content": QUESTION}]
    return live.client().chat.completions.create(model=NAME, messages=messages, **options)


def test_it_answers_as_the_model_it_was_exported_from(gguf: Live, live: Live) -> None:
    for options in ({"temperature": 0}, {"n": 3, "temperature": 0.8, "top_p": 0.9, "seed": 5}):
        wanted, found = (chat(one, max_tokens=12, **options).choices for one in (live, gguf))
        assert [one.message.content for one in found] == [one.message.content for one in wanted]
        assert [one.finish_reason for one in found] == [one.finish_reason for one in wanted]
        for one, own in zip(found, wanted, strict=True):
            assert one.confidence == pytest.approx(own.confidence, abs=CLOSE)


def test_it_streams_the_same_text(gguf: Live) -> None:
    whole = chat(gguf, temperature=0, max_tokens=12).choices[0]
    pieces = list(chat(gguf, temperature=0, max_tokens=12, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.message.content


def test_a_stop_string_ends_an_answer_and_what_is_left_is_rated(gguf: Live, live: Live) -> None:
    text = chat(gguf, temperature=0, max_tokens=12).choices[0].message.content
    cut = text[len(text) // 2 :]
    wanted, found = (
        chat(one, temperature=0, max_tokens=12, stop=cut).choices[0] for one in (live, gguf)
    )
    assert found.message.content == wanted.message.content == text[: text.index(cut)]
    assert found.confidence == pytest.approx(wanted.confidence, abs=CLOSE)


def test_votes_and_ratings_are_those_of_the_model(gguf: Live, live: Live) -> None:
    strategy = {"grace": {"strategy": "grace-sc", "budget": 4}}
    wanted, found = (chat(one, seed=4, extra_body=strategy) for one in (live, gguf))
    assert found.grace["answer"] == wanted.grace["answer"]
    votes = ([vote["text"] for vote in one.grace["votes"]] for one in (found, wanted))
    assert next(votes) == next(votes)
    assert found.choices[0].confidence == pytest.approx(wanted.choices[0].confidence, abs=CLOSE)
    items = [{"question": QUESTION, "response": text} for text in ("one", "two three")]
    wanted, found = (
        httpx2.post(f"{one.url}/v1/score", json={"model": NAME, "input": items}, timeout=60).json()[
            "data"
        ]
        for one in (live, gguf)
    )
    assert [one["confidence"] for one in found] == pytest.approx(
        [one["confidence"] for one in wanted], abs=CLOSE
    )


def test_who_hangs_up_stops_the_tokens(gguf: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = gguf.model.engine
    whole, calls = engine._logits, []

    def slow(context: Any) -> Any:
        calls.append(len(context))
        time.sleep(0.05)
        return whole(context)

    monkeypatch.setattr(engine, "_logits", slow)
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "n": 50}
    ask = threading.Thread(
        target=hang_up_soon, args=(gguf, {**body, "max_tokens": 30, "temperature": 1})
    )
    ask.start()
    ask.join()
    time.sleep(1)
    done = len(calls)
    time.sleep(1)
    assert 0 < done == len(calls)


def hang_up_soon(live: Live, body: dict[str, Any]) -> None:
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(f"{live.url}/v1/chat/completions", json=body, timeout=0.6)


def test_what_it_cannot_list_is_refused(gguf: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        chat(gguf, logprobs=True, top_logprobs=2)
    assert httpx2.get(f"{gguf.url}/health", timeout=60).status_code == 200
