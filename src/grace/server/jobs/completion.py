"""The samples of a request while they grow: text, tokens, and the confidence of each at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from grace.chat import Detokenizer, encode_text
from grace.cnf import CNF_TOKEN
from grace.engines import Ids, Rating, Sampling
from grace.engines.base import ModelEngine, check_contexts
from grace.engines.reading import LOWEST, StepResult, log_of
from grace.engines.structured import Allowed, Form, FormError, Forms
from grace.errors import GraceError
from grace.evidence import Running
from grace.records import FieldValue, Response
from grace.server.jobs.queue import Failed, Finished, Job, Together

Top = tuple[tuple[str, float], ...]
"""Tokens with their log-probabilities."""
SHORT = 64  # tokens; prompts below this length run together


class Token(NamedTuple):
    """One token; the first of a prompt has no log-probabilities."""

    text: str
    logprob: float | None
    top: Top | None  # most probable ones of its step, `<CNF>` last
    offset: int  # characters of text before it


class Piece(NamedTuple):
    """New text and tokens of a choice."""

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()
    so_far: float | None = None  # c before the last token, if trained with `grace.trace`


class Ended(NamedTuple):
    """A choice is complete; one that was cut at its maximum length, or is blank, has no c."""

    choice: int
    finish_reason: Literal["stop", "length"]
    confidence: float | None
    familiar: float | None = None
    by_other: bool = False  # answered by another model, which has no c either
    fields: Mapping[str, FieldValue] = {}


@dataclass(frozen=True, slots=True)
class CompletionParams:
    """What a request for completions asks for."""

    encode: Callable[[], list[list[int]]]  # returns the prompts
    num_prompts: int
    sampling: Sampling
    key: str | None  # of random numbers, unique to a request without a seed
    stop: Sequence[str] = ()
    top: int | None = None  # most probable tokens to report per step; None: no tokens
    form: Form | None = None
    shortens: bool = False  # where the context is full
    echo: bool = False  # each choice begins with its prompt


class Completion(Job):
    """Samples of one or several prompts; `draw` draws them for all requests of a batch.

    Choice `i * sampling.num_samples + s` is sample s of prompt i. A choice ends where the model
    ends it, or before the first stop string; its confidence is then that of the text before the
    stop string, as `/v1/score` gives it.

    Without `forms`, whoever draws keeps to the form and reads no c, which is rated afterwards.
    """

    def __init__(
        self,
        engine: ModelEngine,
        params: CompletionParams,
        draw: Callable[[Together], None],
        hang_up: Callable[[], None] = lambda: None,
        forms: Forms | None = None,
    ) -> None:
        super().__init__(hang_up)
        self.engine, self.params, self._draw, self._forms = engine, params, draw, forms
        self.allowed: Allowed | None = None
        self.size = params.num_prompts * params.sampling.num_samples
        self.prompts: list[list[int]] = []
        self._open = self.size  # choices that have not ended
        self._tokens = 0

    def prepare(self) -> None:
        """Encode and check the prompts; group by length, as a row is as wide as the widest."""
        params, limit = self.params, self.engine.limit
        self.prompts = params.encode()
        if params.shortens and limit is not None:
            room = max(1, limit - max(map(len, self.prompts), default=0))
            longest = min(params.sampling.max_new_tokens, room)
            self.params = replace(params, sampling=replace(params.sampling, max_new_tokens=longest))
        check_contexts(self.prompts, limit, self.params.sampling.max_new_tokens)
        if params.form is not None and self._forms is not None:
            self.allowed = self._forms.compile(params.form)
        self.group = (max(map(len, self.prompts), default=0) // SHORT).bit_length()
        self.work = sum(map(len, self.prompts)) + self.size * self.params.sampling.max_new_tokens

    def run(self, together: Together) -> None:
        """Draw the samples of all these requests, and of those that join them."""
        self._draw(together)

    def choices(self) -> list[Choice]:
        """Return the empty choices."""
        return [Choice(self, number) for number in range(self.size)]

    def prompt_keys(self) -> list[str]:
        """Return the key of each prompt's random numbers; with a seed, the keys of `Model.ask`."""
        prefix = "" if self.params.key is None else f"{self.params.key}/"
        return [f"{prefix}{number}" for number in range(len(self.prompts))]

    def sample_keys(self) -> list[tuple[str, int]]:
        """Return the key and the sample number of each choice."""
        samples = range(self.params.sampling.num_samples)
        return [(key, sample) for key in self.prompt_keys() for sample in samples]

    @property
    def rates_later(self) -> bool:
        """Whether the readings of a step are without meaning, since another server masks them."""
        return self.params.form is not None and self._forms is None

    def fail(self, error: GraceError) -> None:
        """End the job with an error, and not the others of its batch."""
        self.emit(Failed(error))
        self.cancelled.set()

    def end(self, ended: Ended, tokens: int) -> None:
        """Emit the end of a choice (`tokens` with its end token), and at last that of the job."""
        self.show(ended)
        self._tokens += tokens
        self._open -= 1
        if self._open == 0:
            self.emit(Finished(sum(map(len, self.prompts)), self._tokens))


