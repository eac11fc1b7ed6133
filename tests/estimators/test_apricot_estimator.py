"""Apricot: targets from clusters of training questions, and the text model that learns them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

import tiny_encoder
from grace.errors import ConfigError
from grace.estimators import Samples
from grace.estimators.apricot import training
from grace.estimators.apricot.training import (
    cluster_accuracies,
    load_classifier,
    load_encoder,
    train,
)
from grace.estimators.recalibrated import load_estimator
from grace.metrics import auroc
from grace.pipeline.stages.cost import Meter, watched
from grace.records import Question, Response
from made_up_response import said

FAR = (40.0, -40.0, 0.0)


@dataclass
class Splits:
    """What is known, and what was looked at."""

    train: Samples
    validation: Samples


def samples(split: str, size: int, per_question: int = 1) -> Samples:
    """Questions about numbers; the right responses say so."""
    dice = random.Random(split)
    asked = [Question(f"{split}{n}", "t", f"{split} {n % 5}?", ("x",)) for n in range(size)]
    rows = [(question, k) for question in asked for k in range(per_question)]
    correct = [dice.random() < 0.5 for _ in rows]
    responses = [
        response(f"{question.id}#{k}", "yes" if right else "no")
        for (question, k), right in zip(rows, correct, strict=True)
    ]
    return Samples(
        questions=[question for question, _ in rows],
        messages=[[] for _ in rows],
        prompts=[[1] for _ in rows],
        responses=responses,
        answers=[one.text for one in responses],
        correct=correct,
    )


def response(key: str, text: str) -> Response:
    return said(text, id=key, question_id=key.partition("#")[0])


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder.save(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def known() -> Splits:
    return Splits(samples("train", 40), samples("validation", 20))


def quick(encoder: str, **options: Any) -> Any:
    small = {"steps": 6, "validate_every": 2, "batch_size": 8, "learning_rate": 1e-3}
    return load_estimator("apricot", {"encoder": encoder, **small, **options})


def fitted(encoder: str, known: Any, **options: Any) -> Any:
    return quick(encoder, **options).fit(known, None, 0)


# Targets


def test_a_target_is_the_accuracy_of_the_cluster_and_noise_keeps_its_own():
    cluster, correct = [0, 1, 0, 1, 0, -1, -1, 1], [1, 1, 0, 0, 1, 1, 0, 0]
    third, two = 1 / 3, 2 / 3
    by_hand = [two, third, two, third, two, 1, 0, third]
    assert cluster_accuracies(cluster, range(8), correct) == pytest.approx(by_hand)


def test_responses_to_one_question_share_its_cluster_or_its_own_accuracy():
    # Questions 0 and 1 form a cluster with five responses, three right; question 2 is alone.
    question, correct = [0, 0, 1, 1, 1, 2, 2, 2, 2], [1, 1, 0, 0, 1, 1, 0, 0, 0]
    found = cluster_accuracies([0, 0, -1], question, correct)
    assert found == pytest.approx([0.6] * 5 + [0.25] * 4)


def test_only_training_questions_are_embedded_each_once(encoder: str, monkeypatch: Any):
    seen: list[str] = []
    plain = training.embed

    def spy(model: Any, questions: Any) -> Any:
        seen.extend(questions)
        return plain(model, questions)

    monkeypatch.setattr(training, "embed", spy)
    known = Splits(samples("train", 10, per_question=3), samples("validation", 6))
    fitted(encoder, known).rate(samples("test", 7))
    assert seen == [f"train {n % 5}?" for n in range(10)]


def test_test_questions_cannot_change_a_value(encoder: str, known: Splits):
    rated = samples("test", 8)
    alone = fitted(encoder, known).rate(rated)
    after_others = fitted(encoder, known)
    after_others.rate(samples("elsewhere", 30))
    assert after_others.rate(rated) == alone


# The text model


def test_a_special_token_in_a_text_is_plain_characters(encoder: str):
    import torch

    model = load_encoder(encoder, 256, torch.device("cpu"))
    (ids,) = model.tokens([("a [SEP]", "b")])
    assert model.tokenizer.convert_ids_to_tokens(ids) == [
        "[CLS]", "a", "[", "S", "E", "P", "]", "[SEP]", "b", "[SEP]",
    ]  # fmt: skip


def test_it_needs_nothing_but_text(encoder: str, known: Splits):
    meter = Meter()
    train, validation = (watched(part, meter, lambda n: 0.0) for part in vars(known).values())
    model = fitted(encoder, Splits(train, validation))
    model.rate(watched(samples("test", 4), meter, lambda n: 0.0))
    assert (meter.access, meter.requests, meter.forward_tokens) == ("text", 0, 0)


# Training


def test_it_learns_which_responses_are_right(encoder: str):
    known = Splits(samples("train", 200), samples("validation", 40))
    options = {"targets": "labels", "steps": 60, "validate_every": 20, "batch_size": 16}
    test = samples("test", 60)
    values = fitted(encoder, known, learning_rate=1e-2, **options).rate(test)
    assert auroc(values, test.correct) > 0.95


def test_the_seed_decides_and_leaves_the_global_random_state_alone(encoder: str, known: Splits):
    import torch

    test, before = samples("test", 5), torch.get_rng_state()
    estimator = quick(encoder)
    first, again, other = (estimator.fit(known, None, seed).rate(test) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("patience", "briers", "kept"),
    [
        (0, [0.3, 0.2, 0.4, 0.5, 0.1], 10),  # never stops; the last is best
        (2, [0.3, 0.2, 0.4, 0.5, 0.1], 4),  # stops after the fourth look
        (0, [0.1, 0.2, 0.3, 0.4, 0.5], 2),
    ],
)
def test_the_best_on_validation_answers_is_kept(
    encoder: str, patience: int, briers: list[float], kept: int
):
    looks: list[Any] = []
    model = trained(encoder, briers, looks, steps=10, patience=patience)
    assert len(looks) == (4 if patience else 5)
    assert same(weights(model), looks[kept // 2 - 1])
    assert not same(looks[0], looks[1])


def trained(encoder: str, briers: list[float], looks: list[Any], **options: Any) -> Any:
    """Train with made-up validation scores; the weights at each look go to `looks`."""
    import torch

    model, scores = load_classifier(encoder, "mean", 64, torch.device("cpu")), iter(briers)

    def brier() -> float:
        looks.append(weights(model))
        return next(scores)

    texts = [(f"What is {n}?", "yes" if n % 2 else "no") for n in range(16)]
    train(model, texts, [n % 2 for n in range(16)], brier, quick(encoder, **options), 0)
    return model


def weights(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.network.state_dict().items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all((one[name] == other[name]).all() for name in one)


# What cannot be


@pytest.mark.parametrize("name", ["./no/such/folder", "nobody/no-such-encoder"])
def test_a_missing_encoder_says_what_to_install_or_to_name(name: str, known: Splits):
    with pytest.raises(ConfigError) as caught:
        fitted(name, known)
    message = str(caught.value)
    assert name in message and "pip install 'grace-confidence[apricot]'" in message
    assert "estimators.apricot.encoder" in message and "\n" not in message
