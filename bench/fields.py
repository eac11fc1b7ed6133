"""A confidence for each field of structured answers, against what the field's own tokens say.

DATA is a folder of `qa_wikidata` (`train.jsonl`, `validation.jsonl`, `test.jsonl`: sentences such
as "The native language of Tove Jansson is", with accepted answers). A record is a subject with two
or more relations; the model fills in its fields as JSON, greedily and with structured decoding,
after three examples in plain text. Answers, states and log-probabilities are kept in OUT, 64
records a file, so that the command resumes.

A seed fits to two thirds of the subjects and rates the fields of the others. A state is reduced to
its 256 main directions among the rows of the fit, as in `bench/travel.py`. The baselines are c of
the whole record; the field's own token probability (the geometric mean, and the least), as it is,
by Platt scaling, and by Platt scaling with an offset for each field (of a ridge regression, as in
`grace measure`); and a logistic regression on all seven numbers of the field's log-probabilities,
with these offsets. Intervals are 95 % by 1,000
resamples of the subjects, of the difference from c of the field.

    python bench/fields.py MODEL DATA OUT --records 2000 --seeds 3
"""

from __future__ import annotations

import argparse
import collections
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from travel import PLACES, RESAMPLES, WIDTH, reduced

from grace.cnf import HeadShape
from grace.engines import Features, Sampling
from grace.engines.gguf import resolve_model
from grace.engines.reading import end_of, field_places
from grace.evidence import Evidence, features
from grace.grading import load_grader
from grace.methods.grace.fields import FieldColumns
from grace.methods.grace.fit import choose_layer, fit_readout, read_by
from grace.probe.logistic import fit_logistic
from grace.probe.rows import assign_folds, sigmoid
from grace.records import Message, Question

PATTERNS = (
    r"The (?P<name>country of citizenship) of (?P<subject>.+) is$",
    r"The (?P<name>.+?) (?:of|for|in|by) (?P<subject>.+) is$",
    r"(?P<subject>.+) (?:is (?P<name>capital of|located in)|(?P<other>writing languages)) ?$",
)
LEAST = 60  # records of a field
OPEN = ("shares a border with",)  # relations with many right answers, of which one is known
SHOTS, AT_ONCE = 3, 64
SHOWN, ALL = 60, "all fields"  # values of a field that is shown by itself


