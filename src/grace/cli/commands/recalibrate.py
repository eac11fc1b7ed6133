"""`grace recalibrate`: adapt a confidence to other questions, from some graded answers."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from grace.cli.options import Json, examples
from grace.errors import DataError

if TYPE_CHECKING:
    from grace.evidence import Evidence
    from grace.model.recalibrating import Recalibrated
    from grace.tasks.answered import Answered

TITLES = {"ece": "ECE", "brier": "Brier", "auroc": "AUROC"}

EXAMPLES = (
    examples(
        "grace recalibrate runs/mine labelled adapted",
        "grace label others.jsonl labelled --model runs/mine",
    )
    + "\n\n`labelled` comes from the second command, which lets the model answer the other"
    " questions and grades the answers. Graded answers from `grace score` will do as well."
)


def recalibrate(
    path: Annotated[str, typer.Argument(metavar="MODEL", help="Directory of a run or an adapter.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Graded answers of this model, in the form of `grace measure`."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Adapter directory to write.")],
    as_json: Json = False,
) -> None:
    """Adapt a fitted confidence to other questions, from about a hundred graded answers.

    Three numbers are fitted: a weight for the hidden states, one for the
    log-probabilities, and an offset. The model and its answers stay the same. OUT
    can be asked, served and exported like any adapter. With a column `source`
    every source counts the same, and is shown. For graded records the
    confidences of fields get a slope and an offset of their own.
    """
    from grace.evidence import Evidence
    from grace.measuring import read_graded
    from grace.model.recalibrating import (
        fit_recalibration,
        parts,
        recalibratable,
        write_recalibrated,
    )
    from grace.probe.rows import sourced, sources_in
    from grace.store import read_card
    from grace.tasks.draw import together

    folder = recalibratable(Path(path))
    rated = [row for row in read_graded(file).rated if row.confidence is not None]
    if not rated:
        raise DataError(
            f"{file}: no graded answer has a confidence; let this model rate them: grace score"
        )
    confidence = [row.confidence or 0.0 for row in rated]
    correct = [row.correct is True for row in rated]
    questions = together(row.keys for row in rated)
    evidence = Evidence.in_card(read_card(folder))
    ended = [row.logprobs if row.has_end else None for row in rated]
    parts_PN = parts(evidence, confidence, ended)
    groups = sourced([row.source for row in rated], questions)
    fitted = fit_recalibration(parts_PN, correct, groups)
    fields = _fit_fields(evidence, rated, groups)
    write_recalibrated(folder, out, fitted, fields.fitted if fields else None)
    # One slope keeps the order of the answers; with answers of one kind there is no AUROC.
    same_auroc = len(parts_PN) == 1 or len(set(correct)) == 1
    metrics = ("ece", "brier") if same_auroc else ("ece", "brier", "auroc")
    compared = _compare(metrics, confidence, fitted.unseen, correct, questions)
    by_source = _by_source(sources_in(groups), confidence, fitted.unseen, correct)
    if as_json:
        numbers = {name: getattr(fitted, name) for name in ("rows", "evidence", "offset")}
        result = {**numbers, "answers": len(rated), "out": str(out), **compared}
        result |= {"sources": by_source} if by_source else {}
        if fields:
            kept = {name: getattr(fields.fitted, name) for name in ("rows", "offset")}
            result["fields"] = {**kept, "values": fields.values, "brier": fields.brier}
        print(json.dumps(result, indent=2))
        return
    _show(compared, f"{len(rated)} graded answers to {len(set(questions))} questions")
    for name, (before, after) in by_source.items():
        print(f"{name}: Brier score {100 * before:.1f} -> {100 * after:.1f}")
    if fields:
        (before, after), made = fields.brier, fields.fitted
        gained = f"Brier score {100 * before:.1f} -> {100 * after:.1f}"
        print(
            f"fields, {fields.values} values: {gained}; log-odds of c: {made.rows:.2f} times the "
            f"old ones {made.offset:+.2f}"
        )
    if len(parts_PN) == 1:
        print(f"log-odds of c: {fitted.rows:.2f} times the old ones {fitted.offset:+.2f}")
        if evidence is None:
            print(f"{path} does not use log-probabilities (method=paper): one slope for all")
        else:
            without = ended.count(None)
            which = f" of {without} answers" if without < len(rated) else ""
            untold = any(ended) or not any(row.logprobs for row in rated)
            what = "log-probabilities" if untold else "end_logprob"
            print(f"{file} has no {what}{which} (`grace label` writes them): one slope for all")
    else:
        print(
            f"log-odds of c: {fitted.rows:.2f} times what the hidden states say, "
            f"{fitted.evidence:.2f} times what the log-probabilities say, {fitted.offset:+.2f}"
        )
    print(f'written: {out}; next:   grace ask {out} "your question"')


class _Fields(NamedTuple):
    """What was fitted to graded fields: of how many values, and their Brier scores."""

    fitted: Recalibrated
    values: int
    brier: tuple[float, float]


def _fit_fields(
    evidence: Evidence | None, rated: Sequence[Answered], groups: Sequence[Hashable]
) -> _Fields | None:
    """Fit one slope and an offset to the graded fields of all answers; None if they are too few."""
    from grace.calibration import log_odds
    from grace.metrics import evaluate
    from grace.model.recalibrating import MIN_QUESTIONS, fit_recalibration

    if evidence is None or not evidence.fields:
        return None
    graded = [
        (c, right, group)
        for row, group in zip(rated, groups, strict=True)
        for c, right, _ in row.fields.values()
        if c is not None
    ]
    if len({group for *_, group in graded}) < MIN_QUESTIONS:
        return None
    confidence, correct, of = (list(column) for column in zip(*graded, strict=True))
    fitted = fit_recalibration(log_odds(confidence)[None], correct, of)
    before, after = (
        evaluate(each, correct, "brier")["brier"] for each in (confidence, fitted.unseen)
    )
    return _Fields(fitted, len(graded), (before, after))


def _compare(
    metrics: Sequence[str],
    before: list[float],
    after: list[float],
    correct: list[bool],
    questions: list[int],
) -> dict[str, dict[str, list[float]]]:
    """Return each metric before and after, and the difference, with the ends of its interval."""
    from grace.metrics import Resamples, difference, estimate

    resamples = Resamples(questions)
    old, new = (resamples.evaluate(side, correct, questions, metrics) for side in (before, after))
    compared = {
        "before": {name: estimate([old[name]]) for name in metrics},
        "after": {name: estimate([new[name]]) for name in metrics},
        "change": {name: difference([new[name]], [old[name]]) for name in metrics},
    }
    return {side: {n: list(found) for n, found in by.items()} for side, by in compared.items()}


def _by_source(
    sources: list[str], before: list[float], after: list[float], correct: list[bool]
) -> dict[str, tuple[float, float]]:
    """Return the Brier score of each of several sources, before and after."""
    from grace.metrics import evaluate

    found: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(sources):
        rows = [row for row, source in enumerate(sources) if source == name]
        right = [correct[row] for row in rows]
        old, new = (evaluate([c[row] for row in rows], right, "brier") for c in (before, after))
        found[name or "others"] = (old["brier"], new["brier"])
    return found


def _show(compared: dict[str, dict[str, list[float]]], title: str) -> None:
    from rich.console import Console

    from grace.report.console import console_table
    from grace.report.tables import Cell, Table, percent, points

    rows = []
    for name, (value, low, high) in compared["change"].items():
        sides = (compared[side][name] for side in ("before", "after"))
        shown = (percent(value, (low, high)) for value, low, high in sides)
        rows.append([Cell(TITLES[name]), *shown, points(name, value, (low, high))])
    heads = ("", "as it is", "recalibrated", "change")
    Console().print(console_table(Table(title, "", heads, rows, texts=1)))
    _, low, high = compared["change"]["brier"]
    change = "clearly better" if high < 0 else "clearly worse" if low > 0 else "no clear change"
    print(f"Brier score: {change} (5 folds: each answer rated by a fit without its question)")
    if high >= 0:
        more = "" if low > 0 else ", or grade more answers"
        print(f"keep using the model as it is for these questions{more}")
