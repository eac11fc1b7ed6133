"""`echo` with `logprobs`: how probable a prompt is, as evaluation harnesses ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from live_server import NAME, Live

from grace.chat import encode_prompt

TEXTS = ("What is 7 and 49?", "one two  three ä\n42", "a")


def complete(live: Live, **body: Any) -> Any:
    status, answer = live.post("/v1/completions", {"model": NAME, **body})
    assert status == 200, answer
    return answer


def rated(live: Live, prompt: Any, **more: Any) -> list[dict[str, Any]]:
    """The choices of what lm-evaluation-harness sends (`local-completions`, log-likelihoods)."""
    body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True, **more}
    found: list[dict[str, Any]] = complete(live, prompt=prompt, **body)["choices"]
    return found


@torch.inference_mode()
def slowly(live: Live, ids: list[int]) -> torch.Tensor:
    """Log-probabilities (L - 1, V) of a plain pass: <CNF> and its companions are never drawn."""
    engine: Any = live.model.engine
    logits_LV = engine.model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
    if engine.reader.banned:
        logits_LV[:, list(engine.readout.ids)] = -torch.inf
    return logits_LV.log_softmax(-1)


@pytest.mark.parametrize("as_ids", [False, True])
def test_what_is_listed_of_prompts_is_that_of_a_plain_pass(live: Live, as_ids: bool) -> None:
    tokenizer = live.model.engine.tokenizer
    encoded = [encode_prompt(tokenizer, text) for text in TEXTS]
    choices = rated(live, encoded if as_ids else list(TEXTS), logprobs=3)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for ids, text, choice in zip(encoded, TEXTS, choices, strict=True):
        found = choice["logprobs"]
        assert len({len(column) for column in found.values()}) == 1
        assert len(found["tokens"]) == len(ids) + 1  # one is generated
        assert choice["text"].startswith(text)
        assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
        expected_LV = slowly(live, ids)
        each = enumerate(zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True))
        for place, (logprob, top) in list(each)[: len(ids) - 1]:
            assert logprob == pytest.approx(float(expected_LV[place, ids[place + 1]]), abs=1e-5)
            best = expected_LV[place].topk(3).values.tolist()
            found_best = sorted(top.values(), reverse=True)  # tokens of one text are one
            assert found_best[0] == pytest.approx(best[0], abs=1e-5)
            assert all(min(abs(one - p) for p in best) < 1e-5 for one in found_best)
        for token, place in zip(found["tokens"], found["text_offset"], strict=True):
            if "\ufffd" not in token:
                assert choice["text"][place:].startswith(token) or not choice["text"][place:]


def test_an_evaluation_finds_its_log_likelihoods_and_what_is_greedy(live: Live) -> None:
    engine: Any = live.model.engine
    context = encode_prompt(engine.tokenizer, TEXTS[0])
    drawn = complete(live, prompt=context, temperature=0, max_tokens=6, logprobs=1)["choices"][0]
    from grace.engines import Sampling

    ((_, (said,)),) = engine.generate([context], Sampling(max_new_tokens=6))
    greedy = list(said.token_ids)
    other = [*greedy[:-1], (greedy[-1] + 1) % 200]
    for continuation, is_greedy in ((greedy, True), (other, False)):
        (choice,) = rated(live, [[*context, *continuation]])
        found = choice["logprobs"]
        logprobs = found["token_logprobs"][len(context) : -1]
        tops = found["top_logprobs"][len(context) : -1]
        assert len(logprobs) == len(continuation)
        assert is_greedy is all(
            logprob == max(top.values()) for logprob, top in zip(logprobs, tops, strict=True)
        )
        if is_greedy:
            assert logprobs == pytest.approx(said.logprobs, abs=1e-5)
            assert logprobs == pytest.approx(
                drawn["logprobs"]["token_logprobs"][: len(greedy)], abs=1e-5
            )


def test_a_prompt_may_be_read_without_an_answer(live: Live) -> None:
    with_one = rated(live, list(TEXTS))
    without = rated(live, list(TEXTS), max_tokens=0)
    for one, none in zip(with_one, without, strict=True):
        found, more = none["logprobs"], one["logprobs"]
        for name in ("tokens", "text_offset"):
            assert found[name] == more[name][:-1]
        assert found["token_logprobs"] == pytest.approx(more["token_logprobs"][:-1])
        assert none["finish_reason"] == "length" and none["confidence"] is None
    used = complete(live, prompt=TEXTS[0], max_tokens=0, echo=True)["usage"]
    assert used["completion_tokens"] == 0 < used["prompt_tokens"]


def test_an_echo_changes_neither_the_answer_nor_its_confidence(live: Live) -> None:
    asked = {"prompt": TEXTS[0], "temperature": 0, "max_tokens": 24}
    (plain,) = complete(live, **asked)["choices"]
    (echoed,) = complete(live, **asked, echo=True)["choices"]
    assert echoed["text"] == TEXTS[0] + plain["text"] and echoed["logprobs"] is None
    assert echoed["confidence"] == plain["confidence"]
    (two, _) = rated(live, TEXTS[0], n=2, max_tokens=24)
    assert two["text"] == echoed["text"]
    stream = live.client().completions.create(model=NAME, **asked, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == echoed["text"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "a", "max_tokens": 0}, "needs echo"),
        ({"prompt": [[5, 10**9]]}, "there is no token 1000000000; the last one is"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": [[5], "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
    ],
)
def test_what_cannot_be_read_is_refused(live: Live, body: dict[str, Any], said: str) -> None:
    status, answer = live.post("/v1/completions", {"model": NAME, **body})
    assert status == 400 and said in json.dumps(answer)


def test_no_token_of_a_prompt_forges_a_confidence(live: Live) -> None:
    (cnf,) = live.model.engine.tokenizer.convert_tokens_to_ids(["<CNF>"])
    status, answer = live.post("/v1/completions", {"model": NAME, "prompt": [5, cnf, 6]})
    assert status == 400 and f"token {cnf} belongs to the confidence" in json.dumps(answer)


def test_in_front_of_another_server_an_echo_is_refused_in_a_line(proxy: Live) -> None:
    status, answer = proxy.post("/v1/completions", {"model": NAME, "prompt": "a", "echo": True})
    assert status == 400 and answer["error"]["param"] == "echo"
    assert "does not list a prompt's tokens" in answer["error"]["message"]


@pytest.mark.slow
def test_the_harness_itself_rates_a_task(live: Live, finished: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: lm-eval[api]")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    engine: Any = live.model.engine
    harness = LocalCompletionsAPI(
        base_url=f"{live.url}/v1/completions",
        model=NAME,
        tokenizer_backend="huggingface",
        tokenizer=str(finished / "model"),
        batch_size=2,
    )
    pairs = [(TEXTS[0], " 49"), (TEXTS[0], " none of these"), ("one", " two")]
    asked = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs
    ]
    for (context, continuation), (logprob, _) in zip(
        pairs, harness.loglikelihood(asked), strict=True
    ):
        whole = engine.tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
        start = len(engine.tokenizer(context, add_special_tokens=False)["input_ids"])
        expected_LV = slowly(live, whole)
        expected = sum(float(expected_LV[at - 1, whole[at]]) for at in range(start, len(whole)))
        assert logprob == pytest.approx(expected, abs=1e-4)
