"""Greedy accuracy of a pocket checkpoint on the world's own questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from grace.pocket.prompts import SHORT_PROMPT, STEP_SYSTEM, with_options
from grace.pocket.topics import KINDS
from grace.pocket.world import World

_BATCH = 50
_MAX_NEW_TOKENS = {"closed book": 16, "step by step": 80}


def messages_for(task: str, row: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the chat messages that ask a question of the world."""
    if task in KINDS:
        return [{"role": "user", "content": SHORT_PROMPT.format(question=row["question"])}]
    question = with_options(row["question"], row["choices"])
    return [
        {"role": "system", "content": STEP_SYSTEM},
        {"role": "user", "content": f"Question: {question}"},
    ]


def is_right(row: dict[str, Any], reply: str) -> bool:
    """Says whether a reply has the right letter, or is the right answer word for word."""
    if "choices" in row:
        found = re.search(r"Answer:\s*([A-E])", reply)
        return found is not None and found.group(1) == row["answer"]
    return reply.strip().lower() in {answer.lower() for answer in row["answers"]}


@torch.no_grad()
def replies(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: str,
    rows: Sequence[dict[str, Any]],
    **generation: Any,
) -> list[str]:
    """Returns one reply per row (greedy unless `generation` says otherwise), in order."""
    limit = _MAX_NEW_TOKENS["closed book" if task in KINDS else "step by step"]
    texts: list[str] = []
    for start in range(0, len(rows), _BATCH):
        chats = [messages_for(task, row) for row in rows[start : start + _BATCH]]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        output = model.generate(
            **inputs, **{"do_sample": False, "max_new_tokens": limit, **generation}
        )
        new = output[:, inputs["input_ids"].shape[1] :]
        texts += tokenizer.batch_decode(new, skip_special_tokens=True)
    return texts


def greedy_accuracy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    world: World,
    task: str,
    count: int,
    split: str = "test",
) -> float:
    """Returns the share of the first `count` questions of a split answered right."""
    rows = world.questions(task, split)[:count]
    said = replies(model, tokenizer, task, rows)
    return sum(map(is_right, rows, said)) / len(rows)
