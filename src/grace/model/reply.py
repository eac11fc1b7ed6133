"""What one question gets from a model."""

from __future__ import annotations

from dataclasses import dataclass

from grace import notebook


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """An answer and how sure the model is of it.

    `text` is the response without surrounding space. `confidence` is P(correct) in [0, 1], None
    when the answer was cut. `answer` is what counts in a vote (the letter, or the short answer
    normalised), None if there is none. `finish_reason` is "stop", or "length" for an answer that
    was cut at `max_new_tokens`. `tokens` counts the response without its end token. `trace` is c at
    every step, the end step last: `trace[k]` is P(correct | the first k tokens) of a model that was
    trained with `train.trace`, of another what c would be, were the answer to end there. `pieces`
    are the texts that the tokens add, one each, of a model trained with `train.trace`. `threshold`
    is the confidence that was asked for, if any, and `promise` what it guarantees when it is the
    run's own; `abstains`: the answer falls short of it. `unusual`: the probabilities of its tokens
    lie well outside of those that the confidence was fitted on, so it is a guess.
    """

    text: str
    confidence: float | None
    answer: str | None
    finish_reason: str
    tokens: int
    trace: tuple[float, ...]
    threshold: float | None = None
    promise: str = ""
    abstains: bool = False
    unusual: bool = False
    pieces: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the answer and its confidence; the fields hold the rest."""
        return notebook.line("Reply", self.text, self.confidence, self._notes())

    def _repr_html_(self) -> str:
        traced = zip(self.pieces, self.trace[1:], strict=False)
        return notebook.card(self.text, self.confidence, self._notes(), list(traced))

    def _notes(self) -> list[str]:
        said = {
            "cut": self.finish_reason == "length",
            "abstains": self.abstains,
            "unusual": self.unusual,
        }
        return [note for note, true in said.items() if true]
