"""The reference engine: any causal language model that transformers can run, in this process.

It samples (`engines/local/decoding.py`) and scores given responses: probabilities, confidences,
hidden states.

Shapes: N sequences, B of them in a batch, C columns to read, K kept positions, V vocabulary, D
hidden size, E tokens that are read.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace.cnf import count_rows, find_readout
from grace.engines import (
    LAST,
    Capability,
    Features,
    Ids,
    Known,
    LayerStates,
    Opening,
    Sampling,
    StepStates,
)
from grace.engines.base import ModelEngine, SampleStream, check_contexts
from grace.engines.local.batching import attempt, free_memory, group, out_of_memory, run_batches
from grace.engines.local.decoding import ContinuousBatch, Prefilled, Rows, generations
from grace.engines.local.forward import Forward, Unread, begin, numbers
from grace.engines.local.graphs import FEWEST, works
from grace.engines.local.layers import LayerRows, PromptEnds, mlp_output, tapped
from grace.engines.local.loading import Loaded, eos_ids, load
from grace.engines.local.sampling import SampleRequest
from grace.engines.reading import Reader, Scored, stop_ids
from grace.errors import ConfigError, ModelError
from grace.evidence import Evidence
from grace.records import Response, is_whole

PLACED = ("cuda",)  # devices whose steps take longer to start than to compute
ROWS_TO_COME = {"cpu": 4, "cuda": 16}  # rows of a unit for each one that is in flight
ROWS_IN_FLIGHT = {"cpu": 64, "cuda": 2048}
TOKENS_IN_FLIGHT = {"cpu": 16_384, "cuda": 262_144}
READ_AT_ONCE = 2**17  # tokens beyond which a larger batch reads no faster
SAFE = 0.8  # share of the free memory that is used
CACHES = 1.25  # bytes of a KV cache with its spare room, and of one layer that is written anew
STATES = 40  # hidden states' worth of memory that a token takes while it is read
LOGITS_BYTES = 48  # of each entry of the vocabulary for a row: logits, probabilities and their sums
LOGITS_IN_FLIGHT = 2**27  # entries of a float32 logits tensor: 512 MB
LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**27}  # of the positions that are read together


class Stream(SampleStream):
    """Samples of one prompt, prefilled once."""

    def start(self, numbers: range) -> Generator[tuple[int, Response], None, None]:
        """Yield (number, response) as each finishes, as `generate` returns it for the same key."""
        sampling = replace(self._sampling, num_samples=len(numbers), first_sample=numbers.start)
        request = SampleRequest([self._prompt], sampling, [self._key])
        remedy = (
            f"{len(numbers)} samples of a prompt of {len(self._prompt)} tokens in flight; use "
            "fewer (--parallel), or"
        )
        batch = ContinuousBatch(self._engine, read=self._prefill, remedy=remedy)
        batch.add(request)
        for row, generation in self._finished(batch, len(numbers)):
            yield numbers[row], generation

    def _finished(self, batch: ContinuousBatch, count: int) -> Iterator[tuple[int, Response]]:
        """Yield (row, response) as each ends; those that are cut come last."""
        waiting = set(range(count))
        with contextlib.closing(iter(batch)) as running:  # type: ignore[type-var]
            for results in running:
                ended = [one.row for one in results if one.ended]
                self.tokens += len(results) - len(ended)
                waiting -= {*ended}
                yield from zip(ended, batch.responses(ended), strict=True)
        yield from zip(sorted(waiting), batch.responses(sorted(waiting)), strict=True)

    @torch.inference_mode()
    def _prefill(self) -> Prefilled:
        """Return a copy of the prefilled prompt, since sampling writes into its KV cache."""
        return copy.deepcopy(self._prefilled)

    @cached_property
    def _prefilled(self) -> Prefilled:
        return Prefilled.read(self._engine.forward, [self._prompt], self._engine.device)


class Read(NamedTuple):
    """A token of a text: log p after the tokens before it, and the most probable ones there."""

    logprob: float
    best: list[tuple[int, float]]


class TransformersEngine(ModelEngine):
    """Samples from a model in this process, and scores responses.

    `read_at`: c is read at the end step (`predict`), at `<CNF>`'s own position (`feed`: one more
    forward per response), or before the response (`prompt`), which is then drawn as if there were
    no `<CNF>`.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset({"states", "training"})
    streams = Stream

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        read_at: str = "predict",
        *,
        evidence: Evidence | None = None,
        batch_size: int | None = None,
        stops: Ids = (),
        layer_rows: LayerRows | None = None,
        prompt_ends: PromptEnds | None = None,
    ) -> None:
        readout = find_readout(tokenizer)
        read = readout.ids if readout else ()
        if readout and readout.cnf is None and (read_at == "feed" or evidence):
            raise ModelError("bin tokens are read without evidence, and at predict or prompt")
        if read_at == "prompt" and evidence:
            raise ModelError("evidence needs a response, so c cannot be read at the prompt with it")
        eos = eos_ids(model, tokenizer, read, stops)
        self.reader = Reader(readout, eos, read_at, evidence)
        config = model.config.get_text_config()
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        self.model, self.forward = model.eval(), Forward(model, read, layer_rows, prompt_ends)
        self.tokenizer = tokenizer
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.batch_size = batch_size or ROWS_IN_FLIGHT.get(self.device.type, 64)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        batch_size: int | None = None,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> TransformersEngine:
        """Load a model directory or Hub id; `stop` are further texts that end a response."""
        return cls.of(load(path, **options), batch_size=batch_size, stop=stop)

    @classmethod
    def of(
        cls, loaded: Loaded, *, batch_size: int | None = None, stop: Sequence[str] = ()
    ) -> TransformersEngine:
        """Return the engine of a loaded model; several may share it."""
        stops = (*loaded.stops, *stop_ids(loaded.tokenizer, stop))
        return cls(**loaded._replace(stops=stops)._asdict(), batch_size=batch_size)

    @classmethod
    def open(cls, opening: Opening) -> TransformersEngine:
        """Load a model directory or Hub id, with an adapter on top if there is one."""
        if opening.options:
            raise ConfigError(
                f"the transformers engine has no {', '.join(opening.options)}; use them as "
                "options for another engine: vllm or openai"
            )
        return cls.load(
            opening.path,
            adapter=opening.adapter,
            device=opening.device,
            dtype=opening.dtype,
            trust_remote_code=opening.trust_remote_code,
            thinking=opening.thinking,
            date=opening.date,
            batch_size=opening.batch_size,
            stop=opening.stop,
        )

    def close(self) -> None:
        """Do nothing: the model is freed with the last reference to it."""

    def plan(
        self, prompts: Sequence[Ids], num_samples: int = 1, max_new_tokens: int = 64
    ) -> list[list[int]]:
        """Return units of prompt indices, longest first, that depend on the arguments alone."""
        times = ROWS_TO_COME.get(self.device.type, 4)
        return group(
            prompts,
            max_rows=times * self.batch_size,
            max_tokens=times * self._most_tokens(),
            num_samples=num_samples,
            new_tokens=max_new_tokens,
            even=False,
        )

    def generate(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (prompt index, its samples) as they finish, in the order of `plan`."""
        keys = keys if keys is not None else [str(i) for i in range(len(prompts))]
        check_contexts(prompts, self.limit, sampling.max_new_tokens, keys)
        for unit in self.plan(prompts, sampling.num_samples, sampling.max_new_tokens):
            unit_keys = [keys[i] for i in unit]
            for place, samples in self.generate_unit(
                [prompts[i] for i in unit], sampling, keys=unit_keys
            ):
                yield unit[place], samples

    def generate_unit(
        self, prompts: Sequence[Ids], sampling: Sampling, *, keys: Sequence[str]
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (prompt index, its samples) of a unit in order, in halves if memory runs out."""
        most, left, done = self.batch_size, list(range(len(prompts))), 0
        made: dict[int, dict[int, Response]] = {}
        while left:
            asked = list(left)
            placed = len(asked) * sampling.num_samples >= FEWEST and self._placed
            batch = self._batch(most, placed=placed)
            batch.add(
                SampleRequest([prompts[i] for i in asked], sampling, [keys[i] for i in asked])
            )
            running = batch.finished()
            while found := attempt(partial(next, running, ())):
                (row, generation) = found
                at, sample = divmod(row, sampling.num_samples)
                samples = made.setdefault(asked[at], {})
                samples[sample] = generation
                if len(samples) == sampling.num_samples:
                    left.remove(asked[at])
                while done not in left and done in made:
                    yield done, [one for _, one in sorted(made.pop(done).items())]
                    done += 1
            if found is None and batch.in_flight == 1:
                raise out_of_memory(max(len(prompts[i]) for i in left) + sampling.max_new_tokens)
            most = batch.in_flight // 2

    def batch(self, requests: Sequence[SampleRequest] = ()) -> ContinuousBatch:
        """Return samples to iterate over token by token; more may join (see `ContinuousBatch`)."""
        batch = self._batch(self.batch_size)
        for request in requests:
            batch.add(request)
        return batch

    def _batch(self, most: int, *, placed: bool = False) -> ContinuousBatch:
        """Return samples to draw, `most` rows and what memory allows at a time."""
        free = free_memory(self.device)
        room = partial(self.room, most=most, free=free)
        return ContinuousBatch(self, room, self.at_once(free), placed=placed)

    @cached_property
    def _placed(self) -> bool:
        return self.device.type in PLACED and works(self.forward, self.device)

    def generations(
        self, rows: Rows, places: Sequence[int], prompts: Sequence[Ids]
    ) -> list[Response]:
        """Return the responses of some rows, to these prompts."""
        responses = generations(rows, places, self.reader, self.tokenizer)
        if self.read_at != "feed":
            return responses
        ended = [row for row, one in enumerate(responses) if is_whole(one)]
        texts = [responses[row].token_ids for row in ended]
        confidences = self.confidences([prompts[row] for row in ended], texts)
        for row, c in zip(ended, confidences, strict=True):
            responses[row] = replace(responses[row], confidence=c)
        return responses

    # --- given responses

    def next_token_probs(self, contexts: Sequence[Ids], tokens: Ids) -> np.ndarray:
        """Return p(token | context), shape (N contexts, tokens), temperature 1, float32."""
        check_contexts(contexts, self.limit)
        columns = list(tokens)

        def run(batch: list[int]) -> list[np.ndarray]:
            logits_BV = self._last_logits([contexts[i] for i in batch])
            total_B1 = logits_BV.logsumexp(-1, keepdim=True)
            return list((logits_BV[:, columns] - total_B1).exp().cpu().numpy())

        rows = run_batches(self._group(contexts), run, contexts)
        return np.array(rows, dtype=np.float32).reshape(len(contexts), len(columns))

    def features(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], layer: int = LAST
    ) -> Features:
        """Return the pooled hidden states of given responses, or activations of a block's MLP."""
        layers = [layer] if layer != LAST else []
        return self.states(prompts, responses, layers=layers)[layer].features

    def states(
        self,
        prompts: Sequence[Ids],
        responses: Sequence[Ids],
        steps_NB: Sequence[Ids] = (),
        layers: Sequence[int] = (),
    ) -> dict[int, LayerStates]:
        """Return the pooled states of given responses, and those at B steps of each, by layer."""
        contexts = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        check_contexts(contexts, self.limit, given=True)

        def run(batch: list[int]) -> list[np.ndarray]:
            counts = [len(responses[i]) for i in batch]
            sequences = [contexts[i] for i in batch]
            unread = begin(self.forward, sequences, self.device, keep=max(counts) + 1)
            steps = [steps_NB[i] for i in batch if steps_NB]
            with tapped(self.model, layers) as taps:
                return pool(self.forward, unread, counts, steps, [partial(taps, n) for n in layers])

        pooled = run_batches(self._group(contexts), run, contexts)
        sizes = [self.model.config.get_text_config().hidden_size]
        sizes += [mlp_output(self.model, layer).in_features for layer in layers]
        width = len(steps_NB[0]) if steps_NB else 0
        shape = (len(contexts), 3 + 2 * width, sum(sizes))
        states_NSD = np.array(pooled, dtype=np.float32).reshape(shape)
        parts = np.split(states_NSD, np.cumsum(sizes)[:-1], axis=-1)
        return {
            layer: LayerStates(
                Features(part[:, 0], part[:, 1], part[:, 2]),
                StepStates(part[:, 3 : 3 + width], part[:, 3 + width :]),
            )
            for layer, part in zip([LAST, *layers], parts, strict=True)
        }

    def read(self, texts: Sequence[Ids], top: int) -> list[list[Read]]:
        """Return of each text what every token but the first was before it came."""
        check_contexts(texts, self.limit, given=True)

        def run(batch: list[int]) -> list[list[Read]]:
            return self._read([texts[i] for i in batch], top)

        longest = 1 if self.forward.apart else max(map(len, texts), default=1)
        return run_batches(self._group(texts, keep=longest), run, texts)

    @torch.inference_mode()
    def _read(self, texts: Sequence[Ids], top: int) -> list[list[Read]]:
        def take(logits_NV: Tensor, next_N: Tensor) -> list[Tensor]:
            logits_NV[:, list(self.reader.banned)] = -torch.inf
            logprobs_NV = logits_NV.log_softmax(-1)
            best = logprobs_NV.topk(min(top, logprobs_NV.shape[1]))
            return [logprobs_NV.gather(1, next_N[:, None])[:, 0], best.indices, best.values]

        columns = self._at_positions(texts, [[*ids[1:], 0] for ids in texts], take)
        rows = ((column[:-1].tolist() for column in one) for one in zip(*columns, strict=True))
        return [
            [Read(p, list(zip(*best, strict=True))) for p, *best in zip(*row, strict=True)]
            for row in rows
        ]

    def _at_positions(
        self,
        texts: Sequence[Ids],
        following: Sequence[Ids],
        take: Callable[[Tensor, Tensor], list[Tensor]],
        *,
        few: bool = False,
    ) -> list[Sequence[Tensor]]:
        """Return what `take` makes of the logits before the tokens that follow, by text."""
        counts = [*map(len, following)]
        unread = begin(self.forward, texts, self.device, keep=max(counts))
        place_K = torch.arange(max(counts), 0, -1, device=self.device)
        kept_BK = place_K <= torch.tensor(counts, device=self.device)[:, None]
        at_once = max(1, LOGITS_AT_ONCE.get(self.device.type, 2**24) // count_rows(self.model))
        rest_N = torch.tensor([token for ids in following for token in ids], device=self.device)
        parts: list[list[Tensor]] = []
        every = self.forward.logits(unread, kept_BK, len(rest_N) if few else at_once, few=few)
        for logits_NV in every:
            next_N, rest_N = rest_N[: len(logits_NV)], rest_N[len(logits_NV) :]
            parts.append(take(logits_NV, next_N.to(logits_NV.device)))
        return [
            torch.split(numbers(torch.cat(part)).cpu(), counts) for part in zip(*parts, strict=True)
        ]

    @torch.inference_mode()
    def _last_logits(self, contexts: Sequence[Ids]) -> torch.Tensor:
        """Return float32 logits after each context, shape (B, V)."""
        unread = begin(self.forward, contexts, self.device, keep=1)
        return numbers(self.forward(unread)[0][:, -1])

    def _scored(
        self, prompts: Sequence[Ids], responses: Sequence[Ids], known: Sequence[Known] = ()
    ) -> Generator[Scored, None, None]:
        fed, linear = self.reader.fed, self.readout is not None and self.readout.head == "linear"
        few = bool(known) and linear and self.forward.reads_few  # logits of no other tokens count
        contexts = [[*p, *r, *fed] for p, r in zip(prompts, responses, strict=True)]
        check_contexts(contexts, self.limit, given=True)
        apart = few or self.forward.apart
        longest = 1 if apart else max(map(len, responses), default=0) + 1 + len(fed)

        def run(batch: list[int]) -> list[Scored]:
            some = [known[i] for i in batch] if few else ()
            return self._score([contexts[i] for i in batch], [responses[i] for i in batch], some)

        yield from run_batches(self._group(contexts, keep=longest), run, contexts)

    @torch.inference_mode()
    def _score(
        self, contexts: Sequence[Ids], responses: Sequence[Ids], known: Sequence[Known]
    ) -> list[Scored]:
        """Score a batch: the states of all positions at once, the logits of a few at a time."""
        readout, fed = self.readout, [0] * (1 + len(self.reader.fed))

        def take(logits_NV: Tensor, next_N: Tensor) -> list[Tensor]:
            if known and readout:
                return [readout.readings(logits_NV, logits_NV[:, 0])]
            return read_steps(logits_NV, next_N, self.reader)

        following = [[*response, *fed] for response in responses]
        *columns, readings = self._at_positions(contexts, following, take, few=bool(known))
        counts = [*map(len, following)]
        near_BKX = self.forward.near(counts).cpu()
        read = [
            torch.cat([readings_KQ, near_KX[-count:]], dim=1).tolist() if self.readout else []
            for readings_KQ, near_KX, count in zip(readings, near_BKX, counts, strict=True)
        ]
        if known:
            return [Scored(p, end, end, one) for (p, end), one in zip(known, read, strict=True)]
        scored = zip(map(len, responses), read, *columns, strict=True)
        return [
            Scored(
                logprobs=next_K[:n].tolist(),
                end_logprob=float(end_K[n]),
                end=float(unread_K[n]),
                readings=one,
            )
            for n, one, next_K, end_K, unread_K in scored
        ]

    # --- how much at a time

    def room(self, width: int, most: int, free: int | None) -> int:
        """Return how many rows of so many tokens, `most` at most, fit into `free` bytes."""
        vocabulary, per_token = count_rows(self.model), self.forward.bytes_per_token
        if free is None or not per_token:
            most = min(most, LOGITS_IN_FLIGHT // vocabulary)
            return max(1, min(most, self._most_tokens() // width))
        per_row = per_token * CACHES * width + LOGITS_BYTES * vocabulary
        return max(1, min(most, int(SAFE * free / per_row)))

    def at_once(self, free: int | None) -> int:
        """Return how many tokens of prompts are read together, in memory that no row takes."""
        return self._most_tokens(None if free is None else int((1 - SAFE) * free))

    def _most_tokens(self, free: int | None = None) -> int:
        """Return how many tokens are read at a time, by the free memory if it is known."""
        if free is None:
            return TOKENS_IN_FLIGHT.get(self.device.type, TOKENS_IN_FLIGHT["cpu"])
        size = self.model.config.get_text_config().hidden_size * self.model.dtype.itemsize
        return max(1, int(SAFE * free / (STATES * size + CACHES * self.forward.bytes_per_token)))

    def _group(self, contexts: Sequence[Ids], keep: int = 1) -> list[list[int]]:
        """Return batches of indices, longest first, within the memory of this device."""
        free = free_memory(self.device)
        most = min(self.batch_size, LOGITS_IN_FLIGHT // (keep * count_rows(self.model)))
        even = self.device.type == "cpu"
        tokens = min(self._most_tokens(free), READ_AT_ONCE)
        return group(contexts, max_rows=max(1, most), max_tokens=tokens, even=even)


@torch.inference_mode()
def read_steps(logits_NV: Tensor, next_N: Tensor, reader: Reader) -> list[Tensor]:
    """Return log p of next token, of the end, of the end unread (N,), and readings (N, Q)."""
    readout, stops, read = reader.readout, list(reader.stops), list(reader.read)
    read_NE = logits_NV[:, read]
    logits_NV[:, list(reader.banned)] = -torch.inf
    next_N = logits_NV.gather(1, next_N[:, None])[:, 0]
    end_N = logits_NV[:, stops].logsumexp(-1)
    logits_NV[:, read] = -torch.inf
    unread_N = logits_NV[:, stops].logsumexp(-1)
    rest_N = _total(logits_NV)
    total_N = torch.logaddexp(rest_N, read_NE.logsumexp(-1))
    drawn_N = rest_N if reader.banned else total_N
    readings_NQ = readout.readings(read_NE, total_N) if readout else read_NE
    return [next_N - drawn_N, end_N - drawn_N, unread_N - rest_N, readings_NQ]


def _total(logits_NV: Tensor) -> Tensor:
    """Return the log-sum-exp, (N,), in place: memory for a copy takes longer than the sum."""
    top_N1 = logits_NV.amax(-1, keepdim=True)
    return top_N1[:, 0] + logits_NV.sub_(top_N1).exp_().sum(-1).log_()


@torch.inference_mode()
def pool(
    forward: Forward,
    unread: Unread,
    counts: Ids,
    steps: Sequence[Ids] = (),
    others: Sequence[Callable[[int], Tensor]] = (),
) -> list[np.ndarray]:
    """Return pooled states of each sequence, shape (3 + 2 B, D) with B steps, or (3, D).

    `others` return further states of as many last positions as they are asked for, which follow the
    last hidden state.

    With n the count of a sequence: the mean of its last n positions, the last position, and the one
    before those n, which is step 0; then the states at the steps, and the means of the positions
    from the one after step 0 up to each of them (step 0 itself has its own).
    """
    states_BCD = forward.states(unread)
    numbers(states_BCD[:, -1])
    keep = max(counts) + 1
    parts = [states_BCD[:, -keep:].float(), *(other(keep) for other in others)]
    states_BCD = torch.cat(parts, dim=-1)
    pooled = []
    for row, (states_CD, n) in enumerate(zip(states_BCD, counts, strict=True)):
        kept = [states_CD[-max(n, 1) :].mean(0), states_CD[-1], states_CD[-n - 1]]
        steps_KD = states_CD[len(states_CD) - n - 1 :]
        at = steps[row] if steps else ()
        kept += [steps_KD[k] for k in at] + [steps_KD[min(k, 1) : k + 1].mean(0) for k in at]
        pooled.append(torch.stack(kept).cpu().numpy())
    return pooled


ENGINE = TransformersEngine
