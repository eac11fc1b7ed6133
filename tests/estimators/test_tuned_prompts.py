"""P(True) and Verbal tuned on validation answers: what is tried, what is chosen, what comes out."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.calibration import Platt, log_odds
from grace.errors import ComputeError, ModelError
from grace.estimators import Fitted
from grace.estimators.prompts import MOST, tuned
from grace.estimators.recalibrated import load_estimator

RNG = np.random.default_rng(0)
COUNT = 300
RIGHT = RNG.random(COUNT) < 0.5
ANSWERS = samples([response(n) for n in range(COUNT)], correct=RIGHT.tolist())
KNOWN = Splits(samples([response(n) for n in range(6)]), ANSWERS)
INFORMED = np.clip(0.3 + 0.4 * RIGHT + RNG.normal(0, 0.2, COUNT), 0, 1).tolist()


@dataclasses.dataclass
class Says:
    """Gives response n the n-th of its values, and counts what it is asked."""

    values: Any
    refuses: type[ModelError] | None = None
    asked: int = 0
    answers = "base"

    def fit(self, known: Any, engine: Any, seed: int) -> Fitted:
        def rate(rated: Any) -> Any:
            if self.refuses:
                raise self.refuses("too long")
            self.asked += len(rated.responses)
            return [self.values[one.token_ids[0]] for one in rated.responses]

        return Fitted(rate)


def rated(*choices: Any) -> list[Any]:
    return tuned(choices, log_odds, KNOWN, None, 0).rate(ANSWERS)  # type: ignore[arg-type]


def through_a_logistic(values: Any, right: Any = RIGHT) -> Any:
    scores = [log_odds(value) for value in values]
    return Platt.fit(scores, right, loss="log").transform(scores)


def test_the_candidate_that_tells_answers_apart_is_taken_and_calibrated():
    noise = Says(RNG.random(COUNT).tolist())
    assert rated(noise, Says(INFORMED)) == pytest.approx(through_a_logistic(INFORMED).tolist())
    assert noise.asked == MOST  # no more is spent on what is not taken


def test_upside_down_confidences_are_turned_round():
    upside_down = Says([1 - value for value in INFORMED])
    assert rated(upside_down) == pytest.approx(through_a_logistic(INFORMED).tolist(), abs=1e-6)


def test_answers_without_a_value_count_as_unknown_when_prompts_are_compared():
    """A prompt that is read on a few answers only does not win by being right on these."""
    often = [None if n % 20 else float(RIGHT[n]) for n in range(COUNT)]
    assert None not in rated(Says(often), Says(INFORMED))
    assert None in rated(Says(often))


def test_where_no_reply_can_be_read_there_is_no_value():
    assert rated(Says([None] * COUNT)) == [None] * COUNT


def test_prompts_that_are_too_long_are_left_out_unless_all_are():
    long = Says(INFORMED, refuses=ModelError)
    assert rated(long, Says(INFORMED)) == pytest.approx(through_a_logistic(INFORMED).tolist())
    with pytest.raises(ModelError, match="too long"):
        rated(long)


def test_a_prompt_at_which_memory_runs_out_is_not_quietly_left_out():
    with pytest.raises(ComputeError):
        rated(Says(INFORMED, refuses=ComputeError), Says(INFORMED))


class Follower(ScriptedEngine):
    """Answers the P(True) prompt well only if it was shown verdicts as words before."""

    def next_token_probs(self, contexts: Any, tokens: Any) -> Any:
        texts = [self.tokenizer.decode(context) for context in contexts]
        rows = []
        for text in texts:
            number = int(re.findall(r"city (\d+)", text)[-1])
            helped = text.count("True<|im_end|>") + text.count("False<|im_end|>") == 8
            sure = INFORMED[number] if helped else 0.5
            rows.append([sure] * (len(tokens) // 2) + [1 - sure] * (len(tokens) // 2))
        return np.array(rows, dtype=np.float32)


def test_p_true_is_tuned_over_templates_and_shots(tokenizer: Any):
    train = samples(
        [response(n, f"town {n}") for n in range(9)], correct=[True, False] * 4 + [True]
    )
    given = samples([response(n, f"city {n}") for n in range(60)], correct=RIGHT[:60].tolist())
    engine: Any = Follower(tokenizer)
    made = load_estimator("p_true_tuned").fit(Splits(train, given), engine, 0)
    assert made.rate(given) == pytest.approx(
        through_a_logistic(INFORMED[:60], RIGHT[:60]).tolist(), abs=1e-4
    )
    assert made.trained_parameters == 2


def test_verbal_is_tuned_and_unread_replies_stay_out(tokenizer: Any):
    class Teller(ScriptedEngine):
        def generate(self, prompts: Any, sampling: Any, *, keys: Any = None) -> Any:
            self._replies = []
            for prompt in prompts:
                text = tokenizer.decode(prompt)
                number = int(re.findall(r"city (\d+)", text)[-1])
                percent = f"{100 * INFORMED[number]:.2f}%"
                self._replies.append(percent if "100%" in text and number else "no idea")
            return super().generate(prompts, sampling, keys=keys)

    train = samples(
        [response(n, f"town {n}") for n in range(9)], correct=[True, False] * 4 + [True]
    )
    given = samples([response(n, f"city {n}") for n in range(60)], correct=RIGHT[:60].tolist())
    made = load_estimator("verbal_tuned").fit(Splits(train, given), Teller(tokenizer), 0)  # type: ignore[arg-type]
    first, *rest = made.rate(given)
    assert first is None
    stated = INFORMED[1:60]
    expected = Platt.fit(stated, RIGHT[1:60], loss="log").transform(stated)
    assert rest == pytest.approx(expected.tolist(), abs=0.01)


def test_shots_are_plain_text_where_questions_are(tokenizer: Any):
    texts = [
        [{"role": "text", "content": f"Q: {q}\nA:"} for q in ("example", "own")] for _ in range(3)
    ]
    for turns in texts:
        turns.insert(1, {"role": "assistant", "content": "its answer"})
    train = samples([response(n, f"town {n}") for n in range(3)], correct=[True, False, True])
    train = dataclasses.replace(train, messages=texts)
    given = dataclasses.replace(samples([response(9, "Paris")]), messages=texts[:1])
    engine = ScriptedEngine(tokenizer)
    options = {"shots": 2, "template": "yes_no"}
    load_estimator("p_true", options).fit(Splits(train, given), engine, 0).rate(given)  # type: ignore[arg-type]
    text = tokenizer.decode(engine.asked[0])
    assert "<|im_start|>" not in text and "example" not in text
    assert text.count("Is the answer correct? (Yes/No) ") == 2
    assert text.endswith("Q: own\nA: Paris\nIs the answer correct? (Yes/No)")


def test_verbal_shots_are_sure_of_right_answers_and_not_of_wrong_ones(tokenizer: Any):
    train = samples([response(n, f"town {n}") for n in range(2)], correct=[True, False])
    for template, sure, unsure in (("percent", "100%", "0%"), ("probability", "1.0", "0.0")):
        engine = ScriptedEngine(tokenizer, replies=["0.5"])
        options = {"shots": 2, "template": template}
        made = load_estimator("verbal", options).fit(Splits(train, train), engine, 0)  # type: ignore[arg-type]
        made.rate(samples([response(9, "Paris")]))
        text = tokenizer.decode(engine.asked[0])
        for number, said in enumerate((sure, unsure)):
            after = text.partition(f"town {number}")[2]
            assert after.split("<|im_start|>assistant\n")[1].startswith(f"{said}<|im_end|>")
