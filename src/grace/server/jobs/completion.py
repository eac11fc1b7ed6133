"""Samples for a request while they grow: text, tokens, and the confidence where each ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from grace.chat import encode_text
from grace.chat.detokenizer import Words
from grace.cnf import CNF_TOKEN
from grace.engines import Sampling, StreamingEngine
from grace.engines.base import check_contexts
from grace.engines.reading import LOWEST, Drawn, log_of
from grace.evidence import Running
from grace.server.jobs.queue import Emit, Finished, Job

Top = tuple[tuple[str, float], ...]
SHORT = 64  # tokens; shorter prompts are drawn together, whatever their lengths


class Token(NamedTuple):
    """One step of a choice; `top` are the most probable tokens there, `<CNF>` at the end.

    `offset` counts the characters of the tokens before it.
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    offset: int


class Piece(NamedTuple):
    """Text and tokens that a choice has grown by.

    `so_far` is c before the last of its tokens, of a model that knows it along the way.
    """

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()
    so_far: float | None = None


class Ended(NamedTuple):
    """A choice is complete.

    Its confidence is None where it was cut at its longest.
    """

    choice: int
    finish_reason: Literal["stop", "length"]
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for completions.

    Attributes:
        encode: makes the token ids of the prompts.
        num_prompts: how many they are.
        sampling: how to draw.
        key: names the random numbers; of a request without a seed, it occurs only once. None: the
            request has a seed.
        stop: strings that end a choice.
        top: how many most probable tokens to report per step; None: no tokens at all.
    """

    encode: Callable[[], list[list[int]]]
    num_prompts: int
    sampling: Sampling
    key: str | None
    stop: Sequence[str] = ()
    top: int | None = None


class Completion(Job):
    """Samples of one or several prompts, which `draw` draws for all requests of a batch.

    Choice `i * sampling.num_samples + s` is sample s of prompt i. A choice ends where the model
    ends it, or before the first stop string: its confidence is then that of the text up to there,
    as `/v1/score` gives it.
    """

    def __init__(
        self,
        reads: StreamingEngine,
        asked: Asked,
        emit: Emit,
        draw: Callable[[Sequence[Completion]], None],
        hang_up: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(emit, hang_up)
        self.reads, self.asked, self._draw = reads, asked, draw
        self.size = asked.num_prompts * asked.sampling.num_samples
        self.prompts: list[list[int]] = []
        self._left = 0  # choices that have not ended
        self._tokens = 0

    def prepare(self) -> None:
        """Encode the prompts, and refuse those that are too long.

        Requests of any settings are drawn together, if their prompts are of similar length: a batch
        is as long as its longest prompt, so 58 short ones took 14 times as long beside one of 400
        tokens. From `SHORT` on, lengths within a factor of two are similar.
        """
        self.prompts = self.asked.encode()
        check_contexts(self.prompts, self.reads.limit, self.asked.sampling.max_new_tokens)
        self.group = (max(map(len, self.prompts), default=0) // SHORT).bit_length()

    def run(self, together: Sequence[Any]) -> None:
        """Draw the samples of all these requests."""
        self._draw(together)

    def choices(self) -> list[Choice]:
        """Return the choices to fill."""
        self._left = len(self.prompts) * self.asked.sampling.num_samples
        return [Choice(self, number) for number in range(self._left)]

    def prompt_keys(self) -> list[str]:
        """Return the key of each prompt's random numbers; with a seed, that of `Model.ask`."""
        prefix = "" if self.asked.key is None else f"{self.asked.key}/"
        return [f"{prefix}{number}" for number in range(len(self.prompts))]

    def numbers(self) -> list[tuple[str, int]]:
        """Return the key and the number of each choice's sample."""
        sampling = self.asked.sampling
        first = sampling.first_sample
        samples = range(first, first + sampling.num_samples)
        return [(key, sample) for key in self.prompt_keys() for sample in samples]

    def show(self, piece: Piece) -> None:
        """Emit the growth of a choice."""
        self.started = True
        self.emit(piece)

    def end(self, ended: Ended, tokens: int) -> None:
        """Emit the end of a choice, and after the last one the end of the job.

        `tokens` were drawn for it, its end token among them.
        """
        self.started = True
        self.emit(ended)
        self._tokens += tokens
        self._left -= 1
        if self._left == 0:
            self.emit(Finished(sum(map(len, self.prompts)), self._tokens))


