"""Python code for the model card that computes the confidence c without this package.

The code defines `confidence`, the formula for c with the model's own numbers. For vLLM it also
defines `ask`, which sends a question with the prompt of the training run and returns the answer
with its c. The tests run the code as it stands.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jinja2

from grace.answers import lettered
from grace.chat import encode_chat
from grace.config import DataSettings, SampleSettings, from_dict
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import LISTED_ENDS
from grace.engines.stops import named_ends
from grace.evidence import FEATURES, Evidence
from grace.records import Question
from grace.tasks import load_task
from grace.tasks.prompts import conversation, recorded_shots

# A literal of Python, JSON and YAML; escaped, a character such as an emoji would be two in Python.
quoted = functools.partial(json.dumps, ensure_ascii=False)
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["quoted"] = quoted
QUESTION = "Which river did Quanto Belliver cross?"
OPTIONS = ("the Sall", "the Orm")
UNBOUNDED = 1e9  # for evidence without a range to which features are clipped


def snippet(record: dict[str, Any], directory: Path, prompt: str, *, asks: bool) -> str:
    """Return the code that computes c and, if it `asks`, the code that asks vLLM."""
    evidence = Evidence.in_card(record)
    read = record.get("read_ids", [record["cnf_id"]])
    stops = list(dict.fromkeys([*named_ends(directory), *record.get("stop_ids", ())]))
    ends = [token for token in stops if token not in read]
    sample = from_dict(SampleSettings, record.get("sample", {}))
    return TEMPLATES.get_template("snippet.py.j2").render(
        asks=asks,
        kind="linear" if len(read) > 1 else "token" if evidence else "plain",
        at_prompt=record["read_at"] == "prompt",
        prompt=prompt,
        read=read,
        stops=stops,
        ends=ends[:LISTED_ENDS],
        evidence=evidence,
        lowest=[-UNBOUNDED] * len(FEATURES),
        highest=[UNBOUNDED] * len(FEATURES),
        longest=sample.longest,
        cut="".join(f".partition({quoted(stop)})[0]" for stop in sample.stop),
    )


def prompt_of(record: dict[str, Any], directory: Path) -> str:
    """Return the prompt of the training run as text, with `{question}` and `{options}` in it.

    It is "" if the task is not built in, if the prompt itself says one of these, or if the
    tokenizer does not turn its text back into the same tokens.
    """
    data = from_dict(DataSettings, record.get("data", {}))
    if not data.task or ":" in data.task:
        return ""
    task = load_task(data.task, record.get("kind", ""))
    tokenizer = load_tokenizer(directory)
    choices = OPTIONS if task.kind == "choice" else ()
    question = Question("0", task.name, QUESTION, (), choices)
    ids = encode_chat(tokenizer, conversation(task, question, data, recorded_shots(record)))
    text: str = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    has_fields = any(field in text for field in ("{question}", "{options}"))  # of its own
    if has_fields or tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
        return ""
    text = text.replace(QUESTION, "{question}")
    return text.replace("\n".join(lettered(choices)), "{options}") if choices else text
