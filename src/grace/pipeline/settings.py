"""The settings of a run: with absolute paths, with what it has chosen, and the lengths of answers.

A relative path starts from the current directory, in a recipe as in a command; with absolute ones a
run can be resumed from another directory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grace.chat import encode_text
from grace.config import ModelSettings, RunSettings, assignment, merged, parse_value
from grace.engines.gguf import resolve_model
from grace.records import Question
from grace.store import RunDir, read_json
from grace.store.inputs import located


def absolute_model(model: str | Path) -> str:
    """Return the absolute path of a model's directory or file, a Hub id or `pocket` as it is."""
    is_path = str(model) != "pocket" and Path(os.path.expanduser(model)).exists()
    return located(model) if is_path else str(model)


PLACES: dict[str, dict[str, Callable[[str], str]]] = {
    "model": {"path": absolute_model},
    "data": {"file": located, "dir": located},
}


def absolute(tree: dict[str, Any]) -> dict[str, Any]:
    """Return sections of settings with absolute paths; what is no path stays as it is."""
    for section, places in PLACES.items():
        named = tree.get(section)
        for key, place in places.items():
            value = named.get(key) if isinstance(named, dict) else None
            if isinstance(value, str) and value:
                tree = merged(tree, {section: {key: place(value)}})
    return tree


def each_absolute(trees: dict[str, Any]) -> dict[str, Any]:
    """Return sections of settings by name, each with absolute paths."""
    return {name: absolute(tree) for name, tree in trees.items()}


def absolute_override(override: str) -> str:
    """Return `section.key=value` with an absolute path, if the value is a path."""
    name, equals, text = override.partition("=")
    section, _, key = name.strip().partition(".")
    value = parse_value(text.strip())
    if not equals or not isinstance(value, str):
        return override
    path = absolute({section: {key: value}})[section][key]
    return override if path == value else assignment(name, path)


EXPLAINED = 512  # tokens for an explanation and a letter (multiple choice)
THOUGHT = 2048  # tokens for the reasoning before an answer


def settled(settings: RunSettings, directory: RunDir) -> RunSettings:
    """Return settings that leave nothing open, with what the run has chosen if it has."""
    chosen = read_json(directory.asking) if directory.asking.exists() else {}
    data, sample = settings.data, settings.sample
    prompt = chosen.get("prompt", "paper") if data.prompt == "auto" else data.prompt
    shots = chosen.get("shots", 0) if data.shots < 0 else data.shots
    longest = sample.max_new_tokens or chosen.get("max_new_tokens", sample.longest)
    apart = 0 if sample.max_new_tokens else chosen.get("open_tokens", 0)
    grader = settings.grade.grader or chosen.get("grader", "")
    date = settings.model.date or chosen.get("date", "")
    return dataclasses.replace(
        settings,
        model=dataclasses.replace(settings.model, date=date),
        data=dataclasses.replace(data, prompt=prompt, shots=shots),
        sample=dataclasses.replace(
            sample, max_new_tokens=longest, open_tokens=sample.open_tokens or apart
        ),
        grade=dataclasses.replace(settings.grade, grader=grader),
    )


def model_folder(model: ModelSettings) -> str:
    """Return the directory of the backbone, into which a GGUF file is unpacked."""
    return resolve_model(model.path, model.dtype, model.device)


def at_most_half(longest: int, context: int | None) -> int:
    """Return the length of an answer that leaves half of the model's context to the prompt."""
    return longest if context is None else min(longest, context // 2)


def needed_length(tokenizer: Any, questions: Sequence[Question], model: ModelSettings) -> int:
    """Return the most tokens of a context that answers may take; no weights are loaded."""
    from grace.engines.local.loading import read_limit

    limit = read_limit(model_folder(model), trust_remote_code=model.trust_remote_code)
    return at_most_half(longest_answer(tokenizer, questions, thinking=model.thinking), limit)


def longest_answer(tokenizer: Any, questions: Sequence[Question], *, thinking: bool) -> int:
    """Return the most tokens that an answer to such questions may take."""
    thought = THOUGHT if thinking else 0
    if any(question.choices for question in questions):
        return thought + EXPLAINED
    accepted = [len(encode_text(tokenizer, question.answers[0])) for question in questions]
    return thought + max(50, 2 * max(accepted, default=0))
