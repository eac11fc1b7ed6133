"""What the stages hand to each other, on responses made by hand: no model runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_up_run
import numpy as np
import pytest
from made_up_run import SAMPLES
from safetensors.numpy import load_file, save_file

import grace.methods.paper.trainer
from grace.engines import LAST, Features, LayerStates, Sampling, StepStates
from grace.errors import ConfigError, ModelError, RunError
from grace.estimators import Fitted
from grace.pipeline.context import Context
from grace.pipeline.scaling import guarantees
from grace.pipeline.stages import answers, fit, paper, score
from grace.pipeline.stages.answers import draw_further, grade_split, sample_split, sampling_for
from grace.pipeline.stages.score import checked
from grace.records import Question
from grace.store import CARD, SPLITS, write_json
from grace.thresholds import selective
from made_up_response import said


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return made_up_run.make(tmp_path)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains a run and gives what reached the trainer."""

    def train(context: Context) -> SimpleNamespace:
        calls: list[Any] = []
        monkeypatch.setattr(
            grace.methods.paper.trainer,
            "train_adapter",
            lambda *args, **options: calls.append((args, options)),
        )
        targets = [row.target for row in context.directory.split("train").targets.read()]
        paper.train_on(context, targets)
        ((_, _, _, examples, validation, _), options) = calls[0]
        return SimpleNamespace(examples=examples, validation=validation, **options)

    return train


def ended(split: Any) -> list[Any]:
    responses = split.responses.read()
    kept = [response for response in responses if response.finish_reason == "stop"]
    assert 0 < len(kept) < len(responses)
    return kept


def test_the_trainer_gets_the_responses_that_ended_with_their_own_targets(context, handed):
    split = context.directory.split("train")
    target = {row.id: row.target for row in split.targets.read()}
    assert len(set(target.values())) == len(target)
    got = [(one.id, one.response_ids, one.target) for one in handed(context).examples]
    assert got == [(r.id, r.token_ids, target[r.id]) for r in ended(split)]


def test_the_trainer_gets_validation_responses_with_1_where_they_are_right(context, handed):
    split = context.directory.split("validation")
    right = {grade.id: float(grade.correct) for grade in split.grades.read()}
    got = [(one.id, one.response_ids, one.target) for one in handed(context).validation]
    assert got == [(r.id, r.token_ids, right[r.id]) for r in ended(split)]
    assert {target for _, _, target in got} == {0.0, 1.0}


def test_every_example_has_the_prompt_of_its_own_question(context, handed):
    tokenizer = context.engines.base.tokenizer
    got = handed(context)
    for one in (*got.examples, *got.validation):
        question = one.id.partition("#")[0]
        name = question.rstrip("0123456789")
        assert f"{name} {question.removeprefix(name)}?" in tokenizer.decode(one.prompt_ids)


def test_a_target_never_comes_from_a_probe_that_saw_its_question(context):
    """The states of a question's responses are nearly equal, so a probe could look them up."""
    split = context.directory.split("train")
    scores, _ = paper.make_run_targets(context)
    grades = split.grades.read()
    own = [grade.question_id == "train4" for grade in grades]
    flipped = [
        grade if not mine else type(grade)(grade.id, grade.question_id, not grade.correct, "x")
        for grade, mine in zip(grades, own, strict=True)
    ]
    split.grades.write(flipped)
    again, _ = paper.make_run_targets(context)
    assert sum(own) == SAMPLES
    np.testing.assert_allclose(again[own], scores[own], atol=1e-6)
    assert np.abs(again[~np.array(own)] - scores[~np.array(own)]).max() > 1e-3


def test_a_run_of_fewer_questions_than_folds_has_a_fold_for_each(tmp_path):
    scores = []
    for folds in (30, made_up_run.QUESTIONS):
        (folder := tmp_path / str(folds)).mkdir()
        context = made_up_run.make(folder, f"paper.folds={folds}")
        scores.append(paper.make_run_targets(context)[0])
    np.testing.assert_array_equal(*scores)


def test_a_target_is_the_share_of_right_answers_in_its_bin(context, monkeypatch):
    split = context.directory.split("train")
    monkeypatch.setattr(paper, "train_on", lambda *_: context.directory.adapter.mkdir())
    paper.fit_run(context)
    rows, correct = split.targets.read(), [grade.correct for grade in split.grades.read()]
    assert [row.id for row in rows] == [response.id for response in split.responses.read()]
    for row in rows:
        assert row.bin == min(int(np.clip(row.score, 0, 1) * 10), 9)
        same = [right for other, right in zip(rows, correct, strict=True) if other.bin == row.bin]
        assert row.target == pytest.approx(np.mean(same))


