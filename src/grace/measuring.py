"""Measure confidences that already exist, whatever their source."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from grace.errors import DataError, RunError, packages_for
from grace.evidence import LOWEST
from grace.evidence.familiar import HALF
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
from grace.store import RunDir, is_run, is_study
from grace.store.inputs import Row, located, read_rows
from grace.tasks.columns import columns_to_read
from grace.tasks.draw import asked_key, together
from grace.tasks.values import read_options

TASK = "given answers"
DRAWN = 10**8  # responses in all bootstrap resamples; very many responses get fewer resamples

QUESTION = ("question_id", "question", "prompt", "messages", "id")
"""Fields that identify the question of a response; the first one that is there counts."""
UNPAIRED = (
    "No question is in all sources, so not all are compared: every line needs the same question_id "
    "in each, or without that the same question or id."
)
LOGPROBS = ("logprobs", "end_logprob")
LIKELIHOODS = ("mean_probability", "least_probability")
"""What `grace score` writes of the tokens of a field: their geometric mean, and the least."""
FITTED = "token probabilities, fitted"
FIELDS = (
    *QUESTION,
    *("group", "source", "familiar", "fields"),
    *("choices", "response", "text", "confidence", "correct", *LOGPROBS),
)


class RatedField(NamedTuple):
    """A graded field of a structured answer; `likelihoods` are its `LIKELIHOODS`, if known."""

    confidence: float | None
    correct: bool
    likelihoods: tuple[float, ...] | None = None


class GradedAnswer(NamedTuple):
    """One graded response."""

    id: str  # QUESTION#k for its k-th response; empty without a question
    question: str
    asked: str  # text of the question, else its name
    response: str
    confidence: float | None
    correct: bool
    logprobs: tuple[float, ...] | None = None  # of its tokens and, last, its end
    # shared by answers to one question or of one group (see `keys_in`)
    keys: tuple[Hashable, ...] = ()
    source: str = ""  # kind of question
    familiar: float | None = None  # of its prompt, as `grace score` says
    fields: Mapping[str, RatedField] = {}  # graded and rated ones of a structured answer


class Answers(NamedTuple):
    """The graded responses of one source, and the number of those without a grade."""

    rated: list[GradedAnswer]
    ungraded: int


@packages_for("grace.measure")
def measure(
    *sources: str | Path | Iterable[Mapping[str, Any]],
    out: str | Path | None = None,
    bins: int = 10,
) -> Report:
    """Measure ECE, Brier score and AUROC of the confidences of graded responses, with intervals.

    Args:
        sources: files (JSON Lines, CSV, Parquet), directories that `grace label` wrote, or rows
            with `confidence` and `correct`, such as a list of dicts or a `datasets.Dataset`.
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
    named = dict(zip(_names(sources), map(read_answers, sources), strict=True))
    every = [row.keys for answers in named.values() for row in answers.rated]
    groups = iter(together(every))
    results = [_result(name, answers.rated, groups) for name, answers in named.items()]
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
    """The first graded answers of two models to the same questions."""

    confidence: list[float | None]
    small: list[bool]
    large: list[bool]
    likelihood: list[float] | None  # log, of the small model's sequences; nan where there is none
    alone: int  # questions without a partner


