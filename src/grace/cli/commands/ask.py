"""`grace ask`: print one answer, or the outcome of a vote, with its confidence."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grace.cli.options import Base, Device, Dtype, Json, ModelPath, check_traces, examples, from_one
from grace.errors import ConfigError
from grace.records import CUT, EMPTY, Decision, to_json
from grace.store import is_run

if TYPE_CHECKING:
    from grace.model import Model, Reply

EXAMPLES = examples(
    'grace ask runs/mine "Who wrote Middlemarch?"',
    'grace ask SmolLM2-135M-Instruct.Q4_1.gguf "Who wrote Middlemarch?"',
    'grace ask runs/mine "Who wrote Middlemarch?" --budget 8 --threshold 0.9',
    'grace ask runs/arc "Which is a prime?" --choice 4 --choice 7',
)
COLOURS = (196, 202, 208, 214, 220, 190, 154, 118, 82, 46)  # of a terminal's 256, red to green


def ask(
    path: ModelPath,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    choice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="An option of a multiple-choice question. Can be repeated."
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(show_default="1; 8 with --strategy", help="Largest number of samples."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="grace-vote if `grace scale` has fitted it; else es",
            help="How several samples vote; `grace list strategies` shows all.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            show_default="that of `grace threshold`; else 0.8 for a vote",
            help="Confidence below which one answer abstains, or at which a vote stops.",
        ),
    ] = None,
    parallel: Annotated[int, from_one(help="Samples to generate at once.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(show_default="0, greedy; 0.8 for a vote", help="Sampling temperature."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Show the confidence at every token; needs a model fitted with --trace."
        ),
    ] = False,
    base: Base = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Ask a question and print the answer with its confidence.

    With --budget or --strategy, the model samples several answers, which vote.
    """
    from grace.model import load
    from grace.model.rules import check_threshold, usual_budget, usual_strategy
    from grace.strategies import TEMPERATURE, FittedVote
    from grace.strategies import load as load_strategy

    votes = strategy is not None or budget not in (None, 1)
    if trace and votes:
        raise ConfigError("--trace shows one answer; leave out --strategy and --budget")
    if budget is not None and budget < 1:
        raise ConfigError(f"--budget is {budget}; use 1 or more")
    if threshold is not None:
        check_threshold(threshold, "--threshold")
    if strategy is not None:
        load_strategy(strategy)  # a misspelt name is an error before the model is loaded
    if temperature is None:
        temperature = TEMPERATURE if votes else 0.0
    model = load(path, base=base, device=device, dtype=dtype)
    if trace:
        check_traces(model, path)
    options: dict[str, Any] = {
        "choices": choice or (),
        "threshold": threshold,
        "temperature": temperature,
        "seed": seed,
    }
    outcome: Reply | Decision
    if votes:
        how: dict[str, Any] = {"strategy": strategy, "budget": budget, "parallel": parallel}
        outcome = model.vote(question, **how, **options)
    else:
        outcome = model.ask(question, **options)
    if as_json:
        print(json.dumps(to_json(outcome), ensure_ascii=False))
    elif isinstance(outcome, Decision):
        usual = usual_budget(model.promise, strategy)
        _show_decision(outcome, path, usual if budget is None else budget)
        voted = load_strategy(strategy or usual_strategy(model.promise, model.fitted))
        if model.fitted is None or not isinstance(voted, FittedVote):  # fitted to sampled answers
            _note_greedy(model, path, outcome, temperature)
    else:
        _show_reply(outcome, path, trace=trace)
    if threshold is None and not as_json:
        _note_unused_threshold(model, outcome)


