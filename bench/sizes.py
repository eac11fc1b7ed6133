"""The gain of each part of the read-out, by the number of graded answers that it is fitted to.

Refits every method on random parts of a run's training answers and rates the run's own test
answers: the same n answers for each method, no LoRA, nothing written into the run. The hidden
states of the test answers are computed once and kept in `--states`.

    python bench/sizes.py runs/wiki --sizes 100 300 1000 2000 --draws 5 --states wiki.npz
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from grace.calibration import Platt
from grace.cnf import HeadShape
from grace.engines import Features
from grace.estimators.likelihood.likelihood import sequence_likelihood
from grace.evidence import features as likelihoods
from grace.metrics import auroc, brier, ece
from grace.pipeline.context import Context, open_run
from grace.probe import fit_probe
from grace.probe.features import feature_matrix
from grace.probe.readout import fit_evidence, fit_readout
from grace.probe.rows import Array, assign_folds

RIDGES = tuple(10.0 ** (power / 2) for power in range(-10, 3))


class Answers(NamedTuple):
    """Answers that ended: states (N, D), evidence (N, F), the probe's input (N, W), grades (N,)."""

    mean: Array
    last: Array
    first: Array
    others: Array  # log-sum-exp of the logits at the last step, without the new token
    phi: Array
    probe: Array
    likelihood: Array
    right: Array
    question: Array

    def some(self, chosen: Array) -> Answers:
        """Return some of the answers."""
        return Answers(*(column[chosen] for column in self))


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
    made = fit_readout(states, phi_NF, train.right, list(train.question), head)
    found = made.evidence

    def rate(given: Answers) -> Array:
        read, phi_NF = inputs(given)
        odds_N = sum(state @ row for state, row in zip(read, made.weights_QD, strict=True))
        odds_N += np.array([found.shift_of(row) for row in phi_NF])
        return expit(np.clip(odds_N, -found.limit, found.limit))

    return rate


def one_row(train: Answers) -> Rate:
    """The paper's read-out, c = softmax(E z)[`<CNF>`], as a convex fit of its one row."""
    from scipy.optimize import minimize

    center_D, scale = train.last.mean(0), train.last.std(0).max() * np.sqrt(train.last.shape[1])

    def fit(rows: Array, ridge: float) -> Array:
        x_ND = (train.last[rows] - center_D) / scale
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
        found: Array = beta[0] + (given.last - center_D) / scale @ beta[1:] - given.others
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
    """Logistic regression on six numbers of the log-probabilities."""
    made = fit_evidence(train.phi, train.right, list(train.question))
    return lambda given: expit(
        np.array([made.log_odds(0.0, made.shift_of(row)) for row in given.phi])
    )


def platt(train: Answers) -> Rate:
    """Two numbers on the sequence likelihood, fitted on the same answers."""
    made = Platt.fit(train.likelihood, train.right)
    return lambda given: np.asarray(made.transform(given.likelihood))


def ridge_probe(train: Answers) -> Rate:
    """Ridge regression on mean and last state and the likelihoods."""
    widths = [train.mean.shape[1], train.last.shape[1]]
    widths.append(train.probe.shape[1] - sum(widths))
    made = fit_probe(train.probe, train.right, list(train.question), blocks=widths)
    return lambda given: np.clip(made.predict(given.probe), 0, 1)


METHODS: dict[str, Callable[[Answers], Rate]] = {
    "rows and evidence (GrACE)": rows,
    "rows": lambda train: rows(train, evidence=False),
    "one of the rows, last step only": lambda train: rows(train, evidence=False, last=True),
    "one row, softmax (the paper's c)": one_row,
    "evidence alone": evidence_alone,
    "Platt scaling": platt,
    "ridge probe": ridge_probe,
}


def read(run: Path, kept: Path | None) -> tuple[Answers, Answers]:
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
        named = zip(("train", "test"), both, strict=True)
        np.savez(kept, **{f"{s}.{k}": v for s, made in named for k, v in made._asdict().items()})
    return both


def _answers(context: Context, name: str) -> Answers:
    engine = context.engines.base
    samples = context.samples(context.directory.split(name))
    done = [i for i, one in enumerate(samples.responses) if one.finish_reason == "stop"]
    responses = [samples.responses[i] for i in done]
    prompts = [samples.prompts[i] for i in done]
    parts = [
        engine.features(prompts[at : at + 64], [one.token_ids for one in responses[at : at + 64]])
        for at in range(0, len(done), 64)
    ]
    mean, last, first = (np.concatenate(part) for part in zip(*parts, strict=True))
    joined = feature_matrix(("mean", "last", "likelihood"), {"mean": mean, "last": last}, responses)
    return Answers(
        mean,
        last,
        first,
        _log_sum_exp(engine.model, last),
        np.array([likelihoods(one.logprobs, one.end_logprob) for one in responses]),
        joined,
        np.array([sequence_likelihood(one) or 0.0 for one in responses]),
        np.array([samples.correct[i] for i in done], dtype=np.float64),
        np.array([one.question_id for one in responses]),
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


def measured(train: Answers, test: Answers, sizes: Sequence[int], draws: int) -> list[list[str]]:
    """Return a row per method: mean ECE / Brier / AUROC over the draws of each size."""
    lines = []
    for name, method in METHODS.items():
        cells = []
        for size in sizes:
            found = []
            for draw in range(draws if size < len(train.right) else 1):
                chosen = np.random.default_rng([draw, size]).permutation(len(train.right))[:size]
                c_N = method(train.some(chosen))(test)
                found.append([metric(c_N, test.right > 0) for metric in (ece, brier, auroc)])
            mean = 100 * np.mean(found, axis=0)
            cells.append(" / ".join(f"{value:.1f}" for value in mean))
            line = {"method": name, "answers": size, "draws": np.round(found, 4).tolist()}
            print(json.dumps(line), flush=True)
        lines.append([name, *cells])
    return lines


def by_chance(c_N: Array, draws: int = 200) -> float:
    """Return the mean ECE if every answer were right with exactly its confidence."""
    rng = np.random.default_rng(0)
    return float(np.mean([ece(c_N, rng.random(len(c_N)) < c_N) for _ in range(draws)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 2000])
    parser.add_argument("--draws", type=int, default=5, help="random parts of each size")
    parser.add_argument("--states", type=Path, help="file that keeps the hidden states")
    arguments = parser.parse_args()
    train, test = read(arguments.run, arguments.states)
    sizes = [size for size in arguments.sizes if size <= len(train.right)] or [len(train.right)]
    print(f"\n{len(test.right)} test answers, {100 * test.right.mean():.1f} % right\n")
    lines = measured(train, test, sizes, arguments.draws)
    floor = by_chance(rows(train)(test))
    print(f"\nA perfectly calibrated c would show an ECE of {100 * floor:.1f} here, by chance.\n")
    head = ["ECE / Brier / AUROC (%)", *(f"{size} answers" for size in sizes)]
    for row in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
