"""What an engine's log-probabilities say: where the response ends, and what c is there."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grace.cnf import Readout
from grace.engines.reading import Reader, Step, named_ends, read
from grace.errors import ModelError
from grace.evidence import FEATURES, Evidence, confidence, reading

EOS, CNF, WORD = 3, 320, 7
READER = Reader(Readout((CNF,)), (EOS,))


def step(token: int, **probs: float) -> Step:
    """A step that chose a token, from the probabilities of `word`, `eos` and `cnf`."""
    ids = {"word": WORD, "eos": EOS, "cnf": CNF}
    logprobs = {ids[name]: math.log(value) for name, value in probs.items()}
    return Step(token, logprobs[token], logprobs)


def test_a_response_goes_on_where_no_end_was_chosen_though_both_together_are_likelier(
    tokenizer: Any,
) -> None:
    steps = [
        step(WORD, word=0.6, eos=0.1, cnf=0.2),
        step(WORD, word=0.4, eos=0.15, cnf=0.3),
        step(CNF, word=0.3, eos=0.2, cnf=0.35),
    ]
    made = read(steps, READER, tokenizer)
    assert made.token_ids == (WORD, WORD)
    assert made.finish_reason == "stop"
    assert made.end_logprob == pytest.approx(math.log(0.55))
    assert made.confidence == pytest.approx(0.35)
    assert made.trace == pytest.approx((0.2, 0.3, 0.35))
    assert made.logprobs == pytest.approx((math.log(0.6), math.log(0.4)))


def test_a_response_that_says_nothing_has_no_confidence(tokenizer: Any) -> None:
    blank = tokenizer.encode(" ")[0]
    ends = step(EOS, word=0.01, eos=0.01, cnf=0.98)
    says_blank = Step(blank, -0.1, {EOS: -5.0, CNF: -0.1})
    for steps in ([ends], [says_blank, ends]):
        made = read(steps, READER, tokenizer)
        assert (made.finish_reason, made.confidence) == ("stop", None)
    assert read([step(WORD, word=0.4, eos=0.15, cnf=0.3), ends], READER, tokenizer).confidence


def test_a_response_ends_where_an_end_was_chosen(tokenizer: Any) -> None:
    steps = [step(WORD, word=0.4, eos=0.15, cnf=0.3), step(EOS, word=0.7, eos=0.1, cnf=0.15)]
    made = read(steps, READER, tokenizer)
    assert made.token_ids == (WORD,)
    assert made.end_logprob == pytest.approx(math.log(0.25))
    assert made.confidence == pytest.approx(0.15)


def test_a_response_that_never_ends_has_no_confidence(tokenizer: Any) -> None:
    made = read([step(WORD, word=0.9, eos=0.01, cnf=0.02)], READER, tokenizer)
    assert (made.finish_reason, made.confidence, made.end_logprob) == ("length", None, None)
    nothing = read([], READER, tokenizer)
    assert (nothing.token_ids, nothing.trace, nothing.confidence) == ((), (), None)


def test_an_end_that_only_the_engine_knows_is_an_end(tokenizer: Any) -> None:
    other = 5
    steps = [Step(other, math.log(0.5), {EOS: math.log(0.1), CNF: math.log(0.2)}, ends=True)]
    made = read(steps, READER, tokenizer)
    assert (made.token_ids, made.finish_reason) == ((), "stop")
    assert made.end_logprob == pytest.approx(math.log(0.8))
    assert made.trace[-1] == pytest.approx(0.2)


def test_evidence_shifts_c_by_the_tokens_before_it(tokenizer: Any) -> None:
    weights = tuple(0.1 * n for n in range(len(FEATURES)))
    evidence = Evidence(weights, (0.0,) * len(FEATURES))
    steps = [step(WORD, word=0.6, eos=0.1, cnf=0.2), step(CNF, word=0.1, eos=0.1, cnf=0.7)]
    made = read(steps, Reader(Readout((CNF,)), (EOS,), evidence=evidence), tokenizer)
    ends = [math.log(0.1 / (1 - cnf)) for cnf in (0.2, 0.7)]  # of EOS in a model without <CNF>
    expected = confidence([(reading(math.log(0.7)),)], [math.log(0.6)], ends[1], evidence)
    assert made.confidence == pytest.approx(expected)
    assert made.trace[0] == pytest.approx(
        confidence([(reading(math.log(0.2)),)], [], ends[0], evidence)
    )


def test_read_at_the_prompt_cnf_ends_nothing_and_is_not_drawn(tokenizer: Any) -> None:
    reader = Reader(Readout((CNF,)), (EOS,), "prompt")
    steps = [step(WORD, word=0.3, eos=0.1, cnf=0.6), step(EOS, word=0.1, eos=0.4, cnf=0.5)]
    made = read(steps, reader, tokenizer)
    assert made.confidence == pytest.approx(0.6)
    assert made.token_ids == (WORD,)
    assert made.logprobs == pytest.approx((math.log(0.3 / 0.4),))
    assert made.end_logprob == pytest.approx(math.log(0.4 / 0.5))
    assert CNF not in reader.stops


def test_an_engine_may_not_leave_out_an_id_that_is_read(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"no log-probability of <CNF> \(id 320\)"):
        read([Step(WORD, -0.1, {})], READER, tokenizer)


def test_a_tokenizer_and_a_card_say_how_a_model_is_read(tokenizer: Any, tmp_path: Any) -> None:
    with pytest.raises(ModelError, match="has no <CNF>"):
        Reader.of(tokenizer, {})
    tokenizer.add_tokens(["<CNF>"], special_tokens=True)
    cnf = tokenizer.convert_tokens_to_ids("<CNF>")
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [2, {cnf}]}}')
    reader = Reader.of(tokenizer, {"read_at": "predict"}, named_ends(tmp_path))
    assert (reader.cnf, reader.eos, reader.stops) == (cnf, (EOS, 2), (EOS, 2, cnf))
    with pytest.raises(ModelError, match="read_at=feed"):
        Reader.of(tokenizer, {"read_at": "feed"})


def test_a_model_without_cnf_is_sampled_and_has_no_confidence(tokenizer: Any) -> None:
    reader = Reader.of(tokenizer, {}, needs_cnf=False)
    assert (reader.cnf, reader.requested, reader.stops) == (None, (EOS,), (EOS,))
    steps = [
        Step(WORD, math.log(0.6), {EOS: math.log(0.1)}),
        Step(EOS, math.log(0.4), {WORD: math.log(0.3)}),
    ]
    made = read(steps, reader, tokenizer)
    assert (made.token_ids, made.finish_reason) == ((WORD,), "stop")
    assert made.end_logprob == pytest.approx(math.log(0.4))
    assert (made.confidence, made.trace) == (None, ())
    with pytest.raises(ModelError, match="no <CNF>, so it has no confidence"):
        reader.readings(steps[0])
