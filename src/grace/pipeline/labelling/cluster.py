"""Labelling on Ray workers: of a running cluster, or of one that is started on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace.engines.kinds import engine_class
from grace.errors import ConfigError, GraceError
from grace.pipeline.labelling.shards import Labeller, Labelling

QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}


def label_shards(
    questions: str, out: Path, settings: Labelling, shards: Sequence[int], workers: int
) -> Iterator[int]:
    """Yield the number of questions of each shard when a worker has done it.

    A worker that dies is replaced, and its shard is done by another. With several machines the
    paths must be on a file system that they share.

    Raises:
        ConfigError: Ray is not installed.
        GraceError: what a worker raised.
    """
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
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
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


class _Worker:
    """A Ray worker: it loads the model once and labels one shard after the other."""

    def __init__(self, questions: str, out: str, settings: Labelling) -> None:
        self._arguments = questions, Path(out), settings
        self._labeller: Labeller | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Label the one shard of a batch; return a `GraceError` as text, as Ray retries others."""
        (shard,) = batch["item"].tolist()
        try:
            self._labeller = self._labeller or Labeller(*self._arguments)
            return {"count": [self._labeller(shard)], "error": [""]}
        except GraceError as error:
            return {"count": [0], "error": [str(error)]}


def _resources(settings: Labelling, workers: int) -> dict[str, Any]:
    """Return the resources of a worker: GPUs where there are some, else an equal share of cores."""
    import ray

    cluster = ray.cluster_resources()
    remote = "relay" in engine_class(settings.engine).gives  # the model is on a server
    if cluster.get("GPU", 0) and settings.device != "cpu" and not remote:
        return {"num_gpus": int(settings.engine_options.get("tensor_parallel_size", 1))}
    return {"num_cpus": max(1, int(cluster.get("CPU", 1)) // workers)}
