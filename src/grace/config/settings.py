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
        "auto",
        "number format of the weights: float32, bfloat16, float16; auto: that of the checkpoint on "
        "a GPU, float32 on a CPU",
    )
    device: str = setting("auto", "where the model runs: auto, cpu, cuda or cuda:N")
    trust_remote_code: bool = setting(False, "run Python code that comes with the model")
    thinking: bool = setting(
        False, "let the model reason before it answers, if its chat template has a switch for it"
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
        "", "folder with TASK/SPLIT.jsonl, in the columns of the Hub's data set; empty: the Hub"
    )
    file: str = setting(
        "", "your own questions: a .jsonl, .csv or .parquet file, or hf:OWNER/NAME[:CONFIG][:SPLIT]"
    )
    question_field: str = setting(
        "", "column of your questions; empty: question, query, prompt or input"
    )
    answer_field: str = setting(
        "",
        "column of the accepted answers; empty: answers, answer, correct_answer, target, label or "
        "gold",
    )
    train: int = setting(
        0, "number of training questions; 0: as many as there are, up to 2,000", low=0
    )
    validation: int = setting(0, "number of validation questions; 0: all, up to 500", low=0)
    test: int = setting(0, "number of test questions; 0: all, up to 1,000", low=0)
    prompt: str = setting(
        "auto",
        "paper, short: chat turns with or without instructions; text: plain text, the only one "
        "without a chat template; auto: the one that answers most training questions right",
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
    top_p: float = setting(
        1.0, "nucleus sampling: probability mass of the tokens to draw from", low=1e-6, high=1
    )
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
        "texts that end a response: every token that contains one is an end token; empty: a "
        "newline with data.prompt=text, else none",
        low=0,
        texts=True,
    )
    batch_size: int = setting(0, "responses to sample at a time; 0: chosen for the device", low=0)

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

    grader: str = setting(
        "",
        "rouge, rouge_or_substring, exact, choice, number or module:function (see `grace list "
        "graders`); empty: the task's",
    )
    rouge_threshold: float = setting(0.3, "smallest ROUGE-L F1 that counts as right", low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """How calibration targets are made (paper section 3.2.2)."""

    features: tuple[Literal["mean", "last", "likelihood"], ...] = setting(
        ("mean", "last", "likelihood"),
        "inputs of the probe: mean and last hidden state, token likelihoods",
    )
    probe: Literal["ridge", "adamw"] = setting(
        "ridge", "ridge: in closed form; adamw: ActCab's short training"
    )
    folds: int = setting(
        10, "folds of the probe, grouped by question; fewer if those are few", low=2
    )
    bins: int = setting(10, "equal-width bins of the probe's scores", low=1)
    kind: Literal["bins", "labels", "scores"] = setting(
        "labels",
        "labels: right or wrong; bins: accuracy of the bin (paper); scores: those of the probe",
    )
    min_count: int = setting(20, "responses below which a bin causes a warning", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How LoRA and the <CNF> row are trained (paper section 3.2.3, Appendix A)."""

    learning_rate: float = setting(2e-5, "peak learning rate of AdamW", low=0)
    row_learning_rate: float = setting(0.0, "learning rate of the <CNF> row; 0: the same", low=0)
    epochs: int = setting(2, "passes over the training responses", low=1)
    batch_size: int = setting(16, "responses per optimizer step", low=1)
    micro_batch_size: int = setting(0, "responses per forward pass; 0: the batch size", low=0)
    head: Literal["linear", "token", "bins"] = setting(
        "linear",
        "linear: the logits of <CNF> and two more tokens minus that of <NOC>, none of which is "
        "ever sampled; token: the probability of <CNF> (paper); bins: the likeliest of <B1> to "
        "<B10>, SFT only",
    )
    lora: Literal["auto", "always", "never"] = setting(
        "auto",
        "with head=linear. auto: train LoRA, keep it if validation answers confirm it; always: "
        "keep it; never: only fit the rows, which changes no answer",
    )
    gamma: float = setting(
        0.1, "weight of the SFT term, which keeps the answers as they are", low=0
    )
    cnf_in_sft: bool = setting(False, "<CNF> is one more label of the SFT term (GrACE-SFT)")
    loss: Literal["mse", "log"] = setting("log", "calibration loss: log, or mse (paper)")
    init: Literal["mean", "eos", "scaled_eos"] = setting(
        "eos",
        "row from which <CNF> starts, with head=token: eos, scaled_eos, or the mean of all; with "
        "read_at=prompt one with c of about 1/2",
    )
    read_at: Literal["predict", "feed", "prompt"] = setting(
        "predict",
        "where c is read. predict: last response token, at no cost; feed: <CNF>, with one more "
        "forward pass; prompt: last prompt token",
    )
    evidence: Literal["none", "likelihood"] = setting(
        "likelihood",
        "likelihood: c also uses the probabilities of the response's own tokens; none: it does not "
        "(paper)",
    )
    trace: bool = setting(
        False, "also fit c at every token of an answer; needs head=linear and lora=never"
    )
    balance: Literal["none", "cap", "sampler"] = setting(
        "none",
        "balance the target's intervals: none; cap, at most the mean size of each; or sampler, "
        "equally often",
    )
    rank: int = setting(16, "LoRA rank", low=1)
    alpha: float = setting(16.0, "LoRA scaling factor", low=0)
    dropout: float = setting(0.05, "LoRA dropout", low=0, high=1)
    target_modules: tuple[str, ...] = setting(
        ("mlp",), "mlp, attention, qv, all-linear, or module names"
    )
    weight_decay: float = setting(0.01, "weight decay of AdamW", low=0)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "linear", "learning-rate schedule: constant, linear or cosine"
    )
    warmup: float = setting(0.0, "share of the steps spent warming up", low=0, high=1)
    max_grad_norm: float = setting(1.0, "norm at which gradients are clipped; 0: never", low=0)
    gradient_checkpointing: bool = setting(False, "train with less memory, more slowly")
    keep: Literal["last", "best"] = setting(
        "best", "epoch to keep: best (by validation Brier score) or last"
    )
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = setting(
        "none", "tracker that also gets the training log: none, tensorboard, wandb or trackio"
    )

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other.

        Raises:
            ConfigError: names them, and what to set instead.
        """
        bins, evidence = self.head == "bins", self.evidence != "none"
        linear = self.head == "linear"
        excluded = {
            "train.read_at=prompt is before the response that train.evidence=likelihood needs; "
            "set train.evidence=none": evidence and self.read_at == "prompt",
            "train.head=bins has no logit of <CNF> for train.evidence=likelihood to shift; "
            "set train.evidence=none": evidence and bins,
            "train.head=linear is read at every response token, which train.read_at="
            f"{self.read_at} is not; set train.head=token": linear and self.read_at != "predict",
            "train.head=linear is fitted together with the evidence; set "
            "train.evidence=likelihood, or train.head=token": linear and not evidence,
            "train.head=linear is never a label; set train.cnf_in_sft=false, or train.head=token": (
                linear and self.cnf_in_sft
            ),
            "train.trace is fitted to the model without LoRA; set train.head=linear and "
            "train.lora=never": self.trace and not (linear and self.lora == "never"),
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
        (), "other tasks whose test questions are rated too (out of domain)", low=0
    )
    name: str = setting("grace", "name of the trained confidence in the table")
    bins: int = setting(10, "equal-width bins of ECE and of the reliability diagram", low=1)
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