def _show_reply(reply: Reply, path: str, *, trace: bool) -> None:
    """Print one answer, or that the model abstains; with `trace`, first token by token."""
    if reply.unusual and reply.confidence is not None:
        _note(
            "the answer's token probabilities are unlike those of the training answers, so its "
            "confidence is a guess: do not rely on it, or fit the model to such answers too"
        )
    _note_unfamiliar(reply)
    if trace:
        print(_traced(reply, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    shown = "abstain" if reply.abstains and reply.confidence is not None else reply.text
    line = f"{shown}   {_confidence(reply.confidence, reply.text)}"
    if reply.threshold is not None:
        line += f"   ({_threshold(path, reply.threshold, reply.promise)})"
    print(line)
    for name, field in reply.fields.items():
        value = json.dumps(field["value"], ensure_ascii=False)
        print(f"  {name}: {value}   {_confidence(field['confidence'], value)}")


def _show_decision(decision: Decision, path: str, budget: int) -> None:
    """Print the outcome of a vote, and how many samples and tokens it took."""
    _note_unfamiliar(decision)
    about = f"{decision.samples} of {budget} samples"
    if decision.issued != decision.samples:
        about += (
            f", {decision.issued} issued; {decision.tokens} tokens, {decision.issued_tokens} issued"
        )
    if decision.promise and decision.threshold is not None:
        about += f"; {_threshold(path, decision.threshold, decision.promise)}"
    if decision.answer is None:
        print(f"no answer found in any sample   confidence none   ({about})")
        return
    abstains = decision.abstains and decision.confidence is not None
    shown = "abstain" if abstains else _as_written(decision)
    print(f"{shown}   {_confidence(decision.confidence, decision.text)}   ({about})")


def _as_written(decision: Decision) -> str | None:
    """Return the answer as the surest sample wrote it: votes are counted without punctuation."""
    from grace.answers import read, short_answer

    written = short_answer(decision.text)
    return written if read(written, "open") == decision.answer else decision.answer


def _traced(reply: Reply, *, colour: bool) -> str:
    """Return an answer in the colours of c after each token, or a line for each without any."""
    if not colour:
        rows = [("none" if c is None else f"{c:.2f}", piece) for piece, c in reply.traced]
        return "\n".join(f"{c}  {piece!r}" for c, piece in rows)
    text = ""
    for piece, c in reply.traced:
        if c is None:
            text += f"\033[0m{piece}"
        else:
            text += f"\033[38;5;{COLOURS[min(int(c * len(COLOURS)), len(COLOURS) - 1)]}m{piece}"
    return f"{text}\033[0m"


def _confidence(value: float | None, text: str) -> str:
    if value is None:
        return f"confidence none: {CUT if text else EMPTY}"
    return f"confidence {value:.2f}"


def _threshold(path: str, threshold: float, promise: str) -> str:
    return f"{path}'s threshold: {promise}" if promise else f"threshold {threshold:g}"


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _is_unfamiliar(outcome: Reply | Decision) -> bool:
    from grace.evidence.familiar import HALF

    return outcome.familiar is not None and outcome.familiar < HALF


def _note_unfamiliar(outcome: Reply | Decision) -> None:
    if _is_unfamiliar(outcome) and outcome.confidence is not None:
        _note(
            "the prompt is unlike those that the confidence was fitted on (familiar "
            f"{outcome.familiar:.2f}), so it is mostly that of the answer's token probabilities"
        )


def _note_greedy(model: Model, path: str, decision: Decision, temperature: float) -> None:
    """Warn that the confidence of a vote's samples was fitted on greedy answers."""
    if decision.promise or temperature == 0 or model.sample.train_temperature > 0:
        return
    if is_run(Path(path)):
        known, command = "the confidence was fitted on greedy answers, but", f"grace scale {path}"
    else:
        known, command = "if the confidence was fitted on greedy answers:", "grace measure FILE"
    _note(
        f"{known} this vote sampled its answers at temperature {temperature:g}, where it can be "
        f"too high or too low; to see how far off it is on graded samples: {command}"
    )


def _note_unused_threshold(model: Model, outcome: Reply | Decision) -> None:
    """Warn that the guarantee of the run's threshold does not hold for this answer or vote."""
    chosen = model.promise
    if chosen is None or chosen.tau is None or outcome.promise or _is_unfamiliar(outcome):
        return
    is_vote = isinstance(outcome, Decision)
    if is_vote != (chosen.mode == "early-stop"):
        return
    if not is_vote:
        _note(
            f"the run's threshold {chosen.tau:g} holds at temperature {chosen.temperature:g} only, "
            "so this answer is shown whatever its confidence"
        )
    elif outcome.threshold is not None:
        _note(
            f"the run's threshold {chosen.tau:g} holds for {chosen.strategy} with a budget of "
            f"{chosen.budget} at temperature {chosen.temperature:g}; this vote used the threshold "
            f"{outcome.threshold:g}"
        )
