"""A run's replayed votes on disk: rows in scaling.json, values per question in scaling.safetensors.

The values are kept so that a report of several runs can resample the questions of all of them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from grace.errors import RunError
from grace.pipeline.context import Context
from grace.report import Replay, from_json, to_json
from grace.report.names import BASE
from grace.report.rows import Pooled
from grace.report.summary import equal_rows, strategy_rows
from grace.scaling import Curve, PairWins
from grace.store import RunDir, read_json, write_bytes, write_json
from grace.strategies.tally import Floats

VERSION = 2
NAMES = ("strategy", "answers", "estimator")  # fields of rows


def write_replay(
    directory: RunDir, replay: Replay, *, samples: int, temperature: float, orders: int
) -> dict[str, Any]:
    """Write a run's replay and return what scaling.json holds."""
    from safetensors.numpy import save

    content: dict[str, Any] = to_json(
        {
            "version": VERSION,
            "samples": samples,
            "temperature": temperature,
            "orders": orders,
            "rows": list(strategy_rows([replay])),
            "equal_accuracy": list(equal_rows([replay])),
            "pools": replay.pools,
        }
    )
    sum_PMBQ = orders * np.array([curve.value_MBQ for curve in replay.curves])
    # sums over the orders are whole numbers, so that nothing is lost in int32
    tensors = {"sums": np.rint(sum_PMBQ).astype(np.int32)}
    for (answers, estimator), wins in replay.wins.items():
        tensors[f"wins/{answers}/{estimator}"] = np.array(wins)
    write_bytes(directory.replay, save(tensors))
    write_json(directory.scaling, content)
    return content


def read_replay(context: Context) -> Replay | None:
    """Return the replay that `grace scale` stored in a run, None if there is none."""
    from safetensors.numpy import load_file

    directory, settings = context.directory, context.settings
    if not directory.scaling.exists():
        return None
    content = read_json(directory.scaling)
    if content.get("version") != VERSION or not directory.replay.exists():
        raise RunError(
            f"{directory.scaling} was written by another version; make it again from the stored "
            f"samples: grace scale {directory.path} --samples {content.get('samples', 32)}"
        )
    tensors, rows, pools = load_file(directory.replay), content["rows"], content["pools"]
    stored = re.escape(next(row["answers"] for row in rows if row["answers"] != BASE))
    in_name = re.compile(rf"^{stored}(?=-|$)|(?<=@){stored}$")

    def current(name: str) -> str:
        """Return a name as it is with the present `report.name`."""
        return in_name.sub(lambda _: settings.report.name, name)

    for row in (*rows, *pools, *(entry for pool in pools for entry in pool["confidences"])):
        row |= {key: current(row[key]) for key in NAMES if row.get(key)}
    wins = {}
    for key in tensors:
        if key.startswith("wins/"):
            answers, estimator = map(current, key.split("/", 2)[1:])
            wins[answers, estimator] = PairWins(*tensors[key])
    return Replay(
        **context.about,
        name=settings.report.name,
        seed=settings.seed,
        questions=[question.cluster for question in directory.split("test").questions.read()],
        curves=_curves(rows, tensors["sums"] / content["orders"]),
        answers={row["strategy"]: row["answers"] for row in rows},
        wins=wins,
        pools=[from_json(Pooled, row) for row in pools],
    )


def _curves(rows: list[dict[str, Any]], value_PMBQ: Floats) -> list[Curve]:
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_strategy.setdefault(row["strategy"], []).append(row)
    curves = []
    for (name, own), value_MBQ in zip(by_strategy.items(), value_PMBQ, strict=True):
        budgets = tuple(row["budget"] for row in own)
        used_BV = np.zeros((len(own), budgets[-1] + 1))
        for used_V, row in zip(used_BV, own, strict=True):
            used_V[1 : row["budget"] + 1] = row["used"]
        about = (name, own[0]["estimator"], own[0]["threshold"], budgets)
        curves.append(Curve(*about, value_MBQ, used_BV))
    return curves
