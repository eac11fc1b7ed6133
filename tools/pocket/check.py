"""Ask a pocket checkpoint the world's questions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from grace.metrics import auroc
from tools.pocket.prompts import SHORT_PROMPT, STEP_SYSTEM, with_options
from tools.pocket.topics import KINDS
from tools.pocket.world import World

_BATCH = 50
_LETTER = re.compile(r"Answer:\s*([A-E])")
_MAX_NEW_TOKENS = {"closed book": 16, "step by step": 80}


def messages_for(task: str, row: dict[str, Any]) -> list[dict[str, str]]:
    """Return the chat messages that ask a question of the world."""
    if task in KINDS:
        return [{"role": "user", "content": SHORT_PROMPT.format(question=row["question"])}]
    question = with_options(row["question"], row["choices"])
    return [
        {"role": "system", "content": STEP_SYSTEM},
        {"role": "user", "content": f"Question: {question}"},
    ]


def is_right(row: dict[str, Any], reply: str) -> bool:
    """Return whether a reply has the right letter, or is the right answer word for word."""
    if "choices" in row:
        return bool(_letter(reply) == row["answer"])
    return reply.strip().lower() in {answer.lower() for answer in row["answers"]}


def _letter(reply: str) -> str | None:
    found = _LETTER.search(reply)
    return found.group(1) if found else None


@torch.no_grad()
def replies(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: str,
    rows: Sequence[dict[str, Any]],
    **generation: Any,
) -> list[str]:
    """Return one reply per row (greedy unless `generation` says otherwise), in order."""
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


def answered_right(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    world: World,
    task: str,
    split: str,
    count: int,
) -> list[bool]:
    """Return for the first `count` questions of a split whether the greedy reply is right."""
    rows = world.questions(task, split)[:count]
    said = replies(model, tokenizer, task, rows)
    return [is_right(row, reply) for row, reply in zip(rows, said, strict=True)]


def topic_alone(world: World, task: str, train: Sequence[bool], test: Sequence[bool]) -> float:
    """Return the AUROC of a confidence that knows only the topic of a closed-book question.

    Args:
        world: Whose questions were answered.
        task: A closed-book task.
        train: Which of the first training questions were answered right, in order.
        test: Which of the first test questions were.

    Returns:
        AUROC on test of the share of right training answers in the question's topic, in [0, 1].
    """
    told: dict[tuple[str, str], list[bool]] = {}
    for fact, right in zip(world.question_facts(task, "train"), train, strict=False):
        told.setdefault((fact.kind, fact.relation), []).append(right)
    shares = {topic: sum(rights) / len(rights) for topic, rights in told.items()}
    overall = sum(train) / len(train)
    facts = world.question_facts(task, "test")[: len(test)]
    return auroc([shares.get((fact.kind, fact.relation), overall) for fact in facts], test)


def sampled_accuracy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    world: World,
    task: str,
    count: int,
    split: str = "validation",
) -> tuple[float, float]:
    """Return the accuracy of a single sample at T 0.8 and of the majority of eight samples.

    For the tasks that are answered step by step; ties go to the letter that was sampled first,
    and an unfinished reply counts as an answer of its own. torch's global seed decides the samples.
    """
    rows = world.questions(task, split)[:count]
    samples = [
        replies(model, tokenizer, task, rows, do_sample=True, temperature=0.8) for _ in range(8)
    ]
    single = sum(
        is_right(row, reply) for said in samples for row, reply in zip(rows, said, strict=True)
    )
    majority = 0
    for i, row in enumerate(rows):
        votes = Counter(_letter(said[i]) for said in samples)
        majority += votes.most_common(1)[0][0] == row["answer"]
    return single / (len(samples) * len(rows)), majority / len(rows)
