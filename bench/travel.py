"""A confidence on questions of a source that no fit has seen, for every source left out in turn.

DATA holds one file of questions for each source (`NAME.jsonl`, as for `grace run --file`; questions
with choices show these in their text, and the answer is the text of an option). The model answers
greedily after five examples of the source, in plain text. Answers, states and log-probabilities are
kept in OUT, 100 answers a file, so that the command resumes.

    python bench/travel.py MODEL DATA OUT --answers 500 --seeds 1
    python bench/travel.py MODEL DATA OUT --answers 500 --in-domain
    python bench/travel.py MODEL DATA OUT --answers 500 --graded 20 50 100

Seed 0 fits to all answers of the other sources, later seeds to 80 % of them. A state is reduced to
its 256 main directions among the answers of the fit, in a random rotation, which keeps a ridge
penalty what it is and makes a fit a matter of seconds; those to a source alone read all of it.
Intervals are 95 % by 1,000 resamples of the questions, of the difference from GrACE. `--graded`
adds what so many graded answers of the source left out give: c recalibrated, and Platt scaling of
the likelihood, both fitted to them (100 draws, rated on a half that they leave).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.extmath import randomized_svd

from grace.calibration import LogOdds, Platt, log_odds
from grace.cnf import HeadShape
from grace.engines import LAST, Features, Sampling
from grace.engines.gguf import resolve_model
from grace.evidence import features
from grace.evidence.familiar import Near
from grace.grading import load_grader
from grace.methods.grace.fit import (
    Layer,
    choose_layer,
    fit_evidence,
    fit_readout,
    knowing_prompts,
    knowing_sources,
    read_by,
)
from grace.methods.grace.prompts import distances
from grace.metrics import evaluate
from grace.model.recalibrating import PART_SPREADS
from grace.probe.rows import Sourced, sigmoid
from grace.records import Message, Question

PLACES = ("mean", "last", "first")
SHOTS, AT_ONCE, WIDTH, RESAMPLES, DRAWS = 5, 100, 256, 1000, 100
METRICS = ("ece", "brier", "auroc")


def main() -> None:
    """Collect what is missing, and print a table for each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--answers", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--in-domain", action="store_true", help="a half of each, of all or alone")
    parser.add_argument("--graded", type=int, nargs="+", default=[], help="of the source left out")
    parser.add_argument("--layers", type=int, nargs="+", help="blocks to choose from")
    parser.add_argument("--dtype", default="auto", help="as model.dtype of a run")
    given = parser.parse_args()
    names = [file.stem for file in sorted(given.data.glob("*.jsonl"))]
    engine: Any = None
    for start in range(0, given.answers, AT_ONCE):
        for name in names:
            file = given.out / f"{name}.{start:05d}.npz"
            lines = (given.data / f"{name}.jsonl").read_text().splitlines()
            if not file.exists() and len(lines) > start + SHOTS:
                engine = engine or _load(given.model, given.dtype)
                _collect(engine, [json.loads(line) for line in lines], file, start)
    sources = {name: _stored(given.out, name) for name in names}
    if given.in_domain:
        for seed in range(given.seeds):
            _compare_halves(sources, seed, given.layers)
        return
    for name in names:
        rated = [
            _rate(sources, name, _others(sources, name, seed), seed, given.layers)
            for seed in range(given.seeds)
        ]
        _show(name, sources[name]["right"], rated)
        for count in given.graded:
            _show_graded(sources[name]["right"], rated, count)


def _load(model: str, dtype: str) -> Any:
    from grace.engines.transformers import TransformersEngine

    return TransformersEngine.load(resolve_model(model, dtype), dtype=dtype, stop=["\n"])


