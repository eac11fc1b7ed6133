"""`grace scale`: what every strategy makes of a pool of samples, from both models.

A pool of samples per test question is drawn from the backbone and from the tuned model. Strategies
that only count answers vote over both: `sc` is over the backbone's samples, `sc@grace` over those
of the model that the run calls `grace`, which without LoRA are the same. The others vote over the
samples that their estimator rates. The result is `scaling.json`, and the report is made again
with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ConfigError, RunError
from grace.estimators import Answers
from grace.pipeline import load_run_settings, stages_alike
from grace.pipeline.context import Context
from grace.pipeline.replays import VERSION, write_replay
from grace.pipeline.scaling.pools import OWN, describe, draw_pool, rate_pool, read_pool
from grace.pipeline.stages.report import report
from grace.pipeline.stages.score import answers_alike, estimator_of, is_answered
from grace.pipeline.study import report_runs, runs_under
from grace.report import Replay
from grace.scaling import BUDGETS, Curve, Pool, pair_wins, replay
from grace.store import RunDir, Split, copy_file, write_json
from grace.strategies import Policy, policy
from grace.tasks import title_of

COUNTING = ("sc", "asc", "asc,rule=beta", "esc")
READING = ("sc", "es")
Row = dict[str, Any]
SIDES: tuple[Answers, Answers] = ("base", "tuned")
JOINT_PARTS = {
    "rows": "scaling",
    "joint": "scaling_joint",
    "equal_accuracy": "equal_accuracy",
    "discrimination": "discrimination",
    "pools": "pools",
}
"""The parts of a study's report that its scaling.json repeats, by their names in both."""


class ScaleSettings(NamedTuple):
    """The samples per question, further estimators and strategies, and the orders of a replay."""

    samples: int = 32
    estimators: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    orders: int = 50


def scale_runs(path: Path, chosen: ScaleSettings, *, device: str | None = None) -> Row:
    """Scale a finished run, or every run of a study, and return the content of scaling.json.

    Raises:
        ConfigError: an unknown estimator or strategy.
        RunError: there is no run, or one that has not finished.
    """
    runs = runs_under(path)
    contexts = [Context(RunDir(run), load_run_settings(run, device)) for run in runs]
    for context in contexts:
        _check(context, chosen)
    for number, context in enumerate(contexts):
        with context.directory.lock():
            _share(context, contexts[:number], chosen.samples)
            written = _scale(context, chosen)
            report(context)
    if runs == [path]:
        return written
    with RunDir(path).lock():
        found = report_runs(runs, path)
        result = {"version": VERSION} | {part: found[name] for part, name in JOINT_PARTS.items()}
        write_json(RunDir(path).scaling, result)
    return result


def replay_run(path: Path, chosen: ScaleSettings) -> None:
    """Draw and replay the votes of a run whose stage `score` is done; its report will have them.

    A run that has been scaled stays as it is.
    """
    context = Context(RunDir(path), load_run_settings(path))
    with context.directory.lock():
        if context.directory.manifest("scale") is None:
            _scale(context, chosen)


def _check(context: Context, chosen: ScaleSettings) -> None:
    """Refuse what would fail after hours of sampling."""
    path = context.directory.path
    if context.directory.manifest("report") is None:
        raise RunError(f"{path} is not finished; finish it first: grace run {path}")
    _policies(context, chosen)


def _scale(context: Context, chosen: ScaleSettings) -> Row:
    """Sample and rate the pools of a run, replay them, and write what is found."""
    directory, by_side = context.directory, _policies(context, chosen)
    if answers_alike(context):
        drawn = _draw(context, "tuned", chosen.samples)
        _copy(drawn, _base_pool(context, chosen.samples), chosen.samples)
    drawn_by = {answers: _draw(context, answers, chosen.samples) for answers in SIDES}
    sides = [
        _side(context, answers, split, by_side[answers], chosen)
        for answers, split in drawn_by.items()
    ]
    written = write_replay(
        directory,
        _replay(context, sides, chosen),
        samples=chosen.samples,
        temperature=context.settings.sample.draw_temperature,
        orders=chosen.orders,
    )
    inputs = [path for s in sides for path in (s.split.responses.path, s.split.grades.path)]
    directory.finish("scale", chosen._asdict(), inputs, [directory.scaling, directory.replay])
    return written


class _Side(NamedTuple):
    """One model's samples, what the rows call it, and the strategies that vote over them."""

    answers: Answers
    name: str
    split: Split
    pool: Pool
    policies: list[Policy]