class Choice:
    """One choice while it grows: `add` each step until it returns False, then `close` it.

    `to_rate` is set once a choice has ended without c, as a stop string has cut it or the job rates
    it later: the token ids to rate. Pass what is known of them to `end_rated`.
    """

    def __init__(self, job: Completion, number: int) -> None:
        self.prompt = job.prompts[number // job.params.sampling.num_samples]
        self.top = job.params.top
        self.to_rate: list[int] | None = None
        self.allowed = None if job.allowed is None else job.allowed.begin()
        self._job, self._number, self._engine = job, number, job.engine
        self._detokenizer, self._stops = Detokenizer(job.engine.tokenizer), Stops(job.params.stop)
        readout, evidence = job.engine.readout, job.engine.evidence
        self._lists_c = self.top is not None and readout is not None and readout.cnf is not None
        self._traced = evidence is not None and evidence.trace is not None
        told = (self._lists_c or self._traced) and not job.rates_later
        self._running = Running(evidence) if told else None
        self._tokens_drawn = 0
        self._text = ""
        self._start = self._offset = 0
        self._end: StepResult | None = None
        self._end_top: Top = ()
        self._held: Piece | None = None
        self._over = False

    def begin(self, text: str, tokens: Sequence[Token]) -> None:
        """Begin the choice with its prompt."""
        self._start = self._offset = len(text)
        self._job.show(Piece(self._number, text, tuple(tokens)))

    def add(self, result: StepResult, top: Top) -> bool:
        """Add the token that a step has chosen; return whether another may follow."""
        if self._job.cancelled.is_set():
            self._over = True
        if self._over or self._end is not None:
            return False
        if result.ended:
            self._end, self._end_top = result, top
            if self.allowed is not None:
                try:
                    self.allowed.check()
                except FormError as error:
                    self._over = True
                    self._job.fail(error)
            return False
        self._tokens_drawn += 1
        so_far = self._so_far(result)
        tokens = self._tokens(result, top, so_far)
        shown = self._read(self._detokenizer.add(result.token))
        self._show(shown.text, tokens, so_far if self._traced else None)
        if shown.stopped:
            self._cut()
        whole = self._tokens_drawn >= self._job.params.sampling.max_new_tokens
        return not (self._over or whole or self.to_rate is not None)

    def close(self, response: Response | None) -> None:
        """End the choice as its response has ended; None: without a token."""
        if self._over or self.to_rate is not None:
            return
        shown = self._read(self._detokenizer.rest(), last=True)
        if shown.stopped:
            self._show(shown.text)
            self._cut()
        elif self._end is None:
            self._show(shown.text)
            self._finish("length", None if self._job.rates_later else response)
        elif response is not None and self._job.rates_later:
            self._show(shown.text)
            self._cut(response.token_ids)
        else:
            c = None if response is None else response.confidence
            self._show(shown.text, self._tokens(self._end, self._end_top, c))
            self._finish("stop", response)

    def end_rated(self, rated: Rating) -> None:
        """End the choice before a stop string, with the confidence of the text before it."""
        self.to_rate = None
        c = cast(float, rated.confidence)
        if self._lists_c:
            place = self._start + len(self._text)
            self._show("", (Token("", 0.0, ((CNF_TOKEN, log_of(c)),), place),))
        self._finish("stop", rated)

    def _so_far(self, result: StepResult) -> float | None:
        """Return c before the token of a step, None where nobody is told."""
        if self._running is None:
            return None
        self._running.read(result.readings, result.end)
        c = self._running.so_far()
        self._running.add(result.logprob)
        return c

    def _read(self, text: str, *, last: bool = False) -> Shown:
        self._offset += len(text)
        return self._stops.add(text, last=last)

    def _cut(self, tokens: Ids = ()) -> None:
        if self._text.strip():
            self.to_rate = [*tokens] or encode_text(self._engine.tokenizer, self._text)
        else:
            self._finish("stop", None)

    def _finish(self, reason: Literal["stop", "length"], found: Response | Rating | None) -> None:
        self._over = True
        ended = Ended(self._number, reason, None)
        if found is not None:
            c, fields = found.confidence, found.fields
            familiar = None if c is None else found.familiar
            ended = ended._replace(confidence=c, familiar=familiar, fields=fields)
        if self._held is not None:
            self._job.show(self._held if ended.confidence is not None else _unrated(self._held))
        self._job.end(ended, self._tokens_drawn + (self._end is not None))

    def _show(self, text: str, tokens: tuple[Token, ...] = (), so_far: float | None = None) -> None:
        """Show new text; with tokens, the last waits, as some clients drop chunks without text."""
        self._text += text
        held, self._held = self._held, None
        if held is not None and not (text and tokens):
            text, tokens = held.text + text, (*held.tokens, *tokens)
            so_far = held.so_far if so_far is None else so_far
        elif held is not None:
            self._job.show(held)
        if not text and not tokens:
            return
        piece = Piece(self._number, text, tokens, so_far)
        if self.top is None:
            self._job.show(piece)
        else:
            self._held = piece

    def _tokens(self, result: StepResult, top: Top, c: float | None) -> tuple[Token, ...]:
        if self.top is None:
            return ()
        if self._lists_c and c is not None:
            top = (*top, (CNF_TOKEN, log_of(c)))
        name = name_of(self._engine.tokenizer, result.token)
        return (Token(name, max(result.logprob, LOWEST), top, self._offset),)


def _unrated(piece: Piece) -> Piece:
    """Return a piece whose last token has no c: some clients read that of an answer only there."""
    *earlier, last = piece.tokens
    top = tuple(one for one in last.top or () if one[0] != CNF_TOKEN)
    return piece._replace(tokens=(*earlier, last._replace(top=top)))


def name_of(tokenizer: Any, token: int) -> str:
    """Return the text of a token after another: some tokenizers drop a space at the start."""
    return cast(str, tokenizer.decode([token, token])[len(tokenizer.decode([token])) :])


class Shown(NamedTuple):
    """Text that can be shown, and whether a stop string follows it."""

    text: str
    stopped: bool


class Stops:
    """Cuts text at the first stop string; text that may be the start of one is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""

    def add(self, text: str, *, last: bool = False) -> Shown:
        """Return the text that can be shown once `text` has arrived; `last`: nothing follows."""
        self._held += text
        places = [self._held.find(string) for string in self._strings]
        if matches := [place for place in places if place >= 0]:
            return Shown(self._take(min(matches)), True)
        return Shown(self._take(len(self._held) - (0 if last else self._unsure())), False)

    def _unsure(self) -> int:
        """Return how many characters at the end may be the start of a stop string."""
        begun = (string[:size] for string in self._strings for size in range(1, len(string)))
        return max((len(part) for part in begun if self._held.endswith(part)), default=0)

    def _take(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown
