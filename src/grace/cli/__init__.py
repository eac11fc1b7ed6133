"""The `grace` command, and what it does about errors: one line on standard error, exit code 2.

Imports of slow packages stay inside the functions of commands, so that `--help` is fast.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn

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
from grace.errors import GraceError, packages_for
from grace.progress import LEVEL, set_level

app = typer.Typer(
    name="grace",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
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
    """How sure is this LLM of this answer, and how many samples do I still need?

    Start: [b]grace run[/b], then [b]grace ask[/b]; [b]grace demo[/b] needs no data.
    """
    set_level(log_level)
    if version:
        from grace import __version__

        print(f"grace {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


FIT, USE = "Fit a confidence", "Use it"
DECIDE, EVALUATE = "Decide with it", "Evaluate, and look up"

app.command(rich_help_panel=FIT, epilog=demo.EXAMPLES)(demo.demo)
app.command(rich_help_panel=FIT, epilog=run.RUN_EXAMPLES)(run.run)
app.command(rich_help_panel=FIT, epilog=fit.EXAMPLES)(fit.fit)
app.command(rich_help_panel=FIT, epilog=recalibrate.EXAMPLES)(recalibrate.recalibrate)
app.command(rich_help_panel=FIT, epilog=run.TRAIN_EXAMPLES)(run.train)
app.command(rich_help_panel=USE, epilog=ask.EXAMPLES)(ask.ask)
app.command(rich_help_panel=USE, epilog=score.EXAMPLES)(score.score)
app.command(rich_help_panel=USE, epilog=label.EXAMPLES)(label.label)
app.command(rich_help_panel=USE, epilog=serve.SERVE_EXAMPLES)(serve.serve)
app.command(rich_help_panel=USE, epilog=serve.EXPORT_EXAMPLES)(serve.export)
app.command(rich_help_panel=USE, epilog=serve.PROXY_EXAMPLES)(serve.proxy)
app.command(rich_help_panel=DECIDE, epilog=scale.THRESHOLD_EXAMPLES)(scale.threshold)
app.command(rich_help_panel=DECIDE, epilog=scale.SCALE_EXAMPLES)(scale.scale)
app.command(rich_help_panel=DECIDE, epilog=cascade.EXAMPLES)(cascade.cascade)
app.command(rich_help_panel=EVALUATE, epilog=run.REPORT_EXAMPLES)(run.report)
app.command(rich_help_panel=EVALUATE, epilog=grade.EXAMPLES)(grade.grade)
app.command(rich_help_panel=EVALUATE, epilog=measure.EXAMPLES)(measure.measure)
app.command(name="list", rich_help_panel=EVALUATE, epilog=listing.EXAMPLES)(listing.list_)


USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]  # click's, wherever typer keeps it
INTERRUPTED, TERMINATED = 130, 143
RESUMING = ("demo", "run", "train", "scale", "threshold", "label")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with these arguments (default: the process's own) and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = _command(words)
    _silence_libraries()
    for stream in (sys.stdout, sys.stderr):
        # UTF-8 everywhere, as Python 3.15 writes. The position of a file that was replaced by a
        # pipe cannot be read, which comes last and is not needed.
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # Importing torch makes very many objects that stay. Looking for garbage among them takes most
    # of a second while they come, and another one at the end.
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    try:
        with _terminable(), packages_for(f"grace {command}".strip()):
            code = _parser()(args=words, prog_name="grace", standalone_mode=False)
        sys.stdout.flush()
    except (GraceError, OSError, USAGE_ERROR, typer.Abort, KeyboardInterrupt, Terminated) as error:
        code = _explain(error, words)
    if code in (INTERRUPTED, TERMINATED):
        has_out = any(word.partition("=")[0] == "--out" for word in words)
        resumes = command in RESUMING or (command == "score" and has_out)
        _print("grace: stopped" + "; the same command resumes where it was" * resumes)
    sys.exit(code or 0)


@functools.cache
def _parser() -> Any:
    """Return what parses a command line; Typer would make it anew for each."""
    return typer.main.get_command(app)


def _command(words: Sequence[str]) -> str:
    """Return the command among the words of a command line, "" for none."""
    infos = app.registered_commands
    names = {info.name or getattr(info.callback, "__name__", "") for info in infos}
    return next((word for word in words if word in names), "")


class Terminated(BaseException):
    """The process was asked to end: SIGTERM, as from a scheduler or `docker stop`."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Stop on SIGTERM as on Ctrl-C; a server handles it itself."""

    def terminate(*_: Any) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _explain(error: BaseException, words: Sequence[str]) -> int:
    """Print what went wrong in one line, and return the exit code."""
    if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, typer.Abort | KeyboardInterrupt | Terminated):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    logging.getLogger("grace").debug("traceback of the error:", exc_info=error)
    if isinstance(error, USAGE_ERROR):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "grace"
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if command == "grace ask" and "unexpected extra argument" in message:
            message += "; put the question in quotes"
        if command == "grace ask" and any(word[:1] == "-" and " " in word for word in words):
            message += "; write -- before the question"
        text = f"{message}; see `{command} --help`"
    elif isinstance(error, OSError):
        text = f"{error.filename or 'the system'}: {error.strerror or error}; check path and rights"
    else:
        text = str(error)
    _print(f"grace: error: {' '.join(text.split())}")
    return 2


def _silence_libraries() -> None:
    """Keep libraries quiet on standard error; download bars are shown on a terminal only."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DATASETS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore")


def _print(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
