"""Measure confidences that already exist, whatever their source."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import DataError, RunError, packages_for
from grace.evidence import LOWEST
from grace.evidence.familiar import HALF
from grace.progress import say
from grace.report import (
    EstimatorResult,
    RatedAnswer,
    Report,
    ReportInput,
    check_report_place,
    summarize,
    write_report,
)
from grace.report.inputs import FEWEST_OF_A_PART
from grace.report.names import label
from grace.report.rows import group_by
from grace.store import RunDir, is_run
from grace.store.inputs import located
from grace.tasks.answered import Answered, RatedField, read_answers
from grace.tasks.draw import together
from grace.tasks.rows import Faults

TASK = "given answers"
DRAWN = 10**8  # responses in all bootstrap resamples; very many responses get fewer resamples

UNPAIRED = (
    "No question is in all sources, so not all are compared: every line needs the same question_id "
    "in each, or without that the same question or id."
)
FITTED = "token probabilities, fitted"


@dataclass(frozen=True)
class Answers:
    """The graded answers of one source, and the number of those without a grade."""

    rated: list[Answered]
    ids: list[str]  # QUESTION#k for the k-th answer to a question; empty without a question
    ungraded: int

    @functools.cached_property
    def has_confidence(self) -> bool:
        """Whether a confidence is told; if not, the likelihood of the answers stands for it."""
        told = any("confidence" in row.known for row in self.rated)
        return told or all(row.likelihood is None for row in self.rated)

    @functools.cached_property
    def confidence(self) -> list[float | None]:
        """What is measured of each answer."""
        own, faults, found = self.has_confidence, Faults(), list[float | None]()
        for row in self.rated:
            with faults.of(row.where):
                found.append(row.confidence if own else row.likelihood)
        faults.refuse(some=bool(found))
        return found


@packages_for("grace.measure")
def measure(
    *sources: str | Path | Iterable[Mapping[str, Any]],
    out: str | Path | None = None,
    bins: int = 10,
) -> Report:
    """Measure ECE, Brier score and AUROC of the confidences of graded responses, with intervals.

    Args:
        sources: files (JSON Lines, CSV, Parquet), directories that `grace label` wrote, or rows
            with `confidence` (or else `logprobs`) and `correct`, such as a list of dicts or a
            `datasets.Dataset`.
            Several are compared, question by question where rows have a `question`.
        out: a directory for report.html, report.md and figures; None: write nothing.
        bins: number of equal-width bins of ECE.

    Raises:
        DataError: a source cannot be read, a row has no confidence or grade, or none is graded.
        ConfigError: `out` is a file or a run, or a package that is needed is not installed.
    """
    folder = None if out is None else Path(out)
    check_report_place(folder)
    if not sources:
        raise DataError("nothing is named to measure; give a file, or rows")
    named = dict(zip(_names(sources), map(read_graded, sources), strict=True))
    every = [row.keys for answers in named.values() for row in answers.rated]
    groups = iter(together(every))
    results = [_result(name, answers, groups) for name, answers in named.items()]
    notes = [note for name, answers in named.items() for note in _notes(name, answers)]
    if len(results) > 1 and not set.intersection(*(set(result.ids) for result in results)):
        notes.append(UNPAIRED)
    for whole, answers in zip(tuple(results), named.values(), strict=True):
        results += whole.parts([row.source or "others" for row in answers.rated])
        results += whole.parts([_familiarity(row.familiar) for row in answers.rated])
        results += _by_field(whole, answers.rated)
    data = ReportInput(
        name=", ".join(named),
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        hardware="from given files",
        results=results,
        notes=notes,
        examples=_examples(*named.values()) if len(named) == 1 else (),
    )
    most = max(len(answers.rated) for answers in named.values())
    report = summarize(data, bins=bins, resamples=max(100, min(1000, DRAWN // most)))
    if folder is not None:
        write_report(report, folder)
    return report


class Both(NamedTuple):
    """The first graded answers of two models to the same questions, one question of each group."""

    confidence: list[float | None]
    small: list[bool]
    large: list[bool]
    likelihood: list[float] | None  # sum of log p of the small model's answer; nan where unknown
    alone: int  # questions without a partner


def read_both(small: str | Path, large: str | Path) -> Both:
    """Return the graded answers of two models, in files or runs; the large one needs no c."""
    theirs, ours = dict[str, Answered](), dict[str, Answered]()
    for found, source in ((theirs, large), (ours, small)):
        for row in read_graded(
            _test_answers(Path(source)) if is_run(Path(source)) else source
        ).rated:
            found.setdefault(row.names[0], row)
    confidence = {name: row.confidence for name, row in ours.items()}
    shared = [name for name in ours if name and name in theirs]
    if not shared:
        raise DataError(
            f"no question is in both {small} and {large}; give both the same question_id or "
            "question"
        )
    alone = len(ours.keys() | theirs.keys()) - len(shared)
    group_N = together([*ours[name].keys, *theirs[name].keys] for name in shared)  # by first row
    firsts = [name for at, name in enumerate(shared) if group_N[at] == at]
    if len(firsts) < len(shared):
        say(f"one question of each group is used: {len(firsts)} of {len(shared)}")
    rows = [ours[name] for name in firsts]
    sums = [sum(row.logprobs) if row.logprobs else math.nan for row in rows]
    return Both(
        [confidence[name] for name in firsts],
        [row.correct is True for row in rows],
        [theirs[name].correct is True for name in firsts],
        None if all(map(math.isnan, sums)) else sums,
        alone,
    )


def _test_answers(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the test answers of a finished run, as lines of a file would have them."""
    split = RunDir(run).split("test")
    own = split.tuned
    if not own.grades.path.exists():
        raise RunError(f"{run} has no rated test answers yet; finish it first: grace run {run}")
    asked = {question.id: question for question in split.questions.read()}
    for response, grade in zip(own.responses.read(), own.grades.read(), strict=True):
        question = asked[response.question_id]
        choices = {"choices": list(question.choices)} if question.choices else {}
        about = {"question": question.text, **choices, "response": response.text}
        about |= {"group": question.group} if question.group else {}
        known = {k: getattr(response, k) for k in ("confidence", "logprobs", "end_logprob")}
        yield {**about, **known, "correct": grade.correct}


