"""Labelling on Ray workers: of a running cluster, or of one that is started on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace.engines.kinds import engine_class
from grace.errors import ConfigError, GraceError, RunError, first_line
from grace.pipeline.labelling.shards import Labeller, Labelling, shard_path
from grace.store import writing

QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
TRIES = 5  # of a shard whose worker dies each time; Ray itself would try for ever


def label_shards(
    questions: str, out: Path, settings: Labelling, shards: Sequence[int], workers: int
) -> Iterator[int]:
    """Yield the number of questions of each shard as it is done; a dead worker is replaced."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ConfigError(
            f"several workers need Ray ({error}); pip install 'grace-confidence[ray]', or use "
            "--workers 1"
        ) from None
    started = not ray.is_initialized()
    if started:
        _connect()
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        done = ray.data.from_items(list(shards), override_num_blocks=len(shards)).map_batches(
            _Worker,
            fn_constructor_args=(questions, str(out), settings),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards))),
            **_resources(settings, workers),
        )
        for row in done.iter_rows():
            if row["error"]:
                raise GraceError(row["error"])
            yield row["count"]
    finally:
        if started:
            ray.shutdown()


def _connect() -> None:
    """Join the cluster at RAY_ADDRESS, or start one; SIGTERM stays what it was."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"Ray cannot be started or reached ({first_line(error)}); check the cluster and "
            "RAY_ADDRESS, or use --workers 1"
        ) from error
    finally:
        with contextlib.suppress(ValueError, TypeError):  # not the main thread: Ray set none
            signal.signal(signal.SIGTERM, before)


class _Worker:
    """A Ray worker: it loads the model once and labels one shard after the other."""

    def __init__(self, questions: str, out: str, settings: Labelling) -> None:
        self._arguments = questions, Path(out), settings
        self._labeller: Labeller | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Label the one shard of a batch; return a `GraceError` as text, as Ray retries others."""
        (shard,) = batch["item"].tolist()
        try:
            with _tried(shard_path(self._arguments[1], shard)):
                self._labeller = self._labeller or Labeller(*self._arguments)
                return {"count": [self._labeller(shard)], "error": [""]}
        except GraceError as error:
            return {"count": [0], "error": [str(error)]}


@contextlib.contextmanager
def _tried(path: Path) -> Iterator[None]:
    """Count the tries of a shard in a file beside it, which stays where a worker dies."""
    tries = path.with_name(f".{path.stem}-tries.partial")
    with writing(tries), tries.open("ab") as file:
        file.write(b".")
    if tries.stat().st_size > TRIES:
        raise RunError(
            f"{TRIES} workers died while they made {path}; if they lacked memory, use fewer "
            "--workers or a smaller sample.batch_size, and repeat the command: it resumes"
        )
    yield
    tries.unlink(missing_ok=True)


def _resources(settings: Labelling, workers: int) -> dict[str, Any]:
    """Return the resources of a worker: GPUs where there are some, else an equal share of cores."""
    import ray

    total = ray.cluster_resources()
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = {kind: max(int(node.get(kind, 0)) for node in alive) for kind in ("CPU", "GPU")}
    remote = "relay" in engine_class(settings.engine).gives  # the model is on a server
    if most["GPU"] and settings.device != "cpu" and not remote:
        needed = int(settings.engine_options.get("tensor_parallel_size", 1))
        if needed > most["GPU"]:
            raise ConfigError(
                f"a worker needs {needed} GPUs, and no machine has more than {most['GPU']}; lower "
                "--engine-option tensor_parallel_size"
            )
        return {"num_gpus": needed}
    return {"num_cpus": max(1, min(most["CPU"], int(total.get("CPU", 1)) // workers))}
