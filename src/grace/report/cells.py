"""One cell is a test task, a training task and a backbone: its estimators over all seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grace.report.inputs import EstimatorResult
from grace.report.significance import BOOTSTRAPPED, COMPARED, Paired, Trials, leader, marks

Cell = dict[str, list[EstimatorResult]]
About = tuple[str, str, str]

OURS = "grace"
"""The estimator that is compared with every other."""


def cells(results: Sequence[EstimatorResult]) -> dict[About, Cell]:
    """Return the results by (task, training task, backbone) and estimator, seeds in order."""
    found: dict[About, Cell] = {}
    for result in sorted(results, key=lambda r: r.key):
        about = (result.task, result.train_task, result.backbone)
        found.setdefault(about, {}).setdefault(result.estimator, []).append(result)
    return found


def summarize_cells(trials: Trials, found: dict[About, Cell]) -> Iterator[dict[str, Any]]:
    """Yield one summary per cell and estimator."""
    for about, cell in found.items():
        pairs = _Pairs(trials, cell)
        estimates = {
            metric: {name: trials.estimate(cell[name], metric) for name in cell}
            for metric in BOOTSTRAPPED
        }
        means = {m: {name: e.mean for name, e in estimates[m].items()} for m in COMPARED}
        marked = {m: marks(means[m], COMPARED[m], pairs.of(m)) for m in COMPARED}
        first = {m: leader(means[m], COMPARED[m], pairs.of(m)) for m in COMPARED}
        for name, results in cell.items():
            yield _about(about) | {
                "estimator": name,
                "seeds": [result.seed for result in results],
                "mean": {m: estimates[m][name].mean for m in BOOTSTRAPPED},
                "spread": {m: estimates[m][name].spread for m in BOOTSTRAPPED},
                "interval": {m: _ends(estimates[m][name].interval) for m in BOOTSTRAPPED},
                "mark": {m: marked[m].get(name) for m in COMPARED},
                "to_leader": {m: _to_leader(pairs, m, name, first[m]) for m in COMPARED},
            }


def compare_with_ours(trials: Trials, found: dict[About, Cell]) -> Iterator[dict[str, Any]]:
    """Yield GrACE minus every other estimator of the same cell."""
    for about, cell in found.items():
        for name in cell if OURS in cell else ():
            if name == OURS:
                continue
            for metric, pair in trials.paired(cell[OURS], cell[name]).items():
                sides = {"a": OURS, "b": name, "metric": metric}
                yield _about(about) | sides | _seeds(pair) | _difference(pair)


def transfers(trials: Trials, found: dict[About, Cell]) -> Iterator[dict[str, Any]]:
    """Yield, per estimator trained on another task, what that costs on the same test questions."""
    for (task, train_task, backbone), cell in found.items():
        home = found.get((task, task, backbone), {}) if task != train_task else {}
        for name in cell:
            for metric, pair in trials.paired(cell[name], home.get(name, ())).items():
                yield _about((task, train_task, backbone)) | {
                    "estimator": name,
                    "metric": metric,
                    "in_domain": pair.b,
                    "out_of_domain": pair.a,
                    **_seeds(pair),
                    **_difference(pair),
                }


class _Pairs:
    """Paired differences inside one cell, each computed once."""

    def __init__(self, trials: Trials, cell: Cell) -> None:
        self._trials, self._cell = trials, cell
        self._known: dict[tuple[str, str], dict[str, Paired]] = {}

    def get(self, a: str, b: str, metric: str) -> Paired | None:
        """Return a minus b, None when they share no response."""
        if (a, b) not in self._known:
            self._known[a, b] = self._trials.paired(self._cell[a], self._cell[b])
        return self._known[a, b].get(metric)

    def of(self, metric: str) -> Callable[[str, str], Paired | None]:
        """Return `get` of one metric."""
        return lambda a, b: self.get(a, b, metric)


def _to_leader(pairs: _Pairs, metric: str, name: str, first: str | None) -> dict[str, Any] | None:
    """Return how far an estimator is from the leader of a metric; None for the leader itself."""
    if first is None or first == name:
        return None
    pair = pairs.get(name, first, metric)
    return None if pair is None else {"estimator": first, **_difference(pair)}


def _about(about: About) -> dict[str, Any]:
    return dict(zip(("task", "train_task", "backbone"), about, strict=True))


def _seeds(pair: Paired) -> dict[str, Any]:
    return {"seed": pair.seeds[0] if len(pair.seeds) == 1 else None, "seeds": pair.seeds}


def _difference(pair: Paired) -> dict[str, Any]:
    return {"difference": pair.difference, "interval": _ends(pair.interval), "n": pair.n}


def _ends(interval: tuple[float, float]) -> list[float] | None:
    return None if math.isnan(interval[0]) else list(interval)
