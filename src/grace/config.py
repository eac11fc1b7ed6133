"""Settings of a run: one frozen dataclass tree; the field docs are the help text.

Order of precedence: defaults here, then the recipe (TOML), then `section.key=value` overrides.
An unknown key is refused by name. `grace.json` of a run holds the resolved tree.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from grace.errors import ConfigError

Settings = TypeVar("Settings")


def setting(default: Any, doc: str, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare a field with its help text and its inclusive range; of a list, that of its length.

    Lists have at least one entry unless `low` is 0.
    """
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def sections(doc: str) -> Any:
    """Declare a field that holds sections of settings by name, checked by whoever uses them."""
    return field(default_factory=dict, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which backbone, and how it is loaded."""

    path: str = setting("", "Hub id or directory of a causal language model in Hugging Face layout")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "auto: the checkpoint's own type on a GPU, float32 on a CPU"
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    trust_remote_code: bool = setting(False, "run Python code that comes with the model")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Which questions, and how they are asked."""

    task: str = setting("", "task name (see `grace list tasks`) or module:NAME")
    dir: str = setting("", "folder with <task>/<split>.jsonl in the Hub's field names; empty: Hub")
    file: str = setting("", "task jsonl: your own file of questions")
    train: int = setting(2000, "number of training questions", low=1)
    validation: int = setting(500, "number of validation questions", low=1)
    test: int = setting(1000, "number of test questions", low=1)
    prompt: str = setting("paper", "prompt template: paper or short (open-ended tasks)")
    system: str = setting("", "system prompt of your own, instead of the task's")


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
    max_new_tokens: int = setting(50, "longest response, in tokens", low=1)
    batch_size: int = setting(0, "rows in flight while sampling; 0: chosen for the device", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeSettings:
    """How a response is judged right or wrong."""

    grader: str = setting("", "rouge, rouge_or_substring, exact, choice, number or module:function")
    rouge_threshold: float = setting(0.3, "smallest ROUGE-L F1 that counts as right", low=0, high=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """How calibration targets are made (paper section 3.2.2)."""

    features: tuple[Literal["mean", "last", "likelihood"], ...] = setting(
        ("mean",), "what the probe sees: mean and last hidden state, token likelihoods"
    )
    probe: Literal["ridge", "adamw"] = setting(
        "ridge", "closed-form ridge, or ActCab's short AdamW"
    )
    folds: int = setting(10, "folds of the probe, grouped by question", low=2)
    bins: int = setting(10, "equal-width bins on [0, 1]", low=1)
    kind: Literal["bins", "labels", "scores"] = setting(
        "bins", "bins: accuracy of the bin (paper); labels: right or wrong; scores: the probe's own"
    )
    min_count: int = setting(20, "warn about bins with fewer responses", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How LoRA and the <CNF> row are trained (paper section 3.2.3, Appendix A)."""

    learning_rate: float = setting(1e-5, "peak learning rate of AdamW", low=0)
    row_learning_rate: float = setting(0.0, "learning rate of the <CNF> row; 0: the same", low=0)
    epochs: int = setting(3, "passes over the training responses", low=1)
    batch_size: int = setting(8, "responses per optimizer step", low=1)
    micro_batch_size: int = setting(0, "responses per forward pass; 0: the batch size", low=0)
    head: Literal["token", "bins"] = setting(
        "token", "token: the probability of <CNF>; bins: the likeliest of <B1> to <B10>, SFT only"
    )
    gamma: float = setting(0.1, "weight of the SFT term", low=0)
    cnf_in_sft: bool = setting(False, "make <CNF> one more label of the SFT term")
    loss: Literal["mse", "log"] = setting("mse", "calibration loss: squared error or log loss")
    init: Literal["mean", "eos", "scaled_eos"] = setting(
        "eos", "initial <CNF> row; with read_at=prompt it starts where c is about 1/2 instead"
    )
    read_at: Literal["predict", "feed", "prompt"] = setting(
        "predict",
        "predict: last response token, free; feed: one more forward on <CNF>; prompt: last prompt "
        "token, before the response",
    )
    evidence: Literal["none", "likelihood"] = setting(
        "none", "likelihood: the response's own token probabilities shift the logit of <CNF>"
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
    keep: Literal["last", "best"] = setting("last", "which epoch's adapter; best: validation Brier")
    report_to: Literal["none", "tensorboard", "wandb", "trackio"] = setting(
        "none", "where else the training log goes"
    )

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other.

        Raises:
            ConfigError: evidence without a response or with bins, or bins that cannot be trained.
        """
        bins, evidence = self.head == "bins", self.evidence != "none"
        excluded = {
            "train.read_at=prompt is before the response that train.evidence=likelihood needs; "
            "set train.evidence=none": evidence and self.read_at == "prompt",
            "train.head=bins has no <CNF> whose logit train.evidence=likelihood could shift; "
            "set train.evidence=none": evidence and bins,
            "train.head=bins has no single token that train.read_at=feed could feed; "
            "set train.read_at=predict": bins and self.read_at == "feed",
            "train.head=bins learns from the SFT term alone, and train.gamma=0 takes it away; "
            "set train.gamma=1": bins and self.gamma == 0,
        }
        for message, found in excluded.items():
            if found:
                raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What is compared, and how it is shown."""

    estimators: tuple[str, ...] = setting(
        ("grace", "likelihood", "platt"),
        "estimators in the table (see `grace list estimators`); NAME+platt, NAME+isotonic and "
        "NAME+temperature are recalibrated on validation answers",
    )
    transfer: tuple[str, ...] = setting(
        (), "other tasks on whose test questions everything is rated too (out of domain)", low=0
    )
    name: str = setting("grace", "what the trained confidence is called in the table")
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


def load_settings(recipe: Path | None = None, overrides: Sequence[str] = ()) -> RunSettings:
    """Return the defaults, changed by a TOML recipe, then by `section.key=value` overrides.

    Raises:
        ConfigError: an unreadable recipe, an unknown key, or a value out of range; the message
            names the key and what would be accepted.
    """
    tree: dict[str, Any] = read_recipe(recipe) if recipe else {}
    return override_settings(tree, overrides, where=str(recipe) if recipe else "settings")


def override_settings(
    tree: dict[str, Any], overrides: Sequence[str], where: str = "settings"
) -> RunSettings:
    """Return the settings of a nested dict, changed by `section.key=value` overrides."""
    for override in overrides:
        _assign(tree, override)
    return from_dict(RunSettings, tree, where=where)


def to_dict(settings: Any) -> dict[str, Any]:
    """Return the settings tree as JSON-ready dicts (tuples become lists)."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return plain


def from_dict(kind: type[Settings], tree: Mapping[str, Any], where: str = "settings") -> Settings:
    """Build a settings dataclass from nested dicts, refusing unknown keys and bad values."""
    return _build(kind, tree, where, "")


def describe(kind: type = RunSettings, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (dotted key, default, help text) of every setting, in order."""
    hints = typing.get_type_hints(kind)
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[f.name]):
            yield from describe(hints[f.name], f"{prefix}{f.name}.")
        else:
            default = {} if f.default is dataclasses.MISSING else f.default
            yield f"{prefix}{f.name}", json.dumps(default), f.metadata["doc"]


def resolve_model(path: str) -> str:
    """Return the directory behind the built-in name `pocket`, any other path or Hub id as it is."""
    return str(Path(__file__).parent / "pocket" / "model") if path == "pocket" else path


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the nested sections of a TOML recipe.

    Raises:
        ConfigError: it is missing, unreadable or not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe {path} does not exist; see `grace list recipes`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"recipe {path} is not valid TOML: {error}") from None


def _assign(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"setting {override!r} has no value; write section.key=value")
    *sections, name = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"setting {key!r}: {section!r} is a value, not a section")
    tree[name] = _parse_value(text.strip())


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _build(kind: type[Settings], tree: Any, where: str, prefix: str) -> Settings:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}: {prefix.rstrip('.')!r} is {tree!r}, expected a section")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in fields:
            raise ConfigError(f"{where}: unknown setting {prefix + key!r}{_closest(key, fields)}")
        name = prefix + key
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(hints[key], value, where, f"{name}.")
        else:
            values[key] = _check(hints[key], value, fields[key].metadata, f"{where}: {name}")
    return kind(**values)


def _closest(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _check(hint: Any, value: Any, metadata: Mapping[str, Any], where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is dict:
        return _table(value, where)
    if origin is tuple:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or (not items and metadata.get("low") != 0):
            raise ConfigError(f"{where} is {value!r}, expected a list with at least one entry")
        return tuple(_check(typing.get_args(hint)[0], item, metadata, where) for item in items)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ConfigError(f"{where} is {value!r}, expected one of {', '.join(choices)}")
        return value
    return _check_scalar(hint, value, metadata, where)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise ConfigError(f"{where} is {value!r}, expected sections of settings, one per name")
    return {name: dict(section) for name, section in value.items()}


def _check_scalar(hint: Any, value: Any, metadata: Mapping[str, Any], where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(hint, types.UnionType) or type(value) is not hint:
        raise ConfigError(f"{where} is {value!r}, expected {hint.__name__}")
    if hint in (int, float):
        low, high = metadata.get("low"), metadata.get("high")
        if not math.isfinite(value) or (low is not None and value < low):
            raise ConfigError(f"{where} is {value}, expected a finite number of at least {low}")
        if high is not None and value > high:
            raise ConfigError(f"{where} is {value}, expected at most {high}")
    return value
