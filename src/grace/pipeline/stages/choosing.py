"""The choice between LoRA and the rows alone, made on validation answers.

LoRA must rate the backbone's validation answers better than the rows alone do, in log loss and by
more than two standard errors of the difference, and must not move the accuracy by more than a
point.
"""

from __future__ import annotations

import math
import shutil
from typing import NamedTuple

import numpy as np

from grace.calibration import log_losses
from grace.config import to_dict
from grace.pipeline.context import Context
from grace.pipeline.sampling import sample_split, sampling_for
from grace.pipeline.stages.grade import grade_split
from grace.store import CARD, read_json, write_json
from grace.training.adapter import copy_adapter

LEAST_GAIN = 2.0  # in standard errors: chance alone then keeps LoRA in one run of 44
MOST_MOVED = 0.01  # of the accuracy on validation questions


class LoraChoice(NamedTuple):
    """The comparison of LoRA with the rows alone on validation answers.

    `gain` is how much smaller its log loss is, per answer; `accuracy` before and after.
    """

    kept: bool
    gain: float
    standard_error: float
    answers: int
    accuracy_before: float
    accuracy_after: float

    def __str__(self) -> str:
        """Return the choice in a sentence."""
        return (
            f"LoRA {'kept' if self.kept else 'left out, the rows alone are used'}: on "
            f"{self.answers} validation answers its log loss is smaller by {self.gain:.4f} "
            f"(standard error {self.standard_error:.4f}), accuracy "
            f"{100 * self.accuracy_before:.1f} -> {100 * self.accuracy_after:.1f} %"
        )


def keep_better(context: Context) -> None:
    """Put the rows alone in the adapter's place unless LoRA has earned it, and say which."""
    directory = context.directory
    found = compare(context)
    context.say(str(found))
    entry = {"lora": found._asdict()}
    if found.kept:
        path = directory.adapter / CARD
        write_json(path, {**read_json(path), **entry})
        return
    train = {**to_dict(context.settings.train), "lora": "never"}
    copy_adapter(directory.rows, directory.adapter, **entry, train=train)
    context.engines.forget_tuned()
    shutil.rmtree(directory.split("validation").tuned.path, ignore_errors=True)


def compare(context: Context) -> LoraChoice:
    """Rate the backbone's validation answers with both, and answer the questions with LoRA."""
    directory, split = context.directory, context.directory.split("validation")
    samples = context.samples(split)
    done = [i for i, one in enumerate(samples.responses) if one.finish_reason == "stop"]
    prompts = [samples.prompts[i] for i in done]
    responses = [samples.responses[i].token_ids for i in done]
    correct = [samples.correct[i] for i in done]
    rows, lora = (
        log_losses(context.engines.load(adapter).confidences(prompts, responses), correct)
        for adapter in (directory.rows, directory.adapter)
    )
    better = rows - lora
    gain = float(better.mean()) if done else 0.0
    error = float(better.std(ddof=1) / math.sqrt(len(done))) if len(done) > 1 else math.inf
    sample_split(context, "tuned", split.tuned, sampling_for(context, "validation"), stage="train")
    grade_split(context, split.tuned)
    before = float(np.mean(samples.correct))
    after = float(np.mean([grade.correct for grade in split.tuned.grades.read()]))
    kept = gain > LEAST_GAIN * error and abs(after - before) <= MOST_MOVED + 1e-9
    return LoraChoice(kept, gain, error, len(done), before, after)
