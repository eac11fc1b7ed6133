"""`grace scale`: what every strategy makes of a pool of samples, from both models.

A pool of samples per test question is drawn from the backbone and from the tuned model. Strategies
that only count answers vote over both: `sc` is over the backbone's samples, `sc@grace` over those
of the model that the run calls `grace`. The others vote over the samples that their estimator
rates. The result is `scaling.json`, and the report is made again with it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import ConfigError, RunError
from grace.estimators import Answers
from grace.pipeline import load_run_settings, stages_alike
from grace.pipeline.context import Context
from grace.pipeline.pools import OWN, draw_pool, rate_pool, read_pool
from grace.pipeline.reporting import report
from grace.pipeline.samplewise import cases, describe
from grace.pipeline.scoring import estimator_of, is_answered
from grace.pipeline.study import report_runs
from grace.scaling import BUDGETS, Pool, Scaling, joined, replay
from grace.store import RunDir, Split, is_run, runs_in, write_json
from grace.strategies import Policy, policy

VERSION = 1
COUNTING = ("sc", "asc", "asc,rule=beta", "esc")
READING = ("sc", "es")
BASELINE = "sc"
Row = dict[str, Any]
SIDES: tuple[Answers, Answers] = ("base", "tuned")


class ScaleSettings(NamedTuple):
    """How many samples, whose confidences besides the model's own, further strategies, orders."""

    samples: int = 32
    estimators: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    orders: int = 50


class Scaled(NamedTuple):
    """One run's replay: its questions, and what is said of it in the rows."""

    context: Context
    questions: list[str]
    scaling: Scaling
    written: Row

    @property
    def about(self) -> tuple[str, str, str]:
        """What seeds are joined over: task, backbone, and the name of what was trained."""
        settings = self.context.settings
        return settings.data.task, Path(settings.model.path).name, settings.report.name


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
    done: list[Scaled] = []
    for context in contexts:
        with context.directory.lock():
            _share(context, [part.context for part in done], chosen.samples)
            done.append(_scale(context, chosen))
            report(context)
    if single:
        return done[0].written
    with RunDir(path).lock():
        result = {
            "version": VERSION,
            "rows": _distinct(row for part in done for row in part.written["rows"]),
            "joint": _distinct(_joint(done)),
            "pools": _distinct(pool for part in done for pool in part.written["pools"]),
        }
        write_json(RunDir(path).scaling, result)
        report_runs(runs, path)
    return result


def _check(context: Context, chosen: ScaleSettings) -> None:
    """Refuse what would fail after hours of sampling."""
    path = context.directory.path
    if context.directory.manifest("report") is None:
        raise RunError(f"{path} is not finished; finish it first: grace run {path}")
    _policies(context, chosen)


def _scale(context: Context, chosen: ScaleSettings) -> Scaled:
    directory, names = context.directory, (OWN, *chosen.estimators)
    by_side = _policies(context, chosen)
    stored = {side: _pool(context, side, chosen.samples) for side in SIDES}
    pools = {}
    for side in SIDES:
        own = [name for name in names if _side(context, name) == side]
        for name in own:
            if name != OWN:
                rate_pool(context, name, stored[side])
        pools[side] = read_pool(stored[side], own)
    scaling = _replayed(context, pools, by_side, chosen)
    questions = [question.id for question in directory.split("test").questions.read()]
    sides = {
        _shown(context, which, side).name: _called(context, side)
        for side in SIDES
        for which in by_side[side]
    }
    written = {
        "version": VERSION,
        "samples": chosen.samples,
        "temperature": context.settings.sample.draw_temperature,
        "orders": chosen.orders,
        "rows": _rows(context, scaling, sides),
        "pools": [
            _about(context)
            | {"seed": context.settings.seed, "answers": _called(context, side)}
            | describe(pools[side])
            for side in SIDES
        ],
        "cases": cases(stored["tuned"]),
    }
    write_json(directory.scaling, written)
    inputs = [p for s in stored.values() for p in (s.responses.path, s.grades.path)]
    directory.finish("scale", chosen._asdict(), inputs, [directory.scaling])
    return Scaled(context, questions, scaling, written)


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


