"""`grace scale`: the accuracy of every voting strategy, replayed on stored samples.

A pool of samples per test question is drawn from the backbone and from the tuned model. Strategies
that only count answers vote over both: `sc` over the backbone's samples, `sc@grace` over those of
the model that the run calls `grace` (without LoRA they are the same, and replayed once). The others
vote over the samples that their estimator rates. The results are written to `scaling.json`, and the
report is made again with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ConfigError
from grace.estimators import Answers, draws_further, rated_model
from grace.pipeline import stages_alike
from grace.pipeline.context import Context, open_run
from grace.pipeline.replays import VERSION, write_replay
from grace.pipeline.scaling.pools import describe, draw_pool, rate_pool, read_pool, votes_of
from grace.pipeline.stages.answers import is_answered
from grace.pipeline.stages.report import check_finished, report, report_runs, runs_under
from grace.pipeline.stages.score import estimator_of, own_estimator
from grace.report import Replay
from grace.scaling import BUDGETS, OWN, Curve, Pool, fit_vote, pair_wins, replay
from grace.store import RunDir, Split, copy_file, write_json
from grace.strategies import BUDGET, FittedVote, Policy, fitted_vote, policy

COUNTING = ("sc", "asc", "asc,rule=beta", "esc")  # strategies that only count answers
READING = ("sc", "es")  # strategies that are replayed with every estimator
SIDES: tuple[Answers, Answers] = ("base", "tuned")
JOINT_PARTS = {
    "rows": "scaling",
    "joint": "scaling_joint",
    "equal_accuracy": "equal_accuracy",
    "discrimination": "discrimination",
    "pools": "pools",
}
"""The parts of a study's scaling.json, and their names in its report."""


class ScaleSettings(NamedTuple):
    """Samples per question, further estimators and strategies, and the orders of a replay."""

    samples: int = 32
    estimators: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    orders: int = 50
    fit: bool = True  # GrACE-vote first, to samples of validation questions


def scale_runs(path: Path, chosen: ScaleSettings, *, device: str | None = None) -> dict[str, Any]:
    """Scale a finished run, or every run of a study, and return the content of scaling.json."""
    runs = runs_under(path)
    contexts = [open_run(run, device) for run in runs]
    for context in contexts:  # before hours of sampling
        check_finished(context)
        _policies(context, chosen)
    for number, context in enumerate(contexts):
        with context.directory.lock():
            for other in contexts[:number]:
                if "grade" in stages_alike(other.settings, context.settings):
                    source = _base_pool(other, chosen.samples)
                    if source.path.name == _base_pool(context, chosen.samples).path.name:
                        _copy_pool(other, source, context, chosen.samples)
            written = _scale(context, chosen)
            report(context)
    if runs == [path]:
        return written
    with RunDir(path).lock():
        joint = report_runs(runs, path)
        result = {"version": VERSION} | {part: joint[name] for part, name in JOINT_PARTS.items()}
        write_json(RunDir(path).scaling, result)
    return result


def replay_run(path: Path, chosen: ScaleSettings) -> None:
    """Draw and replay the votes of a run that is scored, unless it has been scaled."""
    context = open_run(path)
    with context.directory.lock():
        if not context.directory.done("scale"):
            _scale(context, chosen)


def _scale(context: Context, chosen: ScaleSettings) -> dict[str, Any]:
    """Sample and rate the pools of a run, replay the strategies, and write the results."""
    directory, policies = context.directory, _policies(context, chosen)
    if directory.frozen:
        pool = _draw(context, "tuned", chosen.samples)
        _copy_pool(context, pool, context, chosen.samples)
    vote = _fitted(context) if chosen.fit else fitted_vote(directory.path)
    learnt = [_learnt(one, vote) for one in policies["tuned"]]
    sides = [
        _side(context, answers, learnt if answers == "tuned" else policies[answers], chosen)
        for answers in SIDES
    ]
    replayed = _replay(context, sides, chosen)
    directory.forget("scale", ("scaling.*",))  # so that a kill leaves no two files of two replays
    written = write_replay(
        directory,
        replayed,
        samples=chosen.samples,
        temperature=context.settings.sample.draw_temperature,
        orders=chosen.orders,
    )
    inputs = [path for s in sides for path in (s.split.responses.path, s.split.grades.path)]
    directory.finish("scale", chosen._asdict(), inputs, [directory.scaling, directory.replay])
    return written


def _fitted(context: Context) -> FittedVote:
    """Fit GrACE-vote to samples of the validation questions, and store it in the run."""
    pool = votes_of(context, "validation", BUDGET)
    vote = fit_vote(pool, context.settings.seed)
    about = {
        "questions": pool.num_questions,
        "samples": pool.num_samples,
        "temperature": context.settings.sample.draw_temperature,
    }
    write_json(context.directory.vote, dataclasses.asdict(vote) | about)
    return vote


def _learnt(policy: Policy, vote: FittedVote | None) -> Policy:
    """Return a policy with what was fitted, if it is a vote by the model's own confidences."""
    if policy.estimator != OWN or not isinstance(policy.strategy, FittedVote):
        return policy
    return policy._replace(strategy=policy.strategy.learnt(vote))


