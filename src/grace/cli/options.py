"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grace.errors import ConfigError
from grace.store import is_run

if TYPE_CHECKING:
    from grace.model import Model

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.")]
ModelPath = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Directory of a run, an adapter or an exported model, a Hub id, or a model that has a "
        "ready-made head (`grace list heads`).",
    ),
]
SOURCES = (
    "a .jsonl, .json, .csv, .tsv or .parquet file, a directory of such files, hf:OWNER/NAME, or - "
    "for standard input"
)
"""What every command reads that takes answers from a file."""

from_one = functools.partial(typer.Option, min=1, metavar="N")
"""An option that is a number from 1 on."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting; `grace list settings` shows all. Can be repeated.",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Directory of the base model, if it has moved since the fit."),
]
Device = Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda or cuda:N.")]
RunDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        show_default="as set in the run",
        help="Where the model runs: auto, cpu, cuda or cuda:N.",
    ),
]
Dtype = Annotated[
    str, typer.Option(help="Number format of the weights: auto, float32, bfloat16 or float16.")
]
QuestionField = Annotated[
    str,
    typer.Option(metavar="NAME", help="Column with the questions, if its name is not recognised."),
]
AnswerField = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Column with the accepted answers, if its name is not recognised."
    ),
]


def check_traces(model: Model, path: str) -> None:
    """Refuse --trace for a model without a confidence at every token."""
    if not model.traces:
        remedy = "grace fit --trace, or grace run --set grace.trace=true"
        if is_run(Path(path)):
            remedy = f"grace run {path} --set grace.trace=true --redo features"
        raise ConfigError(
            f"{path} has a confidence at the end of an answer only; to fit one at every token: "
            f"{remedy}"
        )


def listed(values: Sequence[str] | None) -> list[str]:
    """Return the names in a repeatable option whose values may also hold several, by commas."""
    texts = [text for value in values or () for text in re.split(r",(?!\s*\w+=)", value)]
    return [text.strip() for text in texts if text.strip()]


def examples(*lines: str) -> str:
    """Return the end of a help text: commands to copy, one per line."""
    return "\n\n".join(["Examples:", *(f"[bold]{line}[/bold]" for line in lines)])


def refuse_unused(
    settings: Sequence[str], unused: tuple[str, ...], command: str, used: Sequence[str] = ()
) -> None:
    """Refuse settings that a command does not read: those that begin with a string of `unused`."""
    for key in (setting.partition("=")[0].strip() for setting in settings):
        if key.startswith(unused) and key not in used:
            raise ConfigError(f"{command}, so {key} has no effect; leave it out")
