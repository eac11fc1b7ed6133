"""The gain of each part of the read-out, by the number of graded answers that it is fitted to.

Refits every method on random parts of a run's training answers and rates the run's own test
answers: the same n answers for each method, no LoRA, nothing written into the run. Several runs
(the seeds of one study) are averaged. GrACE reads the layer that the run's own fit has chosen. The
hidden states are computed once and kept in `--states`.

    python bench/sizes.py runs/wiki/seed-* --sizes 100 300 1000 --keep docs/reports/sizes.json
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keeping import add_keep, keep
from scipy.special import expit

from grace.calibration import Platt
from grace.cnf import HeadShape
from grace.engines import LAST, Features
from grace.estimators.likelihood import sequence_likelihood
from grace.estimators.probes import likelihood_features
from grace.evidence import features as likelihoods
from grace.methods.grace.fit import fit_evidence, fit_readout
from grace.metrics import ece
from grace.metrics.resampling import Resamples, difference
from grace.pipeline.context import Context, open_run
from grace.probe.rows import Array, assign_folds
from grace.records import Response
from grace.store import read_json

METRICS = ("ece", "brier", "auroc")
RIDGES = tuple(10.0 ** (power / 2) for power in range(-10, 3))


class Answers(NamedTuple):
    """Answers that ended: evidence (N, F), the probe's input (N, W), grades (N,), and states.

    `mean`, `last` and `first` (N, H) are of the layer that c reads, `state` (N, D) is the last
    hidden state of the last step, and `others` (N,) the log-sum-exp of the logits there.
    """

    mean: Array
    last: Array
    first: Array
    state: Array
    others: Array
    phi: Array
    probe: Array
    likelihood: Array
    right: Array
    question: Array

    def some(self, chosen: Array) -> Answers:
        """Return some of the answers."""
        return Answers(*(column[chosen] for column in self))


Parts = tuple[Answers, Answers]
"""Training and test answers of a run."""

Rate = Callable[[Answers], Array]
"""Confidences of answers, shape (N,)."""


def rows(train: Answers, *, evidence: bool = True, last: bool = False) -> Rate:
    """GrACE: the rows of the tokens that are read, with the evidence or without."""

    def inputs(given: Answers) -> tuple[list[Array], Array]:
        others = (0 * given.first, 0 * given.mean) if last else (given.first, given.mean)
        return [given.last, *others], given.phi if evidence else np.zeros_like(given.phi)

    (end_ND, prompt_ND, answer_ND), phi_NF = inputs(train)
    head = HeadShape(np.zeros(train.last.shape[1]))
    states = Features(mean_ND=answer_ND, last_ND=end_ND, first_ND=prompt_ND)
    made = fit_readout(lambda _: states, phi_NF, train.right, list(train.question), head)
    found = made.evidence

    def rate(given: Answers) -> Array:
        read, phi_NF = inputs(given)
        state_N = sum(state @ row for state, row in zip(read, made.weights_QD, strict=True))
        pairs = zip(state_N, phi_NF, strict=True)
        return np.array([found.confidence(state, found.shift_of(row)) for state, row in pairs])

    return rate


def one_row(train: Answers) -> Rate:
    """The paper's read-out, c = softmax(E z)[`<CNF>`], as a convex fit of its one row."""
    from scipy.optimize import minimize

    center_D, scale = train.state.mean(0), train.state.std(0).max() * np.sqrt(train.state.shape[1])

    def fit(rows: Array, ridge: float) -> Array:
        x_ND = (train.state[rows] - center_D) / scale
        offset_N, right_N = train.others[rows], train.right[rows]

        def loss(beta: Array) -> tuple[float, Array]:
            logit_N = beta[0] + x_ND @ beta[1:] - offset_N
            wrong_N = expit(logit_N) - right_N
            value = np.mean(np.logaddexp(0, logit_N) - right_N * logit_N)
            slope_D = wrong_N @ x_ND / len(rows) + ridge * beta[1:]
            return value + ridge * beta[1:] @ beta[1:] / 2, np.append(wrong_N.mean(), slope_D)

        start = np.zeros(x_ND.shape[1] + 1)
        start[0] = offset_N.mean()
        found: Array = minimize(loss, start, jac=True, method="L-BFGS-B").x
        return found

    def log_odds(beta: Array, given: Answers) -> Array:
        found: Array = beta[0] + (given.state - center_D) / scale @ beta[1:] - given.others
        return found

    fold_N = assign_folds(list(train.question), 5, 0)
    held = {}
    for ridge in RIDGES:
        losses = []
        for fold in range(5):
            out_N = np.flatnonzero(fold_N == fold)
            logit_N = log_odds(fit(np.flatnonzero(fold_N != fold), ridge), train.some(out_N))
            losses.append(np.logaddexp(0, logit_N) - train.right[out_N] * logit_N)
        held[ridge] = float(np.concatenate(losses).mean())
    beta = fit(np.arange(len(train.right)), min(held, key=lambda one: held[one]))
    return lambda given: expit(log_odds(beta, given))


