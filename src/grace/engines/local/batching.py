"""Group sequences into batches by the memory there is, and halve a batch if it runs out."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from grace.engines import Ids
from grace.engines.local.forward import shared
from grace.errors import ComputeError

UNEVEN = 8  # sequences that a batch has before it may end early
log = logging.getLogger(__name__)
Result = TypeVar("Result")


def group(
    sequences: Sequence[Ids],
    *,
    max_rows: int,
    max_tokens: int,
    num_samples: int = 1,
    new_tokens: int = 0,
    even: bool = True,
) -> list[list[int]]:
    """Return batches of indices, longest first; `even`: none mixes short and long remainders."""
    lengths = list(map(len, sequences))
    common = shared(sequences) if lengths and even else 0
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and common and len(batches[-1]) >= UNEVEN:
            longest = lengths[batches[-1][0]] - common
            room = 0 if 2 * (lengths[index] - common) < longest else room
        if room == 0:
            batches.append([])
            tokens = max(lengths[index] + new_tokens, 1)
            room = max(1, min(max_rows, max_tokens // tokens) // num_samples)
        batches[-1].append(index)
        room -= 1
    return batches


def run_batches(
    batches: Sequence[list[int]], run: Callable[[list[int]], list[Result]], sequences: Sequence[Ids]
) -> list[Result]:
    """Run batches of indices, halving a batch if memory runs out; return the results by index."""
    results: dict[int, Result] = {}
    waiting = list(reversed(batches))
    while waiting:
        batch = waiting.pop()
        values = attempt(lambda batch=batch: run(batch))  # type: ignore[misc]
        if values is not None:
            results.update(zip(batch, values, strict=True))
        elif len(batch) > 1:
            half = len(batch) // 2
            waiting += [batch[half:], batch[:half]]
        else:
            raise out_of_memory(len(sequences[batch[0]]))
    return [results[i] for i in range(len(results))]


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that new tensors may take on a CUDA device; None where nobody knows."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


def attempt(run: Callable[[], Result]) -> Result | None:
    """Call `run` and return its result, or None if memory ran out (it is freed, with a warning)."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
    log.warning("out of memory: going on with half the batch; a smaller batch_size avoids this")
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
    return None


def out_of_memory(num_tokens: int) -> ComputeError:
    """Return the error for a single sequence that does not fit into memory."""
    return ComputeError(
        f"out of memory on a single sequence of {num_tokens} tokens; shorten it, or use a smaller "
        "dtype or model"
    )


@contextlib.contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Turn running out of memory into a `ComputeError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        raise ComputeError(f"out of memory with {what} a smaller dtype or model") from error


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)
