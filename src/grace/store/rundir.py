"""The directory of a run: its files, its lock, and a manifest per finished stage."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace.errors import GraceError, ModelError, RunError
from grace.records import Threshold, from_json
from grace.store.files import copy_file, digest, locked, read_json, sync, write_json, writing
from grace.store.tables import Split

CARD = "grace.json"  # of an adapter, or of an exported model
CARD_VERSION = 1  # schema_version of grace.json
ROWS = "rows.safetensors"  # the weights of an adapter without LoRA
ENTRIES: dict[str, Any] = {  # of grace.json that are read, and their kinds
    **dict.fromkeys(("base_model", "read_at", "kind", "format", "cnf_token", "method"), str),
    **dict.fromkeys(("rows", "cnf_id", "layer", "prompt_layer"), int),
    **dict.fromkeys(("data", "sample", "train", "paper", "bin_tokens"), dict),
    **dict.fromkeys(("evidence", "measured"), dict | None),
}
LISTS = {  # and the kinds of their items
    **dict.fromkeys(("stop_ids", "read_ids", "end_ids", "own_layers"), int),
    **dict.fromkeys(("shots", "recalibrated"), dict),
    "conversations": list,
}
AGAIN = "copy the file again, or export or train the model again"
READ_AT = ("predict", "feed", "prompt")
LORA_WEIGHTS, LORA_CONFIG = "adapter_model.safetensors", "adapter_config.json"


class RunDir:
    """The directory of one run; see `docs/run-directory.md` for every file in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.asking = path / "train" / "asking.json"
        self.adapter = path / "adapter"
        self.checkpoints = path / "checkpoints"
        self.readout = path / "train" / "readout.json"
        self.target_table = path / "train" / "targets.json"
        self.scaling = path / "scaling.json"
        self.replay = path / "scaling.safetensors"
        self.threshold = path / "threshold.json"
        self.vote = path / "vote.json"
        self._trash = path / ".removed"

    def split(self, name: str) -> Split:
        """Return the tables of a split."""
        return Split(self.path / name)

    @contextlib.contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the run for this process."""
        with locked(self.path / ".lock", wait=wait) as ours:
            if not ours:
                raise RunError(
                    f"another process is working on {self.path}; wait for it, or stop it first"
                )
            shutil.rmtree(self._trash, ignore_errors=True)
            yield

    def done(self, stage: str) -> bool:
        """Return whether a stage is done, that is, has a manifest."""
        return self._manifest_path(stage).exists()

    def manifest(self, stage: str) -> dict[str, Any]:
        """Return the manifest of a stage that is done."""
        path = self._manifest_path(stage)
        try:
            manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            manifest["inputs"].keys(), manifest["outputs"].keys()
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(
                f"{path} cannot be read ({error}); do the stage again: grace run {self.path} "
                f"--redo {stage}"
            ) from None
        return manifest

    def finish(
        self,
        stage: str,
        settings: dict[str, Any],
        inputs: Sequence[Path],
        outputs: Sequence[Path],
    ) -> None:
        """Write the manifest that makes a stage count as done, once its outputs are on disk."""
        for path in outputs:
            sync(path)
        write_json(
            self._manifest_path(stage),
            {
                "stage": stage,
                "settings": settings,
                "inputs": self._digests(inputs),
                "outputs": self._digests(outputs),
            },
        )

    def adopt(self, stage: str, source: RunDir) -> None:
        """Copy a finished stage of another run with the same settings; its manifest last."""
        outputs = [source.path / name for name in source.manifest(stage)["outputs"]]
        timing = [path for path in (source._timing_path(stage),) if path.exists()]
        for path in (*outputs, *timing, source._manifest_path(stage)):
            copy_file(path, self.path / path.relative_to(source.path))

    def changed_files(self, stage: str) -> list[str]:
        """Return the inputs and outputs of a finished stage that have changed since."""
        manifest = self.manifest(stage)
        return [
            name
            for recorded in (manifest["inputs"], manifest["outputs"])
            for name, value in recorded.items()
            if not (self.path / name).exists() or digest(self.path / name) != value
        ]

    def forget(self, stage: str, written: Sequence[str]) -> None:
        """Remove a stage's manifest, then all that the stage has written, even if unfinished."""
        with writing(self._trash):
            self._manifest_path(stage).unlink(missing_ok=True)
            for pattern in (*written, f"stages/{stage}.*"):
                for path in sorted(self.path.glob(pattern)):
                    self._trash.mkdir(exist_ok=True)
                    path.rename(self._trash / path.name)  # at once: no half-removed folder is left
                    shutil.rmtree(self._trash)

    def chosen_threshold(self) -> Threshold | None:
        """Return the threshold that was chosen for the model in this directory, if any."""
        if not self.threshold.exists():
            return None
        try:
            data = dict(read_json(self.threshold))
            if data.pop("drop", 0.0) or data.pop("alpha", None):  # of earlier versions
                raise ValueError("it aborts samples midway, which this version does not")
            chosen = from_json(Threshold, data)
            tau = 0.0 if chosen.tau is None else chosen.tau
            for number in (tau, chosen.budget, chosen.temperature):
                if not 0 <= number < math.inf:
                    raise ValueError(f"{number} is out of range")
        except (TypeError, ValueError) as error:
            raise RunError(
                f"{self.threshold} is not a threshold ({error}); remove it and choose again: "
                "grace threshold"
            ) from None
        return chosen

    def add_time(self, stage: str, unit: str, seconds: float, count: int) -> None:
        """Record the seconds that a unit of `count` items took; a later record replaces it."""
        row = {"unit": unit, "seconds": round(seconds, 6), "count": count}
        path = self._timing_path(stage)
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    @property
    def frozen(self) -> bool:
        """Whether the tuned model writes its backbone's answers: the adapter has no LoRA."""
        return (self.adapter / ROWS).exists()

    def label(self, split: Split) -> str:
        """Return a split's folder, relative to the run, which names its units of work."""
        return str(split.path.relative_to(self.path))

    def seconds_per_answer(self, split: Split) -> float | None:
        """Return the mean seconds that sampling a response of a split took, None if unknown."""
        units = self._times(self.label(split))
        count = sum(number for _, number in units)
        return sum(seconds for seconds, _ in units) / count if count else None

    def seconds_in(self, unit: str) -> float | None:
        """Return the seconds recorded for UNIT/1, UNIT/2, ..., together; None if there are none."""
        units = self._times(unit)
        return sum(seconds for seconds, _ in units) if units else None

    def _times(self, label: str) -> list[tuple[float, int]]:
        """Return the seconds and the number of items of every unit LABEL/N."""
        units: dict[str, tuple[float, int]] = {}
        files = sorted((self.path / "stages").glob("*.timing.jsonl"))
        for line in (line for file in files for line in file.read_bytes().splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                row = json.loads(line)
                if row["unit"].rpartition("/")[0] == label:
                    units[row["unit"]] = (float(row["seconds"]), int(row["count"]))
        return list(units.values())

    def _timing_path(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.timing.jsonl"

    def _manifest_path(self, stage: str) -> Path:
        return self.path / "stages" / f"{stage}.json"

    def _digests(self, paths: Sequence[Path]) -> dict[str, str]:
        return {str(path.relative_to(self.path)): digest(path) for path in paths}


def is_run(path: Path) -> bool:
    """Return whether a directory is a single run, finished or not."""
    return "settings" in (config := _read_config(path)) and "study" not in config


def is_study(path: Path) -> bool:
    """Return whether a directory is a study, with several runs in folders below it."""
    return "study" in _read_config(path)


def runs_in(path: Path) -> list[Path]:
    """Return a directory if it is a run, else the runs below it, at any depth, sorted."""
    if is_run(path):
        return [path]
    folders = sorted(config.parent for config in path.glob("*/**/config.json"))
    return [folder for folder in folders if is_run(folder)]


def _read_config(path: Path) -> dict[str, Any]:
    """Return the content of config.json, empty if it is none of ours."""
    try:
        config = read_json(path / "config.json")
    except GraceError:
        return {}
    ours = isinstance(config, dict) and isinstance(config.get("settings"), dict)
    return config if ours else {}


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model, empty if there is no file."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON ({error}); {AGAIN}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a JSON object; {AGAIN}")
    return content


def read_card(folder: Path) -> dict[str, Any]:
    """Return the content of a directory's grace.json, empty if it has none."""
    card = read_object(folder / CARD)
    version = card.get("schema_version", CARD_VERSION)
    if version != CARD_VERSION:
        raise ModelError(
            f"{folder / CARD} has version {version!r}, this GrACE reads {CARD_VERSION}; install "
            "one that reads it: pip install -U grace-confidence"
        )
    for key, value in card.items():
        whole = isinstance(value, ENTRIES.get(key, object))
        if key in LISTS:
            whole = isinstance(value, list) and all(isinstance(one, LISTS[key]) for one in value)
        if whole and key == "recalibrated":
            whole = all(isinstance(one.get("answers"), int) for one in value)
        if not whole or (key == "read_at" and value not in READ_AT):
            raise ModelError(f"{folder / CARD}: {key} is {value!r}, which is damaged; {AGAIN}")
    return card


def adapter_weights(folder: Path) -> Path:
    """Return the file with the weights of an adapter: of its rows alone, or of LoRA."""
    rows = folder / ROWS
    return rows if rows.is_file() else folder / LORA_WEIGHTS
