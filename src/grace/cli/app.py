"""All commands of `grace`. Each is a function that parses, calls the library, and prints.

Imports of slow packages stay inside these functions, so that `--help` is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from grace.cli import demo
from grace.cli.commands import (
    ask,
    cascade,
    fit,
    grade,
    label,
    listing,
    measure,
    recalibrate,
    run,
    scale,
    score,
    serve,
)
from grace.progress import LEVEL, set_level

app = typer.Typer(
    name="grace",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="New here? Run [bold]grace demo[/bold].",
)


@app.callback()
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    log_level: Annotated[
        str,
        typer.Option(
            envvar=LEVEL, help="Least severe messages to print: debug, info, warning or error."
        ),
    ] = "info",
) -> None:
    """How sure is this LLM of this answer, and how many samples do I still need?"""
    set_level(log_level)
    if version:
        from grace import __version__

        print(f"grace {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=run.RUN_EXAMPLES)(run.run)
app.command(epilog=ask.EXAMPLES)(ask.ask)
app.command(epilog=run.REPORT_EXAMPLES)(run.report)
app.command(epilog=score.EXAMPLES)(score.score)
app.command(epilog=grade.EXAMPLES)(grade.grade)
app.command(epilog=measure.EXAMPLES)(measure.measure)
app.command(epilog=recalibrate.EXAMPLES)(recalibrate.recalibrate)
app.command(epilog=fit.EXAMPLES)(fit.fit)
app.command(epilog=scale.SCALE_EXAMPLES)(scale.scale)
app.command(epilog=scale.THRESHOLD_EXAMPLES)(scale.threshold)
app.command(epilog=cascade.EXAMPLES)(cascade.cascade)
app.command(epilog=run.TRAIN_EXAMPLES)(run.train)
app.command(epilog=label.EXAMPLES)(label.label)
app.command(epilog=serve.SERVE_EXAMPLES)(serve.serve)
app.command(epilog=serve.PROXY_EXAMPLES)(serve.proxy)
app.command(epilog=serve.EXPORT_EXAMPLES)(serve.export)
app.command(name="list", epilog=listing.EXAMPLES)(listing.list_)