def read_both(small: str | Path, large: str | Path) -> Both:
    """Return the graded answers of two models, in files or runs; the large one needs no c."""
    theirs, ours = dict[str, GradedAnswer](), dict[str, GradedAnswer]()
    for found, source in ((theirs, large), (ours, small)):
        given = _test_answers(Path(source)) if is_run(Path(source)) else source
        for row in read_answers(given, rated=found is ours).rated:
            found.setdefault(row.question, row)
    shared = [name for name in ours if name and name in theirs]
    if not shared:
        raise DataError(
            f"no question is in both {small} and {large}; give both the same question_id or "
            "question"
        )
    rows = [ours[name] for name in shared]
    sums = [math.nan if row.logprobs is None else sum(row.logprobs) for row in rows]
    return Both(
        [row.confidence for row in rows],
        [row.correct for row in rows],
        [theirs[name].correct for name in shared],
        None if all(map(math.isnan, sums)) else sums,
        len(ours.keys() | theirs.keys()) - len(shared),
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
        known = {name: getattr(response, name) for name in ("confidence", *LOGPROBS)}
        yield {**about, **known, "correct": grade.correct}


def read_answers(
    source: str | Path | Iterable[Mapping[str, Any]], *, rated: bool = True
) -> Answers:
    """Return the graded responses of a source, which without `rated` need no confidence."""
    found: list[GradedAnswer] = []
    count: Counter[str] = Counter()
    for where, fields in _rows(source):
        confidence = confidence_in(fields, where) if rated else None
        grades = grades_in(fields, where)
        correct = _of_whole(grades)
        question, asked = question_in(fields)
        number, count[question] = count[question], count[question] + 1
        if correct is None:
            continue
        answer_id = f"{question}#{number}" if question else ""
        written = (fields.get("response"), fields.get("text"))
        response = next((str(text) for text in written if text is not None), "")
        logprobs = logprobs_in(fields, where)
        about = (answer_id, question, asked, response)
        familiar = _share(fields.get("familiar"), "familiar", where)
        kind = (_as_text(fields.get("source")), familiar)
        keys = tuple(keys_in(fields))
        own = _rated_fields(fields, grades, where) if isinstance(grades, dict) else {}
        found.append(GradedAnswer(*about, confidence, correct, logprobs, keys, *kind, own))
    ungraded = count.total() - len(found)
    if not found:
        name = str(source) if isinstance(source, str | Path) else "the rows"
        problem = f"{ungraded} responses, none of them graded" if ungraded else "no responses"
        raise DataError(f"{name}: {problem}; give some with correct: true or false")
    return Answers(found, ungraded)


def _rows(source: str | Path | Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    if isinstance(source, str | Path):
        if is_run(Path(source)) or is_study(Path(source)):
            raise DataError(f"{source} is a run, which is measured: see `grace report {source}`")
        choose = functools.partial(columns_to_read, fields=FIELDS)
        for where, row in read_rows(source, choose=choose):
            yield Row(where, in_any_case(row, FIELDS))
        return
    for number, fields in enumerate(source):
        if not isinstance(fields, Mapping):
            raise DataError(
                f"row {number} is {type(fields).__name__}; give each row as a dict, as in "
                "df.to_dict('records') of a DataFrame, or name a file"
            )
        yield Row(f"row {number}", in_any_case(_plain(fields), FIELDS))


def _plain(value: Any) -> Any:
    """Return a value of NumPy or pandas as JSON has it, None for one that is missing there."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if (value == value) is True else None  # nan, NaT and NA do not equal themselves


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


def _result(name: str, rated: list[GradedAnswer], groups: Iterator[int]) -> EstimatorResult:
    return EstimatorResult(
        task=TASK,
        train_task=TASK,
        backbone="",
        estimator=name,
        seed=0,
        confidence=[row.confidence for row in rated],
        correct=[row.correct for row in rated],
        ids=[row.id or f"{name} row {at}#0" for at, row in enumerate(rated)],
        groups=[next(groups) for _ in rated],
    )


def _by_field(whole: EstimatorResult, rated: list[GradedAnswer]) -> Iterator[EstimatorResult]:
    """Yield the results of all fields and of each, beside what else tells of them."""
    every = [(at, name) for at, row in enumerate(rated) for name in sorted(row.fields)]
    names, fields = [name for _, name in every], [rated[at].fields[name] for at, name in every]
    groups = [whole.groups[at] for at, _ in every]
    found = {
        whole.estimator: [field.confidence for field in fields],
        f"{whole.estimator} (whole answer)": [rated[at].confidence for at, _ in every],
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
    pairs = [(row.confidence, row.correct) for row in answers.rated if row.confidence is not None]
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
            question=row.asked,
            answer=row.response,
            correct=row.correct,
            confidence=row.confidence,
            task=TASK,
        )
        for row in answers.rated
        if row.asked and row.response
    ]


def in_any_case(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a row's fields with those of some names that are spelt in another case, too."""
    spelt = {key.strip().lower(): key for key in fields}
    return {name: fields[spelt[name]] for name in names if name in spelt} | fields


def confidence_in(fields: dict[str, Any], where: str) -> float | None:
    """Return the confidence of a response, None where it is null."""
    if "confidence" not in fields:
        remedy = "rename the field with it, or let `grace score` add it"
        raise DataError(f'{where}: "confidence" is missing; {remedy}')
    return _share(fields["confidence"], "confidence", where)


def _share(given: Any, name: str, where: str) -> float | None:
    """Return a number from 0 to 1, None where it is null."""
    value = _parsed(given)
    if value is None:
        return None
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise DataError(
            f"{where}: {name} is {json.dumps(value, default=str)}; write a number from 0 to 1, "
            "or null for none"
        )
    return float(value)


def _rated_fields(
    fields: dict[str, Any], grades: dict[str, bool], where: str
) -> dict[str, RatedField]:
    """Return the fields that have a confidence and a grade (see `grace score`)."""
    rated = _parsed_json(fields.get("fields"))
    found = {}
    for name in grades.keys() & rated.keys() if isinstance(rated, dict) else ():
        about = rated[name] if isinstance(rated[name], dict) else {"confidence": rated[name]}
        c, *likelihoods = (
            _share(about.get(key), f"the {key.replace('_', ' ')} of the field {name!r}", where)
            for key in ("confidence", *LIKELIHOODS)
        )
        both = tuple(one for one in likelihoods if one is not None)
        found[name] = RatedField(c, grades[name], both if len(both) == len(LIKELIHOODS) else None)
    return found


def logprobs_in(fields: dict[str, Any], where: str) -> tuple[float, ...] | None:
    """Return the log-probabilities of a response's tokens and its end, None if one is missing."""
    tokens, end = (_parsed(fields.get(key)) for key in LOGPROBS)
    if tokens is None or end is None:
        return None
    try:
        return (*map(float, tokens), float(end))
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: logprobs must be a list of numbers and end_logprob a number, as `grace "
            "label` writes them; correct them or leave both out"
        ) from None


def grade_in(fields: dict[str, Any], where: str) -> bool | None:
    """Return whether a response is right, None where it is null; all fields of a structured one."""
    return _of_whole(grades_in(fields, where))


def _of_whole(grades: bool | dict[str, bool] | None) -> bool | None:
    return all(grades.values()) if isinstance(grades, dict) else grades


def grades_in(fields: dict[str, Any], where: str) -> bool | dict[str, bool] | None:
    """Return the grade of a response, or those of its fields; None where nothing is graded."""
    if "correct" not in fields:
        raise DataError(f'{where}: "correct" is missing; add it: true, false, or null if unknown')
    value = _parsed_json(fields["correct"])
    if isinstance(value, dict):
        graded = {name: _grade(one, f"{where}: correct of {name!r}") for name, one in value.items()}
        return {name: one for name, one in graded.items() if one is not None} or None
    return _grade(value, f"{where}: correct")


def _parsed_json(value: Any) -> Any:
    """Return the JSON object in a cell; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def _grade(given: Any, what: str) -> bool | None:
    value = _parsed(given)
    if value is not None and value not in (True, False):
        shown = json.dumps(value, default=str)
        raise DataError(f"{what} is {shown}; write true, false, or null if unknown")
    return None if value is None else bool(value)


def _parsed(value: Any) -> Any:
    """Return the JSON value in a CSV cell, such as true or 0.5; any other value as it is."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        return json.loads(value.lower())
    with contextlib.suppress(ValueError):  # .5 and +0.5
        return number if math.isfinite(number := float(value)) else value
    return value


def question_in(fields: dict[str, Any]) -> tuple[str, str]:
    """Return the name of a response's question (the first of `QUESTION`) and its text, or ""."""
    key = next((key for key in QUESTION[1:] if _as_text(fields.get(key))), "")
    named, asked = _as_text(fields.get(QUESTION[0])), _as_text(fields.get(key))
    if key == "question":
        asked = " ".join(filter(None, (asked, " / ".join(_options(fields)))))
    return named or asked, asked or named


def keys_in(fields: dict[str, Any]) -> Iterator[Hashable]:
    """Yield the keys of a row; rows that share one stay together in folds and resamples."""
    named = [(key, _as_text(fields.get(key))) for key in ("group", "question_id")]
    found: list[Hashable] = [key for key in named if key[1]]
    if question := _as_text(fields.get("question")):
        found.append(asked_key(question, _options(fields)))
    for key in ("messages", "prompt", "id"):
        if not found and (text := _as_text(fields.get(key))):
            found.append((key, text) if key == "id" else _conversation_key(fields[key]))
    yield from found


def _conversation_key(asked: Any) -> tuple[str, ...]:
    """Return the key of a prompt or of messages, which may be JSON in a cell."""
    turns = _parsed_list(asked)
    if turns and all(isinstance(turn, dict) and {"role", "content"} <= {*turn} for turn in turns):
        return asked_key(turns)
    return asked_key([{"role": "user", "content": _as_text(asked)}])


def _parsed_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    return value if isinstance(value, list) else []


def _options(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return a question's options: several questions may have one wording, and other options."""
    try:
        return read_options(Row("", fields))
    except DataError:
        return (str(fields.get("choices", "")),)


def _as_text(value: Any) -> str:
    """Return a field as a text, empty where it is missing."""
    value = _plain(value)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float | Decimal) and value % 1 == 0:
        value = int(value)  # whole numbers of a table are floats where one is missing
    return json.dumps(value, ensure_ascii=False, default=str)
