"""Stages `sample` and `grade`: the answers of a run, from drawn questions to grades.

What a model answers is sampled unit by unit, whichever stage or command needs it, and graded.
Grading again samples nothing again.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from grace.answers import short_answer
from grace.chat import encode_chat
from grace.config import RunSettings, to_dict
from grace.engines import AT_ONCE, Known, Sampling
from grace.engines.base import ModelEngine, check_contexts
from grace.estimators import Answers, Draw, Draws, Samples
from grace.grading import Grader, grader_of
from grace.pipeline.context import Context
from grace.pipeline.prompting import settle
from grace.pipeline.settings import model_folder
from grace.progress import progress, say
from grace.records import Grade, Message, Question, Response, is_whole, response_id
from grace.store import SPLITS, Split
from grace.tasks import Split as SplitName
from grace.tasks.draw import MOST
from grace.tasks.jsonl import Jsonl
from grace.tasks.prompts import draw_training

Ids = Sequence[int]
SHOWN = 3  # right answers, and as many wrong ones
LINES = 12  # first and last lines of a prompt that are shown
WIDTH = 100  # characters of a question or an answer that are shown


def sample(context: Context) -> None:
    """Draw the questions of each split and sample their responses."""
    settle(context)
    settings = context.settings
    outputs = [context.directory.asking] if context.directory.asking.exists() else []
    for name in SPLITS:
        draw_questions(context, context.directory.split(name), name)
        _refuse_too_long(context, name)
    _say_sizes(context)
    _preview(context)
    for name in SPLITS:
        split = context.directory.split(name)
        sampling = sampling_for(context.settings, name)
        sample_split(context, "base", split, sampling)
        outputs += [split.questions.path, split.responses.path]
    context.engines.forget_sampling()
    if settings.data.shots:
        outputs.append(context.shots.path)
    tree = to_dict(settings)
    context.directory.finish(
        "sample", {key: tree[key] for key in ("seed", "model", "data", "sample")}, [], outputs
    )


def check_model(settings: RunSettings) -> None:
    """Refuse a model that is not there, or has no tokenizer; no weights are loaded."""
    from grace.engines.local.loading import load_tokenizer

    model = settings.model
    code = model.trust_remote_code
    load_tokenizer(model_folder(model), trust_remote_code=code, date=model.date)


def draw_questions(context: Context, split: Split, name: SplitName) -> None:
    """Draw a split's questions, once per run; with those of `train`, the few-shot examples."""
    if split.questions.path.exists():
        return
    data, seed = context.settings.data, context.settings.seed
    if name == "train":
        shots, drawn = draw_training(context.task, data, seed)
        if shots:
            context.shots.write(shots)
    else:
        drawn = context.task.questions(name, data, seed)
    split.questions.write(drawn)


def draw_shots(context: Context) -> None:
    """Draw the few-shot examples of a task that is not trained on, once per run."""
    data = dataclasses.replace(context.settings.data, train=1, validation=1)
    if data.shots and not context.shots.path.exists():
        context.shots.write(draw_training(context.task, data, context.settings.seed)[0])


def _say_sizes(context: Context) -> None:
    """Print the sizes of the splits where the settings leave them open."""
    data = context.settings.data
    if data.train and data.validation and data.test:
        return
    sizes = [f"{len(context.directory.split(name).questions.read()):,} {name}" for name in SPLITS]
    shots = f", and {len(context.shots.read())} as examples in every prompt" if data.shots else ""
    most = ", ".join(f"{most:,}" for most in MOST.values())
    say(
        f"questions: {', '.join(sizes)}{shots} (at most {most}, unless data.train, data.validation "
        "and data.test are set)"
    )


