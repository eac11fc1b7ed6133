"""The confidence before an answer is finished: c along the way against other methods.

Reads finished runs with `grace.trace=true`, and writes nothing into them.
Every method is fitted on the training answers at the steps whose states the run has stored, and
rated on the run's own test answers at 25, 50 and 75% of each and where it ends. Rows:

- c along the way: what ships;
- c of the end, along the way: the end's c, as if the answer ended there;
- log-probabilities alone: the same logistic regression without the readings of the rows;
- prefix likelihood: Platt scaling of the mean log-probability so far, by position;
- lowest group: DeepConf-online's lowest mean over 8 tokens (of the chosen tokens), by position;
- prefix probe: logistic regression on the mean and the last state of the prefix.

    python bench/trace.py runs/sums-0 runs/sums-1 runs/sums-2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from grace.cnf import PLACES
from grace.engines import LAST
from grace.evidence import clipped
from grace.evidence.trace import features_at
from grace.metrics import auroc, brier, ece
from grace.pipeline.context import open_run
from grace.probe.logistic import fit_logistic
from grace.probe.rows import Array

SHARES = (0.25, 0.5, 0.75)
GROUP = 8
LIKELIHOOD = 7  # features that need no reading


class Steps(NamedTuple):
    """M steps of answers: the inputs of the methods, the grade of the answer, its question."""

    features: Array  # (M, F), those of the readings 0
    group: Array
    at: Array  # states (M, D)
    to: Array  # means over the tokens so far
    right: Array
    question: list[str]


def gathered(responses: list, steps_NB: Array, at_NBD: Array, to_NBD: Array, right: Array) -> Steps:
    """Return the steps of all answers side by side."""
    rows, groups = [], []
    for response, places in zip(responses, steps_NB, strict=True):
        logs, none = clipped(response.logprobs), np.zeros((len(places), len(PLACES)))
        rows.append(features_at(logs, np.asarray(places), none)[:, :LIKELIHOOD])
        groups += [lowest(logs[:k]) for k in places]
    width = len(steps_NB[0])
    flat = (len(responses) * width, -1)
    return Steps(
        np.concatenate(rows),
        np.array(groups)[:, None],
        at_NBD.reshape(flat),
        to_NBD.reshape(flat),
        np.repeat(right, width),
        [response.question_id for response in responses for _ in range(width)],
    )


def lowest(logs: Array) -> float:
    """Return the lowest mean over `GROUP` tokens so far, 0 before the first."""
    ends = range(1, len(logs) + 1)
    return float(min((logs[max(0, end - GROUP) : end].mean() for end in ends), default=0.0))


def by_position(value: Array, features: Array) -> list[Array]:
    """Return a value beside the length and their product."""
    length = features[:, [6]]
    return [np.concatenate([value, length, value * length], axis=1)]


RIVALS = {
    "log-probabilities alone": lambda s: [s.features],
    "prefix likelihood": lambda s: by_position(s.features[:, [0]], s.features),
    "lowest group": lambda s: by_position(s.group, s.features),
    "prefix probe": lambda s: [s.at, s.to],
}


def measured(path: Path) -> dict[str, dict[str, float]]:
    """Return the figures of each method in one run."""
    context = open_run(path)
    engine = context.engines.tuned
    train, test = (context.samples(context.directory.split(name)) for name in ("train", "test"))
    stored = load_file(context.directory.split("train").features)
    rows = [i for i, one in enumerate(train.responses) if one.finish_reason == "stop"]
    known = gathered(
        [train.responses[i] for i in rows],
        stored["step"][rows],
        stored["at_step"][rows],
        stored["to_step"][rows],
        np.array(train.correct)[rows],
    )
    ended = [i for i, one in enumerate(test.responses) if one.finish_reason == "stop"]
    prompts = [test.prompts[i] for i in ended]
    responses = [test.responses[i] for i in ended]
    tokens, right = [one.token_ids for one in responses], np.array(test.correct)[ended]
    places = [[int(share * len(ids)) for share in SHARES] for ids in tokens]
    at = engine.states(prompts, tokens, places)[LAST].at_steps
    seen = gathered(responses, np.array(places), at.at_NBD, at.mean_NBD, right)

    traces = engine.traces(prompts, tokens)
    found = {"c along the way": figures(np.array(at_places(traces, places)), right)}
    found["c along the way"]["every step"] = along_ece(traces, right)
    found["c along the way"]["end"] = 100 * auroc([one[-1] for one in traces], right)
    found["c of the end, along the way"] = figures(
        as_if_ended(engine, prompts, tokens, places), right
    )
    for name, of in RIVALS.items():
        made = fit_logistic(of(known), known.right, known.question)
        odds = made.bias + sum(x @ w for x, w in zip(of(seen), made.weights, strict=True))
        c_M = 1 / (1 + np.exp(-np.clip(odds, -40, 40)))
        found[name] = figures(c_M.reshape(-1, len(SHARES)), right)
    return found


def at_places(traces: list, places: list) -> list[list[float]]:
    """Return c at the places of each answer."""
    return [[trace[k] for k in at] for trace, at in zip(traces, places, strict=True)]


def as_if_ended(engine: Any, prompts: list, tokens: list, places: list) -> Array:
    """Return c of prefixes, as if the answer ended there."""
    columns = [
        engine.confidences(prompts, [ids[: at[n]] for ids, at in zip(tokens, places, strict=True)])
        for n in range(len(SHARES))
    ]
    return np.array(columns).T


def along_ece(traces: list, right: Array) -> float:
    """Return the ECE over all steps before the end; each answer weighs the same."""
    c = np.concatenate([one[:-1] for one in traces])
    counts = [len(one) - 1 for one in traces]
    weight = np.concatenate([np.full(n, 1 / n) for n in counts if n]) / len(traces)
    gap = weight * (c - np.repeat(right, counts))
    bins = np.minimum((c * 10).astype(int), 9)
    return 100 * float(sum(abs(gap[bins == b].sum()) for b in range(10)))


def figures(c_NP: Array, right: Array) -> dict[str, float]:
    """Return AUROC, ECE and Brier score at each share of the answer, in percent."""
    named = {}
    for n, share in enumerate(SHARES):
        for metric in (auroc, ece, brier):
            named[f"{metric.__name__}@{share:.0%}"] = 100 * float(metric(c_NP[:, n], right))
    return named


def main() -> None:
    """Print a table of means over the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs with grace.trace=true")
    made = []
    for path in parser.parse_args().runs:
        made.append(measured(path))
        print(f"{path}: done", file=sys.stderr)
    shown = [f"{metric}@{share:.0%}" for metric in ("auroc", "ece") for share in SHARES]
    print("| | " + " | ".join(shown) + " | ECE, every step | AUROC at the end |")
    print("| --- |" + " --- |" * (len(shown) + 2))
    for name in made[0]:
        columns = [*shown, "every step", "end"]
        cells = [[one[name][c] for one in made] if c in made[0][name] else [] for c in columns]
        texts = [f"{np.mean(v):.1f} ± {np.std(v):.1f}" if v else "" for v in cells]
        print(f"| {name} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    main()