class _Side(NamedTuple):
    """One model's samples, its name in the rows, and the strategies that vote over the samples."""

    answers: Answers
    name: str
    split: Split
    pool: Pool
    policies: list[Policy]

    def named(self, policy: Policy) -> Policy:
        """Return a policy as the rows name it: OWN is replaced by the name of the trained model."""
        if policy.estimator is None:
            suffix = f"@{self.name}" if self.answers == "tuned" else ""
            return policy._replace(name=policy.name + suffix)
        if policy.estimator == OWN:
            name = policy.name.replace(OWN, self.name, 1)
            return policy._replace(name=name, estimator=self.name)
        return policy


def _draw(context: Context, answers: Answers, samples: int) -> Split:
    split = context.directory.split("test").by(answers)
    temperature = context.settings.sample.draw_temperature
    return draw_pool(context, answers, split, samples, temperature)


def _side(
    context: Context, answers: Answers, policies: list[Policy], chosen: ScaleSettings
) -> _Side:
    """Draw a model's samples, and rate them by the estimators that can."""
    settings = context.settings
    split = _draw(context, answers, chosen.samples)
    every = {name: estimator_of(settings, name) for name in (OWN, *chosen.estimators)}
    names = [name for name, estimator in every.items() if rated_model(estimator) == answers]
    for name in names:
        if name != OWN:
            with own_estimator(name):
                rate_pool(context, name, split)
    name = settings.report.name if answers == "tuned" else "base"
    return _Side(answers, name, split, read_pool(split, names), policies)


def _replay(context: Context, sides: Sequence[_Side], chosen: ScaleSettings) -> Replay:
    settings = context.settings

    def row_name(estimator: str) -> str:
        return settings.report.name if estimator == OWN else estimator

    return Replay(
        **context.about,
        name=settings.report.name,
        seed=settings.seed,
        questions=[question.cluster for question in sides[0].split.questions.read()],
        curves=[curve for side in sides for curve in _curves(context, side, chosen)],
        answers={side.named(p).name: side.name for side in sides for p in side.policies},
        wins={
            (side.name, row_name(estimator)): pair_wins(side.pool, estimator)
            for side in sides
            for estimator in side.pool.confidences
        },
        pools=[
            describe(
                side.pool,
                row_name,
                **context.about,
                seed=settings.seed,
                answers=side.name,
                temperature=settings.sample.draw_temperature,
                fitted_temperature=settings.sample.train_temperature,
            )
            for side in sides
        ],
    )


def _policies(context: Context, chosen: ScaleSettings) -> dict[Answers, list[Policy]]:
    estimators = (OWN, *chosen.estimators)
    for name in chosen.estimators:
        if draws_further(estimator_of(context.settings, name)):
            raise ConfigError(
                f"estimator {name} compares a response with further samples of its question, which "
                "the samples of a vote do not have; leave it out"
            )
    names = [*COUNTING, *(f"{OWN}-{rule}" for rule in ("cisc", "best", "vote"))]
    names += [f"{name}-{rule}" for name in estimators for rule in READING]
    policies: dict[Answers, list[Policy]] = {"base": [], "tuned": []}
    named = {one.name: one for one in map(policy, [*names, *chosen.strategies])}
    for one in named.values():
        if one.estimator is None:
            policies["base"].append(one)
            policies["tuned"] += [] if context.directory.frozen else [one]
        elif one.estimator not in estimators:
            raise ConfigError(
                f"strategy {one.name!r} needs the confidences of {one.estimator!r}, which are "
                f"not computed for the samples; add --estimators {one.estimator}"
            )
        else:
            policies[rated_model(estimator_of(context.settings, one.estimator))].append(one)
    return policies


def _curves(context: Context, side: _Side, chosen: ScaleSettings) -> Iterator[Curve]:
    """Replay a pool; both sides use the same orders, so that all differences are paired."""
    replayed = replay(
        side.pool,
        side.policies,
        budgets=[*(budget for budget in BUDGETS if budget < chosen.samples), chosen.samples],
        orders=chosen.orders,
        seed=context.settings.seed,
    )
    for one in side.policies:
        named = side.named(one)
        curve = replayed.curves[one.name]
        yield dataclasses.replace(curve, name=named.name, estimator=named.estimator)


def _base_pool(context: Context, samples: int) -> Split:
    """Return the backbone's pool of a run, drawn or not."""
    temperature = context.settings.sample.draw_temperature
    return context.directory.split("test").pool(samples, temperature)


def _copy_pool(origin: Context, source: Split, context: Context, samples: int) -> None:
    """Copy a complete pool, and the time that it took, to the backbone's of a run without one."""
    target = _base_pool(context, samples)
    if is_answered(target, samples) or not is_answered(source, samples):
        return
    seconds, count = origin.directory.seconds_per_answer(source), len(source.responses.read())
    if seconds is not None:
        unit = f"{context.directory.label(target)}/0"
        context.directory.add_time("sample", unit, seconds * count, count)
    for name in (source.responses.path.name, source.grades.path.name):  # the grades last
        copy_file(source.path / name, target.path / name)
