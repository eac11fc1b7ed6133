"""`grace scale`: what every strategy makes of a pool of samples, from both models.

A pool of samples per test question is drawn from the backbone and from the tuned model. Strategies
that only count answers vote over both: `sc` is over the backbone's samples, `sc@grace` over those
of the model that the run calls `grace`, which without LoRA are the same. The others vote over the
samples that their estimator rates. The result is `scaling.json`, and the report is made again
with it.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ConfigError, RunError
from grace.estimators import Answers
from grace.pipeline import load_run_settings, stages_alike
from grace.pipeline.context import Context
from grace.pipeline.guarantees import kept_promises
from grace.pipeline.pools import OWN, draw_pool, rate_pool, read_pool
from grace.pipeline.replays import VERSION, write_replay
from grace.pipeline.reporting import report
from grace.pipeline.samplewise import cases, describe
from grace.pipeline.scoring import answers_alike, estimator_of, is_answered
from grace.pipeline.study import report_runs
from grace.report import Replay
from grace.scaling import BUDGETS, Curve, Pool, pair_wins, replay
from grace.store import RunDir, Split, is_run, runs_in, write_json
from grace.strategies import Policy, policy

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
    "promises": "promises",
}
"""What a study's scaling.json takes from its report, by the names in both."""


class ScaleSettings(NamedTuple):
    """How many samples, whose confidences besides the model's own, further strategies, orders."""

    samples: int = 32
    estimators: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    orders: int = 50


def scale_runs(path: Path, chosen: ScaleSettings) -> Row:
    """Scale a finished run, or every run of a study, and return the content of scaling.json.

    Raises:
        ConfigError: an unknown estimator or strategy.
        RunError: there is no run, or one that has not finished.
    """
    single = is_run(path)
    runs = [path] if single else runs_in(path)
    if not runs:
        raise RunError(f"{path} is not a run and holds none; see `grace list runs`")
    contexts = [Context(RunDir(run), load_run_settings(run)) for run in runs]
    for context in contexts:
        _check(context, chosen)
    for number, context in enumerate(contexts):
        with context.directory.lock():
            _share(context, contexts[:number], chosen.samples)
            written = _scale(context, chosen)
            report(context)
    if single:
        return written
    with RunDir(path).lock():
        found = report_runs(runs, path)
        result = {"version": VERSION} | {part: found[name] for part, name in JOINT_PARTS.items()}
        write_json(RunDir(path).scaling, result)
    return result


def _check(context: Context, chosen: ScaleSettings) -> None:
    """Refuse what would fail after hours of sampling."""
    path = context.directory.path
    if context.directory.manifest("report") is None:
        raise RunError(f"{path} is not finished; finish it first: grace run {path}")
    _policies(context, chosen)


def _scale(context: Context, chosen: ScaleSettings) -> Row:
    """Sample and rate the pools of a run, replay them, and write what is found."""
    directory, names = context.directory, (OWN, *chosen.estimators)
    by_side = _policies(context, chosen)
    if answers_alike(context):
        drawn = _pool(context, "tuned", chosen.samples)
        _copy(drawn, _base_pool(context, chosen.samples), chosen.samples)
    stored = {side: _pool(context, side, chosen.samples) for side in SIDES}
    pools = {}
    for side in SIDES:
        own = [name for name in names if _side(context, name) == side]
        for name in own:
            if name != OWN:
                rate_pool(context, name, stored[side])
        pools[side] = read_pool(stored[side], own)
    written = write_replay(
        directory,
        _replay(context, stored, pools, by_side, chosen),
        samples=chosen.samples,
        temperature=context.settings.sample.draw_temperature,
        orders=chosen.orders,
    )
    inputs = [p for s in stored.values() for p in (s.responses.path, s.grades.path)]
    outputs = [directory.scaling, directory.replay]
    directory.finish("scale", chosen._asdict(), inputs, outputs)
    return written


def _replay(
    context: Context,
    stored: dict[Answers, Split],
    pools: dict[Answers, Pool],
    by_side: dict[Answers, list[Policy]],
    chosen: ScaleSettings,
) -> Replay:
    settings = context.settings
    about = {"task": settings.data.task, "backbone": Path(settings.model.path).name}
    called = {side: _called(context, side) for side in SIDES}
    reads_own = [each for each in by_side["tuned"] if each.estimator in (None, OWN)]
    shown = [_shown(context, each, "tuned") for each in reads_own]
    every = about | {"answers": called["tuned"], "seed": settings.seed}
    return Replay(
        **about,
        name=settings.report.name,
        seed=settings.seed,
        questions=[question.id for question in stored["base"].questions.read()],
        curves=_curves(context, pools, by_side, chosen),
        answers={
            _shown(context, each, side).name: called[side]
            for side in SIDES
            for each in by_side[side]
        },
        wins={
            (called[side], _estimator(context, name)): pair_wins(pools[side], name)
            for side in SIDES
            for name in pools[side].confidences
        },
        pools=[
            about | {"seed": settings.seed, "answers": called[side]} | _described(context, pool)
            for side, pool in pools.items()
        ],
        promises=[every | row for row in kept_promises(pools["tuned"], settings.seed)],
        cases=[every | row for row in cases(stored["tuned"], shown, settings.seed)],
    )


def _described(context: Context, pool: Pool) -> Row:
    row = describe(pool)
    for each in row["confidences"]:
        each["estimator"] = _estimator(context, each["estimator"])
    return row


def _estimator(context: Context, name: str) -> str:
    """Return what the rows call an estimator: the run's own goes by the run's name for it."""
    return context.settings.report.name if name == OWN else name


def _pool(context: Context, side: Answers, samples: int) -> Split:
    test = context.directory.split("test")
    split = test.tuned if side == "tuned" else test
    temperature = context.settings.sample.draw_temperature
    return draw_pool(context, side, split, samples, temperature, "scale")


def _side(context: Context, estimator: str) -> Answers:
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
                f"strategy {made.name!r} reads the confidences of {made.estimator!r}, which do not "
                f"rate the samples; add --estimators {made.estimator}"
            )
        else:
            found[_side(context, made.estimator)].append(made)
    return found


def _curves(
    context: Context,
    pools: dict[Answers, Pool],
    by_side: dict[Answers, list[Policy]],
    chosen: ScaleSettings,
) -> list[Curve]:
    """Replay both pools over the same orders, so that all differences are paired."""
    most = chosen.samples
    budgets = [*(budget for budget in BUDGETS if budget < most), most]
    curves: list[Curve] = []
    for side in SIDES:
        replayed = replay(
            pools[side],
            by_side[side],
            budgets=budgets,
            orders=chosen.orders,
            seed=context.settings.seed,
        )
        for which in by_side[side]:
            shown = _shown(context, which, side)
            curve = replayed.curves[which.name]
            curves.append(dataclasses.replace(curve, name=shown.name, estimator=shown.estimator))
    return curves


def _shown(context: Context, which: Policy, side: Answers) -> Policy:
    """Return a policy as the rows call it: with the name of what the run has trained."""
    name = context.settings.report.name
    if which.estimator is None:
        return which._replace(name=f"{which.name}@{name}") if side == "tuned" else which
    if which.estimator == OWN:
        return which._replace(name=which.name.replace(OWN, name, 1), estimator=name)
    return which


def _called(context: Context, side: Answers) -> str:
    return context.settings.report.name if side == "tuned" else "base"


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
    target.path.mkdir(exist_ok=True)
    for name in (source.responses.path.name, source.grades.path.name):  # the grades last
        partial = target.path / f"{name}.copying"
        shutil.copyfile(source.path / name, partial)
        partial.rename(target.path / name)
