"""What every estimator promises; a new file in `grace/estimators` is found and held to it.

The responses are made up: peaked and flat ones, an empty one, one that was cut, right and wrong
ones in every split. The backbone that an estimator may ask is a tiny random one.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest

import tiny_encoder
from grace.chat import encode_chat
from grace.cnf import add_cnf
from grace.config import describe
from grace.engines import Engine
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError
from grace.estimators import Draw, Draws, Estimator, Fitted, Samples, rated_model
from grace.estimators.recalibrated import load_estimator
from grace.plugins import find, load
from grace.records import Question, Response, response_id

SIZES = {"train": 30, "validation": 12, "test": 9}
CUT, EMPTY = 3, 5  # positions in every split
RECALIBRATED = ("likelihood+isotonic", "grace+platt", "likelihood+temperature")
QUICK: dict[str, dict[str, Any]] = {
    "apricot": {"encoder": "TINY", "steps": 8, "validate_every": 4, "learning_rate": 1e-2},
    "verbal": {"unparsed": "half"},  # a random model never says a number
    "verbal_tuned": {"unparsed": "half"},
}
"""Settings that make an estimator quick enough, or give it values, in these tests."""


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module", params=[*find("grace.estimators"), *RECALIBRATED])
def estimator(request: pytest.FixtureRequest, encoder: str) -> Estimator:
    options = dict(QUICK.get(request.param, {}))
    if options.get("encoder") == "TINY":
        options["encoder"] = encoder
    return load_estimator(request.param, options)


@pytest.fixture(scope="module")
def backbone() -> Engine:
    """A tiny model, which has `<CNF>` for what asks the tuned model."""
    import tiny_models

    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    return TransformersEngine(model, tokenizer)


class Splits(NamedTuple):
    train: Samples
    validation: Samples
    test: Samples


@pytest.fixture
def splits(backbone: Engine) -> Splits:
    return Splits(*(samples(name, size, backbone.tokenizer) for name, size in SIZES.items()))


@pytest.fixture(scope="module")
def fitted(estimator: Estimator, backbone: Engine) -> Fitted:
    """The estimator, fitted once for all tests; none of them may change it."""
    made = Splits(*(samples(name, size, backbone.tokenizer) for name, size in SIZES.items()))
    return estimator.fit(made, backbone, 0)


@pytest.fixture(scope="module")
def values(fitted: Fitted, backbone: Engine) -> list[float | None]:
    """What it says of the test answers."""
    return list(fitted.rate(samples("test", SIZES["test"], backbone.tokenizer)))


def samples(split: str, size: int, tokenizer: Any) -> Samples:
    dice = random.Random(split)
    asked = [
        Question(f"{split}-{n}", "trivia_qa", f"What is {n}?", (f"thing {n}",)) for n in range(size)
    ]
    messages = [[{"role": "user", "content": question.text}] for question in asked]
    responses = [response(q, n, tokenizer, dice) for n, q in enumerate(asked)]

    def draw(count: int) -> Draws:
        return [
            [
                Draw(response(q, (n * k) % size, tokenizer, dice), f"thing {n * k % 3}")
                for k in range(count)
            ]
            for n, q in enumerate(asked)
        ]

    return Samples(
        questions=asked,
        messages=messages,  # type: ignore[arg-type]
        prompts=[encode_chat(tokenizer, turns) for turns in messages],  # type: ignore[arg-type]
        responses=responses,
        answers=[one.text.strip() or None for one in responses],
        correct=[n % 3 != 0 for n in range(size)],
        draw=draw,
    )


def response(question: Question, n: int, tokenizer: Any, dice: random.Random) -> Response:
    ids = [] if n == EMPTY else tokenizer.encode(f"thing {n} " * (1 + n % 4))
    cut = n == CUT
    return Response(
        id=response_id(question.id, 0),
        question_id=question.id,
        sample=0,
        text=tokenizer.decode(ids),
        token_ids=tuple(ids),
        finish_reason="length" if cut else "stop",
        logprobs=tuple(-dice.random() * (1 + n % 5) for _ in ids),
        end_logprob=None if cut else -dice.random(),
        confidence=None if cut else dice.random(),
    )


def only(part: Samples, row: int) -> Samples:
    """Return one row of the samples."""
    names = [field.name for field in dataclasses.fields(part) if field.name != "draw"]
    rows = {name: [getattr(part, name)[row]] for name in names}
    return Samples(**rows, draw=lambda count: [part.draw(count)[row]])


def test_it_says_whose_answers_it_rates(estimator: Estimator):
    assert rated_model(estimator) in ("base", "tuned")
    assert (type(estimator).__doc__ or "").strip()


@pytest.mark.parametrize("name", find("grace.estimators"))
def test_it_says_what_its_settings_do(name: str):
    assert all(doc for _, _, doc in describe(load("grace.estimators", name)))


def test_every_response_gets_a_value_in_range_or_none(fitted: Fitted, values: list[float | None]):
    assert len(values) == SIZES["test"]
    for value in values:
        assert value is None or (type(value) is float and 0 <= value <= 1)
    assert sum(value is not None for value in values) >= SIZES["test"] - 2
    assert type(fitted.trained_parameters) is int and fitted.trained_parameters >= 0


def test_the_same_seed_gives_the_same_values(
    values: list[float | None], estimator: Estimator, splits: Splits, backbone: Engine
):
    assert estimator.fit(splits, backbone, 0).rate(splits.test) == values


def test_a_response_is_rated_alone_as_among_others(
    fitted: Fitted, values: list[float | None], splits: Splits
):
    for i, value in enumerate(values):
        (alone,) = fitted.rate(only(splits.test, i))
        assert (alone is None) == (value is None)
        assert alone == pytest.approx(value, abs=1e-5)


def test_the_truth_about_the_rated_answers_is_not_used(
    fitted: Fitted, values: list[float | None], splits: Splits
):
    lied = dataclasses.replace(
        splits.test, correct=[not correct for correct in splits.test.correct]
    )
    assert fitted.rate(lied) == values


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("likelihood+plat", {}, "unknown recalibration 'plat'; choose from platt"),
        ("likelihood", {"with_ends": True}, "estimators.likelihood: unknown setting 'with_ends'"),
        ("json:loads", {}, "'json:loads' is no estimator"),
    ],
)
def test_what_is_no_estimator_is_refused_by_name(name: str, options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says.replace("+", r"\+")):
        load_estimator(name, options)


def test_whose_answers_an_estimator_rates_must_be_known(monkeypatch: pytest.MonkeyPatch):
    @dataclasses.dataclass
    class Own:
        answers: ClassVar[str] = "Tuned"

        def fit(self, *_: Any) -> Any: ...

    monkeypatch.setitem(sys.modules, "own_part", SimpleNamespace(Own=Own))
    with pytest.raises(ConfigError, match="rates answers of 'Tuned', expected answers = 'base' or"):
        load_estimator("own_part:Own")
