"""The reply to one question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grace import notebook
from grace.evidence.familiar import HALF
from grace.records import FieldValue


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """An answer and the model's confidence in it.

    Attributes:
        text: the response without surrounding whitespace.
        confidence: P(correct) in [0, 1], None if the answer was cut or is empty.
        answer: the answer as it counts in a vote (the letter, or the normalised short answer),
            None if there is none.
        finish_reason: "stop", or "length" if the answer was cut at `max_new_tokens`.
        tokens: number of tokens of the response, without its end token.
        trace: c at every step, the end step last. With `grace.trace`, `trace[k]` is P(correct | the
            first k tokens); otherwise it is c if the answer ended there.
        threshold: the confidence that the answer must reach, if any.
        promise: the guarantee of the threshold, if it is the run's and the prompt is familiar.
        abstains: the confidence is below the threshold.
        unusual: the token probabilities are far outside the range that the confidence was fitted
            on, so the confidence is a guess.
        familiar: from 1, a prompt like those of training, to 0, one of a kind that none of the
            sources had, whose confidence is that of its token probabilities; None: not known.
        pieces: the text that each token adds, of a model trained with `grace.trace`.
        fields: of a structured answer the `value` and the `confidence` of each field by its name,
            if the model was fitted to such answers; those of an answer that was cut are complete.
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
    familiar: float | None = None
    pieces: tuple[str, ...] = ()
    fields: Mapping[str, FieldValue] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """Return the answer and its confidence; the fields hold the rest."""
        return notebook.line("Reply", self.text, self.confidence, self._notes())

    def _repr_html_(self) -> str:
        return notebook.card(self.text, self.confidence, self._notes(), self.traced)

    @property
    def traced(self) -> list[tuple[str, float | None]]:
        """The pieces, each with c after it; the last one of a cut answer has none."""
        return list(zip(self.pieces, [*self.trace[1:], None], strict=False))

    def _notes(self) -> list[str]:
        notes = {
            "cut": self.finish_reason == "length",
            "empty": not self.text,
            "abstains": self.abstains,
            "unusual": self.unusual,
            "unfamiliar": self.familiar is not None and self.familiar < HALF,
        }
        return [note for note, holds in notes.items() if holds]