def evidence_alone(train: Answers) -> Rate:
    """Logistic regression on the seven numbers of the log-probabilities."""
    made = fit_evidence(train.phi, train.right, list(train.question))
    return lambda given: np.array([made.confidence(0.0, made.shift_of(row)) for row in given.phi])


def platt(train: Answers) -> Rate:
    """Two numbers on the sequence likelihood, fitted on the same answers."""
    made = Platt.fit(train.likelihood, train.right)
    return lambda given: np.asarray(made.transform(given.likelihood))


METHODS: dict[str, Callable[[Answers], Rate]] = {
    "grace": rows,
    "rows": lambda train: rows(train, evidence=False),
    "last": lambda train: rows(train, evidence=False, last=True),
    "softmax": one_row,
    "evidence": evidence_alone,
    "platt": platt,
}


def read(run: Path, kept: Path | None) -> Parts:
    """Return a run's training and test answers of the backbone, with their states."""
    context = open_run(run)
    if kept is not None and kept.exists():
        with np.load(kept, allow_pickle=False) as stored:
            return tuple(  # type: ignore[return-value]
                Answers(*(stored[f"{split}.{name}"] for name in Answers._fields))
                for split in ("train", "test")
            )
    both = _answers(context, "train"), _answers(context, "test")
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        named = zip(("train", "test"), both, strict=True)
        np.savez(kept, **{f"{s}.{k}": v for s, made in named for k, v in made._asdict().items()})
    return both


class Ended(NamedTuple):
    """Answers that ended: their tokens, evidence (N, F), grades (N,), questions."""

    prompts: list[Sequence[int]]
    token_ids: list[Sequence[int]]
    phi: Array
    right: Array
    question: Array
    responses: list[Response]


def ended(context: Context, name: str) -> Ended:
    """Return a split's answers of the backbone that ended."""
    samples = context.samples(context.directory.split(name))
    done = [i for i, one in enumerate(samples.responses) if one.finish_reason == "stop"]
    responses = [samples.responses[i] for i in done]
    return Ended(
        *samples.token_ids(done),
        np.array([likelihoods(one.logprobs, one.end_logprob) for one in responses]),
        np.array([samples.correct[i] for i in done], dtype=np.float64),
        np.array([one.question_id for one in responses]),
        responses,
    )


def _answers(context: Context, name: str) -> Answers:
    prompts, token_ids, phi, right, question, responses = ended(context, name)
    layer = read_json(context.directory.readout)["layer"]
    states = context.engines.base.states(prompts, token_ids, layers=[layer] if layer else [])
    mean, last, _ = states[LAST].features
    said = [likelihood_features(one.logprobs, one.end_logprob) for one in responses]
    return Answers(
        *states[layer].features,
        last,
        _log_sum_exp(context.engines.base.model, last),
        phi,
        np.concatenate([mean, last, np.stack(said)], axis=1).astype(np.float32),
        np.array([sequence_likelihood(one) or 0.0 for one in responses]),
        right,
        question,
    )


