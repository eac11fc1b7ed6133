"""The lines of a model card that ask and read a model where `grace` is not installed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grace.chat import encode_chat
from grace.config import DataSettings, SampleSettings, from_dict
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import LISTED_ENDS
from grace.engines.stops import named_ends
from grace.evidence import Evidence
from grace.records import Question, from_json
from grace.tasks import load_task
from grace.tasks.prompts import conversation

ASKED = Question("0", "", "Which river did Quanto Belliver cross?", (), ())
OPTIONS = ("the Sall", "the Orm")

BANNED = (
    "\n        logit_bias={str(CNF): -100},",
    "\n        logit_bias={str(CNF): -100, str(NOC): -100},",
)  # what is read without ending anything is never drawn
PLAIN = '''\
def confidence(log_c, logprobs):
    """Return c from log p(<CNF>){where}."""
    return math.exp(min(log_c, 0.0))
'''
SHIFTED = '''\
WEIGHTS = {weights}
CENTER = {center}
LOW = {low}
HIGH = {high}
BIAS, SLOPE, SHARE, LIMIT = {bias}, {slope}, {share}, {limit}


def confidence({read}, logprobs, end):
    """Return c from {what}{where}, log p of its tokens and log p of its end."""
{state}
    p = [min(max(-20.0, value), 0.0) for value in logprobs] or [0.0]
    mean, low = sum(p) / len(p), min(p)
    end = min(max(-20.0, end), 0.0)
    both = math.exp((sum(p) + end) / (len(logprobs) + 1))
    found = [mean, low, sum(p), math.log(len(p)), math.exp(low), math.exp(p[0]), both]
    found = [min(max(x, a), b) for x, a, b in zip(found, LOW, HIGH)]
    shift = BIAS + sum(w * (x - m) for w, x, m in zip(WEIGHTS, found, CENTER))
    logit = max(-LIMIT, min(SLOPE * (state + shift), LIMIT))
    return 1 / (1 + math.exp(-logit))
'''
TOKEN = {
    "read": "log_c",
    "what": "log p(<CNF>)",
    "state": "    log_c = min(log_c, -1e-7)\n    state = log_c - math.log(-math.expm1(log_c))",
    "asked": "[CNF]",
    "given": "steps.token_logprobs[:-1]",
    "steps": 'log_c = steps.top_logprobs[STEP][f"token_id:{CNF}"]',
    "end": (
        "\n    last = {int(k[9:]): v for k, v in steps.top_logprobs[-1].items()}"
        "\n    end = sum(math.exp(v) for k, v in last.items() if k != CNF)"
        "\n    end = math.log(max(end, 1e-9)) - math.log1p(-min(math.exp(log_c), 1 - 1e-7))"
    ),
}
PAIR = {
    "read": "readings",
    "what": "log p(<CNF>) - log p(<NOC>) of each step, up to the one",
    "state": ("    state = SHARE * sum(readings) / len(readings) + (1 - SHARE) * readings[-1]"),
    "asked": "[CNF, NOC]",
    "given": "own[:-1]",
    "steps": (
        "top = [{int(k[9:]): v for k, v in s.items()} for s in steps.top_logprobs]\n"
        "    readings = [step[CNF] - step[NOC] for step in top]\n"
        "    pair = [min(math.exp(step[CNF]) + math.exp(step[NOC]), 1 - 1e-7) for step in top]\n"
        "    own = [p - math.log1p(-q) for p, q in zip(steps.token_logprobs, pair)]"
    ),
    "end": (
        "\n    end = sum(math.exp(v) for k, v in top[-1].items() if k not in (CNF, NOC))"
        "\n    end = math.log(max(end, 1e-9)) - math.log1p(-pair[-1])"
    ),
}
ASK = '''

def ask(client, model, question, options=""):
    """Return an answer and its confidence, None where the answer was cut at its longest."""
    reply = client.completions.create(
        model=model,
        prompt=PROMPT.replace("{{question}}", question).replace("{{options}}", options),
        max_tokens={longest},
        temperature=0,
        logprobs=1,{bias}
        extra_body={{
            "add_special_tokens": False,
            "repetition_penalty": 1.0,
            "stop_token_ids": {stops},
            "logprob_token_ids": {asked},
            "return_tokens_as_token_ids": True,
        }},
    )
    (choice,) = reply.choices
    if choice.finish_reason != "stop":
        return choice.text, None
    steps = choice.logprobs
    {steps}
    return {text}, confidence({read}, {given})
'''
LLAMA = '''

def ask(llama, question, options=""):
    """Return an answer and its confidence, None where the answer was cut at its longest."""
    text = PROMPT.replace("{{question}}", question).replace("{{options}}", options)
    context = llama.tokenize(text.encode(), add_bos=False, special=True)
    start, readings, own = len(context), [], []
    llama.reset()
    while len(context) < start + {longest}:
        llama.eval(context[llama.n_tokens :])
        pointer = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
        logits = np.ctypeslib.as_array(pointer, (llama.n_vocab(),)).astype(float)
        readings.append(logits[CNF] - logits[NOC])
        logits[[CNF, NOC]] = -np.inf  # never drawn
        p = logits - np.logaddexp.reduce(logits)
        if (token := int(p.argmax())) in ENDS:
            text = llama.detokenize(context[start:]).decode()
            end = np.logaddexp.reduce(p[ENDS])
            return {text}, confidence(readings, own, end)
        own.append(p[token])
        context.append(token)
    return llama.detokenize(context[start:]).decode(), None
'''


def llama_lines(record: dict[str, Any], directory: Path) -> str:
    """Return Python code that reads a pair with llama-cpp-python alone; greedy answers.

    Args:
        record: the content of grace.json, of a model that reads a pair.
        directory: the export, with its tokenizer.
    """
    sample = from_dict(SampleSettings, record.get("sample", {}))
    texts = "".join(f".partition({json.dumps(stop)})[0]" for stop in sample.stop)
    head = (
        "import math\n\nimport llama_cpp\nimport numpy as np\n\n"
        f"CNF, NOC = {record['cnf_id']}, {record['noc_id']}\n"
        f"ENDS = {list(named_ends(directory))}\n"
        f"PROMPT = {json.dumps(prompt_of(record, directory))}\n"
    )
    read = SHIFTED.format(where=" where the answer ends", **PAIR, **(numbers_of(record) or {}))
    return head + read + LLAMA.format(longest=sample.longest, text=f"text{texts}.strip()")


def lines(record: dict[str, Any], directory: Path, *, served: bool) -> str:
    """Return Python code that needs nothing but, where the model is `served`, `openai`.

    Args:
        record: the content of grace.json, of a model that reads one token in one request.
        directory: the export, with its tokenizer.
        served: with the request, which is for stock vLLM 0.26 or later.
    """
    at_prompt = record["read_at"] == "prompt"
    evidence = numbers_of(record)
    pair = "noc_id" in record
    form = PAIR if pair else TOKEN
    where = " at the first step" if at_prompt else " where the answer ends"
    ids = (
        f"CNF, NOC = {record['cnf_id']}, {record['noc_id']}"
        if pair
        else f"CNF = {record['cnf_id']}"
    )
    stops = list(dict.fromkeys([*named_ends(directory), *record.get("stop_ids", ())]))
    read_ids = (record["cnf_id"], record.get("noc_id"))
    ends = [token for token in stops if token not in read_ids][:LISTED_ENDS] if evidence else []
    ids += f"\nENDS = {ends}" if served and evidence else ""
    head = f"import math\n\n{ids}\nPROMPT = {json.dumps(prompt_of(record, directory))}\n"
    read = (SHIFTED if evidence else PLAIN).format(where=where, **form, **(evidence or {}))
    if not served:
        return head + ("" if evidence else "\n\n") + read
    sample = from_dict(SampleSettings, record.get("sample", {}))
    texts = "".join(f".partition({json.dumps(stop)})[0]" for stop in sample.stop)
    ask = ASK.format(
        longest=sample.longest,
        bias=BANNED[pair] if pair or at_prompt else "",
        stops=stops,
        read=form["read"],
        asked=form["asked"] + (" + ENDS" if evidence else ""),
        given=form["given"] + (", end" if evidence else ""),
        steps=form["steps"].replace("STEP", "0" if at_prompt else "-1")
        + (form["end"] if evidence else ""),
        text=f"choice.text{texts}.strip()",
    )
    return head + ("" if evidence else "\n\n") + read + ask


def numbers_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the numbers of the evidence as Python writes them, None of a model without any."""
    if not record.get("evidence"):
        return None
    evidence = Evidence.from_dict(record["evidence"])
    wide = (1e9,) * len(evidence.weights)
    bounds = {"low": evidence.low or tuple(-x for x in wide), "high": evidence.high or wide}
    return {
        k: list(v) if isinstance(v, tuple) else v for k, v in (asdict(evidence) | bounds).items()
    }


def prompt_of(record: dict[str, Any], directory: Path) -> str:
    """Return the text that asks, with `{question}` and `{options}` in it; "" where none does.

    None does where a tokenizer does not read its own text back, or the task is code from elsewhere.
    """
    data = from_dict(DataSettings, record.get("data", {}))
    if not data.task or ":" in data.task:
        return ""
    task, tokenizer = load_task(data.task), load_tokenizer(directory)
    choices = OPTIONS if task.kind == "choice" else ()
    question = Question(ASKED.id, task.name, ASKED.text, (), choices)
    shots = [from_json(Question, shot) for shot in record.get("shots", ())]
    ids = encode_chat(tokenizer, conversation(task, question, data, shots))
    text: str = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if list(tokenizer(text, add_special_tokens=False)["input_ids"]) != ids:
        return ""
    options = "\n".join(f"{key}. {choice}" for key, choice in zip("AB", choices, strict=False))
    text = text.replace(ASKED.text, "{question}")
    return text.replace(options, "{options}") if options else text
