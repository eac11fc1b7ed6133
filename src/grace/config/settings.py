"""The settings of a run: one frozen dataclass tree; the field docs are the help text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from grace.config.fields import sections, setting
from grace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The backbone, and how it is loaded."""

    path: str = setting("", "Hub id, directory or GGUF file of a causal language model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "auto: the checkpoint's data type on a GPU, float32 on a CPU"
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    trust_remote_code: bool = setting(False, "run Python code that comes with the model")
    thinking: bool = setting(
        False, "let the model reason before it answers, if its chat template can switch that"
    )
    engine: str = setting(
        "transformers",
        "engine that samples the backbone's answers: transformers, vllm, openai or module:NAME; "
        "hidden states, training and the trained model's answers always use transformers",
    )
    engine_options: tuple[str, ...] = setting(
        (), "KEY=VALUE of that engine: max_model_len=4096, url=http://HOST:PORT", low=0, texts=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The questions and their prompts."""

    task: str = setting("", "task name (see `grace list tasks`) or module:NAME")
    dir: str = setting("", "folder with <task>/<split>.jsonl in the Hub's field names; empty: Hub")
    file: str = setting(
        "", "your own questions: a .jsonl, .csv or .parquet file, or hf:OWNER/NAME[:CONFIG][:SPLIT]"
    )
    question_field: str = setting(
        "", "the column of your questions; empty: question, query, prompt or input"
    )
    answer_field: str = setting(
        "", "the column of their answers; empty: answers, answer, target, label or gold"
    )
    train: int = setting(
        0, "number of training questions; 0: as many as there are, up to 2,000", low=0
    )
    validation: int = setting(0, "number of validation questions; 0: all, up to 500", low=0)
    test: int = setting(0, "number of test questions; 0: all, up to 1,000", low=0)
    prompt: str = setting(
        "auto",
        "paper or short (open-ended tasks): chat turns; text: plain text, the only one without a "
        "chat template; auto: the one that answers most training questions right",
    )
    template: str = setting(
        "",
        "text of one question, instead of the prompt's own: with {question} and, for multiple "
        "choice, {options}",
    )
    shots: int = setting(
        -1,
        "training questions shown with their answers before each question; -1: chosen with "
        "data.prompt=auto, else none",
        low=-1,
    )
    system: str = setting("", "system prompt of your own, instead of the task's")

    def __post_init__(self) -> None:
        """Refuse a template without a question.

        Raises:
            ConfigError: it has no {question}.
        """
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
    top_p: float = setting(1.0, "nucleus mass", low=1e-6, high=1)
    draw_temperature: float = setting(
        0.8, "sampling temperature of the further samples that some estimators compare", low=0
    )
    max_new_tokens: int = setting(
        0,
        "longest response, in tokens; 0: 512 for multiple choice, else 50 or what twice the "
        "longest accepted answer takes, and 2,048 more with model.thinking",
        low=0,
    )
    stop: tuple[str, ...] = setting(
        (),
        "texts that end a response: every token that holds one is an end token; none, and "
        "data.prompt=text: a newline",
        low=0,
        texts=True,
    )
    batch_size: int = setting(0, "rows in flight while sampling; 0: chosen for the device", low=0)

    def __post_init__(self) -> None:
        r"""Refuse stop texts that are mistakes.

        Raises:
            ConfigError: one is empty, or has a backslash and an n instead of a newline.
        """
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

    grader: str = setting("", "rouge, rouge_or_substring, exact, choice, number or module:function")
    rouge_threshold: float = setting(0.3, "smallest ROUGE-L F1 that counts as right", low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """How calibration targets are made (paper section 3.2.2)."""

    features: tuple[Literal["mean", "last", "likelihood"], ...] = setting(
        ("mean", "last", "likelihood"),
        "what the probe sees: mean and last hidden state, token likelihoods",
    )
    probe: Literal["ridge", "adamw"] = setting(
        "ridge", "closed-form ridge, or ActCab's short AdamW"
    )
    folds: int = setting(10, "folds of the probe, grouped by question", low=2)
    bins: int = setting(10, "equal-width bins on [0, 1]", low=1)
    kind: Literal["bins", "labels", "scores"] = setting(
        "labels",
        "labels: right or wrong; bins: accuracy of the bin (paper); scores: the probe's own",
    )
    min_count: int = setting(20, "warn about bins with fewer responses", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How LoRA and the <CNF> row are trained (paper section 3.2.3, Appendix A)."""

    learning_rate: float = setting(1e-4, "peak learning rate of AdamW", low=0)
    row_learning_rate: float = setting(0.0, "learning rate of the <CNF> row; 0: the same", low=0)
    epochs: int = setting(2, "passes over the training responses", low=1)
    batch_size: int = setting(16, "responses per optimizer step", low=1)
    micro_batch_size: int = setting(0, "responses per forward pass; 0: the batch size", low=0)
    head: Literal["pair", "token", "bins"] = setting(
        "pair",
        "pair: the difference of the logits of <CNF> and <NOC>, which are never sampled; token: "
        "the probability of <CNF> (paper); bins: the likeliest of <B1> to <B10>, SFT only",
    )
    lora: Literal["auto", "always", "never"] = setting(
        "auto",
        "with head=pair, auto: LoRA is trained and kept if validation answers confirm it; never: "
        "the rows alone, and every answer is the backbone's own",
    )
    gamma: float = setting(0.1, "weight of the SFT term", low=0)
    cnf_in_sft: bool = setting(False, "make <CNF> one more label of the SFT term")
    loss: Literal["mse", "log"] = setting("log", "calibration loss: squared error or log loss")
    init: Literal["mean", "eos", "scaled_eos"] = setting(
        "eos", "initial <CNF> row; with read_at=prompt it starts where c is about 1/2 instead"
    )
    read_at: Literal["predict", "feed", "prompt"] = setting(
        "predict",
        "predict: last response token, free; feed: one more forward on <CNF>; prompt: last prompt "
        "token, before the response",
    )
    evidence: Literal["none", "likelihood"] = setting(
        "likelihood", "likelihood: the response's own token probabilities shift the logit of <CNF>"
    )
    trace: bool = setting(
        False, "fit c at every token too, before the answer ends; needs head=pair and lora=never"
    )
    balance: Literal["none", "cap", "sampler"] = setting("none", "balancing over target intervals")
    rank: int = setting(16, "LoRA rank", low=1)
    alpha: float = setting(16.0, "LoRA scaling factor", low=0)
    dropout: float = setting(0.05, "LoRA dropout", low=0, high=1)
    target_modules: tuple[str, ...] = setting(
        ("mlp",), "mlp, attention, qv, all-linear, or module names"
    )
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    schedule: Literal["constant", "linear", "cosine"] = setting("linear", "learning-rate schedule")
    warmup: float = setting(0.0, "share of the steps spent warming up", low=0, high=1)
    max_grad_norm: float = setting(1.0, "gradient clipping; 0: none", low=0)
    gradient_checkpointing: bool = setting(False, "trade time for memory")
    keep: Literal["last", "best"] = setting(
        "best", "the epoch to keep: last, or best by validation Brier"
    )
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = setting(
        "none", "experiment tracker that also gets the training log"
    )

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other.

        Raises:
            ConfigError: names them, and what to set instead.
        """
        bins, evidence = self.head == "bins", self.evidence != "none"
        pair = self.head == "pair"
        excluded = {
            "train.read_at=prompt is before the response that train.evidence=likelihood needs; "
            "set train.evidence=none": evidence and self.read_at == "prompt",
            "train.head=bins has no logit of <CNF> for train.evidence=likelihood to shift; "
            "set train.evidence=none": evidence and bins,
            f"train.head=pair is read at every response token, which train.read_at={self.read_at} "
            "is not; set train.head=token": pair and self.read_at != "predict",
            "train.head=pair is fitted together with the evidence; set train.evidence=likelihood, "
            "or train.head=token": pair and not evidence,
            "train.head=pair is never a label; set train.cnf_in_sft=false, or train.head=token": (
                pair and self.cnf_in_sft
            ),
            "train.trace is fitted to the model without LoRA; set train.head=pair and "
            "train.lora=never": self.trace and not (pair and self.lora == "never"),
            "train.head=bins has no single token to feed for train.read_at=feed; "
            "set train.read_at=predict": bins and self.read_at == "feed",
            "train.head=bins has no loss but the SFT term, which train.gamma=0 removes; "
            "set train.gamma=1": bins and self.gamma == 0,
        }
        for message, excludes in excluded.items():
            if excludes:
                raise ConfigError(message)


FREE_IN_TRAINING = ("micro_batch_size", "gradient_checkpointing", "report_to")
"""Settings that may change during training, after it ran out of memory, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What the report compares and shows."""

    estimators: tuple[str, ...] = setting(
        ("grace", "likelihood", "platt", "loglik", "deepconf_logistic"),
        "estimators in the table (see `grace list estimators`); NAME+platt, NAME+isotonic and "
        "NAME+temperature are recalibrated on validation answers",
    )
    transfer: tuple[str, ...] = setting(
        (), "other tasks on whose test questions everything is rated too (out of domain)", low=0
    )
    name: str = setting("grace", "name of the trained confidence in the table")
    bins: int = setting(10, "equal-width bins of ECE and of the reliability diagram", low=1)
    bootstrap: int = setting(1000, "bootstrap resamples behind each interval", low=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All settings of a run."""

    seed: int = setting(
        0, "seed of the question subset, of sampling and of training", low=0, high=2**32 - 1
    )
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    sample: SampleSettings = field(default_factory=SampleSettings)
    grade: GradeSettings = field(default_factory=GradeSettings)
    target: TargetSettings = field(default_factory=TargetSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    estimators: dict[str, Any] = sections(
        "settings of single estimators: estimators.p_true.shots=4"
    )

    @property
    def stop(self) -> tuple[str, ...]:
        """The texts that end a response; if none are set, a newline with plain-text prompts."""
        return self.sample.stop or (("\n",) if self.data.prompt == "text" else ())