def _log_sum_exp(model: Any, last_ND: Array) -> Array:
    import torch

    head = model.get_output_embeddings()
    with torch.inference_mode():
        parts = [
            head(torch.from_numpy(part).to(head.weight)).float().logsumexp(-1).cpu().numpy()
            for part in np.array_split(last_ND, max(1, len(last_ND) // 64))
        ]
    return np.concatenate(parts).astype(np.float64)


class Measured(NamedTuple):
    """ECE, Brier score and AUROC of a method fitted to n answers, and draws: (1 + R, 3) per run."""

    method: str
    answers: int
    value_SRM: Sequence[Array]


def drawn(resamples: Resamples, c_N: Array, test: Any) -> Array:
    """Return the metrics of confidences and of their resamples: (1 + R, 3)."""
    draws = resamples.evaluate(c_N, test.right, test.question.tolist(), METRICS).values()
    return np.stack([np.abs(d).sum(axis=1) if d.ndim > 1 else d for d in draws], axis=1)


def measured(runs: Sequence[Parts], sizes: Sequence[int], draws: int) -> Iterator[Measured]:
    """Yield each method at each size: the mean over the runs and over the draws of answers."""
    resamples = Resamples([one for _, test in runs for one in test.question])
    for size, name in itertools.product(sizes, METHODS):
        means = []
        for train, test in runs:
            found = []
            for draw in range(draws if size < len(train.right) else 1):
                chosen = np.random.default_rng([draw, size]).permutation(len(train.right))[:size]
                c_N = METHODS[name](train.some(chosen))(test)
                found.append(drawn(resamples, c_N, test))
            means.append(np.mean(found, axis=0))
        yield Measured(name, size, means)


def kept_rows(found: Sequence[Measured], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row per method and size: its metrics, and the first method's minus these."""
    first = {one.answers: one.value_SRM for one in found if one.method == found[0].method}
    for one in found:
        row = {**about, "method": one.method, "answers": one.answers}
        for at, metric in enumerate(METRICS):
            row[metric] = round(float(np.mean([value[0, at] for value in one.value_SRM])), 5)
            if one.method != found[0].method and metric != "ece":
                sides = ([v[:, at] for v in side] for side in (first[one.answers], one.value_SRM))
                row[f"minus_{metric}"] = [round(float(x), 5) for x in difference(*sides)]
        yield row


def by_chance(c_N: Array, draws: int = 200) -> float:
    """Return the mean ECE if every answer were right with exactly its confidence."""
    rng = np.random.default_rng(0)
    return float(np.mean([ece(c_N, rng.random(len(c_N)) < c_N) for _ in range(draws)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 2000])
    parser.add_argument("--draws", type=int, default=5, help="random parts of each size")
    parser.add_argument("--states", type=Path, help="folder that keeps the hidden states")
    add_keep(parser)
    arguments = parser.parse_args()
    kept = arguments.states
    runs = [read(run, kept and kept / f"{number}.npz") for number, run in enumerate(arguments.runs)]
    most = min(len(train.right) for train, _ in runs)
    sizes = [size for size in arguments.sizes if size <= most] or [most]
    right = np.concatenate([test.right for _, test in runs])
    found = list(measured(runs, sizes, arguments.draws))
    floor = float(np.mean([by_chance(rows(train)(test)) for train, test in runs]))
    context = open_run(arguments.runs[0])
    about = {
        "set": context.settings.data.task,
        "backbone": Path(context.settings.model.path).name,
        "runs": len(runs),
        "draws": arguments.draws,
        "test_answers": len(right),
        "accuracy": round(float(right.mean()), 5),
        "ece_by_chance": round(floor, 5),
    }
    lines = list(kept_rows(found, about))
    for line in lines:
        print(json.dumps(line))
    if arguments.keep:
        keep(arguments.keep, lines, ("set", "backbone", "method", "answers"))


if __name__ == "__main__":
    main()
