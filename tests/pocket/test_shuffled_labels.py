"""A control: from grades that say nothing of the answers, no confidence is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import grace
from grace import metrics
from grace.chat import encode_chat
from grace.config import DataSettings, override_settings
from grace.engines import Sampling
from grace.engines.gguf import resolve_model
from grace.engines.transformers import TransformersEngine
from grace.grading import load_grader
from grace.pipeline.stages.graded import fit_graded
from grace.tasks import load_task
from grace.tasks.answered import Answered

pytestmark = pytest.mark.slow
TRAIN = 1000


class Sampled(NamedTuple):
    """The pocket's own answers to 3,000 questions, and whether they are right."""

    questions: list[str]
    responses: list[str]
    correct: Any


@pytest.fixture(scope="module")
def answered() -> Sampled:
    task, data = load_task("pocket_people"), DataSettings(prompt="short", train=2000, test=1000)
    questions = [*task.questions("train", data, 0), *task.questions("test", data, 0)]
    engine = TransformersEngine.load(resolve_model("pocket"))
    prompts = [encode_chat(engine.tokenizer, task.messages(q, data)) for q in questions]
    made = dict(engine.generate(prompts, Sampling(max_new_tokens=32)))
    texts = [made[place][0].text for place in range(len(questions))]
    grade = load_grader(task.grader, 0.3)
    correct = [grade(text, question) for text, question in zip(texts, questions, strict=True)]
    return Sampled([question.text for question in questions], texts, np.array(correct))


def held_out(answered: Sampled, correct: Any, out: Path) -> Any:
    """Return c of the last 2,000 answers after a fit on the first 1,000 with these grades."""
    rows = zip(answered.questions[:TRAIN], answered.responses, correct.tolist(), strict=False)
    names = ("question", "response", "correct")
    known = [Answered("", dict(zip(names, row, strict=True))) for row in rows]
    fit_graded(override_settings({}, ["model.path=pocket", "data.prompt=short"]), known, out)
    model = grace.load(out)
    return np.array(model.score(answered.questions[TRAIN:], answered.responses[TRAIN:]))


def test_shuffled_grades_give_the_base_rate_and_no_order(answered: Sampled, tmp_path: Path) -> None:
    shuffled = np.random.default_rng(0).permutation(answered.correct)
    c = held_out(answered, shuffled, tmp_path / "shuffled")
    assert 0.46 < metrics.auroc(c, shuffled[TRAIN:]) < 0.54
    assert c.mean() == pytest.approx(shuffled[:TRAIN].mean(), abs=0.03)
    assert c.std() < 0.1
    true = held_out(answered, answered.correct, tmp_path / "true")  # so the control can fail
    assert metrics.auroc(true, answered.correct[TRAIN:]) > 0.7
    assert true.std() > 0.2