def _draw(context: Context, answers: Answers, samples: int) -> Split:
    test = context.directory.split("test")
    split = test.tuned if answers == "tuned" else test
    temperature = context.settings.sample.draw_temperature
    return draw_pool(context, answers, split, samples, temperature, "scale")


def _side(
    context: Context,
    answers: Answers,
    split: Split,
    policies: list[Policy],
    chosen: ScaleSettings,
) -> _Side:
    """Rate a model's samples by the estimators that can, and read them."""
    names = [n for n in (OWN, *chosen.estimators) if _rates(context, n) == answers]
    for name in names:
        if name != OWN:
            rate_pool(context, name, split)
    called = context.settings.report.name if answers == "tuned" else "base"
    return _Side(answers, called, split, read_pool(split, names), policies)


def _replay(context: Context, sides: Sequence[_Side], chosen: ScaleSettings) -> Replay:
    settings, (base, tuned) = context.settings, sides
    about = {"task": title_of(settings.data), "backbone": Path(settings.model.path).name}

    def called(estimator: str) -> str:
        """Return an estimator's name in the rows: the trained one goes by the name of the run."""
        return tuned.name if estimator == OWN else estimator

    return Replay(
        **about,
        name=settings.report.name,
        seed=settings.seed,
        questions=[question.id for question in base.split.questions.read()],
        curves=[curve for side in sides for curve in _curves(context, side, chosen)],
        answers={_shown(p, side).name: side.name for side in sides for p in side.policies},
        wins={
            (side.name, called(name)): pair_wins(side.pool, name)
            for side in sides
            for name in side.pool.confidences
        },
        pools=[
            describe(side.pool, called, **about, seed=settings.seed, answers=side.name)
            for side in sides
        ],
    )


def _rates(context: Context, estimator: str) -> Answers:
    """Return whose answers an estimator rates."""
    return estimator_of(context.settings, estimator).answers


def _policies(context: Context, chosen: ScaleSettings) -> dict[Answers, list[Policy]]:
    """Return which strategies vote over whose samples.

    Raises:
        ConfigError: an unknown estimator or strategy, or one whose estimator is not named.
    """
    names = [*COUNTING, f"{OWN}-cisc", f"{OWN}-best"]
    names += [f"{name}-{rule}" for name in (OWN, *chosen.estimators) for rule in READING]
    found: dict[Answers, list[Policy]] = {"base": [], "tuned": []}
    for made in map(policy, dict.fromkeys([*names, *chosen.strategies])):
        if made.estimator is None:
            found["base"].append(made)
            found["tuned"].append(made)
        elif made.estimator not in (OWN, *chosen.estimators):
            raise ConfigError(
                f"strategy {made.name!r} needs the confidences of {made.estimator!r}, which are "
                f"not computed for the samples; add --estimators {made.estimator}"
            )
        else:
            found[_rates(context, made.estimator)].append(made)
    return found


def _curves(context: Context, side: _Side, chosen: ScaleSettings) -> Iterator[Curve]:
    """Replay a pool over the same orders as the other, so that all differences are paired."""
    replayed = replay(
        side.pool,
        side.policies,
        budgets=[*(budget for budget in BUDGETS if budget < chosen.samples), chosen.samples],
        orders=chosen.orders,
        seed=context.settings.seed,
    )
    for which in side.policies:
        shown = _shown(which, side)
        curve = replayed.curves[which.name]
        yield dataclasses.replace(curve, name=shown.name, estimator=shown.estimator)


def _shown(which: Policy, side: _Side) -> Policy:
    """Return a policy as the rows call it: with the name of what the run has trained."""
    if which.estimator is None:
        tuned = side.answers == "tuned"
        return which._replace(name=f"{which.name}@{side.name}") if tuned else which
    if which.estimator == OWN:
        name = which.name.replace(OWN, side.name, 1)
        return which._replace(name=name, estimator=side.name)
    return which


def _share(context: Context, others: Sequence[Context], samples: int) -> None:
    """Copy the backbone's pool of a run whose questions, samples and grades are the same."""
    for other in others:
        if "grade" in stages_alike(other.settings, context.settings):
            _copy(_base_pool(other, samples), _base_pool(context, samples), samples)


def _base_pool(context: Context, samples: int) -> Split:
    """Return where a run's backbone has its pool, drawn or not."""
    temperature = context.settings.sample.draw_temperature
    return context.directory.split("test").pool(samples, temperature)


def _copy(source: Split, target: Split, samples: int) -> None:
    """Copy a pool that is complete to where there is none."""
    if is_answered(target, samples) or not is_answered(source, samples):
        return
    for name in (source.responses.path.name, source.grades.path.name):  # the grades last
        copy_file(source.path / name, target.path / name)