def _collect(engine: Any, rows: list[dict[str, Any]], file: Path, start: int) -> None:
    """Let the model answer 100 questions, and store what is read of each answer that ended."""
    from grace.chat import encode_chat
    from grace.engines.local.layers import candidates

    shots = [row for row in rows if len(row["answers"][0]) < 40][:SHOTS]
    asked = [row for row in rows if row not in shots][start : start + AT_ONCE]
    name = file.name.split(".")[0]
    shown = "".join(f"{_text(row, name)} {row['answers'][0]}\n" for row in shots)
    texts = [f"{shown}{_text(row, name)}" for row in asked]
    chats: list[Message] = [{"role": "text", "content": text} for text in texts]
    prompts = [encode_chat(engine.tokenizer, [chat]) for chat in chats]
    drawn = dict(engine.generate(prompts, Sampling(max_new_tokens=32)))
    ended = [n for n, (one,) in drawn.items() if one.finish_reason == "stop" and one.token_ids]
    responses = [drawn[n][0].token_ids for n in ended]
    layers = candidates(engine.model)
    states = engine.states([prompts[n] for n in ended], responses, layers=layers)
    info = []
    for n in ended:
        (one,), row = drawn[n], asked[n]
        question = Question("", "jsonl", row["question"], tuple(row["answers"]))
        right = load_grader("exact" if row.get("choices") else "auto")(one.text, question)
        info.append({"right": right, "logprobs": one.logprobs, "end": one.end_logprob})
    arrays = {
        f"{place}.{layer}": array.astype(np.float16)
        for layer, read in states.items()
        for place, array in zip(PLACES, read.features, strict=True)
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part.npz")
    np.savez(part, info=json.dumps(info), **arrays)
    part.rename(file)
    right = sum(one["right"] for one in info)
    print(f"{name} {start}: {len(ended)} of {len(asked)} answers ended, {right} right", flush=True)


def _text(row: dict[str, Any], source: str) -> str:
    """Return a question as the model reads it; `qa_wikidata` has sentences to complete."""
    if source == "qa_wikidata":
        return str(row["question"])
    options = f" Options: {'; '.join(row['choices'])}." if row.get("choices") else ""
    return f"Q: {row['question']}{options}\nA:"


def _stored(folder: Path, name: str) -> dict[str, Any]:
    """Return the answers of a source: grades, features, raw scores, states by layer and place."""
    files = [np.load(file) for file in sorted(folder.glob(f"{name}.?????.npz"))]
    info = [one for file in files for one in json.loads(str(file["info"]))]
    ends = [[*one["logprobs"], one["end"]] for one in info]
    pairs = [[sum(row[n : n + 2]) / 2 for n in range(len(row) - 1)] for row in ends]
    return {
        "info": info,
        "right": np.array([one["right"] for one in info]),
        "features": np.array([features(one["logprobs"], one["end"]) for one in info]),
        "least pair": np.exp([min(row) for row in pairs]),
        "states": {
            key: np.concatenate([file[key] for file in files]).astype(np.float32)
            for key in files[0].files
            if "." in key
        },
    }


def _others(sources: dict[str, Any], left: str, seed: int) -> dict[str, np.ndarray]:
    """Return the answers of the other sources that a seed fits to."""
    rng, kept = np.random.default_rng(seed), {}
    for name in sources:
        if name != left:
            count = len(sources[name]["right"])
            kept[name] = rng.permutation(count)[: count if seed == 0 else int(0.8 * count)]
    return kept


def _compare_halves(sources: dict[str, Any], seed: int, layers: list[int] | None) -> None:
    """Print how a half of each source is rated by fits to its other half, alone and in the mix."""
    rng = np.random.default_rng(seed)
    halves = {
        one: np.split(rng.permutation(len(s["right"])), [len(s["right"]) // 2])
        for one, s in sources.items()
    }
    kept, start = {name: half for name, (half, _) in halves.items()}, 0
    mixed = _rate({**sources, "": _together(sources)}, "", kept, seed, layers, own=True)
    for name, (half, rest) in halves.items():
        alone = _rate(sources, name, {name: half}, seed, layers)["GrACE"]
        shown = f"{name}, seed {seed} (ECE / Brier / AUROC):"
        rated = {what: mixed[what][start + rest] for what in ("GrACE, sources alike", "GrACE")}
        for what, c in {"alone": alone[rest], **rated}.items():
            found = evaluate(c, sources[name]["right"][rest], METRICS)
            shown += f"  {what} " + " / ".join(f"{100 * value:.1f}" for value in found.values())
        print(shown, flush=True)
        start += len(alone)


def _together(sources: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of all sources as those of one, in their order."""
    every = list(sources.values())
    states = {
        key: np.concatenate([one["states"][key] for one in every]) for key in every[0]["states"]
    }
    names = ("right", "features", "least pair")
    return {
        "states": states,
        **{name: np.concatenate([one[name] for one in every]) for name in names},
    }


def _rate(
    sources: dict[str, Any],
    left: str,
    kept: dict[str, np.ndarray],
    seed: int,
    layers: list[int] | None,
    own: bool = False,
) -> dict[str, np.ndarray]:
    """Return the confidences of the answers of a source by fits to the answers `kept`.

    `own` adds a fit to each source alone, which counts for prompts like its.
    """
    groups = [Sourced(name, (name, row)) for name, rows in kept.items() for row in rows]

    def of(read: Any) -> Any:
        return np.concatenate([read(sources[name])[rows] for name, rows in kept.items()])

    known, right = of(lambda one: one["features"]), of(lambda one: one["right"])
    test, found = sources[left]["features"], dict[str, np.ndarray]()
    found["likelihood"], found["least probability"] = test[:, -1], test[:, 4]
    found["least sure pair"] = sources[left]["least pair"]
    found["Platt"] = Platt.fit(known[:, -1], right).transform(test[:, -1])
    alone = fit_evidence(known, right, groups)
    alone_N = np.array([alone.shift_of(row) for row in test])
    found["token features"] = sigmoid(alone_N)
    blocks = sorted({int(key.split(".")[1]) for key in sources[left]["states"]} - {LAST})
    reduced = {layer: _reduced(sources[left], of, layer) for layer in layers or blocks}

    def read(layer: int) -> Features:
        return Features(*(train for train, _ in reduced.get(layer, next(iter(reduced.values())))))

    every = read_by(read, known)
    chosen: Layer = choose_layer(every, [*reduced], right, groups, free=True, seed=seed)
    made = fit_readout(read, known, right, groups, HeadShape(np.zeros(WIDTH)), layer=chosen)
    state_N = np.zeros(len(test))
    order = (1, 2, 0)  # the rows are those of the last, the first and the mean state
    for weight_D, place in zip(made.weights_QD, order, strict=True):
        state_N += reduced[chosen.layer][place][1] @ weight_D
    shift_N = np.array([made.evidence.shift_of(row) for row in test])
    found["GrACE, prompts not known"] = sigmoid(state_N + shift_N)
    if len(kept) == 1:
        found["GrACE"] = sigmoid(state_N + shift_N)
        return found
    first, states = f"first.{min(blocks)}", sources[left]["states"]
    first_NH = of(lambda one: one["states"][first])
    graded = (known, right, groups)
    made = knowing_prompts(made, min(blocks), first_NH, *graded)
    away_SN = distances(states[first], *made.prompts[1][:2])
    fits = {"GrACE, sources alike" if own else "GrACE": made}
    shares: dict[str, float] = {}
    if own:

        def whole(layer: int) -> Features:
            keys = [f"{place}.{layer or min(blocks)}" for place in PLACES]
            return Features(*(of(lambda one, key=key: one["states"][key]) for key in keys))

        head = HeadShape(np.zeros(first_NH.shape[1]))
        fits["GrACE"], shares = knowing_sources(made, whole, [*reduced], first_NH, *graded, head)
    for what, fit in fits.items():
        read_SN = [
            sum(states[f"{PLACES[place]}.{layer}"] @ rows[n] for n, place in enumerate(order))
            for layer, rows in fit.prompts[1].own
        ]
        rows = enumerate(zip(state_N, test, away_SN.argmin(0), away_SN.min(0), strict=True))
        found[what] = np.array(
            [
                fit.evidence.rate(
                    state, row, Near(away, place, read_SN[place][n] if read_SN else None)
                )
                for n, (state, row, place, away) in rows
            ]
        )
    familiar = made.evidence.familiar
    found["familiar"] = np.array([familiar.of(away) for away in away_SN.min(0)])
    found["evidence"] = np.array([made.evidence.shift_of(row) for row in test])
    known = f"familiar {found['familiar'].mean():.2f}"
    told = "".join(f", own {one:.2f} of {name}" for name, one in shares.items())
    print(f"{left}, seed {seed}: block {chosen.layer}, {known}{told}", flush=True)
    return found


def _reduced(left: dict[str, Any], of: Any, layer: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the states of the fit and of the source left out in main directions, by place."""
    rng, keys = np.random.default_rng(0), [f"{place}.{layer}" for place in PLACES]
    return [
        reduced(of(lambda one, key=key: one["states"][key]), left["states"][key], rng)
        for key in keys
    ]


def reduced(
    train_ND: np.ndarray, rated_ND: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return states of the fit, and others, in the main directions of those of the fit."""
    mean_D, spread_D = train_ND.mean(0), train_ND.std(0)
    spread_D = np.where(spread_D < 1e-6 * spread_D.max(), np.inf, spread_D)
    scaled_ND = (train_ND - mean_D) / spread_D
    most = min(WIDTH, *scaled_ND.shape)
    main_KD = randomized_svd(scaled_ND, most, n_iter=7, random_state=0)[2]
    main_KD = np.pad(main_KD, ((0, WIDTH - len(main_KD)), (0, 0)))
    turn_KK = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0].astype(np.float32)
    onto_DK = main_KD.T @ turn_KK
    return scaled_ND @ onto_DK, (rated_ND - mean_D) / spread_D @ onto_DK


def _show(name: str, right: np.ndarray, rated: list[dict[str, np.ndarray]]) -> None:
    """Print the means over the seeds, and the differences of the others from GrACE."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(right), len(right)) for _ in range(RESAMPLES)]
    draws = [rows for rows in draws if 0 < right[rows].sum() < len(rows)]

    def measure(method: str, rows: Any) -> np.ndarray:
        each = [evaluate(one[method][rows], right[rows], METRICS) for one in rated]
        return np.array([[100 * one[metric] for metric in METRICS] for one in each]).mean(0)

    ours = np.array([measure("GrACE", rows) for rows in draws])
    print(f"\n{name}: {len(right)} answers, {100 * right.mean():.1f}% right (ECE / Brier / AUROC)")
    for method in [one for one in rated[0] if one not in ("familiar", "evidence")]:
        line = f"  {method:26}" + "{:6.1f}{:6.1f}{:6.1f}".format(*measure(method, slice(None)))
        if method != "GrACE":
            away = np.array([measure(method, rows) for rows in draws]) - ours
            low, high = np.percentile(away, [2.5, 97.5], axis=0)
            line += (
                f"   Brier {low[1]:+.1f} to {high[1]:+.1f}, AUROC {low[2]:+.1f} to {high[2]:+.1f}"
            )
        print(line, flush=True)


def _show_graded(right: np.ndarray, rated: list[dict[str, np.ndarray]], count: int) -> None:
    """Print the means over seeds and draws with so many graded answers of the source."""
    found: dict[str, list[Any]] = {"GrACE, recalibrated": [], "Platt on these answers": []}
    for seed, one in enumerate(rated):
        parts_PN = np.stack([log_odds(one["GrACE"]) - one["evidence"], one["evidence"]])
        for draw in range(DRAWS):
            order = np.random.default_rng([seed, draw]).permutation(len(right))
            known, rest = order[:count], order[len(order) // 2 :]
            ours = LogOdds.fit(parts_PN[:, known], right[known], PART_SPREADS)
            platt = Platt.fit(one["likelihood"][known], right[known])
            both = ours.transform(parts_PN[:, rest]), platt.transform(one["likelihood"][rest])
            for kept, c in zip(found.values(), both, strict=True):
                kept.append([*evaluate(c, right[rest], METRICS).values()])
    for method, values in found.items():
        shown = " / ".join(f"{100 * value:.1f}" for value in np.mean(values, axis=0))
        print(f"  {count} graded answers, {method}: {shown}", flush=True)


if __name__ == "__main__":
    main()
