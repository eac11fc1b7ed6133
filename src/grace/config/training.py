"""The settings with which c is fitted and trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grace.config.fields import setting
from grace.errors import ConfigError


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
        "<B10>, trained by SFT only (GrACE-Disc)",
    )
    lora: Literal["auto", "always", "never"] = setting(
        "auto",
        "with head=linear. auto: train LoRA if the confidence reads the last state, and keep it if "
        "validation answers confirm it; always: keep it; never: only fit the rows, which changes "
        "no answer",
    )
    gamma: float = setting(
        0.1, "weight of the SFT term (supervised fine-tuning on the model's own answers)", low=0
    )
    cnf_in_sft: bool = setting(False, "<CNF> is one more label of the SFT term (GrACE-SFT)")
    loss: Literal["mse", "log"] = setting("log", "calibration loss: log, or mse (paper)")
    init: Literal["mean", "eos", "scaled_eos"] = setting(
        "eos",
        "with head=token, the row that <CNF> starts from: eos, scaled_eos (of mean norm) "
        "or mean (of all rows); read_at=prompt has a start of its own",
    )
    read_at: Literal["predict", "feed", "prompt"] = setting(
        "predict",
        "where the confidence is read. predict: last response token, at no cost; feed: <CNF>, with "
        "one more forward pass; prompt: last prompt token",
    )
    evidence: Literal["none", "likelihood"] = setting(
        "likelihood",
        "likelihood: the confidence also uses the probabilities of the response's own tokens; "
        "none: it does not (paper)",
    )
    trace: bool = setting(
        False,
        "also fit the confidence at every token of an answer, with head=linear; LoRA is then not "
        "trained",
    )
    layer: int = setting(
        -1,
        "what the confidence reads, with head=linear. 0: the last hidden state; N: the MLP of "
        "block N, counted from 1; -1: the last state or one of four blocks, whichever is best on "
        "held-out folds. Where it is a block, LoRA is not trained; with lora=always it is the last "
        "state",
        low=-1,
    )
    balance: Literal["none", "cap", "sampler"] = setting(
        "none",
        "how training examples are balanced over intervals of their target. none: not at all; cap: "
        "at most the mean number from each; sampler: from each equally often",
    )
    rank: int = setting(16, "LoRA rank", low=1)
    alpha: float = setting(16.0, "LoRA scaling factor", low=0)
    dropout: float = setting(0.05, "LoRA dropout", low=0, high=1)
    target_modules: tuple[str, ...] = setting(
        ("mlp",), "layers that LoRA adapts: mlp, attention, qv, all-linear, or module names"
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

    @property
    def may_train(self) -> bool:
        """Whether weights may be trained: else the fitted rows are all, as for a trace."""
        return self.head != "linear" or not (self.lora == "never" or self.trace)

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other."""
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
            **{
                f"train.{name} is read without LoRA; set train.head=linear and train.lora=never": (
                    asked and not (linear and self.lora != "always")
                )
                for name, asked in (("trace", self.trace), ("layer", self.layer > 0))
            },
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