def _replayed(
    context: Context,
    pools: dict[Answers, Pool],
    by_side: dict[Answers, list[Policy]],
    chosen: ScaleSettings,
) -> Scaling:
    """Replay both pools over the same orders, as one scaling whose differences are paired."""
    most = chosen.samples
    budgets = [*(budget for budget in BUDGETS if budget < most), most]
    curves = []
    for side in SIDES:
        replayed = replay(
            pools[side],
            by_side[side],
            budgets=budgets,
            orders=chosen.orders,
            seed=context.settings.seed,
        )
        for curve in replayed.curves.values():
            curves.append(dataclasses.replace(curve, policy=_shown(context, curve.policy, side)))
    return Scaling(curves)


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


def _about(context: Context) -> Row:
    settings = context.settings
    return {"task": settings.data.task, "backbone": Path(settings.model.path).name}


def _rows(context: Context, scaling: Scaling, sides: dict[str, str]) -> list[Row]:
    own = f"{BASELINE}@{context.settings.report.name}"
    measured = _measured(scaling, sides, own)
    return [{**_about(context), **row, "seed": context.settings.seed} for row in measured]


def _measured(scaling: Scaling, sides: dict[str, str], own: str) -> list[Row]:
    """Return every policy at every budget.

    `gain` is the paired difference in accuracy to `sc`, `gain_own` that to SC over the tuned
    model's samples, for strategies that vote over these. `used` are the shares of questions that
    took 1, 2, ... samples.
    """
    rows = []
    for point in scaling.points(BASELINE):
        used_V = scaling.curves[point.policy].used_BV[scaling.budgets.index(point.budget)]
        compared: Row = {"gain_own": None, "gain_own_interval": None}
        if sides[point.policy] != "base" and own in scaling.curves:
            gain = scaling.difference(point.policy, own, point.budget)
            compared = {"gain_own": gain.value, "gain_own_interval": [gain.low, gain.high]}
        rows.append(
            {
                "strategy": point.policy,
                "answers": sides[point.policy],
                "estimator": point.estimator,
                "budget": point.budget,
                "threshold": point.threshold,
                "n": point.n,
                "accuracy": point.accuracy.value,
                "interval": [point.accuracy.low, point.accuracy.high],
                "mean_samples": point.samples.value,
                "samples_interval": [point.samples.low, point.samples.high],
                "mean_tokens": point.tokens.value,
                "gain": point.gain.value if point.gain else None,
                "gain_interval": [point.gain.low, point.gain.high] if point.gain else None,
                **compared,
                "used": used_V[1 : point.budget + 1].tolist(),
            }
        )
    return rows


def _joint(parts: Sequence[Scaled]) -> list[Row]:
    """Return the rows of each task, backbone and way of training, over its seeds."""
    groups: dict[tuple[str, str, str], list[Scaled]] = {}
    for part in parts:
        groups.setdefault(part.about, []).append(part)
    rows = []
    for (task, backbone, name), group in groups.items():
        scaling = joined([(part.questions, part.scaling) for part in group])
        sides = {row["strategy"]: row["answers"] for row in group[0].written["rows"]}
        seeds = [part.context.settings.seed for part in group]
        measured = _measured(scaling, sides, f"{BASELINE}@{name}")
        rows += [{"task": task, "backbone": backbone, **row, "seeds": seeds} for row in measured]
    return rows


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without repeats: variants share what is about the backbone's samples."""
    return list({json.dumps(row): row for row in rows}.values())


def _share(context: Context, others: Sequence[Context], samples: int) -> None:
    """Copy the backbone's pool of a run whose questions, samples and grades are the same."""
    temperature = context.settings.sample.draw_temperature
    target = context.directory.split("test").pool(samples, temperature)
    for other in others:
        source = other.directory.split("test").pool(samples, temperature)
        alike = "grade" in stages_alike(other.settings, context.settings)
        if not alike or is_answered(target, samples) or not is_answered(source, samples):
            continue
        target.path.mkdir(exist_ok=True)
        for name in (source.responses.path.name, source.grades.path.name):  # the grades last
            partial = target.path / f"{name}.copying"
            shutil.copyfile(source.path / name, partial)
            partial.rename(target.path / name)