def _refuse_too_long(context: Context, name: str) -> None:
    """Refuse a question that is too long for the model before any is answered; name its line."""
    split, sampling = context.directory.split(name), sampling_for(context.settings, name)
    if is_sampled(split, sampling.num_samples):
        return
    questions, limit = split.questions.read(), context.sampler("base").limit
    for question, prompt in zip(questions, context.prompts(questions), strict=True):
        if limit is not None and len(prompt) + sampling.max_new_tokens > limit:
            task, data = context.task, context.settings.data
            lines = task.places(data) if isinstance(task, Jsonl) else {}
            place = lines.get(question.id, question.id)
            check_contexts([prompt], limit, sampling.max_new_tokens, [place])


def _preview(context: Context) -> None:
    """Show the first prompt, its answer and the grade, unless some questions are answered."""
    split = context.directory.split("train")
    if split.responses.path.exists():
        return
    question = split.questions.read()[0]
    (chat,) = context.messages([question])
    grader = grader_of(context.settings.grade, context.task.grader)
    show_first(
        context.sampler("base"), question, chat, sampling_for(context.settings, "train"), grader
    )


# --- samples, by units


def sampling_for(settings: RunSettings, name: str) -> Sampling:
    """Return the sampling settings of a split."""
    sample, training = settings.sample, name == "train"
    return Sampling(
        num_samples=sample.train_samples if training else sample.test_samples,
        temperature=sample.train_temperature if training else sample.test_temperature,
        top_p=sample.top_p,
        max_new_tokens=sample.max_new_tokens,
        open_tokens=sample.open_tokens,
        seed=settings.seed,
    )


class Unit(NamedTuple):
    """Questions that are answered together; the answers do not depend on other units."""

    number: int
    keys: list[str]  # ids of the questions
    prompts: list[Ids]
    sampling: Sampling

    @property
    def ids(self) -> list[str]:
        """The ids of the responses, in the order in which they are stored."""
        return [response_id(key, k) for key in self.keys for k in range(self.sampling.num_samples)]

    def answer(
        self, engine: ModelEngine, advance: Callable[[int], None] = lambda count: None
    ) -> list[Response]:
        """Sample the responses to all questions of the unit; `advance` counts those answered."""
        samples: dict[int, list[Response]] = {}
        for place, found in engine.generate(self.prompts, self.sampling, keys=self.keys):
            samples[place] = found
            advance(1)
        traced = is_traced(engine)
        return [
            dataclasses.replace(
                one,
                id=response_id(key, k),
                question_id=key,
                sample=k,
                logprobs=rounded(one.logprobs),
                trace=rounded(one.trace) if traced else (),
            )
            for place, key in enumerate(self.keys)
            for k, one in enumerate(samples[place])
        ]


def plan_units(
    engine: ModelEngine, questions: Sequence[Question], prompts: Sequence[Ids], sampling: Sampling
) -> list[Unit]:
    """Return the units of work that answer all questions of a split, or of a labelled shard."""
    units: list[Unit] = []
    for one, places in sampling.by_length(question.choices for question in questions).items():
        asked = [prompts[i] for i in places]
        for rows in engine.plan(asked, one.num_samples, one.max_new_tokens):
            keys = [questions[places[row]].id for row in rows]
            units.append(Unit(len(units), keys, [asked[row] for row in rows], one))
    return units


def sample_split(context: Context, answers: Answers, split: Split, sampling: Sampling) -> None:
    """Let a model answer a split by units; resumes. Its seconds are kept as long as its answers."""
    if is_sampled(split, sampling.num_samples):
        return
    engine, questions = context.sampler(answers), split.questions.read()
    label = context.directory.label(split)
    owner = "answer" if answers == "tuned" or label.startswith("transfer/") else "sample"
    units = plan_units(engine, questions, context.prompts(questions), sampling)
    left = units[split.responses.resume([unit.ids for unit in units]) :]
    done = len(questions) - sum(len(unit.keys) for unit in left)
    with progress(f"sample {label}", len(questions), done=done, unit="questions") as advance:
        for unit in left:
            start = time.perf_counter()
            rows = unit.answer(engine, advance)
            seconds = time.perf_counter() - start
            context.directory.add_time(owner, f"{label}/{unit.number}", seconds, len(rows))
            split.responses.append(rows)


