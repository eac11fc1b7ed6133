"""`grace fit`: a model that tells its confidence, from graded answers and without LoRA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.cli.answers import PROMPT_KEYS, InputLine, checked_line
from grace.cli.options import Device, Dtype, Json, Set, examples
from grace.errors import DataError
from grace.store.inputs import Row

FEWEST = 20  # graded answers
COLUMNS = (*PROMPT_KEYS, "choices", "text", "response", "finish_reason", "correct")

FIT = (
    examples(
        "grace fit HuggingFaceTB/SmolLM2-135M-Instruct graded.jsonl fitted",
        'grace ask fitted "Who wrote Middlemarch?"',
        "grace export fitted exported",
    )
    + '\n\nA line of graded.jsonl: {"question": "Who wrote Middlemarch?", "response": "George'
    ' Eliot", "correct": true}. In place of `question`, which is asked with the prompt that the'
    " settings name (data.prompt, data.shots, ...), it may hold `prompt` or `messages`."
)


def fit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="directory, GGUF file or Hub id")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="graded answers: .jsonl, .csv, .parquet, or what `grace label` wrote; - for stdin",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the adapter to write")],
    trace: Annotated[
        bool, typer.Option("--trace", help="also fit the confidence at every token")
    ] = False,
    settings: Set = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Fit a confidence to graded answers: two vocabulary rows, no training of the model.

    The model's answers stay exactly what they are. OUT loads, serves and exports like any adapter.
    """
    from grace.config import override_settings
    from grace.pipeline.stages.fit import fit_graded
    from grace.store import check_vacant

    check_vacant(out)
    lines = list(_graded(file))
    if len(lines) < FEWEST:
        raise DataError(
            f"{file} holds {len(lines)} graded answer{'s' * (len(lines) != 1)}; give at least "
            f"{FEWEST}, better 500"
        )
    tree = {
        "model": {"path": model, "device": device, "dtype": dtype},
        "data": {"file": str(file)},
        "train": {"lora": "never", "trace": trace},
    }
    resolved = override_settings(tree, settings or [])
    made = fit_graded(resolved, [_answer(line) for line in lines], out)
    correct = [line.fields["correct"] for line in lines]
    found = _measured(made.held_out.tolist(), correct)
    if as_json:
        print(json.dumps({"out": str(out), "answers": len(lines), **found}, indent=2))
        return
    print(f"{len(lines)} graded answers, {100 * sum(correct) / len(lines):.1f} % right")
    print("each rated by a fit that has not seen its question (5 folds):")
    for name, (value, low, high) in found.items():
        print(f"  {name.upper():6} {100 * value:5.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    print(f'written: {out}; next:   grace ask {out} "your question"')


def _graded(file: Path) -> Iterator[InputLine]:
    """Yield the answers that were graded and came to their own end."""
    from grace.measuring import answer_rows, grade_in

    for where, fields in answer_rows(file, COLUMNS):
        correct = grade_in(fields, where)
        if correct is None or fields.get("finish_reason") == "length":
            continue
        response = fields.get("response")
        said = fields.get("text") if response is None else response  # of what `grace label` wrote
        yield checked_line(Row(where, {**fields, "response": said, "correct": correct}))


def _answer(line: InputLine) -> Any:
    from grace.pipeline.stages.fit import Graded

    asked = line.fields[line.asks]
    if line.asks == "prompt":
        asked = [{"role": "user", "content": asked}]
    choices = tuple(line.fields.get("choices") or ())
    return Graded(asked, choices, line.response, line.fields["correct"])


def _measured(confidence: list[float], correct: list[Any]) -> dict[str, list[float]]:
    """Return value, low and high of each metric."""
    from grace.metrics import bootstrap, evaluate

    names = ("ece", "brier", "auroc")
    mean, ends = evaluate(confidence, correct, names), bootstrap(confidence, correct, names)
    return {name: [mean[name], *ends[name]] for name in names}
