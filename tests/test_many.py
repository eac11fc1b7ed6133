"""Many questions at once get the answers and the votes that each gets by itself."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import grace
from grace.config import DataSettings
from grace.errors import ModelError, UserInputError
from grace.model import Model, Reply, voting
from grace.records import Decision, Vote, to_json
from instead import Instead

QUESTIONS = [f"What is {n} and {7 * n}?" for n in range(12)]


@pytest.fixture(scope="module")
def model(finished: Path) -> Model:
    return grace.load(finished / "run")


def same(one: Reply, other: Reply) -> None:
    """Assert that two replies are the same but for rounding."""
    traces = one.trace, other.trace
    assert traces[0] == pytest.approx(traces[1], abs=1e-5)
    assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
    rest = [dataclasses.replace(r, trace=(), confidence=None) for r in (one, other)]
    assert rest[0] == rest[1]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5, "threshold": 0.5}])
def test_a_list_gets_the_answers_of_single_calls(model: Model, options: Any):
    alone = [model.ask(question, **options) for question in QUESTIONS]
    together = model.ask(QUESTIONS, **options)
    assert len({reply.text for reply in alone}) > 3
    for one, other in zip(alone, together, strict=True):
        same(one, other)
    assert model.ask([]) == []


def test_each_question_may_be_answered_as_long_as_its_kind(model: Model):
    sample = dataclasses.replace(model.sample, max_new_tokens=9, open_tokens=2)
    data = dataclasses.replace(model.data, prompt="text")  # short enough for the model
    mixed, choices = dataclasses.replace(model, sample=sample, data=data), [(), ("x", "y")] * 6
    asked: Any = {"choices": choices, "temperature": 9.0}
    votes = mixed.vote(QUESTIONS[:12], budget=1, **asked)
    assert max(one.tokens for one in votes[::2]) == 2 < max(one.tokens for one in votes[1::2])
    assert mixed.vote(QUESTIONS[0], budget=1, temperature=9.0).tokens == votes[0].tokens
    said = [[reply.text.strip()] for reply in mixed.ask(QUESTIONS[:12], **asked)]
    assert said == [[vote.text for vote in one.votes] for one in votes]


def test_answers_come_in_order_while_questions_are_still_read(
    model: Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(voting, "AT_ONCE", 5)
    lengths = sorted(QUESTIONS, key=lambda q: hash(q) % 7)
    read = 0

    def source() -> Iterator[str]:
        nonlocal read
        for question in itertools.cycle(lengths):
            read += 1
            yield question

    replies = model.ask_many(source())
    for question, reply in zip(lengths[:7], replies, strict=False):
        same(reply, model.ask(question))
        assert read <= 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.ask(["A?", " "]), "question 1: the question is empty"),
        (lambda m: m.ask(["A?", None]), "question 1: got None"),
        (lambda m: m.ask(["A?", "B?"], choices=[["x", "y"]]), "choices for 1 questions only"),
        (lambda m: m.ask(["A?"], choices=[["x", "y"]] * 2), "1 questions, but choices for more"),
        (lambda m: m.ask(["A?", "B?"], choices=["x", "y"]), "question 0: choices is 'x'; give"),
        (lambda m: list(m.ask_many("A?")), "questions is 'A\\?'; give a list"),
        (lambda m: m.vote(["A?", ""]), "question 1: the question is empty"),
        (lambda m: m.vote(["A?"], budget=0), "budget is 0"),
        (lambda m: m.vote(["A?"], parallel=0), "parallel is 0"),
        (lambda m: m.vote(["A?"], on_vote=print), "on_vote"),
        (lambda m: m.ask_many(["A?"], temperature=-1), "temperature is -1"),
        (lambda m: m.score(["A?", " "], ["a", "b"]), "prompt 1: the question is empty"),
        (lambda m: m.score(["A?", "B?"], ["a", "\ud83d"]), "prompt 1: character 1"),
    ],
)
def test_what_is_wrong_with_one_of_many_is_named(call: Any, message: str, model: Model):
    with pytest.raises(UserInputError, match=message):
        call(model)


def test_a_prompt_that_is_too_long_has_a_number_only_among_others(model: Model):
    room = model.engine.limit - len(model.encode("A?"))
    for call, named in (
        (lambda how: model.ask("A?", **how), "the prompt"),
        (lambda how: model.vote("A?", **how), "the prompt"),
        (lambda how: model.ask(["A?", "B?"], **how), "prompt 0"),
    ):
        with pytest.raises(ModelError, match=f"^{named} has"):
            call({"max_new_tokens": room + 1})


def test_every_answer_is_read_with_the_options_of_its_question(
    model: Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(voting, "AT_ONCE", 3)
    short = DataSettings(prompt="text")
    task: Any = Instead(model.task, answer=lambda text, choices=(): str(len(choices)))
    few: Any = Model(model.engine, task, short, model.sample)
    choices = [["x"] * (n % 4 + 2) for n in range(8)]
    wanted = [str(n % 4 + 2) for n in range(8)]
    asked = QUESTIONS[:8]
    how: Any = {"max_new_tokens": 4}
    assert [r.answer for r in few.ask(asked, choices=choices, **how)] == wanted
    assert [r.answer for r in few.ask_many(iter(asked), choices=iter(choices), **how)] == wanted
    assert few.ask("A?", choices=["x", "y"], **how).answer == "2"
    assert few.ask("A?", **how).answer == "0"
    for strategy in ("sc", "esc,window=2"):
        decisions = few.vote(asked, choices=choices, strategy=strategy, budget=4, **how)
        assert [decision.answer for decision in decisions] == wanted
    prompt = few.encode(asked[0], ["x", "y"])
    for given in ({}, {"prompt": prompt}):
        vote = few.vote(asked[0], choices=["x", "y"], budget=4, **given, **how)
        assert vote.answer == "2"


# Votes


def few_answers(text: str, choices: Any = ()) -> str | None:
    """One of two answers, or none: so that some agree."""
    return ("A", "B", None, "A")[len(text) % 4]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("strategy", ["esc,window=2", "grace-es"])
def test_a_list_gets_the_decisions_of_single_votes(model: Model, strategy: str, parallel: int):
    task: Any = Instead(model.task, answer=few_answers)
    few: Any = Model(model.engine, task, model.data, model.sample)
    how: Any = {
        "strategy": strategy,
        "budget": 5,
        "parallel": parallel,
        "seed": 3,
        "max_new_tokens": 8,
    }
    if strategy == "grace-es":  # a threshold that some samples reach
        votes = [vote for question in QUESTIONS[:8] for vote in few.vote(question, **how).votes]
        how["threshold"] = sorted(vote.confidence or 0.0 for vote in votes)[-len(votes) // 5]
    alone = [few.vote(question, **how) for question in QUESTIONS[:8]]
    together = few.vote(QUESTIONS[:8], **how)
    assert len({decision.samples for decision in alone}) > 1
    for one, other in zip(alone, together, strict=True):
        assert other.confidence == pytest.approx(one.confidence, abs=1e-5)
        assert [(v.answer, v.text) for v in other.votes] == [(v.answer, v.text) for v in one.votes]
        names = ["answer", "samples", "tokens", "issued", "threshold", "promise", "abstains"]
        names += ["issued_tokens"] if parallel == 1 else []
        assert [getattr(other, n) for n in names] == [getattr(one, n) for n in names]
        assert other.issued_tokens >= one.issued_tokens


# Beside an event loop


def test_a_model_in_this_process_answers_one_call_at_a_time_beside_the_event_loop(model: Model):
    running, most = 0, 0
    lock, generate = threading.Lock(), model.engine.generate

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        found = list(generate(*arguments, **options))
        with lock:
            running -= 1
        assert threading.current_thread() is not threading.main_thread()
        return found

    async def main() -> list[Reply]:
        return await asyncio.gather(*map(model.aask, QUESTIONS[:5]))

    model.engine.generate = watched  # type: ignore[method-assign]
    try:
        replies = asyncio.run(main())
    finally:
        del model.engine.generate
    assert most == 1
    for question, reply in zip(QUESTIONS, replies, strict=False):
        same(reply, model.ask(question))
    decision = asyncio.run(model.avote(QUESTIONS[0], budget=2))
    assert decision == model.vote(QUESTIONS[0], budget=2)


# How results look, and where they go

REPLY = Reply("Paris <b>", 0.9437, "paris", "stop", 2, (0.1, 0.2, 0.94), pieces=("Paris", " <b>"))
VOTES = (Vote("rome", 0.25, 2, "Rome"), Vote("paris", None, 2, "Paris"))
DECISION = Decision("rome", 0.25, 2, 4, VOTES, 2, 4)


def test_a_result_reads_as_one_line():
    assert repr(REPLY) == "Reply('Paris <b>', confidence 0.94)"
    cut = dataclasses.replace(REPLY, confidence=None, finish_reason="length", text="x" * 100)
    assert repr(cut) == f"Reply({'x' * 57 + '...'!r}, confidence none, cut)"
    assert repr(DECISION) == "Decision('rome', confidence 0.25, 2 samples)"
    nothing = dataclasses.replace(DECISION, answer=None, confidence=None, samples=1, abstains=True)
    assert repr(nothing) == "Decision(None, confidence none, 1 sample, abstains)"


def test_a_notebook_shows_the_answer_its_confidence_as_a_bar_and_the_colour_of_every_token():
    shown = REPLY._repr_html_()
    assert "width:94%" in shown and "confidence 0.94" in shown
    spans = re.findall(r'<span title="([^"]*)" style="[^"]*hsl\((\d+),[^"]*">([^<]*)</span>', shown)
    assert spans == [("0.20", "24", "Paris"), ("0.94", "113", " &lt;b&gt;")]
    cut = dataclasses.replace(REPLY, confidence=None, finish_reason="length", trace=(0.1, 0.2))
    assert cut.traced == [("Paris", 0.2), (" <b>", None)]
    assert "Paris</span> &lt;b&gt;</div>" in cut._repr_html_()
    plain = dataclasses.replace(REPLY, pieces=())._repr_html_()
    assert "Paris &lt;b&gt;" in plain and "<span" not in plain
    assert "width:25%" in DECISION._repr_html_() and "2 samples" in DECISION._repr_html_()


@pytest.mark.parametrize("text", ['<img src=x onerror="alert(1)">', "</div><script>", "&lt;"])
def test_no_text_becomes_html(text: str):
    whole = dataclasses.replace(REPLY, text=text, pieces=())
    traced = dataclasses.replace(REPLY, text=text, pieces=(text,))
    decided = dataclasses.replace(DECISION, answer=text)
    blank = [dataclasses.replace(r, text="", pieces=p) for r, p in ((REPLY, ()), (REPLY, ("",)))]
    empty = [*blank, dataclasses.replace(DECISION, answer="")]
    for result, bare in zip((whole, traced, decided), empty, strict=True):
        shown, without = result._repr_html_(), bare._repr_html_()
        assert shown.count("<") == without.count("<")
        assert text not in shown


def test_a_model_without_a_trace_along_the_way_gives_no_pieces(model: Model):
    assert not model.traces
    assert model.ask(QUESTIONS[0]).pieces == ()


def test_pandas_and_datasets_take_results(model: Model):
    import datasets
    import pandas

    replies = model.ask(QUESTIONS[:3])
    frame = pandas.DataFrame(replies)
    assert list(frame.columns) == [field.name for field in dataclasses.fields(Reply)]
    assert frame["text"].tolist() == [reply.text for reply in replies]
    assert frame["trace"][1] == replies[1].trace
    table = datasets.Dataset.from_list([dataclasses.asdict(reply) for reply in replies])
    assert table["text"][:] == [reply.text for reply in replies]
    votes = datasets.Dataset.from_list([to_json(DECISION)])
    assert votes[0]["votes"][1] == to_json(VOTES[1])
    assert pandas.DataFrame([DECISION])["samples"].tolist() == [2]
