"""Samples that evaluation harnesses log, as rows: lm-evaluation-harness, Inspect AI and HELM."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from grace.answers import LETTERS
from grace.config import DataSettings
from grace.tasks.columns import within


def row_of_log(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return a logged sample as a row of a question and a response, None for any other row."""
    for keys, read in (
        (("doc", "resps"), _harness),
        (("input", "output", "target"), _inspect),
        (("instance", "result"), _helm),
    ):
        if all(key in fields for key in keys) and isinstance(fields[keys[-1]], dict | list | str):
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
                return read(fields)
    return None


def _harness(fields: dict[str, Any]) -> dict[str, Any]:
    """Read text, or log-likelihoods of texts: the likeliest is the answer, with its share."""
    row, said = within(fields, DataSettings()), fields["resps"]
    pairs = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in said]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return row | {"response": said}
    values = [float(value) for value, _ in pairs]  # also "-0.3", beside whether it is greedy
    asked = fields.get("arguments") or []
    asked = asked.values() if isinstance(asked, dict) else asked
    each = [[*one.values()] if isinstance(one, dict) else one for one in asked]
    if len(each) != len(values) or len(values) < 2:
        return row
    top = values.index(max(values))
    row |= {"response": each[top][1].strip()}
    if not all(value < math.inf for value in values) or values[top] == -math.inf:
        return row
    return {"confidence": 1 / math.fsum(math.exp(value - values[top]) for value in values)} | row


def _inspect(fields: dict[str, Any]) -> dict[str, Any]:
    """Read a sample of a log that `inspect log convert` or `inspect log dump` wrote as JSON."""
    asked, kept = fields["input"], ("id", "choices")
    return {
        "question" if isinstance(asked, str) else "messages": asked,
        "answers": fields["target"],
        "response": fields["output"],
        **{name: fields[name] for name in kept if fields.get(name)},
    }


def _helm(fields: dict[str, Any]) -> dict[str, Any]:
    """Read a request of scenario_state.json; its options are those that the prompt showed."""
    instance, completion = fields["instance"], fields["result"]["completions"][0]
    right = [one["output"]["text"] for one in instance["references"] if "correct" in one["tags"]]
    row = {
        "question": instance["input"]["text"],
        "answers": right,
        "response": completion["text"],
        "question_id": instance.get("id"),
        "logprobs": [token["logprob"] for token in completion.get("tokens", ())] or None,
    }
    shown = fields.get("output_mapping") or {}
    if not shown:
        return row
    texts = list(shown.values())
    return row | {"choices": texts, "answers": LETTERS[texts.index(right[0])]}