def test_every_row_of_features_is_that_of_the_response_in_its_row(context, monkeypatch):
    def states(prompts, responses):
        mean = [[len(prompt), ids[0]] for prompt, ids in zip(prompts, responses, strict=True)]
        return Features(*(sign * np.array(mean, np.float32) for sign in (1, -1, 2)))

    context.engines.base.states = lambda prompts, responses, steps_NB, layers: {
        LAST: LayerStates(
            states(prompts, responses),
            StepStates(*np.zeros((2, len(prompts), 0, 2), np.float32)),
        )
    }
    monkeypatch.setattr(fit, "SHARD_ROWS", 20)
    fit.features(context)
    samples = context.samples(context.directory.split("train"))
    stored = load_file(context.directory.split("train").features)
    pairs = zip(samples.prompts, samples.responses, strict=True)
    assert stored["mean"].tolist() == [[len(prompt), r.token_ids[0]] for prompt, r in pairs]
    assert (stored["last"] == -stored["mean"]).all()


def test_features_that_other_settings_have_begun_are_made_anew(context, monkeypatch):
    read, killed = [], [2]

    def states(prompts, responses, steps_NB, layers):
        if not killed[0]:
            raise KeyboardInterrupt
        killed[0] -= 1
        read.append(len(prompts))
        zeros = np.zeros((len(prompts), 2), np.float32)
        steps = StepStates(*np.zeros((2, len(prompts), 0, 2), np.float32))
        return dict.fromkeys([LAST, *layers], LayerStates(Features(*[zeros] * 3), steps))

    context.engines.base.states = states
    monkeypatch.setattr(fit, "SHARD_ROWS", 20)
    monkeypatch.setattr(fit, "layers_to_read", lambda *_: [3])
    with pytest.raises(KeyboardInterrupt):
        fit.features(context)
    monkeypatch.setattr(fit, "layers_to_read", lambda *_: [])
    killed[0] = 99
    fit.features(context)
    total = len(context.samples(context.directory.split("train")).responses)
    assert sum(read[2:]) == total > 40
    assert "mean.3" not in load_file(context.directory.split("train").features)


def test_every_answer_is_stored_and_graded_under_the_question_that_was_asked(tmp_path):
    context = made_up_run.make(tmp_path, "grade.grader=made_up_run:echoes")
    split = context.directory.split("other")
    split.questions.write(context.directory.split("train").questions.read()[:4])
    tokenizer = context.engines.base.tokenizer

    def generate(prompts, sampling, keys):
        for place in reversed(range(len(prompts))):
            heard = f"{keys[place]} heard {tokenizer.decode(prompts[place])}"
            yield place, [said(f"{heard} {k}") for k in (0, 1)]

    context.engines.base.plan = lambda *_: [[2, 0], [3, 1]]
    context.engines.base.generate = generate
    sample_split(context, "base", split, Sampling(num_samples=2))
    grade_split(context, split)
    responses = split.responses.read()
    assert [r.id for r in responses] == [f"train{q}#{k}" for q in (2, 0, 3, 1) for k in (0, 1)]
    assert all(response.text.endswith(str(response.sample)) for response in responses)
    assert all(grade.correct for grade in split.grades.read())


def test_a_letter_that_no_option_of_the_question_has_casts_no_vote(tmp_path):
    context = made_up_run.make(tmp_path, "grade.grader=")
    split = context.directory.split("test")
    draws = split.pool(1, context.settings.sample.draw_temperature)
    texts, kept = ("Answer: B", "Answer: C"), []
    asked = [Question(f"q{n}", "jsonl", "Which?", ("B",), ("x", "y", "z")[:n]) for n in (2, 3)]
    split.questions.write(asked)
    for some in (split, draws):
        some.responses.write(
            [
                said(text, id=f"{q.id}#{k}", question_id=q.id, sample=k)
                for q in asked
                for k, text in enumerate(texts if some is split else texts[1:])
            ]
        )
        grade_split(context, some)
        kept.append([(grade.answer, grade.correct) for grade in some.grades.read()])
    (first, *_, last) = draw_further(context, "base", split, 1)
    assert kept[0] == [("B", True), (None, False), ("B", True), ("C", False)]
    assert [draw.answer for draw in (*first, *last)] == [None, "C"]


@pytest.mark.parametrize("grader", ["exact", "number"])
def test_a_question_that_is_too_long_is_named_with_its_line(grader, tmp_path):
    context = made_up_run.make(tmp_path, f"grade.grader={grader}")
    context.engines.base.limit = 5
    answers.draw_questions(context, context.directory.split("test"), "test")
    with pytest.raises(ModelError, match=r"prompt \S+questions\.jsonl:\d+ has \d+ tokens"):
        answers._refuse_too_long(context, "test")


def test_validation_answers_are_sampled_as_test_answers_are(tmp_path):
    changes = ("sample.train_samples=16", "sample.train_temperature=0.7")
    context = made_up_run.make(tmp_path, *changes, "sample.test_samples=2")
    train, validation, test = (sampling_for(context.settings, name) for name in SPLITS)
    assert (train.num_samples, train.temperature) == (16, 0.7)
    assert (test.num_samples, test.temperature) == (2, 0.0)
    assert validation == test


@dataclass(frozen=True)
class Recorder:
    """An estimator that notes what it is given."""

    answers: str
    seen: list[Any] = field(default_factory=list)

    def fit(self, known, engine, seed):
        def rate(samples):
            self.seen.append(([r.id for r in samples.responses], engine.tokenizer))
            return [0.25] * len(samples.responses)

        return Fitted(rate)


