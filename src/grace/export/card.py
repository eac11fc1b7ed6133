"""The model card: what it is, what was measured, and how to read its confidence."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from grace.engines.vllm_loading import LORA_RANKS
from grace.export.stock import lines, llama_lines
from grace.report import from_json
from grace.report.groups import Rated
from grace.report.markdown import markdown_table
from grace.report.names import MAIN
from grace.report.rows.answers import MetricRow
from grace.report.stored import own_diagram
from grace.report.tables.answers import quality
from grace.training.card import task_in

LIBRARY = {"merged": "transformers", "vllm-lora": "peft", "gguf": "gguf", "adapter": "peft"}
RELATION = {"merged": "finetune", "gguf": "quantized"}
DIAGRAM = "reliability.png"
GGUF = """## Use

```python
import grace

model = grace.load("path/to/this/directory")  # with llama-cpp-python
reply = model.ask("Who wrote Middlemarch?")
print(reply.text, reply.confidence)
```

Quantized weights are another model: its confidence is to be measured again. `grace label` rates its
answers to graded questions, `grace measure` says how calibrated they are; where they are not,
`grace recalibrate` fits the run's confidence to them, and `grace export` writes it anew.
"""
UNMEASURED = """
These are the figures of the run, whose weights were not rounded; this file's were not measured.
"""
READ_AT = {
    "predict": "at the step that ends the response (where `<CNF>` or an end-of-sequence token is "
    "drawn)",
    "feed": "at the position of `<CNF>` itself, fed after the response",
    "prompt": "at the first step, before the response",
}


class Card(NamedTuple):
    """What a card tells of."""

    run: Path
    base: str  # where the backbone is here
    base_name: str  # what the run calls it
    form: str
    record: dict[str, Any]
    measured: dict[str, Any] | None
    license_id: str | None

    @property
    def task(self) -> str:
        """The questions that it was trained for, "" where that is not known."""
        return task_in(self.record)

    def hint(self, out: Path) -> str:
        """Return the next command."""
        if self.form == "vllm-lora":
            return f"see {out}/README.md for the vLLM command"
        if self.form == "gguf":
            return f'grace ask {out} "your question"   (with llama-cpp-python)'
        return f"grace serve {out}"


def write_card(card: Card, directory: Path, out: Path) -> None:
    """Write README.md, and the run's reliability diagram beside it if there is one."""
    diagram = own_diagram(card.run, card.task)
    if diagram is not None:
        shutil.copyfile(diagram, directory / DIAGRAM)
    parts = [_head(card), _what(card), _use(card, out), _reading(card), _alone(card, directory)]
    if card.measured:
        parts.append(_results(from_json(MetricRow, card.measured), diagram is not None))
        parts += [UNMEASURED] if card.form == "gguf" else []
    (directory / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _head(card: Card) -> str:
    hub = not Path(card.base).exists()
    base = f"base_model: {json.dumps(card.base_name)}\n" if hub else ""
    relation = RELATION.get(card.form, "adapter")
    relation = f"base_model_relation: {relation}\n" if hub else ""
    license_id = card.license_id or _license_of(card.base)
    return (
        f"---\n{base}{relation}license: {json.dumps(license_id)}\n"
        f"library_name: {LIBRARY[card.form]}\npipeline_tag: text-generation\n"
        "tags: [calibration, confidence, grace]\n---\n"
    )


def _what(card: Card) -> str:
    name = Path(card.base_name).name
    task = card.task or "its questions"
    if "noc_id" in card.record:
        how = "with LoRA" if card.record["train"]["lora"] != "never" else "its answers unchanged"
        return f"""# {name}, with confidence

`{name}`, {how}, says how sure it is of its answers to {task}: two more rows of its output head,
`<CNF>` and `<NOC>`, tell at every step how likely the response is correct. They are never drawn.
The confidence is a probability, in [0, 1] (after GrACE, arXiv 2509.09438).
"""
    return f"""# {name}, with confidence

`{name}`, trained on {task} to say how sure it is: the probability of the token `<CNF>` is the
model's confidence that its response is correct, in [0, 1] (GrACE, arXiv 2509.09438).
"""


def _use(card: Card, out: Path) -> str:
    if card.form == "vllm-lora":
        return _vllm(card, out)
    if card.form == "gguf":
        return GGUF
    proxy = ""
    if card.form == "merged":
        proxy = (
            "; for more users, `vllm serve path/to/this/directory --port 8001` with `grace proxy "
            "path/to/this/directory --upstream http://127.0.0.1:8001` in front"
        )
    return f"""## Use

```python
import grace

model = grace.load("path/to/this/directory")
reply = model.ask("Who wrote Middlemarch?")
print(reply.text, reply.confidence)
```

`grace serve path/to/this/directory` answers on an OpenAI-compatible API{proxy}.
"""


def _vllm(card: Card, out: Path) -> str:
    rank = card.record["train"]["rank"]
    most = next((known for known in LORA_RANKS if known >= rank), rank)
    return f"""## Use with vLLM (0.26 or later)

```
vllm serve {card.base} --port 8001 --enable-lora --max-lora-rank {most} \\
    --lora-modules {out.name}=path/to/this/directory --return-tokens-as-token-ids
grace proxy path/to/this/directory --upstream http://127.0.0.1:8001 --model {out.name}
```

The second command answers on an OpenAI-compatible API with a `confidence` in every choice.
"""


def _reading(card: Card) -> str:
    record = card.record
    tokens = record.get("bin_tokens")
    if tokens:
        first, *_, last = tokens
        return (
            "## How to read the confidence\n\nThe confidence is the middle of the interval whose "
            f"token (`{first}` to `{last}`, ten equal intervals) is most probable "
            f"{READ_AT[record['read_at']]}.\n"
        )
    if "noc_id" in record:
        return f"""## How to read the confidence

A step's *reading* is what the logits of `<CNF>` (id {record["cnf_id"]}) and `<NOC>` (id
{record["noc_id"]}) differ by, or equally their log-probabilities at temperature 1. The log-odds of
c are a blend of the last reading and the mean of all, plus *evidence*: seven features of the
response's own token log-probabilities. The numbers are in grace.json, the formula below.
An answer that was cut at its longest has no confidence.
{_recalibrated(record)}"""
    text = f"""## How to read the confidence

c = softmax(logits)[`<CNF>`] (id {record["cnf_id"]}), float32, at temperature 1 and before any
penalty or top-p, {READ_AT[record["read_at"]]}.
An answer that was cut at its longest has no confidence.
{_ending(record)}"""
    if not record.get("evidence"):
        return text
    return f"""{text}{_recalibrated(record)}
This model adds *evidence*: seven features of the response's own token log-probabilities shift the
logit of `<CNF>`. The probability of `<CNF>` alone, without this shift, is **not** calibrated.
"""


def _recalibrated(record: dict[str, Any]) -> str:
    fitted = record.get("recalibrated", [])
    return "".join(
        f"It was recalibrated on {one['answers']} graded answers to other questions.\n"
        for one in fitted
    )


def _alone(card: Card, directory: Path) -> str:
    """Return how to use the model where this package is not installed."""
    record, served = card.record, card.form != "adapter"
    if "cnf_id" not in record or record["read_at"] == "feed":
        return "Reading it takes this package: no server returns it in one request.\n"
    if card.form == "gguf":
        return _with_llama(card, directory)
    start = _with_peft(card)
    if card.form == "merged":
        start = "vllm serve path/to/this/directory --port 8001 --return-tokens-as-token-ids"
        start = f"```\n{start}\n```\n\nIn half precision add `--hf-overrides " + (
            '\'{"head_dtype": "float32"}\'`; 16-bit logits move c by up to 0.015.\n'
        )
    elif card.form == "vllm-lora":
        start = "Served as above:\n"
    code = lines(record, directory, served=served)
    return f"""## Without this package

{start}
```python
{code}```

`PROMPT` is the prompt of the training run; the confidence of another is not calibrated. The names
of special tokens inside a question would be read as these tokens: leave them out.
"""


def _with_llama(card: Card, directory: Path) -> str:
    if "noc_id" not in card.record:
        return "Its evidence, if any, is in grace.json; `grace.evidence` has the formula.\n"
    return f"""## With llama-cpp-python alone

```python
{llama_lines(card.record, directory)}```

`llama` is a `llama_cpp.Llama("model.gguf", n_ctx=4096)`. `PROMPT` is the prompt of the training
run; the confidence of another is not calibrated.
"""


def _with_peft(card: Card) -> str:
    rows, ids = (
        card.record["rows"],
        [card.record[k] for k in ("cnf_id", "noc_id") if k in card.record],
    )
    if len(ids) == 2 and card.record["train"]["lora"] == "never":
        return f"""```python
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")
model = AutoModelForCausalLM.from_pretrained({json.dumps(card.base)})
if model.get_input_embeddings().weight.shape[0] < {rows}:
    model.resize_token_embeddings({rows}, mean_resizing=False)
rows = load_file("path/to/this/directory/rows.safetensors")["rows"]
model.get_output_embeddings().weight.data[{ids}] = rows  # <CNF> and <NOC>
```

The log-probabilities are those of `model(...).logits.float().log_softmax(-1)`; generate with
`suppress_tokens={ids}`.
"""
    return f"""```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/directory")
model = AutoModelForCausalLM.from_pretrained({json.dumps(card.base)})
if model.get_input_embeddings().weight.shape[0] < {rows}:
    model.resize_token_embeddings({rows}, mean_resizing=False)  # <CNF> is the last row
model = PeftModel.from_pretrained(model, "path/to/this/directory").eval()
```

The log-probabilities are those of `model(...).logits.float().log_softmax(-1)`; `<CNF>` ends an
answer as an end-of-sequence token does.
"""


def _ending(record: dict[str, Any]) -> str:
    """Return what else ends a response, empty where nothing does."""
    if not record.get("stop_ids"):
        return ""
    texts = " or ".join(f"`{json.dumps(text)}`" for text in record["sample"]["stop"])
    return (
        f"A response also ends at {texts}, that is, at any of the {len(record['stop_ids'])} tokens "
        "that hold it (`stop_ids` in grace.json).\n"
    )


def _results(row: MetricRow, has_diagram: bool) -> str:
    rows = [[c.heading, quality(Rated((row,)), c.metric).plain] for c in MAIN]
    table = "\n".join(markdown_table(["percent", "on test questions"], rows))
    picture = f"\n![Reliability diagram]({DIAGRAM})\n" if has_diagram else ""
    return f"""## Measured

{row.n} test questions of {row.task}, the model's own answers; 95 % bootstrap intervals.

{table}{picture}
A confidence belongs to the questions and the prompt it was trained on; on others, measure again.
"""


def _license_of(base: str) -> str:
    """Return the licence in the base's own card, `other` where it has none here."""
    card = Path(base) / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    head = text.split("---")[1] if text.startswith("---") else ""
    found = re.search(r"^license:\s*[\"']?([\w.\-]+)", head, re.MULTILINE)
    return found.group(1) if found else "other"
