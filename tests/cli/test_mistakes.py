"""Typical mistakes of a user, and the one line that each gets: what happened, where, what to type.

Every message is written out, to be read as prose. `{here}` is the folder in which the command is
typed; the text, if any, is what the file named in the command holds. No model is loaded. What
else a line or a table of questions may lack is in tests/tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

RUN = "run new --model pocket --file own.jsonl"
POCKET = "run new --model pocket --task pocket_people"
GOOD = '{"question": "A?", "answers": ["a"]}'
KNOWN = (
    "actcab, apricot, consistency, deepconf, deepconf_logistic, evidence, grace, grace_base, "
    "likelihood, loglik, p_true, p_true_supervised, p_true_tuned, platt, probe, probe_tokens, "
    "semantic_entropy, verbal, verbal_tuned"
)
STAGES = "sample, grade, features, fit, answer, score, report"


class Mistake(NamedTuple):
    """What is wrong, what is typed, what the command says, and what the file in it holds."""

    why: str
    typed: str
    message: str
    text: str = ""


MISTAKES = [
    # the file of questions
    Mistake(
        "its name is misspelt",
        "run new --model pocket --file owm.jsonl",
        "there is no file {here}/owm.jsonl; did you mean own.jsonl?",
    ),
    Mistake(
        "it is elsewhere",
        "run new --model pocket --file data/questions.csv",
        "there is no file {here}/data/questions.csv; check the path",
    ),
    Mistake(
        "a data set of the Hub lacks its hf:",
        "run new --model pocket --file allenai/sciq",
        "there is no file {here}/allenai/sciq; check the path, or write hf:allenai/sciq for a "
        "data set on the Hub",
    ),
    Mistake(
        "the Hub cannot be reached",
        "run new --model pocket --file hf:me/own",
        "me/own cannot be loaded from the Hugging Face Hub (ConnectionError: Couldn't reach "
        "'me/own' on the Hub (OfflineModeIsEnabled)); go online once, or check hf:me/own "
        "(hf:OWNER/NAME:CONFIG:SPLIT), or download a file of it and name that",
    ),
    Mistake(
        "it is a spreadsheet",
        "run new --model pocket --file own.xlsx",
        "{here}/own.xlsx: .xlsx is not read; save it as .csv, .jsonl or .parquet",
        "PK",
    ),
    Mistake(
        "it is a JSON list with a mistake",
        "run new --model pocket --file own.json",
        "{here}/own.json:2: not JSON: Expecting ',' delimiter at column 37; correct the list, or "
        "write one object per line without brackets around them",
        f"[\n{GOOD}{GOOD}]",
    ),
    Mistake(
        "it is empty",
        RUN,
        '{here}/own.jsonl is empty; write one {{"question": ..., "answers": [...]}} per line',
        "\n",
    ),
    Mistake(
        "it holds two questions",
        RUN,
        "{here}/own.jsonl has 2 different questions, but a run needs 3: one each to train, to "
        "validate and to test; a few hundred are better",
        f"{GOOD}\n" + GOOD.replace("A", "B"),
    ),
    Mistake(
        "a bracket is missing",
        RUN,
        "{here}/own.jsonl:2: not JSON: Expecting ',' delimiter at column 36; write one object per "
        "line",
        f"{GOOD}\n{GOOD[:-1]}\n",
    ),
    Mistake(
        "quotes are single",
        RUN,
        "{here}/own.jsonl:1: not JSON: Expecting property name enclosed in double quotes at column "
        "2; put names and texts in double quotes",
        "{'question': 'A?', 'answers': ['a']}",
    ),
    Mistake(
        "the question has another name",
        RUN,
        '{here}/own.jsonl:1: "question" is missing among the fields stem, answer; name the field '
        "with the question: --question-field stem",
        '{"stem": "A?", "answer": "a"}',
    ),
    Mistake(
        "the named field is misspelt",
        f"{RUN} --answer-field solutoin",
        '{here}/own.jsonl:1: no field "solutoin" among question, solution; did you mean solution?',
        '{"question": "A?", "solution": "a"}',
    ),
    Mistake(
        "the answer is none of the choices",
        RUN,
        "{here}/own.jsonl:1: \"answer\" 'nine' is none of the choices; write its letter A-B, its "
        "text, or its index from 0",
        '{"question": "Which is a prime?", "choices": ["4", "7"], "answer": "nine"}',
    ),
    Mistake(
        "the choices are misspelt",
        RUN,
        '{here}/own.jsonl:1: did you mean "choices"? rename or remove "choises"',
        '{"question": "Which is a prime?", "choises": ["4", "7"], "answer": "B"}',
    ),
    Mistake(
        "questions from a pipe",
        "run new --model pocket --file -",
        "questions cannot come from a pipe, because they are read more than once; save them to a "
        "file",
    ),
    # the model and the run
    Mistake(
        "the model's folder is not there",
        "run new --model ./qwen --file own.jsonl",
        "./qwen does not exist; give a model directory or Hub id",
    ),
    Mistake(
        "no model is named",
        "run new --file own.jsonl",
        "model.path is not set; give --model DIR or a Hub id, or a recipe that sets it",
        GOOD,
    ),
    Mistake(
        "no questions are named",
        "run new --model pocket",
        "data.task is not set; give --file FILE with your own questions, --task NAME (see `grace "
        "list tasks`), or a recipe that sets it",
    ),
    Mistake(
        "a file is named for the run",
        "run own.jsonl --model pocket",
        "own.jsonl is a file; name a directory for the run, e.g. runs/first",
        GOOD,
    ),
    Mistake(
        "a task and a file are named",
        f"{RUN} --task sciq",
        "task sciq has questions of its own and does not read {here}/own.jsonl; leave out --task "
        "or --file",
        GOOD,
    ),
    Mistake(
        "a file and a folder have the questions",
        f"{RUN} --data questions",
        "the questions are in {here}/own.jsonl or in {here}/questions, not in both; leave out "
        "--file or --data (data.file, data.dir)",
        GOOD,
    ),
    Mistake(
        "the run is not there",
        "ask ./new Who?",
        "./new does not exist: no run and no model is there; check the path, or give a Hub id",
    ),
    Mistake(
        "the runs are not there",
        "report new",
        "new is not a run, and there is none in it; see `grace list runs`",
    ),
    Mistake(
        "the recipe is not there",
        "run new --recipe mine.toml",
        "recipe mine.toml does not exist; give a file, or a name of `grace list recipes`",
    ),
    # options
    Mistake(
        "a question without quotes",
        "ask new Who wrote it?",
        "Got unexpected extra argument(s) (wrote it?); put the question in quotes; see `grace ask "
        "--help`",
    ),
    Mistake("no question", "ask new", "Missing argument 'QUESTION'; see `grace ask --help`"),
    Mistake(
        "a command is misspelt",
        "aks new Who?",
        "No such command 'aks'. Did you mean 'ask'?; see `grace --help`",
    ),
    Mistake(
        "an option is misspelt",
        "run new --modle pocket",
        "No such option: --modle (Possible options: --file, --model); see `grace run --help`",
    ),
    Mistake(
        "a setting is misspelt",
        f"{RUN} --set paper.epoch=3",
        "settings: unknown setting 'paper.epoch'; did you mean 'paper.epochs'?",
    ),
    Mistake(
        "several greedy answers to a question",
        f"{RUN} --set sample.train_samples=2",
        "at temperature 0 all 2 answers to a question are equal; set sample.train_temperature=0.8, "
        "or leave out sample.train_samples",
    ),
    Mistake(
        "a setting without a value",
        f"{RUN} --set paper.epochs",
        "setting 'paper.epochs' has no value; write paper.epochs=VALUE",
    ),
    Mistake(
        "a word for a number",
        f"{RUN} --set paper.epochs=many",
        "settings: paper.epochs is 'many', expected a whole number",
    ),
    Mistake(
        "one of several estimators is misspelt",
        f"{RUN} --set report.estimators=grace,plat",
        f"unknown estimator 'plat'; did you mean 'platt'? known: {KNOWN}, or module:NAME for one "
        "of your own",
    ),
    Mistake(
        "the estimator of a setting is misspelt",
        f"{POCKET} --set estimators.p_tru.shots=4",
        f"unknown estimator 'p_tru'; did you mean 'p_true'? known: {KNOWN}, or module:NAME for one "
        "of your own",
    ),
    Mistake(
        "a setting of an estimator that is not rated is misspelt",
        f"{POCKET} --set estimators.p_true.shot=4",
        "estimators.p_true: unknown setting 'shot'; did you mean 'shots'?",
    ),
    Mistake(
        "a setting of an estimator with its recalibration",
        f"{POCKET} --set estimators.deepconf+platt.window=3",
        f"unknown estimator 'deepconf+platt'; did you mean 'deepconf'? known: {KNOWN}, or "
        "module:NAME for one of your own",
    ),
    Mistake(
        "a grader is misspelt",
        f"{RUN} --set grade.grader=rogue",
        "unknown grader 'rogue'; did you mean 'rouge'? known: rouge, rouge_or_substring, exact, "
        "choice, number, yes_no, math, auto, or module:function for one of your own",
    ),
    Mistake(
        "a stage is misspelt",
        "run new --model pocket --task pocket_people --until samples",
        f"unknown stage 'samples'; known: {STAGES}",
    ),
    Mistake(
        "a strategy is misspelt",
        "ask new Who? --strategy ess",
        "unknown strategy 'ess'; did you mean 'es'? known: asc, best, cisc, es, esc, sc, vote, "
        "weighted, or module:NAME for one of your own",
    ),
    Mistake(
        "a threshold in percent",
        "ask new Who? --threshold 90",
        "--threshold is 90.0; give a confidence between 0 and 1, e.g. 0.9",
    ),
    Mistake(
        "an accuracy in percent",
        "threshold new --target-accuracy 90",
        "the target accuracy is 90.0; give a share above 0 and below 1, e.g. 0.9",
    ),
    Mistake(
        "a log level that is none",
        "--log-level loud list",
        "log level 'loud' is unknown; use debug, info, warning, error",
    ),
    # responses
    Mistake(
        "a response has another name",
        "score new own.jsonl",
        'own.jsonl:1: "response" is missing among the fields question, answer; rename the one with '
        "the model's answer",
        '{"question": "A?", "answer": "a"}',
    ),
    Mistake(
        "a question and a prompt",
        "score new own.jsonl",
        "own.jsonl:1: found question and prompt; give exactly one of question, prompt, messages",
        '{"question": "A?", "prompt": "A?", "response": "a"}',
    ),
    Mistake(
        "a confidence in percent",
        "measure own.csv",
        "own.csv:2: confidence is 85; write a number from 0 to 1, or null for none",
        "confidence,correct\n85,true\n",
    ),
    Mistake(
        "a grade in words",
        "measure own.jsonl",
        'own.jsonl:1: correct is "yes"; write true, false, or null if unknown',
        '{"confidence": 0.85, "correct": "yes"}',
    ),
    Mistake(
        "answers without confidence",
        "measure own.jsonl",
        'own.jsonl:1: "confidence" is missing; rename the field with it, or let `grace score` add '
        "it",
        '{"question": "A?", "response": "a", "correct": true}',
    ),
    Mistake(
        "too few graded answers",
        "fit pocket own.jsonl fitted",
        "own.jsonl holds 1 graded answer; give at least 20, better 500",
        '{"question": "A?", "response": "a", "correct": true}',
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.why)
def test_a_mistake_gets_one_line_that_says_what_to_type(
    mistake: Mistake, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [word for word in mistake.typed.split() if word.startswith("own.")]
    Path(named[0] if named else "own.jsonl").write_text(mistake.text, "utf-8")
    result = cli(*mistake.typed.split())
    message = (
        mistake.message.format(here=tmp_path) if "{here}" in mistake.message else mistake.message
    )
    assert result.err == f"grace: error: {message}\n"
    assert (result.code, result.out) == (2, "")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
