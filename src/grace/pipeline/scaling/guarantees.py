"""`grace threshold`: a threshold with a guarantee, chosen on a run's validation questions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from grace.errors import ConfigError, DataError, RunError
from grace.pipeline.context import Context, open_run
from grace.pipeline.scaling.pools import draw_pool, votes_of
from grace.pipeline.stages.answers import answer_tuned, sampling_for
from grace.progress import say
from grace.records import Threshold, to_json
from grace.scaling import OWN, accuracy_threshold, fit_weights
from grace.scaling.replaying import Rule, early_stops
from grace.store import write_json
from grace.strategies import BUDGET, EarlyStop, FittedVote
from grace.tasks.answered import read_answers
from grace.tasks.draw import together
from grace.tasks.rows import Faults
from grace.thresholds import OTHERS, AccuracyGuarantee, check_level, selective

T = TypeVar("T")
MODES = ("answer", "early-stop")
ES, VOTE = RULES = ("grace-es", "grace-vote")


def choose_threshold(
    path: Path,
    *,
    target: float,
    mode: str = "answer",
    delta: float = 0.05,
    budget: int | None = None,
    strategy: str = ES,
    mixture: bool = False,
    device: str | None = None,
) -> Threshold:
    """Choose a threshold for the model of a run, store it in the run, and return it.

    Of a run on several sources it holds in each, or with `mixture` in their mixture alone.
    """
    wanted = _wanted(mode, target, delta, budget, strategy)
    context = open_run(path, device)
    if not context.directory.done("answer"):
        raise RunError(f"{path} has no trained model yet; finish it first: grace run {path}")
    with context.directory.lock():
        earlier = context.directory.chosen_threshold()
        if wanted.mode == "answer":
            chosen = _for_answers(context, wanted, mixture)
        else:
            chosen = _for_votes(context, wanted, strategy, mixture)
        chosen = dataclasses.replace(chosen, tries=_tries(earlier, chosen))
        write_json(context.directory.threshold, to_json(chosen))
    return chosen


def threshold_of_answers(
    source: Path, *, target: float, delta: float = 0.05, mixture: bool = False
) -> Threshold:
    """Choose a threshold for graded answers with confidences from anywhere; nothing is stored."""
    wanted = _wanted("answer", target, delta, None, ES)
    rows, faults = [], Faults()
    for row in read_answers(source, bad=faults.add):
        with faults.of(row.where):
            if row.correct is not None:
                _ = row.confidence
                rows.append(row)
    faults.refuse(some=bool(rows))
    if not rows:
        raise DataError(f"{source} has no graded answers; give some with correct: true or false")
    rows = _firsts(rows, together(row.keys for row in rows))
    sources = [row.source or OTHERS for row in rows]
    guarantee = selective(
        [np.nan if row.confidence is None else row.confidence for row in rows],
        [row.correct is True for row in rows],
        target=target,
        delta=delta,
        sources=None if mixture or len(set(sources)) < 2 else sources,
    )
    return _chosen(wanted, guarantee, None)


def _wanted(mode: str, target: float, delta: float, budget: int | None, strategy: str) -> Threshold:
    """Return a threshold that is still to be chosen, with the guarantee that a user asks for."""
    if mode not in MODES:
        raise ConfigError(f"--mode is {mode!r}; choose from {', '.join(MODES)}")
    if strategy not in RULES:
        raise ConfigError(f"--strategy is {strategy!r}; choose from {', '.join(RULES)}")
    given = {
        f"--budget {budget}": budget not in (None, 1),
        f"--strategy {strategy}": strategy != ES,
    }
    if mode == "answer" and any(given.values()):
        what = next(name for name in given if given[name])
        raise ConfigError(f"{what} needs votes; add --mode early-stop, or leave it out")
    if budget is not None and budget < 1:
        raise ConfigError(f"--budget is {budget}; use 1 or more")
    check_level(target, "the target accuracy")
    check_level(delta, "delta", 0.05)
    most = 1 if mode == "answer" else budget or BUDGET
    about: dict[str, Any] = {"mode": mode, "budget": most, "target": target, "delta": delta}
    return Threshold(**about, temperature=0.0, tau=None, n=0, bound=0.0, promise="")


def _for_answers(context: Context, wanted: Threshold, mixture: bool) -> Threshold:
    confidence_N, correct_N = _greedy_answers(context, "validation")
    rows = _independent(context)
    about: dict[str, Any] = {"target": wanted.target, "delta": wanted.delta}
    about["sources"] = _several(context, rows, mixture)
    guarantee = selective(confidence_N[rows], correct_N[rows], **about)
    test = None
    if guarantee.tau is not None:
        confidence_N, correct_N = _greedy_answers(context, "test")
        accepted_N = confidence_N >= guarantee.tau
        test = _tested(context, accepted_N, correct_N & accepted_N, guarantee)
    return _chosen(wanted, guarantee, test)


def _for_votes(context: Context, wanted: Threshold, strategy: str, mixture: bool) -> Threshold:
    """Choose the threshold for a vote that stops; weights are fitted to half of the questions."""
    budget, delta = wanted.budget, wanted.delta
    rows = _independent(context)
    if strategy == VOTE and len(rows) < 2:
        raise DataError(
            f"--strategy {VOTE} is fitted to half of the validation questions, but there is one; "
            f"use {ES}, or start a run with more"
        )
    pool = votes_of(context, "validation", budget)
    rule: Rule = EarlyStop
    if strategy == VOTE:
        weights = fit_weights(pool.take(rows[::2]), context.settings.seed)
        rule = functools.partial(FittedVote, fall=0.0, weights=weights)
        wanted, rows = dataclasses.replace(wanted, weights=weights), rows[1::2]
    about: dict[str, Any] = {"budget": budget, "delta": delta, "rule": rule}
    about["sources"] = _several(context, rows, mixture)
    guarantee = accuracy_threshold(pool.take(rows), wanted.target, **about)
    test = None
    if guarantee.tau is not None:
        pool = votes_of(context, "test", budget)
        accepted_1Q, right_1Q = early_stops(pool, budget, OWN, [guarantee.tau], rule)
        test = _tested(context, accepted_1Q[0], right_1Q[0], guarantee)
    chosen = _chosen(wanted, guarantee, test)
    return dataclasses.replace(chosen, temperature=context.settings.sample.draw_temperature)


def _chosen(
    wanted: Threshold, guarantee: AccuracyGuarantee, test: dict[str, Any] | None
) -> Threshold:
    found: dict[str, Any] = {"tau": guarantee.tau, "n": guarantee.n, "bound": guarantee.bound}
    found["sources"] = tuple(map(to_json, guarantee.sources))
    return dataclasses.replace(wanted, **found, promise=str(guarantee), test=test)


def _tested(
    context: Context, accepted_N: np.ndarray, right_N: np.ndarray, guarantee: AccuracyGuarantee
) -> dict[str, Any]:
    """Return the effect of a threshold on questions that took no part in choosing it."""
    counts = {"n": len(accepted_N), "accepted": int(accepted_N.sum()), "right": int(right_N.sum())}
    n, accepted, right = counts.values()
    share = f" ({right / accepted:.1%})" if accepted else ""
    shows = f"{right} of {accepted} right{share}, answers {accepted / n:.1%} of {n}"
    test: dict[str, Any] = {**counts, "shows": shows}
    if guarantee.sources:
        source_N = np.array(_sources(context, "test"))
        test["sources"] = {}
        for name in (one.source for one in guarantee.sources):
            of_N = source_N == name
            found = (of_N.sum(), accepted_N[of_N].sum(), right_N[of_N].sum())
            test["sources"][name] = dict(zip(counts, map(int, found), strict=True))
    return test


def _sources(context: Context, name: str) -> list[str]:
    return [
        question.source or OTHERS for question in context.directory.split(name).questions.read()
    ]


def _several(context: Context, rows: Sequence[int], mixture: bool) -> list[str] | None:
    """Return the sources of some validation questions; None if one guarantee is for all."""
    found = _sources(context, "validation")
    return None if mixture or len(set(found)) < 2 else [found[row] for row in rows]


def _greedy_answers(context: Context, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence (nan: none) and correctness of the greedy answers, question by question."""
    questions, usual = context.directory.split(name), sampling_for(context.settings, name)
    split = questions.tuned
    if (usual.temperature, usual.num_samples) == (0, 1):
        answer_tuned(context, questions)
    else:
        split = draw_pool(context, "tuned", split, 1, 0.0)
    pairs = zip(split.responses.read(), split.grades.read(), strict=True)
    found = {one.question_id: (one.confidence, grade.correct) for one, grade in pairs}
    confidence, correct = zip(*(found[one.id] for one in split.questions.read()), strict=True)
    return np.array(confidence, dtype=np.float64), np.array(correct, dtype=bool)


def _independent(context: Context) -> list[int]:
    """Return the first validation question of each group: the tests need independent ones."""
    questions = context.directory.split("validation").questions.read()
    return _firsts(range(len(questions)), [question.cluster for question in questions])


def _firsts(rows: Sequence[T], groups: Sequence[Hashable]) -> list[T]:
    """Return the first of each group, and say how many these are."""
    first: dict[Hashable, T] = {}
    for row, group in zip(rows, groups, strict=True):
        first.setdefault(group, row)
    if len(first) < len(rows):
        say(f"one question of each group is used: {len(first)} of {len(rows)}")
    return list(first.values())


def _tries(earlier: Threshold | None, chosen: Threshold) -> int:
    """Return the number of different guarantees that have been asked of these questions."""
    if earlier is None:
        return 1
    asked = ("mode", "strategy", "budget", "target", "delta")
    requests = [
        [*(getattr(one, name) for name in asked), bool(one.sources)] for one in (earlier, chosen)
    ]
    return earlier.tries + (requests[0] != requests[1])
