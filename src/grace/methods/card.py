"""The model card of an adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def task_in(record: Mapping[str, Any]) -> str:
    """Return the name of the questions that grace.json says were trained on, "" if none."""
    return str(record.get("questions") or record.get("data", {}).get("task", ""))


def model_card(record: Mapping[str, Any]) -> str:
    """Return the model card of an adapter."""
    base, lora = record["base_model"], bool(_trained_with(record))
    shown = f"- Task: {task_in(record)}\n" if "data" in record else ""
    for fitted in record.get("recalibrated", []):
        shown += f"- Recalibrated on {fitted['answers']} graded answers to other questions\n"
    return f"""---
base_model: {json.dumps(base)}
library_name: {"peft" if lora else "grace-confidence"}
pipeline_tag: text-generation
tags: [{"lora, " if lora else ""}calibration, confidence, grace]
---

# Confidence adapter

{_reading(record, lora)} is the model's confidence that the
response is correct, in [0, 1] (GrACE, arXiv 2509.09438).

{shown}- Read position: {record["read_at"]}
- {_trained(record, lora)}

```python
import grace

model = grace.load("path/to/this/directory")
reply = model.ask("Who wrote Middlemarch?")
print(reply.text, reply.confidence)
```
{_ready(record["ready"]) if "ready" in record else ""}"""


def _ready(ready: Mapping[str, Any]) -> str:
    """Return what the card of a ready head says of its weights, its sources and its worth."""
    weights = ready["weights"]
    sources = [
        f"| {one['name']} | {one['answers']} | {one['licence']} |" for one in ready["sources"]
    ]
    rated = [
        f"| {one['name']} | {one['answers']} | {one['right']} | {one['familiar']} | "
        f"{one['likelihood']} | {one['confidence']} |"
        for one in ready["left_out"]
    ]
    shown = "\n".join(sources)
    table = "\n".join(rated)
    return f"""
## Where it holds

For the weights of `{weights["file"]}` only (sha256 {weights["sha256"]}). Fitted by GrACE
{ready["version"]} to the model's answers to questions of these sources; no question is in this
directory, and the examples of the prompt are in none of them.

| source | answers | licence of the questions |
|---|---|---|
{shown}

Each source left out in turn, so that neither its questions nor its answers were known (one seed;
states reduced to 256 directions), and sources that are not in the fit; ECE / Brier score / AUROC in
percent. `familiar` from 0 to 1 says how much of what is known of hidden states counts.

| not known to the fit | answers | right (%) | familiar | likelihood | confidence |
|---|---|---|---|---|---|
{table}

On questions of other kinds, watch `familiar` and recalibrate with graded answers.
"""


def _reading(record: Mapping[str, Any], lora: bool) -> str:
    """Return the beginning of the sentence that says what c is read from."""
    base, where = record["base_model"], "where a response ends"
    if record["read_at"] == "prompt":
        where = "where the prompt ends (the response is not looked at)"
    if bins := record.get("bin_tokens"):
        first, *_, last = bins
        return (
            f"LoRA and {len(bins)} vocabulary rows (`{first}` to `{last}`) for `{base}`. The "
            f"middle of the\ninterval whose token is most probable {where}"
        )
    if ids := record.get("read_ids"):
        return (
            f"{'LoRA and f' if lora else 'F'}our vocabulary rows (`{record['cnf_token']}` and "
            f"others, ids {ids[0]} to {ids[-1]})\nfor `{base}`. What their "
            "logits differ by at each step, with the log-probabilities of the\nresponse's tokens,"
        )
    return (
        f"LoRA and one vocabulary row (`{record['cnf_token']}`, id {record['cnf_id']}) for "
        f"`{base}`. The\nprobability of `{record['cnf_token']}` {where}"
    )


def _trained_with(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of LoRA, empty for fitted rows; earlier versions called them `train`."""
    earlier: dict[str, Any] = record.get("train", {})
    frozen = earlier.get("head") == "linear" and earlier.get("lora") == "never"
    found: dict[str, Any] = record.get("paper") or ({} if frozen else earlier)
    return found


def _trained(record: Mapping[str, Any], lora: bool) -> str:
    if lora:
        train = _trained_with(record)
        return f"LoRA rank {train['rank']} on {', '.join(train['target_modules'])}"
    layer = record.get("layer")
    read = f"; c reads the MLP of block {layer}" if layer else ""
    return f"No LoRA: answers are those of the base model{read}"