@pytest.mark.parametrize("who", ["base", "tuned"])
def test_an_estimator_rates_the_answers_of_its_own_model_with_that_model(
    who, tmp_path, monkeypatch
):
    context, recorder = made_up_run.make(tmp_path, "report.estimators=platt"), Recorder(who)
    monkeypatch.setattr(score, "estimator_of", lambda settings, name: recorder)
    context.engines.tuned = SimpleNamespace(tokenizer=object())
    context.directory.adapter.mkdir()
    write_json(context.directory.adapter / CARD, {})
    weights = {"row": np.zeros((3, 2), np.float32)}
    save_file(weights, context.directory.adapter / "adapter_model.safetensors")
    test = context.directory.split("test")
    for number, split in enumerate((test, test.tuned)):
        made_up_run.write(split, "test", 4, 1, first=number)
    score.score(context)
    own = test.tuned if who == "tuned" else test
    ids = [response.id for response in own.responses.read()]
    ((rated, tokenizer),) = recorder.seen
    assert rated == ids and tokenizer is getattr(context.engines, who).tokenizer
    assert [row.id for row in own.confidences("platt").read()] == ids


def test_a_model_that_cannot_take_a_prompt_is_told_with_the_estimator_that_wrote_it(tmp_path):
    context = made_up_run.make(tmp_path, "report.estimators=p_true")

    def refuse(*_: Any) -> Any:
        raise ModelError("prompt 3 has 300 tokens, but the model's context is 256; shorten it")

    context.engines.base.next_token_probs = refuse
    made_up_run.write(context.directory.split("test"), "test", 4, 1)
    wanted = r"estimator p_true: prompt 3 .* shorten it, or leave p_true out of report\.estimators"
    with pytest.raises(ModelError, match=wanted):
        score.score(context)


@dataclass(frozen=True)
class Broken(Recorder):
    """An estimator whose author has made a mistake."""

    answers: str = "base"

    def fit(self, known, engine, seed):
        return Fitted(lambda samples: [self.seen[0]] * len(samples.responses))


def test_an_own_estimator_that_fails_is_named_in_one_line_and_loses_nothing(tmp_path):
    names = ["likelihood", f"{__name__}:Broken"]
    context = made_up_run.make(tmp_path, f"report.estimators={','.join(names)}")
    test = context.directory.split("test")
    made_up_run.write(test, "test", 4, 1)
    wanted = r"estimator \S+:Broken failed \(IndexError: .*, at .*test_handovers\.py:\d+\); correct"
    with pytest.raises(ConfigError, match=wanted) as refused:
        score.score(context)
    assert "\n" not in str(refused.value)
    assert len(test.confidences("likelihood").read()) == 4


def test_a_threshold_is_chosen_on_validation_answers_and_checked_on_test_answers(
    context, monkeypatch
):
    sure = np.linspace(0.5, 1, 200)
    answers = {"validation": (sure, sure > 0.7), "test": (sure, sure < 0.7)}
    monkeypatch.setattr(guarantees, "_greedy_answers", lambda context, name: answers[name])
    monkeypatch.setattr(guarantees, "_independent", lambda context: list(range(200)))
    wanted = guarantees._wanted("answer", 0.9, 0.05, None, "grace-es")
    chosen = guarantees._for_answers(context, wanted, mixture=True)
    assert chosen.tau == selective(*answers["validation"], target=0.9, delta=0.05).tau
    assert chosen.test["right"] == (answers["test"][1] & (sure >= chosen.tau)).sum()


def test_estimators_fit_on_the_answers_of_the_model_that_they_rate(context, monkeypatch):
    answered: list[Any] = []
    monkeypatch.setattr(
        score, "answer_tuned", lambda context, split, **_: answered.append(split.path)
    )
    validation = context.directory.split("validation")
    tuned = [made_up_run.response("validation3", 0, 99)]
    validation.tuned.responses.write(tuned)
    validation.tuned.grades.write([validation.grades.read()[3]])
    known = score.KnownSplits(context, "tuned")
    assert known.validation.responses == tuned and answered == [validation.path]
    assert known.validation.questions[0].id == "validation3"
    assert known.train.responses == context.directory.split("train").responses.read()
    plain = score.KnownSplits(context, "base")
    assert plain.validation.responses == validation.responses.read() and answered == [
        validation.path
    ]


@pytest.mark.parametrize("given", [np.float32([0.25, 1]), iter([0.25, True])])
def test_confidences_of_an_own_estimator_may_be_any_numbers(given: Any):
    values = checked("own", given, 2)
    assert values == [0.25, 1.0] and {type(value) for value in values} == {float}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([0.5, "0.5"], "own gave '0.5'; a confidence is a number"),
        ([0.5, float("nan")], "own gave nan; a confidence lies in"),
        ([0.5], "own gave 1 values for 2 responses"),
    ],
)
def test_confidences_of_an_own_estimator_that_are_none_are_refused(given: Any, says: str):
    with pytest.raises(RunError, match=says):
        checked("own", given, 2)
