"""The choice between LoRA and the rows alone, made on validation answers.

LoRA is kept if it rates the backbone's validation answers better than the rows alone do, in log
loss and by more than two standard errors of the difference, and moves the accuracy by at most a
point. The accuracy takes new answers, so it is measured only where the first holds.
"""

from __future__ import annotations

import shutil
from typing import NamedTuple

import numpy as np

from grace.calibration import log_losses, standard_error
from grace.config import to_dict
from grace.estimators import ended_rows
from grace.methods.adapter import copy_adapter
from grace.pipeline.context import Context
from grace.pipeline.sampling import answer
from grace.progress import say
from grace.store import CARD, read_json, write_json

LEAST_GAIN = 2.0  # in standard errors: chance alone then keeps LoRA in one run of 44
MOST_MOVED = 0.01  # of the accuracy on validation questions


class LoraChoice(NamedTuple):
    """The comparison of LoRA with the rows alone on validation answers.

    `gain` is the mean reduction of the log loss of an answer by LoRA. The accuracies are those of
    the backbone (before) and of the model with LoRA (after; None: not measured, as the gain is too
    small).
    """

    kept: bool
    gain: float
    standard_error: float
    answers: int
    accuracy_before: float
    accuracy_after: float | None

    def __str__(self) -> str:
        """Return the choice in a sentence."""
        needed, verb = LEAST_GAIN * self.standard_error, "lowers" if self.gain >= 0 else "raises"
        found = (
            f"LoRA {'kept' if self.kept else 'left out, the rows are used without it'}: on "
            f"{self.answers} validation answers it {verb} the log loss by {abs(self.gain):.5f} (a "
            f"reduction of more than {needed:.5f}, two standard errors, is needed)"
        )
        if self.accuracy_after is None:
            return found
        return (
            f"{found} and moves the accuracy from {100 * self.accuracy_before:.1f} to "
            f"{100 * self.accuracy_after:.1f}% (at most {100 * MOST_MOVED:.0f} point is allowed)"
        )


def keep_better(context: Context) -> None:
    """Replace the trained adapter by the rows alone unless LoRA is better, and say which it is."""
    directory = context.directory
    choice = compare(context)
    say(str(choice))
    entry = {"lora": choice._asdict()}
    if choice.kept:
        path = directory.adapter / CARD
        write_json(path, {**read_json(path), **entry})
        return
    train = {**to_dict(context.settings.train), "lora": "never"}
    copy_adapter(directory.rows, directory.adapter, **entry, train=train)
    context.engines.forget_tuned()
    shutil.rmtree(directory.split("validation").tuned.path, ignore_errors=True)


def compare(context: Context) -> LoraChoice:
    """Rate the backbone's validation answers with both; if LoRA is better, answer with it."""
    directory, split = context.directory, context.directory.split("validation")
    samples = context.samples(split)
    ended = ended_rows(samples)
    asked, correct = samples.token_ids(ended), [samples.correct[i] for i in ended]
    rows, lora = (
        log_losses(context.engines.load(adapter).confidences(*asked), correct)
        for adapter in (directory.rows, directory.adapter)
    )
    better = rows - lora
    gain = float(better.mean()) if ended else 0.0
    error = standard_error(better, [samples.questions[i].cluster for i in ended])
    before = float(np.mean(samples.correct))
    if gain <= LEAST_GAIN * error:
        return LoraChoice(False, gain, error, len(ended), before, None)
    answer(context, "tuned", split.tuned)
    after = float(np.mean([grade.correct for grade in split.tuned.grades.read()]))
    # 1e-9: two accuracies that are a point apart may differ by a little more in binary
    kept = abs(after - before) <= MOST_MOVED + 1e-9
    return LoraChoice(kept, gain, error, len(ended), before, after)
