"""The time and memory of a replay in tables, against the plain loop over `decide`.

Claims: 1,000 questions x 32 samples x 50 orders, all strategies and 6 budgets, take less than 10
seconds on 2 cores and less than 1 GiB at their peak; the outcomes are those of `decide`, which is
measured in the same run on some of the same questions and orders.

    OMP_NUM_THREADS=2 python bench/replay.py
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

import numpy as np

from grace.records import Vote
from grace.scaling import BUDGETS, Pool, replay
from grace.strategies import POLICIES, decide, policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--orders", type=int, default=50)
    parser.add_argument("--loop-questions", type=int, default=20, help="questions for the loop")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    pool = made_up(arguments.questions, arguments.samples)
    budgets = [budget for budget in BUDGETS if budget <= arguments.samples]
    before, seconds, loop_seconds = _peak_gib(), [], []
    part = pool.take(np.arange(min(arguments.loop_questions, arguments.questions)))
    for _ in range(arguments.turns):
        start = time.perf_counter()
        scaling = replay(pool, budgets=budgets, orders=arguments.orders)
        points = [scaling.estimate(name, b) for name in scaling.curves for b in budgets]
        seconds.append(time.perf_counter() - start)
        peak = _peak_gib()
        start = time.perf_counter()
        slow = _loop(part, budgets)
        loop_seconds.append(time.perf_counter() - start)
    fast = replay(part, budgets=budgets, orders=1)
    found = np.array([curve.value_MBQ for curve in fast.curves.values()])
    decisions = arguments.questions * arguments.orders
    loop_s = min(loop_seconds) / part.num_questions * decisions
    print(
        json.dumps(
            {
                "questions": arguments.questions,
                "samples": arguments.samples,
                "orders": arguments.orders,
                "policies": len(POLICIES),
                "budgets": budgets,
                "points": len(points),
                "threads": os.environ.get("OMP_NUM_THREADS", "all"),
                "seconds": seconds,
                "loop_s_on_all_of_it": loop_s,
                "ratio": loop_s / min(seconds),
                "largest_difference": float(np.abs(found - slow).max()),
                "peak_gib": {"before": before, "after": peak},
            },
            indent=2,
        )
    )


def made_up(questions: int, samples: int) -> Pool:
    """Return questions of any difficulty with up to 5 wrong answers, some samples without one."""
    rng = np.random.default_rng(0)
    shape = (questions, samples)
    right = rng.random(shape) < rng.random((questions, 1))
    answers = np.where(right, 0, rng.integers(-1, 6, shape))
    known = np.clip(0.6 * (answers == 0) + rng.normal(0.2, 0.2, shape), 0, 1)
    confidences = {
        name: known**power for power, name in enumerate(("grace", "p_true", "verbal"), 1)
    }
    return Pool(answers, answers == 0, rng.integers(20, 400, shape), confidences)


def _loop(pool: Pool, budgets: list[int]) -> np.ndarray:
    """Return outcomes of `decide` on the first order: (policies, measures, budgets, questions)."""
    (order_QS,) = pool.orders(1)
    outcome = np.zeros((len(POLICIES), 3, len(budgets), pool.num_questions))
    for p, name in enumerate(POLICIES):
        made = policy(name)
        confidence_QS = pool.confidence(made.estimator)
        for q, order in enumerate(order_QS):
            votes = [
                Vote(None if a < 0 else str(a), None if np.isnan(c) else float(c), int(t))
                for a, c, t in zip(
                    pool.answer_QS[q, order],
                    confidence_QS[q, order],
                    pool.tokens_QS[q, order],
                    strict=True,
                )
            ]
            for b, budget in enumerate(budgets):
                decision = decide(made.strategy, votes, budget)
                right = decision.answer is not None and pool.correct_QS[q, int(decision.answer)]
                outcome[p, :, b, q] = right, decision.samples, decision.tokens
    return outcome


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
