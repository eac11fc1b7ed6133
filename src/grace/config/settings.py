"""The settings of a run: one frozen dataclass tree; the field docs are the help text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from grace.config.fields import sections, setting
from grace.errors import ConfigError

Head = Literal["linear", "token", "bins"]
ReadAt = Literal["predict", "feed", "prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceSettings:
    """Our method (`method=grace`): one convex fit, which changes no answer."""

    trace: bool = setting(False, "also fit the confidence at every token of an answer")
    layer: int = setting(
        -1,
        "what the confidence reads. 0: the last hidden state; N: the MLP of block N, counted from "
        "1; -1: the last state or one of four blocks, whichever is best on held-out folds",
        low=-1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSettings:
    """The paper's method (`method=paper`), with the values of its Appendix A."""

    variant: Literal["grace", "disc", "pre", "sft", "feed"] = setting(
        "grace",
        "grace: the paper's own. Its ablations: disc: the likeliest of ten tokens, trained by SFT "
        "only; pre: read at the last prompt token; sft: <CNF> is one more label of the SFT term. "
        "feed: <CNF> is fed and read at its own position, with one more forward pass",
    )
    folds: int = setting(
        10, "folds of the probe, grouped by question; fewer if those are few", low=3
    )
    bins: int = setting(
        10, "equal-width bins of the probe's scores; a target is one's accuracy", low=1
    )
    balance: Literal["none", "cap"] = setting(
        "cap",
        "how training examples are balanced over ten intervals of their target. none: not at all; "
        "cap: at most the mean number from each",
    )
    gamma: float = setting(
        0.1, "weight of the SFT term (supervised fine-tuning on the model's own answers)", low=0
    )
    learning_rate: float = setting(1e-5, "peak learning rate of AdamW", low=0)
    row_learning_rate: float = setting(0.0, "learning rate of the <CNF> row; 0: the same", low=0)
    epochs: int = setting(3, "passes over the training responses", low=1)
    batch_size: int = setting(8, "responses per optimizer step", low=1)
    micro_batch_size: int = setting(0, "responses per forward pass; 0: the batch size", low=0)
    rank: int = setting(16, "LoRA rank", low=1)
    alpha: float = setting(16.0, "LoRA scaling factor", low=0)
    dropout: float = setting(0.05, "LoRA dropout", low=0, high=1)
    target_modules: tuple[str, ...] = setting(
        ("mlp",), "layers that LoRA adapts: mlp, attention, qv, all-linear, or module names"
    )
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    gradient_checkpointing: bool = setting(False, "train with less memory, more slowly")
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = setting(
        "none", "tracker that also gets the training log: none, tensorboard, wandb or trackio"
    )

    @property
    def head(self) -> Head:
        """The kind of read-out (`grace.cnf`)."""
        return "bins" if self.variant == "disc" else "token"

    @property
    def read_at(self) -> ReadAt:
        """Where c is read: at the last response token, unless a variant says otherwise."""
        return {"pre": "prompt", "feed": "feed"}.get(self.variant, "predict")  # type: ignore[return-value]


FREE_IN_TRAINING = ("micro_batch_size", "gradient_checkpointing", "report_to")
"""Settings that may change during training, after it ran out of memory, say."""