def read_graded(source: str | Path | Iterable[Mapping[str, Any]]) -> Answers:
    """Return the answers of a source that are graded."""
    rated, ids = list[Answered](), list[str]()
    count: Counter[str] = Counter()
    faults = Faults()
    for row in read_answers(source, bad=faults.add):
        with faults.of(row.where):
            question, _ = row.names
            if row.correct is not None:
                rated.append(row)
                ids.append(f"{question}#{count[question]}" if question else "")
            count[question] += 1
    faults.refuse(some=bool(rated))
    if not rated:
        name = str(source) if isinstance(source, str | Path) else "the rows"
        ungraded = f"{count.total()} responses, none of them graded"
        problem = ungraded if count else "no responses"
        raise DataError(f"{name}: {problem}; give some with correct: true or false")
    return Answers(rated, ids, count.total() - len(rated))


def _names(sources: Sequence[str | Path | Iterable[Mapping[str, Any]]]) -> list[str]:
    """Return a name for each source: of a file its stem, unless two files have the same."""
    long, short, places = [], [], set[str]()
    for number, source in enumerate(sources):
        if isinstance(source, str | Path):
            if (place := located(source)) in places:
                raise DataError(f"{source} is named twice; name each file once")
            places.add(place)
            long.append(str(source))
            short.append("stdin" if str(source) == "-" else _stem(Path(source).resolve()))
        else:
            long.append(f"rows {number}")
            short.append(f"rows {number}")
    return short if len(set(short)) == len(short) else long


def _stem(file: Path) -> str:
    """Return a file's name without its ending, unless the report has a label for such a name."""
    return file.stem if label(file.stem) == file.stem.replace("_", " ") else file.name


def _result(name: str, answers: Answers, groups: Iterator[int]) -> EstimatorResult:
    return EstimatorResult(
        task=TASK,
        train_task=TASK,
        backbone="",
        estimator=name,
        seed=0,
        confidence=answers.confidence,
        correct=[row.correct is True for row in answers.rated],
        ids=[each or f"{name} row {at}#0" for at, each in enumerate(answers.ids)],
        groups=[next(groups) for _ in answers.rated],
    )