def is_sampled(split: Split, num_samples: int) -> bool:
    """Return whether all questions of a split have their responses."""
    if (ids := split.responses.ids()) is None:
        return False
    planned = [response_id(q.id, k) for q in split.questions.read() for k in range(num_samples)]
    return sorted(ids) == sorted(planned)


def further(context: Context, count: int, temperature: float) -> Sampling:
    """Return how further samples are drawn: with another seed, or they would be the same."""
    usual = sampling_for(context.settings, "test")
    seed = usual.seed + 1 if usual.temperature else usual.seed
    return dataclasses.replace(usual, num_samples=count, temperature=temperature, seed=seed)


def draw_further(context: Context, answers: Answers, split: Split, count: int) -> Draws:
    """Return `count` further samples of each response's question, drawn once per run."""
    temperature = context.settings.sample.draw_temperature
    pool = split.pool(count, temperature)
    sample_split(context, answers, pool, further(context, count, temperature))
    choices = {question.id: question.choices for question in split.questions.read()}
    by_question = defaultdict(list)
    for row in pool.responses.read():
        said = context.task.answer(row.text, choices[row.question_id])
        by_question[row.question_id].append(Draw(row, said))
    return [by_question[response.question_id] for response in split.responses.read()]


# --- grades


def grade(context: Context) -> None:
    """Grade the backbone's responses of every split."""
    inputs, outputs = [], []
    for name in SPLITS:
        split = context.directory.split(name)
        grade_split(context, split)
        inputs += [split.questions.path, split.responses.path]
        outputs.append(split.grades.path)
    _show(context.directory.split("train"))
    settings = {"grade": to_dict(context.settings.grade)}
    context.directory.finish("grade", settings, inputs, outputs)


def check_grader(context: Context) -> None:
    """Refuse a grader that cannot grade the questions of a run, as far as they are drawn."""
    settings = context.settings.grade
    grader = grader_of(settings, context.task.grader)
    if ":" in (settings.grader or context.task.grader):
        return
    for name in SPLITS:
        questions = context.directory.split(name).questions
        for question in questions.read() if questions.path.exists() else ():
            grader("", question)


def grade_split(context: Context, split: Split) -> None:
    """Write one grade per response of a split, all at once."""
    grader = grader_of(context.settings.grade, context.task.grader)
    by_id = {question.id: question for question in split.questions.read()}
    grades = []
    for response in split.responses.read():
        question, text = by_id[response.question_id], response.text
        answer = context.task.answer(text, question.choices)
        grades.append(Grade(response.id, response.question_id, grader(text, question), answer))
    split.grades.write(grades)


def _show(split: Split) -> None:
    """Show the first few right and wrong answers, so that a bad prompt or grader is noticed."""
    questions = {question.id: question for question in split.questions.read()}
    pairs = list(zip(split.responses.read(), split.grades.read(), strict=True))
    for correct, verdict in ((True, "right"), (False, "wrong")):
        for response in [row for row, grade in pairs if grade.correct is correct][:SHOWN]:
            question = questions[response.question_id]
            answer = one_line(short_answer(response.text)) or "(nothing)"
            say(
                f"{verdict}: {one_line(question.text)} -> {answer} "
                f"(accepted: {_accepted(question)})"
            )