class Choice:
    """One choice while it grows.

    `to_rate` is set once a stop string has cut it: the token ids of what is left, whose
    confidence `rated` wants.
    """

    def __init__(self, job: Completion, number: int) -> None:
        self.prompt = job.prompts[number // job.asked.sampling.num_samples]
        self.to_rate: list[int] | None = None
        self._job, self._number, self._reads = job, number, job.reads
        self._words, self._stops = Words(job.reads.tokenizer), Stops(job.asked.stop)
        self._lists_c = job.reads.readout is not None and job.reads.readout.cnf is not None
        self._tokens_drawn = 0
        self._running = Running(job.reads.evidence)
        self._text = ""
        self._offset = 0
        self._first = 0.0  # c at the first step
        self._end: Drawn | None = None
        self._end_top: Top = ()
        self._over = False

    def add(self, drawn: Drawn, top: Top) -> bool:
        """Take what a step has chosen, of these most probable tokens; return whether it goes on."""
        if self._job.cancelled.is_set():
            self._over = True
        if self._over or self._end is not None:
            return False
        self._running.read(drawn.reading, drawn.end)
        at_prompt = self._reads.read_at == "prompt"
        if at_prompt and not self._tokens_drawn:
            self._first = self._running.at_end()
        if drawn.ended:
            self._end, self._end_top = drawn, top
            if self._reads.read_at != "feed":
                self.close(self._first if at_prompt else self._running.at_end())
            return True
        self._tokens_drawn += 1
        so_far = self._running.so_far()
        self._running.add(drawn.logprob)
        shown = self._stops.add(self._words.add(drawn.token))
        evidence = self._reads.evidence
        known = evidence is not None and evidence.trace is not None
        self._show(shown.text, self._tokens(drawn, top, so_far), so_far if known else None)
        if shown.stopped:
            self._cut()
        return not shown.stopped

    def close(self, confidence: float | None) -> None:
        """End the choice where the model has ended it, or at its longest; again: does nothing."""
        if self._over or self.to_rate is not None:
            return
        shown = self._stops.add(self._words.rest(), last=True)
        if shown.stopped:
            self._show(shown.text)
            self._cut()
            return
        tokens = self._tokens(self._end, self._end_top, confidence) if self._end else ()
        self._show(shown.text, tokens)
        if self._end is None:
            self._finish("length", None)
        else:
            self._finish("stop", confidence)

    def rated(self, confidence: float) -> None:
        """End the choice before a stop string, with the confidence of what is left."""
        self.to_rate = None
        if self._job.asked.top is not None and self._lists_c:
            self._show("", (Token("", 0.0, ((CNF_TOKEN, log_of(confidence)),), self._offset),))
        self._finish("stop", confidence)

    def _cut(self) -> None:
        self.to_rate = encode_text(self._reads.tokenizer, self._text)

    def _finish(self, reason: Literal["stop", "length"], confidence: float | None) -> None:
        self._over = True
        tokens = self._tokens_drawn + (self._end is not None)
        self._job.end(Ended(self._number, reason, confidence), tokens)

    def _show(self, text: str, tokens: tuple[Token, ...] = (), so_far: float | None = None) -> None:
        self._text += text
        if text or tokens:
            self._job.show(Piece(self._number, text, tokens, so_far))

    def _tokens(self, drawn: Drawn, top: Top, c: float | None) -> tuple[Token, ...]:
        if self._job.asked.top is None:
            return ()
        if self._lists_c and c is not None:
            top = (*top, (CNF_TOKEN, log_of(c)))
        name = name_of(self._reads.tokenizer, drawn.token)
        token = Token(name, max(drawn.logprob, LOWEST), top, self._offset)
        self._offset += len(name)
        return (token,)


def name_of(tokenizer: Any, token: int) -> str:
    """Return the text of a token by itself."""
    return cast(str, tokenizer.decode([token]))


class Shown(NamedTuple):
    """Text that can be shown, and whether a stop string follows it."""

    text: str
    stopped: bool


class Stops:
    """Cuts text at the first stop string; what could be the start of one is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""

    def add(self, text: str, *, last: bool = False) -> Shown:
        """Return what can be shown once `text` has arrived; with `last`, nothing follows."""
        self._held += text
        places = [self._held.find(string) for string in self._strings]
        if found := [place for place in places if place >= 0]:
            return Shown(self._take(min(found)), True)
        return Shown(self._take(len(self._held) - (0 if last else self._unsure())), False)

    def _unsure(self) -> int:
        """Return how many characters at the end could be the start of a stop string."""
        return max(
            (
                size
                for string in self._strings
                for size in range(1, len(string))
                if self._held.endswith(string[:size])
            ),
            default=0,
        )

    def _take(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown
