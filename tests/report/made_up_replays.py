"""Made-up replays: strategies on the same samples, several seeds, all parts of a report."""

import dataclasses

import numpy as np

from grace.report import Replay
from grace.report.rows import Pooled, PooledConfidence
from grace.scaling import Pool, pair_wins, replay

TUNED = ("sc", "asc", "esc", "grace-sc", "grace-es")


def pool_of(seed, questions=80):
    rng = np.random.default_rng(seed)
    correct = rng.random((questions, 8)) < rng.random((questions, 1))
    answers = np.where(correct, 0, rng.integers(1, 4, correct.shape))
    confidence = np.clip(0.2 + 0.5 * correct + rng.normal(0, 0.15, correct.shape), 0, 1)
    return Pool(answers, correct, rng.integers(5, 9, correct.shape), {"grace": confidence})


def made_up_replay(seed=0, task="sums", name="grace"):
    """The same pool votes as the backbone's samples (sc, asc, esc) and as the tuned model's."""
    pool = pool_of(seed)
    found = replay(pool, TUNED, budgets=(1, 4, 8), orders=4, seed=seed).curves
    curves = [found["sc"], found["asc"], found["esc"]]
    for curve in found.values():
        shown = f"{curve.name}@{name}" if curve.estimator is None else curve.name
        curves.append(dataclasses.replace(curve, name=shown))
    about = {"task": task, "backbone": "pocket"}
    own = about | {"answers": name, "seed": seed}
    rated = {"estimator": "grace", "n": 640}
    rated |= dict.fromkeys(("accuracy", "ece", "brier", "auroc", "wqd"), 0.5)
    pool_row = {"n": 80, "samples": 8, "accuracy": 0.5, "without_answer": 0.0, "mean_tokens": 6.5}
    return Replay(
        **about,
        name=name,
        seed=seed,
        questions=[f"q{n}" for n in range(80)],
        curves=curves,
        answers={c.name: name if "grace" in c.name else "base" for c in curves},
        wins={(name, "grace"): pair_wins(pool, "grace")},
        pools=[Pooled(**own, **pool_row, confidences=(PooledConfidence(**rated),))],
    )
