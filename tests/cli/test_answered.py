"""Answers in a user's file: every command reads the same columns and shapes."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet

import grace
import tiny_run
from grace.errors import DataError
from grace.store.inputs import Row
from grace.tasks.answered import Answered, read_answers
from grace.tasks.values import parse
from grace.thresholds import selective

TURNS = [{"role": "user", "content": "Who?"}]
TOKENS = [{"token": "a", "logprob": -0.1, "top_logprobs": []}, {"token": "b", "logprob": -0.3}]


def row(**fields: Any) -> Answered:
    return Answered("own.jsonl:1", fields)


@pytest.mark.parametrize(
    ("fields", "logprobs", "has_end"),
    [
        ({"logprobs": [-0.1, -0.3], "end_logprob": -1}, (-0.1, -0.3, -1.0), True),
        ({"logprobs": "[-0.1, -0.3]", "end_logprob": "-1"}, (-0.1, -0.3, -1.0), True),
        ({"logprobs": [], "end_logprob": -1}, (-1.0,), True),
        ({"logprobs": {"content": TOKENS}}, (-0.1, -0.3), False),
        ({"logprobs": json.dumps({"content": TOKENS})}, (-0.1, -0.3), False),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [-0.1]}}, (-0.1,), False),
        ({"Logprobs": TOKENS}, (-0.1, -0.3), False),
        ({"logprobs": {"content": None, "refusal": []}}, (), False),
        ({"logprobs": [-0.1], "end_logprob": None}, (), False),  # cut
        ({"logprobs": TOKENS, "finish_reason": "length"}, (), False),
        ({"logprobs": None, "end_logprob": -1}, (), False),
        ({}, (), False),
    ],
)
def test_logprobs_of_labels_and_of_an_api(
    fields: dict[str, Any], logprobs: tuple[float, ...], has_end: bool
) -> None:
    found = row(**fields)
    assert (found.logprobs, found.has_end) == (logprobs, has_end)
    mean = sum(logprobs) / len(logprobs) if logprobs else 0
    assert found.likelihood == (pytest.approx(math.exp(mean)) if logprobs else None)


REPLY = {
    "message": {"content": "Paris"},
    "finish_reason": "length",
    "logprobs": {"content": TOKENS},
}


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"status_code": 200, "body": {"choices": [REPLY]}}, "Paris"),  # a batch of OpenAI, or vLLM
        ({"choices": [{"text": "Paris"}]}, "Paris"),
        ({"content": [{"type": "thinking", "thinking": "?"}, {"type": "text", "text": "x"}]}, "x"),
        ({"output": [{"summary": []}, {"content": [{"type": "output_text", "text": "x"}]}]}, "x"),
        (["x"], "x"),
        ({"body": "x"}, "x"),
        ({"choices": ["x"]}, "x"),
        ({"choices": "x"}, "x"),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, None),
        ({"answer": "x"}, None),
    ],
)
def test_the_one_text_in_a_reply_of_an_api_is_the_answer(response: Any, text: str | None) -> None:
    (found,) = read_answers([{"question": "?", "response": response}])
    if text is None:
        with pytest.raises(DataError, match="write it as a text"):
            _ = found.response
        return
    assert found.response == text
    assert found.is_cut is ("length" in str(response))


def test_the_last_turn_of_the_assistant_is_the_answer_where_no_other_is_given() -> None:
    turns = [*TURNS, {"role": "assistant", "content": "She."}]
    (found,) = read_answers([{"messages": turns}])
    assert (found.asked, found.response) == (TURNS, "She.")
    (found,) = read_answers([{"Messages": turns, "response": None}])
    assert (found.asked, found.response) == (TURNS, "She.")
    (found,) = read_answers([{"question": "?", "Response": {"text": "hi"}}])
    assert found.response == "hi"


def test_questions_of_one_wording_about_two_passages_are_two() -> None:
    rows = [{"question": "Who?", "context": f"See {n} of it.", "response": "x"} for n in (1, 2)]
    first, second = read_answers(rows)
    assert first.asked != second.asked
    assert first.names[0] != second.names[0] and {*first.keys}.isdisjoint(second.keys)


def test_samples_of_lm_evaluation_harness_are_answers() -> None:
    doc = {"question": "What is 2 + 3?", "answer": "So.\n#### 5"}
    sample = {"doc_id": 0, "doc": doc, "target": "5", "resps": [["It is 5."]], "filter": "none"}
    (found,) = read_answers([sample])
    assert (found.asked, found.response) == ("What is 2 + 3?", "It is 5.")
    likelihoods = sample | {"resps": [[["-2.0", "False"]], [["-1.0", "True"]]]}
    (rated,) = read_answers([likelihoods | {"arguments": [["Q:", " 4"], ["Q:", " 5"]]}])
    assert (rated.response, rated.confidence) == ("5", pytest.approx(1 / (1 + math.exp(-1))))
    named = {f"gen_args_{n}": {"arg_0": "Q:", "arg_1": f" {4 + n}"} for n in (0, 1)}
    (also,) = read_answers([likelihoods | {"arguments": named}])
    assert also.response == "5"
    (unsaid,) = read_answers([likelihoods])
    with pytest.raises(DataError, match='"response" is missing'):
        _ = unsaid.response


def test_samples_of_inspect_and_helm_are_answers(tmp_path: Path) -> None:
    reply = {"choices": [{"message": {"content": "ANSWER: B"}, "stop_reason": "stop"}]}
    options = {"target": "B", "choices": ["Paris", "Rome"], "output": reply}
    turns = [{"role": "user", "content": "Choose."}, {"role": "assistant", "content": "B"}]
    sample = {"id": 1, "input": "Italy?", "messages": turns, **options}
    references = [{"output": {"text": city}, "tags": []} for city in ("Paris", "Rome")]
    references[1]["tags"] = ["correct"]
    state = {
        "instance": {"input": {"text": "Italy?"}, "references": references, "id": "id7"},
        "output_mapping": {"A": "Paris", "B": "Rome"},
        "result": {"completions": [{"text": " B", "tokens": [{"text": " B", "logprob": -0.5}]}]},
    }
    inspect, helm = tmp_path / "inspect.json", tmp_path / "scenario_state.json"
    inspect.write_text(json.dumps({"version": 2, "samples": [sample]}))
    helm.write_text(json.dumps({"adapter_spec": {}, "request_states": [state]}))
    for file, said in ((inspect, "ANSWER: B"), (helm, " B")):
        (found,) = read_answers(file)
        assert (found.asked, found.choices) == ("Italy?", ("Paris", "Rome"))
        assert (found.response, found.known["answers"]) == (said, "B")
    assert found.logprobs == (-0.5,)


@pytest.mark.parametrize("packed", [".gz", ".zst", ".utf-16", ""])
@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".parquet"])
def test_packed_files_are_read_as_what_is_in_them(tmp_path: Path, kind: str, packed: str) -> None:
    content = {
        ".jsonl": b'{"question": "Who?", "response": "x"}\n',
        ".json": b'[{"question": "Who?",\n "response": "x"}]',
        ".csv": b"question,response\nWho?,x\n",
    }.get(kind)
    if content is None:
        parquet.write_table(
            pyarrow.table({"question": ["Who?"], "response": ["x"]}), tmp_path / "own.parquet"
        )
        content = (tmp_path / "own.parquet").read_bytes()
    elif packed == ".utf-16":
        content, packed = content.decode().encode("utf-16"), ""
    file = tmp_path / f"own{kind}{'' if packed == '.utf-16' else packed}"
    pack = {".gz": gzip.compress, ".zst": lambda raw: pyarrow.compress(raw, "zstd", asbytes=True)}
    file.write_bytes(pack.get(packed, bytes)(content))
    (found,) = read_answers(file)
    assert (found.asked, found.response) == ("Who?", "x")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.jsonl.gz", b'{"question"'),
        ("own.jsonl.gz", gzip.compress(b'{"question": "Who?"}\n' * 99)[:-12]),
        ("own.parquet.gz", gzip.compress(b"PAR1" * 99)[:-12]),
        ("own.csv", "question,response\nWho?,me\n".encode("utf-16")[:-1]),
    ],
    ids=["not packed", "cut", "cut parquet", "cut utf-16"],  # what gzip writes has the time in it
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} is damaged"):
        list(read_answers(tmp_path / name))


@pytest.mark.parametrize("logprobs", [{"top": []}, [{"token": "a"}], ["a"], 3, [None, -1]])
def test_other_logprobs_are_refused(logprobs: Any) -> None:
    with pytest.raises(DataError, match=r"own.jsonl:1: logprobs must be a list of numbers"):
        _ = row(logprobs=logprobs).logprobs


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"question": " Who? "}, "Who?"),
        ({"Question": "Who?", "prompt": None}, "Who?"),
        ({"prompt": "Who? "}, [{"role": "user", "content": "Who? "}]),
        ({"messages": TURNS}, TURNS),
        ({"messages": json.dumps(TURNS)}, TURNS),
        ({"prompt": str(TURNS)}, TURNS),
        ({"question": TURNS}, TURNS),
        ({"prompt": '[{"a": 1}]'}, [{"role": "user", "content": '[{"a": 1}]'}]),
    ],
)
def test_what_was_asked(fields: dict[str, Any], asked: Any) -> None:
    assert row(**fields).asked == asked


@pytest.mark.parametrize("ending", ["directory", "csv"])
def test_every_command_takes_what_label_wrote(
    ending: str, finished: Path, tmp_path: Path, cli: Any
) -> None:
    questions = tiny_run.write_questions(tmp_path / "own.jsonl", 30)
    file = tmp_path / "labelled"
    assert cli("label", questions, file, "--model", finished / "run").code == 0
    rows = [answer.written for answer in read_answers(file, every=True)]
    if ending == "csv":  # where an empty cell says nothing
        rows = [one | {"text": one["text"].strip() or "-"} for one in rows]
        file = tmp_path / "answers.csv"
        pandas.DataFrame(rows).to_csv(file, index=False)
    scored = tmp_path / "scored.jsonl"
    made = cli("score", finished / "run", file, "--out", scored)
    assert made.code == 0, made.err
    found = [json.loads(line) for line in scored.read_text("utf-8").splitlines()]
    assert [one["text"] for one in found] == [one["text"] for one in rows]
    asked, texts = ([one[name] for one in rows] for name in ("question", "text"))
    wanted = grace.load(finished / "run").score(asked, texts)
    assert [one["confidence"] for one in found] == pytest.approx(wanted, abs=1e-5)
    for command in (
        ("grade", file),
        ("measure", file, scored),
        ("cascade", file, scored),
        ("threshold", file, "--target-accuracy", 0.01),
        ("recalibrate", finished / "run", file, tmp_path / "adapted"),
    ):
        made = cli(*command)
        assert made.code == 0, (command, made.err)


def test_likelihoods_stand_for_a_confidence_that_is_not_told(tmp_path: Path, cli: Any) -> None:
    rows = [
        {"question": f"{n}?", "response": "ab", "correct": n % 3 > 0}
        | {"logprobs": {"content": [{"token": "a", "logprob": -(n % 7) / 10}]}}
        for n in range(60)
    ]
    (made,) = grace.measure(rows).rows
    (same,) = grace.measure(
        one | {"confidence": math.exp(-(n % 7) / 10)} for n, one in enumerate(rows)
    ).rows
    assert (made.brier, made.auroc, made.n) == (same.brier, same.auroc, 60)
    shown = cli("measure", tiny_run.write_lines(tmp_path / "a.jsonl", rows)).out
    assert "no row has a confidence; the mean probability of its tokens" in " ".join(shown.split())
    some = [rows[0] | {"confidence": 0.5}, *rows[1:]]
    refused = cli("measure", tiny_run.write_lines(tmp_path / "b.jsonl", some))
    assert refused.code == 2 and 'b.jsonl:2: "confidence" is missing' in refused.err


def test_a_threshold_of_given_answers_is_that_of_their_confidences(
    tmp_path: Path, cli: Any
) -> None:
    rows = [
        {"question": f"{n}?", "confidence": n % 50 / 50 or None, "correct": n % 50 > 10 + n % 7}
        | {"source": "ab"[n % 2]}
        for n in range(400)
    ]
    file = tiny_run.write_lines(tmp_path / "rated.jsonl", [*rows, *rows[:99]])  # once each
    confidence = [row["confidence"] or math.nan for row in rows]
    correct, sources = ([row[name] for row in rows] for name in ("correct", "source"))
    wanted = ("threshold", file, "--target-accuracy", 0.8)
    for more, of in (((), sources), (("--mixture",), None)):
        made = cli(*wanted, *more, "--json")
        assert made.code == 0, made.err
        chosen = selective(confidence, correct, target=0.8, sources=of)
        found = json.loads(made.out)
        assert (found["tau"], found["n"], found["promise"]) == (chosen.tau, 400, str(chosen))
        assert len(found["sources"]) == 2 * bool(of)
    assert "next:" not in cli(*wanted).out and [*tmp_path.iterdir()] == [file]
    assert cli("threshold", file, "--target-accuracy", 0.99).code == 1
    refused = cli(*wanted, "--mode", "early-stop")
    assert refused.code == 2 and "holds answers, not a run; leave out --mode" in refused.err


ODD: list[Any] = [None, "", 0, 1.5, math.nan, [], {}, [1], [None], ["a"], [{}], [{"role": "user"}]]
ODD += [{"a": 1}, "[", "[1", "{'a':1}", "null", "1e999", {"content": 3}, {"content": [1]}, [[1]]]
ODD += [[{"role": "user", "content": 1}], {"spans": None, "date": 3}, {"choices": [1], "labels": 2}]
NAMES = ("question", "prompt", "messages", "choices", "response", "logprobs", "end_logprob", "id")
NAMES += (
    "group",
    "source",
    "confidence",
    "familiar",
    "fields",
    "correct",
    "mc1_targets",
    "answers",
)
WHOLE = {"question": "Q?", "response": "r", "correct": {"a": True}, "fields": {"a": 0.5}}
KINDS = [name for name in dir(Answered) if not name.startswith("_") and name != "of"]


@pytest.mark.parametrize("name", [*NAMES, "A", "doc", "answer"])
def test_odd_values_are_read_or_refused_in_a_line(name: str) -> None:
    for value, others in itertools.product(ODD, ({}, WHOLE)):
        found = row(**others | {name: value})
        for kind in KINDS:
            with contextlib.suppress(DataError):
                getattr(found, kind)
        with contextlib.suppress(DataError):
            parse(Row("own.jsonl:1", found.written))
