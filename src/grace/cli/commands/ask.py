"""`grace ask`: one answer, or a vote, with its confidence and what it took."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.errors import ConfigError

if TYPE_CHECKING:
    from grace.model import Model
    from grace.model.reply import Reply
    from grace.records import Decision


class Query(NamedTuple):
    """What was asked, and how."""

    question: str
    choices: Sequence[str]
    threshold: float | None
    temperature: float | None
    seed: int

    def options(self, usual_temperature: float) -> dict[str, Any]:
        """Return the arguments of `Model.ask` and `Model.vote`.

        Raises:
            UserInputError: the threshold is not a confidence.
        """
        from grace.model.rules import check_threshold

        if self.threshold is not None:
            check_threshold(self.threshold, "--threshold")
        given = self.temperature
        return {
            "choices": self.choices,
            "threshold": self.threshold,
            "temperature": usual_temperature if given is None else given,
            "seed": self.seed,
        }


def ask_once(
    path: str, asked: Query, loading: Mapping[str, Any], *, trace: bool, as_json: bool
) -> None:
    """Print one answer, or that the model abstains; with `trace` token by token.

    Raises:
        GraceError: what was given cannot be used.
    """
    from grace.records import to_json

    options = asked.options(0.0)
    model = _load(path, loading)
    if trace and not model.traces:
        raise ConfigError(
            f"{path} knows its confidence at the end of an answer only; train it with "
            "--set train.trace=true --set train.lora=never"
        )
    reply = model.ask(asked.question, **options)
    if as_json:
        print(json.dumps(to_json(reply), ensure_ascii=False))
        return
    surely = _confidence(reply.confidence)
    if reply.unusual and reply.confidence is not None:
        print(
            "note: the answer's token probabilities are unlike those of the training answers; its "
            "confidence is a guess",
            file=sys.stderr,
        )
    if trace:
        print(_traced(reply, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    if reply.threshold is None:
        print(f"{reply.text}   {surely}")
        return
    shown = "abstain" if reply.abstains and reply.confidence is not None else reply.text
    print(f"{shown}   {surely}   ({_about(path, reply.threshold, reply.promise)})")


def ask_often(
    path: str,
    asked: Query,
    loading: Mapping[str, Any],
    strategy: str | None,
    budget: int | None,
    parallel: int,
    *,
    as_json: bool,
) -> None:
    """Print the outcome of a vote and what it took.

    Raises:
        GraceError: what was given cannot be used.
    """
    from grace.model.rules import usual_budget
    from grace.records import to_json
    from grace.strategies import TEMPERATURE, load

    if budget is not None and budget < 1:
        raise ConfigError(f"--budget is {budget}; at least one sample is needed")
    options = asked.options(TEMPERATURE)
    if strategy is not None:
        load(strategy)  # before the model: a misspelt name is told at once
    model = _load(path, loading)
    decision = model.vote(
        asked.question, strategy=strategy, budget=budget, parallel=parallel, **options
    )
    if as_json:
        print(json.dumps(to_json(decision), ensure_ascii=False))
        return
    about = _spent(decision, usual_budget(model.promise, strategy) if budget is None else budget)
    if decision.promise and decision.threshold is not None:
        about += f"; {_about(path, decision.threshold, decision.promise)}"
    if decision.answer is None:
        print(f"no answer found in any sample   confidence none   ({about})")
    else:
        sure = decision.confidence is None or not decision.abstains
        shown = decision.answer if sure else "abstain"
        print(f"{shown}   {_confidence(decision.confidence)}   ({about})")
    _note_unused(model, decision, asked)
    _note_greedy(model, options["temperature"])


COLOURS = (196, 202, 208, 214, 220, 190, 154, 118, 82, 46)
"""Of a terminal's 256, red to green."""


def _traced(reply: Reply, *, colour: bool) -> str:
    """Return an answer in the colours of c after each token, or a line for each without any."""
    rows = list(zip(reply.pieces, reply.trace[1:], strict=False))
    if not colour:
        return "\n".join(f"{c:.2f}  {piece!r}" for piece, c in rows)
    shades = [COLOURS[min(int(c * len(COLOURS)), len(COLOURS) - 1)] for _, c in rows]
    parts = zip(rows, shades, strict=True)
    return "".join(f"\033[38;5;{shade}m{piece}" for (piece, _), shade in parts) + "\033[0m"


def _load(path: str, loading: Mapping[str, Any]) -> Model:
    from grace.model import load

    return load(path, **loading)


def _confidence(value: float | None) -> str:
    return "confidence none: the answer was cut" if value is None else f"confidence {value:.2f}"


def _spent(decision: Decision, budget: int) -> str:
    """Return how many of the samples were used, and issued where these are more."""
    spent = f"{decision.samples} of {budget} samples"
    if decision.issued == decision.samples:
        return spent
    return (
        f"{spent}, {decision.issued} issued; "
        f"{decision.tokens} tokens, {decision.issued_tokens} issued"
    )


def _about(path: str, threshold: float, promise: str) -> str:
    return f"{path}'s threshold: {promise}" if promise else f"threshold {threshold:g}"


def _note_greedy(model: Model, temperature: float) -> None:
    """Say on standard error that samples are other answers than those of a greedy training."""
    if model.promise is None and temperature > 0 and model.sample.train_temperature == 0:
        print(
            "note: the confidence was fitted on greedy answers; those sampled at temperature "
            f"{temperature:g} are others, so measure it on samples first: grace scale",
            file=sys.stderr,
        )


def _note_unused(model: Model, decision: Decision, asked: Query) -> None:
    """Say on standard error that the run's threshold holds for other votes than this one."""
    chosen = model.promise
    if chosen is None or chosen.tau is None or chosen.mode != "early-stop" or decision.promise:
        return
    if asked.threshold is None and decision.threshold is not None:
        print(
            f"note: the run's threshold {chosen.tau:g} holds for early stopping with a budget of "
            f"{chosen.budget} at temperature {chosen.temperature:g}; this vote used "
            f"{decision.threshold:g}",
            file=sys.stderr,
        )