def show_first(
    engine: ModelEngine,
    question: Question,
    chat: Sequence[Message],
    sampling: Sampling,
    grader: Grader,
) -> None:
    """Show the first prompt, its answer and the grade, before thousands of answers are sampled."""
    prompts = [encode_chat(engine.tokenizer, chat)]
    (once,) = dataclasses.replace(sampling, num_samples=1).by_length([question.choices])
    ((_, (generation,)),) = engine.generate(prompts, once)
    lines = "\n".join(f"{turn['role']}: {turn['content']}" for turn in chat).splitlines()
    if len(lines) > 2 * LINES:
        lines = [*lines[:LINES], "...", *lines[-LINES:]]
    say("\n  | ".join(["first prompt:", *lines]))
    cut = ""
    if generation.finish_reason == "length":
        cut = f", cut after {len(generation.token_ids)} tokens"
    verdict = "no known answer"
    if question.answers:
        verdict = "right" if grader(generation.text, question) else "wrong"
        verdict += f"; accepted: {_accepted(question)}"
    say(f"first answer{cut}: {one_line(generation.text) or '(nothing)'} ({verdict})")


def _accepted(question: Question) -> str:
    return one_line(" / ".join(question.answers[:3]))


def one_line(text: str) -> str:
    """Return a text on one line; of a long one the end, which holds the question itself."""
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"...{line[3 - WIDTH :]}"


# --- the answers of the tuned model


def answer(
    context: Context, answers: Answers, split: Split, sampling: Sampling | None = None
) -> None:
    """Let a model answer a split's questions, and grade the answers; done once."""
    sampling = sampling or sampling_for(context.settings, "test")
    if not is_answered(split, sampling.num_samples):
        sample_split(context, answers, split, sampling)
        grade_split(context, split)


def is_answered(split: Split, num_samples: int) -> bool:
    """Return whether all questions of a split have their responses and grades."""
    return is_sampled(split, num_samples) and split.responses.ids() == split.grades.ids()


def answer_tuned(context: Context, split: Split) -> None:
    """Let the tuned model answer and grade a split; without LoRA, rate the backbone's answers."""
    if context.directory.frozen:
        answer(context, "base", split)
        _rate_split(context, split)
    answer(context, "tuned", split.tuned)


def _rate_split(context: Context, split: Split) -> None:
    """Write the backbone's answers with the tuned model's confidences; resumes."""
    tuned, ids = split.tuned.responses, [one.id for one in split.responses.read()]
    left = tuned.left(ids, AT_ONCE)
    if not left:
        return
    engine, samples = context.engines.tuned, context.samples(split)
    label, done = context.directory.label(split.tuned), left[0].start
    with progress(f"rate {label}", len(ids), done=done, unit="answers") as advance:
        for unit in left:
            tuned.append(_rated(engine, samples.part(unit)))
            advance(len(unit))


def _rated(engine: ModelEngine, samples: Samples) -> list[Response]:
    """Return the model's own responses with their confidence, None where there is none."""
    responses = samples.responses
    ended = [row for row, one in enumerate(responses) if is_whole(one)]
    traces: dict[int, Sequence[float]] = {}
    values: dict[int, float | None]
    if is_traced(engine):
        found = engine.traces(*samples.token_ids(range(len(responses))), _known(responses))
        traces = dict(enumerate(found))
        values = {row: found[row][-1] for row in ended}
    else:
        rated = engine.rated(*samples.token_ids(ended), _known(responses[row] for row in ended))
        values = {row: one.confidence for row, one in zip(ended, rated, strict=True)}
    return [
        dataclasses.replace(
            one,
            confidence=values.get(row),
            trace=rounded(traces.get(row, ())[: len(one.token_ids) + (row in values)]),
        )
        for row, one in enumerate(responses)
    ]


def _known(responses: Iterable[Response]) -> list[Known]:
    """Return the log-probabilities that are stored; an end that was cut off counts for nothing."""
    return [Known(one.logprobs, one.end_logprob or 0.0) for one in responses]


def is_traced(engine: ModelEngine) -> bool:
    """Return whether an engine knows its confidence along the way."""
    return engine.evidence is not None and engine.evidence.trace is not None


def rounded(values: Sequence[float]) -> tuple[float, ...]:
    """Return values as they are stored."""
    return tuple(round(value, 6) for value in values)