def refuse_earlier(trees: Iterable[Mapping[str, Any]], config: Path) -> None:
    """Refuse settings of versions before the two methods."""
    if any({"train", "target"} & tree.keys() for tree in trees):
        raise ConfigError(
            f"{config.parent} was started by an earlier version, with settings that this one does "
            f"not have; see its report with grace report {config.parent}, or start a new run "
            "(docs/decisions/016-what-went.md)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The backbone, and how it is loaded."""

    path: str = setting("", "Hub id, directory or GGUF file of a causal language model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "number format of the weights: float32, bfloat16, float16; auto: that of the checkpoint on "
        "a GPU (bfloat16 for a GGUF file), float32 on a CPU",
    )
    device: str = setting("auto", "where the model runs: auto, cpu, cuda or cuda:N")
    trust_remote_code: bool = setting(False, "run Python code that comes with the model")
    thinking: bool = setting(
        False, "let the model reason before it answers, if its chat template has a switch for it"
    )
    date: str = setting(
        "",
        "date that a chat template prints, such as 2026-11-26; empty: the day of the first stage, "
        "for good",
    )
    engine: str = setting(
        "transformers",
        "engine that samples the backbone's answers: transformers, vllm, openai or module:NAME; "
        "hidden states, training and the trained model's answers always use transformers",
    )
    engine_options: tuple[str, ...] = setting(
        (),
        "options of that engine: KEY=VALUE, such as max_model_len=4096 or url=http://HOST:PORT",
        low=0,
        texts=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The questions and their prompts."""

    task: str = setting("", "name of a task (see `grace list tasks`), or module:NAME")
    dir: str = setting(
        "",
        "folder from which to read the task's questions: TASK/SPLIT.jsonl, with the columns of its "
        "data set on the Hub; empty: the Hub",
    )
    file: str = setting(
        "",
        "your own questions: a .jsonl, .json, .csv, .tsv or .parquet file, a folder of them (for "
        "the splits, or for several sources), or hf:OWNER/NAME[:CONFIG][:SPLIT]",
    )
    question_field: str = setting(
        "", "column of your questions; empty: the usual names, such as question, query or prompt"
    )
    answer_field: str = setting(
        "",
        "column of the accepted answers; empty: the usual names, such as answers, answer or label",
    )
    train: int = setting(
        0, "number of training questions; 0: as many as there are, up to 2,000", low=0
    )
    validation: int = setting(0, "number of validation questions; 0: all, up to 500", low=0)
    test: int = setting(0, "number of test questions; 0: all, up to 1,000", low=0)
    prompt: str = setting(
        "auto",
        "paper: chat turns with instructions; short: chat turns without; text: plain text, the "
        "only one without a chat template; auto: whichever answers most training questions right",
    )
    template: str = setting(
        "",
        "how one question is written, instead of the prompt's own way: a text with {question} and, "
        "for multiple choice, {options}",
    )
    shots: int = setting(
        -1,
        "number of training questions shown with their answers before each question; -1: chosen "
        "with data.prompt=auto, else none",
        low=-1,
    )
    system: str = setting("", "system prompt of your own, instead of the task's")

    def __post_init__(self) -> None:
        """Refuse an unknown prompt, and a template without a question."""
        if self.prompt not in ("auto", "paper", "short", "text"):
            raise ConfigError(
                f"data.prompt is {self.prompt!r}, expected auto, paper, short or text"
            )
        if self.template and "{question}" not in self.template:
            raise ConfigError(
                f"data.template is {self.template!r}; put {{question}} where the question goes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """How answers are sampled from the backbone."""

    train_samples: int = setting(1, "responses per training question", low=1)
    train_temperature: float = setting(0.0, "sampling temperature for training; 0: greedy", low=0)
    test_samples: int = setting(1, "responses per validation and test question", low=1)
    test_temperature: float = setting(
        0.0, "sampling temperature for validation and test; 0: greedy", low=0
    )
    top_p: float = setting(
        1.0, "nucleus sampling: probability mass of the tokens to draw from", low=1e-6, high=1
    )
    draw_temperature: float = setting(
        0.8,
        "sampling temperature of further samples: those of `grace scale`, and those that some "
        "estimators compare",
        low=0,
    )
    max_new_tokens: int = setting(
        0,
        "longest response, in tokens; 0: 512 for multiple choice, else 50 or twice the longest "
        "accepted answer, whichever is more; with model.thinking 2,048 more",
        low=0,
    )
    open_tokens: int = setting(
        0,
        "longest response to a question without options, in tokens; 0: sample.max_new_tokens or, "
        "where that is not set either, as if no question had options",
        low=0,
    )
    stop: tuple[str, ...] = setting(
        (),
        "texts that end a response: every token that contains one is an end token; empty: a "
        "newline with data.prompt=text, else none",
        low=0,
        texts=True,
    )
    batch_size: int = setting(0, "responses to sample at a time; 0: chosen for the device", low=0)

    def __post_init__(self) -> None:
        r"""Refuse stop texts that are mistakes."""
        for text in self.stop:
            if not text or "\\n" in text:
                raise ConfigError(
                    f"sample.stop has {text!r}; write a text, a newline in quotes: "
                    r"""--set 'sample.stop="\n"'"""
                )

    @property
    def longest(self) -> int:
        """The longest response in tokens, before any accepted answers are read."""
        return self.max_new_tokens or 50


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeSettings:
    """How a response is judged right or wrong."""

    grader: str = setting(
        "",
        "rouge, rouge_or_substring, exact, choice, number, yes_no, math, auto or module:function "
        "(see `grace list graders`); empty: the task's",
    )
    rouge_threshold: float = setting(
        0.3, "smallest ROUGE-L F1, or share of words, that counts as right", low=0, high=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What the report compares and shows."""

    estimators: tuple[str, ...] = setting(
        ("grace", "likelihood", "platt", "loglik", "deepconf_logistic"),
        "estimators in the table (see `grace list estimators`); NAME+platt, NAME+isotonic and "
        "NAME+temperature are recalibrated on validation answers",
    )
    transfer: tuple[str, ...] = setting(
        (), "other tasks whose test questions are rated too (out of domain)", low=0
    )
    name: str = setting("grace", "name of the trained confidence in the table")
    bins: int = setting(
        10, "equal-width bins of ECE and of the reliability diagram", low=1, high=1000
    )
    bootstrap: int = setting(1000, "bootstrap resamples behind each interval", low=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All settings of a run."""

    seed: int = setting(
        0, "seed of the choice of questions, of sampling and of training", low=0, high=2**32 - 1
    )
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    sample: SampleSettings = field(default_factory=SampleSettings)
    grade: GradeSettings = field(default_factory=GradeSettings)
    method: Literal["grace", "paper"] = setting(
        "grace",
        "grace: rows and token probabilities by one convex fit, which changes no answer; paper: "
        "LoRA and <CNF>, trained on binned targets (arXiv 2509.09438)",
    )
    grace: GraceSettings = field(default_factory=GraceSettings)
    paper: PaperSettings = field(default_factory=PaperSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    estimators: dict[str, Any] = sections(
        "settings of single estimators: estimators.p_true.shots=4"
    )

    @property
    def stop(self) -> tuple[str, ...]:
        """The texts that end a response; if none are set, a newline with plain-text prompts."""
        return self.sample.stop or (("\n",) if self.data.prompt == "text" else ())