def main() -> None:
    """Collect what is missing, and print a table of the fields."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3, help="splits into a fit and a test")
    given = parser.parse_args()
    shots, records = read_records(given.data)
    engine: Any = None
    records = records[: given.records]
    given.out.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(records), AT_ONCE):
        file = given.out / f"{start:05d}.npz"
        if not file.exists():
            engine = engine or _load(given.model)
            collect(engine, shots, records[start : start + AT_ONCE], file)
    rows = stored(given.out)
    show(rows, [rate(rows, seed) for seed in range(given.seeds)])


def read_records(data: Path) -> tuple[list[Any], list[Any]]:
    """Return the examples and the records, in a random order: (subject, {field: accepted})."""
    of: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
    for split in ("train", "validation", "test"):
        for line in (data / f"{split}.jsonl").read_text().splitlines():
            row = json.loads(line)
            found = next(filter(None, (re.match(one, row["question"]) for one in PATTERNS)), None)
            if found:
                of[found["subject"]][found["name"] or found["other"]] = row["answers"]
    while True:  # a field that is left out may leave a subject with one
        count = collections.Counter(name for fields in of.values() for name in fields)
        few = {name for name in count if count[name] < LEAST or name in OPEN}
        kept = {
            subject: {name: right for name, right in fields.items() if name not in few}
            for subject, fields in of.items()
        }
        kept = {subject: fields for subject, fields in kept.items() if len(fields) > 1}
        if kept == of:
            break
        of = collections.defaultdict(dict, kept)
    records = sorted(of.items())
    order = np.random.default_rng(0).permutation(len(records))
    records = [records[place] for place in order]
    return records[:SHOTS], records[SHOTS:]


def prompt_of(shots: list[Any], record: Any) -> str:
    """Return the plain text that the model continues."""
    shown = "".join(
        f"{asked(one)} {json.dumps({k: v[0] for k, v in one[1].items()}, ensure_ascii=False)}\n\n"
        for one in shots
    )
    return f"{shown}{asked(record)}"


def asked(record: Any) -> str:
    """Return the question of a record."""
    subject, fields = record
    return f"Subject: {subject}\nFields: {', '.join(fields)}\nJSON:"


def _load(model: str) -> Any:
    from grace.engines.transformers import TransformersEngine

    return TransformersEngine.load(resolve_model(model))


def collect(engine: Any, shots: list[Any], records: list[Any], file: Path) -> None:
    """Let the model fill in some records, and store what is read of each record and field."""
    from grace.chat import encode_chat
    from grace.engines.local.layers import candidates
    from grace.engines.local.sampling import SampleRequest
    from grace.engines.structured import Form, Forms

    chats: list[list[Message]] = [
        [{"role": "text", "content": prompt_of(shots, one)}] for one in records
    ]
    prompts = [encode_chat(engine.tokenizer, chat) for chat in chats]
    forms = Forms(engine.tokenizer, engine.reader)
    allowed = [forms.compile(Form(schema_of(fields))) for _, fields in records]
    sampling = Sampling(max_new_tokens=120)
    keys = [str(number) for number in range(len(prompts))]
    batch = engine.batch([SampleRequest(prompts, sampling, keys, allowed)])
    responses = [one for _, one in sorted(batch.finished())]
    grader = load_grader("auto")
    info, asked, given = [], [], []
    for record, prompt, one in zip(records, prompts, responses, strict=True):
        if one.finish_reason != "stop":
            continue
        fields = {}
        for name, place in field_places(engine.tokenizer, one.token_ids).items():
            question = Question(name, "jsonl", "", tuple(record[1][name]))
            end, value = end_of(place, one.logprobs), str(place.value)
            fields[name] = [grader(value, question), place.start, place.end, end, value]
        assert [*fields] == [*record[1]], one.text
        row = {"subject": record[0], "text": one.text, "logprobs": one.logprobs}
        info.append(row | {"end": one.end_logprob, "fields": fields})
        asked.append(prompt)
        given.append(one.token_ids)
    # one pass over each record: the first and the last step of every value, and the one after it
    most = 3 * max(len(row["fields"]) for row in info)
    steps = [
        [step for _, first, last, *_ in row["fields"].values() for step in (first, last, last + 1)]
        for row in info
    ]
    read = engine.states(
        asked, given, [one + [0] * (most - len(one)) for one in steps], candidates(engine.model)
    )
    arrays = {}
    for layer, (whole, at) in read.items():
        rows = [(whole.mean_ND[n], whole.last_ND[n], whole.first_ND[n]) for n in range(len(info))]
        close = list(whole.last_ND)
        for n, row in enumerate(info):
            for k, (_, first, last, *_) in enumerate(row["fields"].values()):
                so_far_D, all_D = at.mean_NBD[n, 3 * k], at.mean_NBD[n, 3 * k + 1]
                mean_D = (last * all_D - first * so_far_D) / (last - first)
                rows.append((mean_D, at.at_NBD[n, 3 * k + 1], at.at_NBD[n, 3 * k]))
                close.append(at.at_NBD[n, 3 * k + 2])
        named = zip((*PLACES, "close"), (*zip(*rows, strict=True), close), strict=True)
        arrays |= {f"{name}.{layer}": np.array(each).astype(np.float16) for name, each in named}
    part = file.with_suffix(".part.npz")
    np.savez(part, info=json.dumps(info), **arrays)
    part.rename(file)
    graded = [right for row in info for right, *_ in row["fields"].values()]
    print(
        f"{file.stem}: {len(info)} records, {len(graded)} fields, {sum(graded)} right", flush=True
    )


def schema_of(fields: Any) -> dict[str, Any]:
    """Return the JSON schema of a record."""
    short = {"type": "string", "maxLength": 60}
    return {
        "type": "object",
        "properties": {name: short for name in fields},
        "required": [*fields],
        "additionalProperties": False,
    }


def stored(folder: Path) -> dict[str, Any]:
    """Return the rows, whole records and fields: names, subjects, grades, features, states."""
    found: dict[str, list[Any]] = collections.defaultdict(list)
    for file in map(np.load, sorted(folder.glob("?????.npz"))):
        info = json.loads(str(file["info"]))
        every = [(row, None, all(one[0] for one in row["fields"].values())) for row in info]
        every += [(row, name, one[0]) for row in info for name, one in row["fields"].items()]
        for row, name, right in every:
            _, first, last, end, _ = row["fields"][name] if name else (0, 0, None, row["end"], "")
            found["names"].append(name)
            found["subjects"].append(row["subject"])
            found["right"].append(right)
            found["features"].append(features(row["logprobs"][first:last], end))
        for key in file.files:
            if "." in key:
                found[key].append(file[key].astype(np.float32))
    return {
        key: np.concatenate(each) if "." in key else np.array(each) for key, each in found.items()
    }


def rate(rows: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the confidences of the fields of a third of the subjects, by a fit to the others."""
    subjects = np.unique(rows["subjects"])
    rng = np.random.default_rng(seed)
    known = rng.permutation(subjects)[: 2 * len(subjects) // 3]
    fit_N, is_field_N = np.isin(rows["subjects"], known), np.array([*map(bool, rows["names"])])
    test, whole = np.flatnonzero(~fit_N & is_field_N), np.flatnonzero(~fit_N & ~is_field_N)
    names_N, phi_NF, right_N = (rows[key][fit_N] for key in ("names", "features", "right"))
    groups = rows["subjects"][fit_N].tolist()
    stored_at = sorted({int(key.split(".")[1]) for key in rows if "." in key})
    layers = [stored_at[0], *stored_at[2:4]]  # the last state, and the two blocks in the middle
    states = {
        layer: [
            reduced(rows[f"{place}.{layer}"][fit_N], rows[f"{place}.{layer}"], rng)
            for place in PLACES
        ]
        for layer in layers
    }

    def read(layer: int) -> Features:
        mean, last, first = (fitted for fitted, _ in states[layer])
        return Features(mean, last, first)

    columns = FieldColumns(phi_NF, names_N.tolist(), right_N.astype(float), assign_folds(groups))
    wide_NX = columns.matrix_NX
    chosen = choose_layer(read_by(read, wide_NX), layers, right_N, groups, free=True)
    made = fit_readout(read, wide_NX, right_N, groups, HeadShape(np.zeros(WIDTH)), layer=chosen)
    evidence = columns.split(made.evidence)
    mean, last, first = (each for _, each in states[chosen.layer])
    pairs = zip((last, first, mean), made.weights_QD, strict=True)
    state_N = np.sum([each_ND @ row_D for each_ND, row_D in pairs], axis=0)

    def c_of(row: int, own: Evidence) -> float:
        return own.confidence(state_N[row], own.shift_of(rows["features"][row]))

    print(f"seed {seed}: fitted to {fit_N.sum()} rows, block {chosen.layer}", flush=True)
    of_whole = {rows["subjects"][row]: c_of(row, evidence) for row in whole}
    found = {"c of the field": [c_of(row, evidence.of_field(rows["names"][row])) for row in test]}
    found["c of the whole record"] = [of_whole[subject] for subject in rows["subjects"][test]]
    named = np.unique(rows["names"][is_field_N])
    offset_NM = (rows["names"][:, None] == named).astype(float)
    none_N1, fitted = np.zeros((len(fit_N), 1)), fit_N & is_field_N
    for label, kept in (("mean", [0]), ("least", [4]), ("all seven numbers", [*range(7)])):
        value_NF = rows["features"][:, kept]
        if len(kept) == 1:
            raw = value_NF[test, 0]
            found[f"{label} token probability"] = np.exp(raw) if label == "mean" else raw
            found[f"{label}, Platt"] = _platt([none_N1, value_NF], rows, fitted, test)
        blocks = [offset_NM, value_NF]
        found[f"{label}, Platt and offsets"] = _platt(blocks, rows, fitted, test)
    return {"rows": test, "c": {method: np.array(c) for method, c in found.items()}}


def _platt(blocks: list[Any], rows: dict[str, Any], fitted_N: Any, test: Any) -> np.ndarray:
    """Return a logistic regression fitted to the fields of the fit; the last block is free."""
    groups, right_N = rows["subjects"][fitted_N].tolist(), rows["right"][fitted_N]
    made = fit_logistic([block[fitted_N] for block in blocks], right_N, groups, free=True)
    pairs = zip(blocks, made.weights, strict=True)
    return sigmoid(sum(block[test] @ weights for block, weights in pairs) + made.bias)


def show(rows: dict[str, Any], rated: list[dict[str, Any]]) -> None:
    """Print the means over the seeds, and the differences of the others from c of the field."""
    is_field_N = np.array([*map(bool, rows["names"])])
    count = collections.Counter(rows["names"][is_field_N].tolist())
    subjects, place_N = np.unique(rows["subjects"], return_inverse=True)
    share, of_whole = (100 * rows["right"][kept].mean() for kept in (is_field_N, ~is_field_N))
    print(
        f"{len(subjects)} records, {of_whole:.1f}% right as a whole; {count.total()} values, "
        f"{share:.1f}% right"
    )
    rng, size = np.random.default_rng(0), len(subjects)
    draws = [np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(RESAMPLES)]
    for shown in [ALL, *(name for name, n in count.most_common() if n >= SHOWN)]:
        kept = [
            [n for n, row in enumerate(one["rows"]) if shown in (ALL, rows["names"][row])]
            for one in rated
        ]
        parts = [(one["c"], one["rows"][at], at) for one, at in zip(rated, kept, strict=True)]
        share = 100 * np.concatenate([rows["right"][row] for _, row, _ in parts]).mean()
        print(
            f"\n{shown}: {count.get(shown, count.total())} values, {share:.1f}% right", flush=True
        )
        ours: Any = None
        for method in rated[0]["c"]:
            ranked = [(c[method][at], rows["right"][row], place_N[row]) for c, row, at in parts]
            each = [(*one, np.unique(one[0], return_inverse=True)[1]) for one in ranked]
            drawn = [
                np.mean([_metrics(c, right, weight_S[at], rank) for c, right, at, rank in each], 0)
                for weight_S in (np.ones(size), *draws)
            ]
            ours = drawn if ours is None else ours
            low, high = np.nanpercentile(np.array(drawn) - np.array(ours), [2.5, 97.5], axis=0)
            line = "  {:36} Brier{:5.1f} AUROC{:5.1f}".format(method, *drawn[0])
            if drawn is not ours:
                line += f"   {low[0]:+.1f} to {high[0]:+.1f}, {low[1]:+.1f} to {high[1]:+.1f}"
            print(line, flush=True)


def _metrics(c_N: Any, right_N: Any, weight_N: Any, rank_N: Any) -> np.ndarray:
    """Return the Brier score and the AUROC of weighted rows, in percent."""
    right, wrong = weight_N * right_N, weight_N * ~right_N
    if not right.sum() * wrong.sum():
        return np.full(2, np.nan)
    wrong_V = np.bincount(rank_N, wrong)
    below_V = np.cumsum(wrong_V) - wrong_V / 2
    auroc = (below_V[rank_N] * right).sum() / right.sum() / wrong.sum()
    return 100 * np.array([np.average((c_N - right_N) ** 2, weights=weight_N), auroc])


if __name__ == "__main__":
    main()
