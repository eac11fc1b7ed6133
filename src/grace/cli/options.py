"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="directory of the run")]
ModelPath = Annotated[
    str, typer.Argument(metavar="MODEL", help="run, adapter or exported model directory, or Hub id")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="change a setting of `grace list settings`; repeat"
    ),
]
Base = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="where the backbone is, if it moved since the training"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
RunDevice = Annotated[
    str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N; default: as the run")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16")]
QuestionField = Annotated[
    str, typer.Option(metavar="NAME", help="the column of the questions, if its name is unusual")
]
AnswerField = Annotated[
    str,
    typer.Option(metavar="NAME", help="the column of the accepted answers, if its name is unusual"),
]


def listed(given: Sequence[str] | None) -> list[str]:
    """Return the names in an option that may be repeated, and hold several with commas between.

    A comma before KEY=VALUE stays: `esc,window=4` is one name.
    """
    texts = [text for one in given or () for text in re.split(r",(?!\s*\w+=)", one)]
    return [text.strip() for text in texts if text.strip()]


def examples(*lines: str) -> str:
    """Return the end of a help text: commands to copy, one per line."""
    return "\n\n".join(["Examples:", *(f"[bold]{line}[/bold]" for line in lines)])
