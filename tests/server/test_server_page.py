"""The page at `/`, in a browser without a window."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from live_server import Live, running

from grace.model.rules import answering, voting
from grace.records import Threshold, to_json
from grace.server.app import PAGE
from grace.store import RunDir
from grace.strategies.vote import FREE

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: install one")
READY = "document.getElementById('about').textContent.includes('trained on')"
ROWS = "document.getElementById('session').tBodies[0].rows"
LEFT, RIGHT = ("ArrowLeft", 37), ("ArrowRight", 39)
ENTER, ESCAPE = ("Enter", 13), ("Escape", 27)
EVIL = "<img src=x onerror='window.evil=1'><script>window.evil=1</script>"


@pytest.fixture
def page(live: Live, tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{live.url}/")
        browser.wait(READY)
        yield browser
        assert browser.errors == []
        assert {url.split("/")[2] for url in browser.requests} == {live.url.split("/")[2]}
        if folder := os.environ.get("GRACE_SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"{tmp_path.name}.png")


def text(browser: Browser, name: str) -> str:
    return str(browser.run(f"document.getElementById('{name}').textContent"))


def test_pages_ask_for_nothing_elsewhere(live: Live) -> None:
    for file in PAGE.iterdir():
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        answer = live.send(path)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        content = answer.text
        assert content == file.read_text()
        addresses = [a for a in re.findall(r"https?://[^\s\"']+", content) if "w3.org" not in a]
        assert addresses == []
        assert "innerHTML" not in content


ANSWERS = Threshold("answer", 1, 0.0, 0.7, 0.05, 0.613, 99, 0.7, "PROMISE")
VOTES = Threshold("early-stop", 8, 0.8, 0.7, 0.05, 0.9, 99, 0.7, "PROMISE")
CHOSEN = [
    ANSWERS,
    VOTES,
    replace(ANSWERS, temperature=0.8),
    replace(VOTES, temperature=1.0),
    replace(VOTES, budget=12),
    replace(VOTES, weights=FREE),
    replace(ANSWERS, tau=None),
]


in_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node here: install one")


def in_module(name: str, script: str) -> Any:
    """Return what a script prints that uses a module of the page."""
    imported = f'import * as page from "file://{PAGE}/{name}";'
    command = ["node", "--input-type=module", "-e", imported + script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@in_node
def test_the_page_shows_a_promise_where_the_server_keeps_it() -> None:
    asked = [
        (budget, strategy) for budget in (1, 4, 8, 12) for strategy in ("es", "asc", "grace-vote")
    ]
    script = f"""
        const found = {json.dumps([to_json(one) for one in CHOSEN])}.map((chosen) =>
          {json.dumps(asked)}.map(([budget, strategy]) =>
            page.promiseText(chosen, page.covers(chosen, budget, strategy))));
        console.log(JSON.stringify(found));
    """
    for chosen, shown in zip(CHOSEN, in_module("promise.js", script), strict=True):
        for (budget, strategy), said in zip(asked, shown, strict=True):
            kept: Any = voting(strategy, None, chosen, budget, 0.8, None)
            if budget == 1:
                kept = answering(None, chosen, 0.0, None)
            own = f"The run's own threshold: {chosen.promise}"
            assert (said == own) == bool(kept.promise), (chosen, budget, strategy)


@in_node
def test_the_confidence_that_decides_is_that_at_which_the_vote_stops() -> None:
    votes = [("a", 0.6), ("b", 0.7), ("a", None), ("a", 0.97), (None, 0.99)]
    vote = {"answer": "a", "votes": [{"answer": a, "confidence": c} for a, c in votes]}
    asked = [
        ({**vote, "strategy": "es"}, 0.785, 0.97),
        ({**vote, "strategy": "asc"}, 0.785, 0.785),
        ({**vote, "strategy": "es", "answer": None}, None, None),
    ]
    script = f"""
        const found = {json.dumps([(grace, mean) for grace, mean, _ in asked])}.map(
          ([grace, mean]) => page.deciding(grace, mean));
        console.log(JSON.stringify(found));
    """
    assert in_module("promise.js", script) == [expected for *_, expected in asked]


@in_node
def test_the_page_says_that_a_bigger_model_has_answered_and_what_this_one_said() -> None:
    asked: list[Any] = [
        {"answered_by": "large", "first": {"text": " Tiber ", "confidence": 0.3123}},
        {"answered_by": "large", "first": {"text": "Tib", "confidence": None}},
        {"answered_by": "small"},
        None,
    ]
    script = f"console.log(JSON.stringify({json.dumps(asked)}.map(page.otherText)));"
    assert in_module("fallback.js", script) == [
        "large has answered. This model said “Tiber” with confidence 0.31.",
        "large has answered. This model said “Tib” without a confidence.",
        "",
        "",
    ]


@in_node
def test_a_forwarded_answer_is_neither_accepted_nor_abstained_in_the_session() -> None:
    replies = [({"other": "large has answered."}, False), ({"other": ""}, True), ({}, False)]
    script = f"""
        const all = {json.dumps(replies)}.map(([reply, accepted]) => page.outcome(reply, accepted));
        console.log(JSON.stringify([all, page.sessionText(all), page.sessionText(all.slice(1))]));
    """
    assert in_module("fallback.js", script) == [
        ["forwarded", "accepted", "abstained"],
        "This session: 1 accepted, 1 abstained, 1 forwarded.",
        "This session: 1 accepted, 1 abstained.",
    ]


def test_three_questions_of_the_test_set_can_be_tried(live: Live, finished: Path) -> None:
    (card,) = live.client().models.list().data
    asked = RunDir(finished / "run").split("test").questions.read()[:3]
    assert card.grace["examples"] == [{"question": one.text, "choices": []} for one in asked]


@in_browser
def test_a_question_of_the_test_set_is_asked_by_a_click(page: Browser) -> None:
    page.run("document.querySelector('#examples button').click(); 0")
    page.wait(f"{ROWS}.length === 1")
    assert text(page, "examples").count("?") == 3


@in_browser
def test_an_answer_of_which_one_sample_is_sure_is_accepted(page: Browser) -> None:
    votes = [{"answer": "a", "confidence": c, "tokens": 1, "text": "a"} for c in (0.6, 0.97)]
    decided = {"answer": "a", "votes": votes, "samples": 2, "budget": 8, "strategy": "es"}
    events = [
        *({"choices": [], "grace": {"vote": vote, "leading": "a"}} for vote in votes),
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop", "confidence": 0.785}]},
        {"choices": [], "grace": decided},
    ]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)}); 0")
    page.type("Which?")
    page.press(*ENTER)
    page.wait(f"{ROWS}.length === 1")
    assert text(page, "verdict").startswith("Confidence of its surest sample 0.97: accepted.")
    assert text(page, "session-counts") == "This session: 1 accepted, 0 abstained."


@in_browser
def test_the_fields_of_a_structured_answer_are_shown(page: Browser) -> None:
    fields = {
        "city": {"value": "Paris", "confidence": 0.914},
        "a.b": {"value": [1], "confidence": 0},
    }
    end = {"delta": {}, "finish_reason": "stop", "confidence": 0.5, "fields": fields}
    stream = f"data: {json.dumps({'choices': [end]})}\n\n"
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)}); 0")
    page.type("Which?")
    page.press(*ENTER)
    page.wait(f"{ROWS}.length === 1")
    shown = "[...document.querySelectorAll('#fields td')].map((cell) => cell.textContent)"
    assert page.run(shown) == ["city", '"Paris"', "0.91", "a.b", "[1]", "0.00"]


@in_browser
def test_a_promise_for_single_answers_is_none_for_votes(
    live: Live, finished: Any, tmp_path: Path
) -> None:
    model = copy.copy(live.model)
    model.promise = ANSWERS
    with running(model, finished / "run") as server, Browser(tmp_path / "profile") as browser:
        browser.open(f"{server.url}/")
        browser.wait(READY)
        assert browser.run("document.getElementById('budget').value") == "1"
        assert text(browser, "promise") == "The run's own threshold: PROMISE"
        browser.run(
            "document.getElementById('budget').value = '8';"
            "document.getElementById('budget').dispatchEvent(new Event('change'))"
        )
        assert text(browser, "promise").startswith("Nothing is promised here")


@in_browser
def test_a_question_is_asked_and_judged_from_the_keyboard(page: Browser, live: Live) -> None:
    page.type("What is 7 and 49?")  # the question has the focus
    page.press(*ENTER)
    page.wait(f"{ROWS}.length === 1")
    shown = page.run("document.querySelectorAll('#samples li').length")
    assert 1 <= shown <= 8
    assert f"It took {shown} of at most 8 samples." in text(page, "verdict")
    assert "Verdict" in text(page, "session")
    page.run("document.getElementById('threshold').focus()")
    page.run("document.getElementById('threshold').value = 0.5")
    page.press(*RIGHT)
    assert text(page, "threshold-value") == "0.51"
    page.send("Input.dispatchKeyEvent", type="keyDown", key="Home", windowsVirtualKeyCode=36)
    assert text(page, "session-counts") == "This session: 1 accepted, 0 abstained."
    page.send("Input.dispatchKeyEvent", type="keyDown", key="End", windowsVirtualKeyCode=35)
    assert text(page, "session-counts") == "This session: 0 accepted, 1 abstained."
    bars = page.run("document.querySelectorAll('#diagram rect').length")
    row = live.app and live.client().models.list().data[0].grace["measured"]["reliability"]
    assert bars == sum(bool(bin["n"]) for bin in row)


@in_browser
def test_one_sample_is_the_answer_of_ask(page: Browser, live: Live) -> None:
    page.run("document.getElementById('budget').value = '1'")
    page.type("What is 3 and 21?")
    page.press(*ENTER)
    page.wait(f"{ROWS}.length === 1")
    reply = live.model.ask("What is 3 and 21?")
    assert text(page, "answer").strip() == reply.text
    confidence = page.run(f"{ROWS}[0].cells[2].textContent")
    assert confidence == ("none" if reply.confidence is None else f"{reply.confidence:.2f}")


@in_browser
def test_markup_in_questions_and_answers_is_text(page: Browser) -> None:
    vote = {"answer": EVIL, "confidence": 0.9, "tokens": 1, "text": EVIL}
    events = [
        {"choices": [], "grace": {"vote": vote, "leading": EVIL}},
        {"choices": [{"delta": {"content": EVIL}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop", "confidence": 0.9}]},
    ]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)}); 0")
    page.type(EVIL)
    page.press(*ENTER)
    page.wait(f"{ROWS}.length === 1")
    assert text(page, "answer") == EVIL
    assert page.run(f"{ROWS}[0].cells[0].textContent") == EVIL
    assert page.run("document.querySelector('#samples .sample-text').textContent") == EVIL
    assert page.run("window.evil") is None
    assert page.run("document.images.length") == 0


@in_browser
def test_a_line_under_the_answer_says_how_sure_it_was_at_every_piece(page: Browser) -> None:
    told = [("", 0.5), ("Seven ", 0.25), ("and a half", 0.75)]
    events = [
        {"choices": [{"delta": {"content": piece}, "finish_reason": None, "confidence_so_far": c}]}
        for piece, c in told
    ]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop", "confidence": 0.91}]})
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.run(f"window.fetch = async () => new Response({json.dumps(stream)}); 0")
    assert page.run("document.getElementById('trace').hidden")
    page.type("How many?")
    page.press(*ENTER)
    page.wait(f"{ROWS}.length === 1")
    assert not page.run("document.getElementById('trace').hidden")
    assert text(page, "trace-value") == "At its end: 0.91"
    drawn = page.run("document.querySelector('#trace-line .line').getAttribute('points')")
    places = [tuple(map(float, point.split(","))) for point in drawn.split()]
    assert len(places) == 4 and places == sorted(places)
    heights = [y for _, y in places]
    assert heights[3] < heights[2] < heights[0] < heights[1]
    page.run("document.getElementById('trace-step').focus()")
    page.press(*LEFT)
    assert text(page, "trace-value") == "After “Seven”: 0.75"
    valued = "document.getElementById('trace-step').getAttribute('aria-valuetext')"
    assert page.run(valued) == "After “Seven”: 0.75"
    assert text(page, "answer") == "Seven and a half"
    assert page.run("document.querySelector('#answer .later').textContent") == "and a half"
    page.press(*LEFT)
    page.press(*LEFT)
    assert text(page, "trace-value") == "Before its first word: 0.50"


@in_browser
def test_escape_stops_and_an_error_is_shown(page: Browser) -> None:
    page.run("window.fetch = (_, {signal}) => new Promise((_, no) =>"
             " signal.addEventListener('abort', () => no(signal.reason))); 0")  # fmt: skip
    page.type("Will it ever end?")
    page.press(*ENTER)
    page.wait("!document.getElementById('stop').hidden")
    page.press(*ESCAPE)
    page.wait("document.getElementById('verdict').textContent === 'Stopped.'")
    page.run("window.fetch = async () => new Response("
             "'{\"error\": {\"message\": \"queue full\"}}', {status: 429}); 0")  # fmt: skip
    page.press(*ENTER)
    page.wait("document.getElementById('verdict').textContent === 'Failed: queue full'")


@in_browser
def test_a_guarded_server_is_reached_with_its_key(
    live: Live, finished: Any, tmp_path: Path
) -> None:
    with (
        running(live.model, finished / "run", api_key="s3cret") as guarded,
        Browser(tmp_path / "profile", dark=True, width=360) as browser,
    ):
        browser.open(f"{guarded.url}/")
        browser.wait("!document.getElementById('key-form').hidden")
        browser.type("s3cret")
        browser.press(*ENTER)
        browser.wait(READY)
        assert browser.run("document.getElementById('key-form').hidden")
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        if folder := os.environ.get("GRACE_SCREENSHOTS"):
            browser.screenshot(Path(folder) / "narrow.png")
