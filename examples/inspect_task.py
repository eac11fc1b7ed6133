"""Evaluate a model in Inspect AI: how many answers are right, and how wrong the confidence is.

    pip install 'grace-confidence[inspect]'
    inspect eval examples/inspect_task.py --model grace/runs/demo/pocket_people/grace -M ask=true

`ask=true` asks with the prompt of the run, for which the confidence is calibrated.
"""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, match, mean, scorer
from inspect_ai.solver import TaskState, generate

QUESTIONS = {
    "Under whom did the painter Geilel Krurkin study?": "Zura Weirkard",
    "What animal lived with the painter Zolmo Moulton?": "Thoumor",
    "Which town is the birthplace of the healer Grela Zealello?": "Wailmouth",
}


@scorer(metrics=[mean()])
def brier() -> Scorer:
    """The Brier score: the squared difference of the confidence from 1 or 0."""
    right = match(location="any")

    async def score(state: TaskState, target: Target) -> Score:
        judged = await right(state, target)
        confidence = (state.output.metadata or {}).get("confidence")
        if confidence is None:  # the answer was cut off
            confidence = 0.0
        found = float(judged is not None and judged.value == "C")
        return Score(value=(confidence - found) ** 2, answer=judged and judged.answer)

    return score


@task
def people() -> Task:
    """Three questions about the people of the pocket's world."""
    samples = [Sample(input=question, target=answer) for question, answer in QUESTIONS.items()]
    return Task(dataset=samples, solver=generate(), scorer=[match(location="any"), brier()])