def _by_field(whole: EstimatorResult, rated: list[Answered]) -> Iterator[EstimatorResult]:
    """Yield the results of all fields and of each, beside what else tells of them."""
    every = [(at, name) for at, row in enumerate(rated) for name in sorted(row.fields)]
    names, fields = [name for _, name in every], [rated[at].fields[name] for at, name in every]
    groups = [whole.groups[at] for at, _ in every]
    found = {
        whole.estimator: [field.confidence for field in fields],
        f"{whole.estimator} (whole answer)": [whole.confidence[at] for at, _ in every],
    }
    of_tokens = _of_tokens(fields, names, groups)
    found |= {f"{whole.estimator} ({kind})": values for kind, values in of_tokens.items()}
    for estimator, confidence in found.items():
        result = dataclasses.replace(
            whole,
            estimator=estimator,
            confidence=confidence,
            correct=[field.correct for field in fields],
            ids=[f"{name} {whole.ids[at]}" for at, name in every],
            groups=groups,
        )
        places_of = group_by(range(len(names)), lambda place: f"field {names[place]}")
        several = {"all fields": [*range(len(names))]} if len(places_of) > 1 else {}
        for name, places in {**several, **dict(sorted(places_of.items()))}.items():
            if len(places) >= FEWEST_OF_A_PART:
                yield result.part(name, places)


def _of_tokens(
    fields: Sequence[RatedField], names: Sequence[str], groups: Sequence[Hashable]
) -> dict[str, list[float | None]]:
    """Return what the token probabilities of fields say: as they are, and fitted to the grades.

    The fit rates each field by those of other questions: a logistic regression on both
    probabilities, with an offset for each name that is not rare, drawn towards none.
    """
    import numpy as np

    from grace.probe.logistic import EVERY_FOLD, fit_logistic
    from grace.probe.rows import sigmoid

    known = [at for at, field in enumerate(fields) if field.likelihoods]
    mean_N, least_N = np.array([fields[at].likelihoods for at in known]).reshape(-1, 2).T
    found = {"mean token probability": mean_N, "least token probability": least_N}
    right_N = np.array([float(fields[at].correct) for at in known])
    groups_N = [groups[at] for at in known]
    if len({*groups_N}) > 1 and 0 < right_N.sum() < len(known):
        own = Counter(named := [names[at] for at in known])
        shown = sorted(name for name in own if own[name] >= FEWEST_OF_A_PART) or [""]
        offset_NM = np.array(named)[:, None] == np.array(shown)
        phi_NF = np.column_stack([np.log(np.maximum(mean_N, math.exp(LOWEST))), least_N])
        blocks = [offset_NM * 1.0, phi_NF]
        made = fit_logistic(blocks, right_N, groups_N, free=True, nested=EVERY_FOLD)
        found[FITTED] = sigmoid(made.nested)
    spread: dict[str, list[float | None]] = {}
    for kind, values_N in found.items() if known else ():
        spread[kind] = [None] * len(fields)
        for at, value in zip(known, values_N.tolist(), strict=True):
            spread[kind][at] = value
    return spread


def _familiarity(value: float | None) -> str:
    if value is None:
        return "prompts of unknown kind"
    return "familiar prompts" if value >= HALF else "unfamiliar prompts"


def _notes(name: str, answers: Answers) -> Iterator[str]:
    every = zip(answers.confidence, answers.rated, strict=True)
    pairs = [(c, row.correct is True) for c, row in every if c is not None]
    if not answers.has_confidence:
        yield (
            f"{name}: no row has a confidence; the mean probability of its tokens, by `logprobs`, "
            "is measured in its place."
        )
    if pairs:
        mean, right = (100 * sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        side = "too sure" if mean > right else "not sure enough"
        gap = f"{abs(mean - right):.1f}"
        verdict = "" if gap == "0.0" else f": {side} by {gap} points"
        yield f"{name}: {mean:.1f}% sure on average, {right:.1f}% right{verdict}."
    if any(one.likelihoods for row in answers.rated for one in row.fields.values()):
        yield (
            f"{name}: '{FITTED}' is a logistic regression of a field's grade on both of its token "
            "probabilities and its name, fitted to the fields of other questions of the same file."
        )
    if answers.ungraded:
        yield f"{name}: {answers.ungraded} responses have no grade and are left out."


def _examples(answers: Answers) -> list[RatedAnswer]:
    """Return the responses that have a question and a text, to show on the page."""
    return [
        RatedAnswer(
            question=row.names[1],
            answer=row.shown,
            correct=row.correct is True,
            confidence=confidence,
            task=TASK,
        )
        for row, confidence in zip(answers.rated, answers.confidence, strict=True)
        if row.names[1] and row.shown
    ]
