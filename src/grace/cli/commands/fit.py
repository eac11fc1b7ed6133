"""`grace fit`: fit a confidence to graded answers, without training the model."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from grace.cli.options import SOURCES, Device, Dtype, Json, Set, examples, refuse_unused
from grace.config import override_settings
from grace.errors import DataError
from grace.store import check_vacant
from grace.tasks.answered import Answered, read_answers
from grace.tasks.rows import Faults, note

if TYPE_CHECKING:
    from grace.methods.grace.fit import Fit
    from grace.pipeline.stages.graded import GradedRow

FEWEST = 20  # graded answers
DRAWING = ("dir", "file", "question_field", "answer_field", "train", "validation", "test", "shots")
UNUSED = (  # settings of a run alone
    *("method", "grace.", "paper.", "grade.", "report.", "model.engine", "model.path"),
    *(f"data.{name}" for name in DRAWING),
)
EXAMPLES = (
    examples(
        "grace fit HuggingFaceTB/SmolLM2-135M-Instruct graded.jsonl fitted",
        "grace fit HuggingFaceTB/SmolLM2-135M-Instruct trivia.jsonl science.jsonl fitted",
        'grace ask fitted "Who wrote Middlemarch?"',
    )
    + '\n\nA line of graded.jsonl: {"question": "Who wrote Middlemarch?", "response": "George'
    ' Eliot", "correct": true}. Questions are asked with the prompt of the settings (data.prompt,'
    " data.system, ...); to say exactly what the model has read, such as examples before the"
    " question, give `prompt` or `messages` in place of `question`."
)


def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model that gave the answers: a directory, GGUF file or Hub id."
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help=f"Graded answers: {SOURCES}. `grace label` writes such a directory. Several files "
            "are several sources, and so are the values of a column `source`.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Adapter directory to write.")],
    trace: Annotated[
        bool, typer.Option("--trace", help="Also fit the confidence at every token of an answer.")
    ] = False,
    settings: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Fit a confidence to answers that you have graded, without training the model.

    The model's answers stay exactly the same. OUT can be asked, served and
    exported like any adapter.
    """
    from grace.pipeline.stages.graded import fit_graded
    from grace.report.names import TRUE_ECE
    from grace.report.rows import group_by
    from grace.tasks.draw import together

    what = "grace fit reads answers and does not draw, sample, grade or train"
    refuse_unused(settings or [], UNUSED, what, used=["grace.layer"])
    check_vacant(out)
    answers = [
        answer for file in files for answer in _graded(file, str(file) if len(files) > 1 else "")
    ]
    if len(answers) < FEWEST:
        named = " and ".join(map(str, files))
        raise DataError(
            f"{named} hold{'s' * (len(files) == 1)} {len(answers)} graded "
            f"answer{'s' * (len(answers) != 1)}; give at least {FEWEST}, better 500"
        )
    answers = _in_sources(answers)
    tree = {
        "model": {"path": model, "device": device, "dtype": dtype},
        "data": {"file": str(files[0])},
        "grace": {"trace": trace},
    }
    resolved = override_settings(tree, settings or [])
    fitted, rows = fit_graded(resolved, answers, out)
    groups = together(answer.keys for answer in answers)
    places_of = group_by(range(len(rows)), lambda place: rows[place].name)
    whole, *fields = [
        _Measured(
            name or "",
            [rows[place].right for place in places],
            _measure(fitted, rows, places, groups),
        )
        for name, places in places_of.items()
    ]
    if as_json:
        found = {"out": str(out), "answers": len(answers), **whole.shown}
        if fields:
            found["fields"] = {one.name: {"values": len(one.right), **one.shown} for one in fields}
        print(json.dumps(found, indent=2))
        return
    print(f"{len(answers)} graded answers, {whole.accuracy:.1f}% right")
    sources, folds = len({answer.source for answer in answers}), int(fitted.fold_N.max()) + 1
    print(f"each rated by a fit and its choices that have not seen its question ({folds} folds):")
    for name, (value, low, high) in whole.metrics.items():
        print(f"  {name.upper():6} {100 * value:5.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    if whole.metrics["ece"][0] > whole.metrics["ece"][2]:
        print(TRUE_ECE)
    if fields:
        print("fields, rated in the same way:")
    for one in sorted(fields, key=lambda one: -len(one.right)):
        numbers = (f"{name.upper()} {100 * v:.1f}" for name, (v, *_) in one.metrics.items())
        print(
            f"  {one.name}: {len(one.right)} values, {one.accuracy:.1f}% right, "
            f"{', '.join(numbers)}"
        )
    if sources == 1:
        print(
            "one source: on questions of other kinds the confidence may be wrong; for one that "
            "holds there, fit it to several sources (a column `source`, or several files)"
        )
    print(f'written: {out}; next:   grace ask {out} "your question"')


def _graded(file: Path, source: str = "") -> Iterator[Answered]:
    """Yield the answers that were graded, not cut, and not empty: others have no confidence.

    Those without a source are of `source`.
    """
    faults, kept, every = Faults(), 0, 0
    for row in read_answers(file, bad=faults.add):
        every += 1
        with faults.of(row.where):
            if row.grades is not None and not row.is_cut and row.response.strip():
                _ = row.asked, row.choices  # refused before a model is loaded
                kept += 1
                yield row if row.source else row.of(source)
    faults.refuse(some=kept > 0)
    if kept < every:
        note(f"{file}: {every - kept} of {every} answers are cut, empty or not graded: left out")


def _in_sources(answers: Sequence[Answered]) -> list[Answered]:
    """Return the answers; sources of too few count as one together, such as addresses of pages."""
    sizes = collections.Counter(answer.source for answer in answers)
    few = [source for source, size in sizes.items() if size < FEWEST]
    together = sum(sizes[source] for source in few)
    if together and together < FEWEST:
        raise DataError(
            f"the source {few[0]!r} has {sizes[few[0]]} graded answers; give at least {FEWEST} of "
            "each source, or leave it out"
        )
    return [answer.of("") if answer.source in few else answer for answer in answers]


class _Measured(NamedTuple):
    """The grades of whole answers, or of a field, and the metrics of their held-out c."""

    name: str
    right: list[bool]
    metrics: dict[str, list[float]]

    @property
    def accuracy(self) -> float:
        return 100 * sum(self.right) / len(self.right)

    @property
    def shown(self) -> dict[str, list[float | None]]:
        """The metrics as JSON has them."""
        metrics = self.metrics.items()
        return {name: [None if math.isnan(v) else v for v in values] for name, values in metrics}


def _measure(
    fitted: Fit, rows: Sequence[GradedRow], places: Sequence[int], groups: Sequence[int]
) -> dict[str, list[float]]:
    """Return the value, lower and upper end of each metric.

    AUROC is that of `Fit.ranks`: the base rates that the fits of the folds have seen are the lower,
    the more right answers were held out, so `Fit.held_out` ranks noise below 50. Its interval is
    wider by the root of 2: any two answers in different folds count twice, each rated by a fit to
    the other, which doubles the variance where there is nothing to learn. Where there is, a fit to
    fewer answers is a little worse than the one that ships, and as much is needed (decision 018).
    """
    from grace.metrics import bootstrap, evaluate
    from grace.probe.rows import sigmoid

    ranked, held_out = sigmoid(fitted.ranks)[places], fitted.held_out[places]
    correct = [rows[place].right for place in places]
    questions = [groups[rows[place].answer] for place in places]
    found = {}
    for name, c in (("ece", held_out), ("brier", held_out), ("auroc", ranked)):
        value = evaluate(c, correct, name)[name]
        low, high = bootstrap(c, correct, name, questions=questions)[name]
        if name == "auroc":
            low, high = (value + math.sqrt(2) * (end - value) for end in (low, high))
        found[name] = [value, max(low, 0.0), min(high, 1.0)]
    return found
