"""Answer from retrieved passages, or say "I don't know": abstention in a RAG loop.

    grace serve runs/demo/pocket_people/grace
    python examples/rag_abstention.py

The retriever is a stub that counts common words; replace it with your own. The point is the end of
`answer`: below the threshold it retrieves more passages, and then abstains. The prompt (`raw`) is
not that of the training run, so its confidences are not calibrated. Choose the threshold, or
recalibrate, on questions asked in the same way (docs/thresholds.md).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from openai import OpenAI

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
THRESHOLD = float(os.environ.get("GRACE_THRESHOLD", "0.8"))
PASSAGES = (
    "Middlemarch is a novel by George Eliot, published in 1871 and 1872.",
    "George Eliot was the pen name of Mary Ann Evans.",
    "Paris is the capital of France.",
    "The war ended in 1945.",
)
QUESTIONS = ("Who wrote Middlemarch?", "What is the capital of France?", "Who wrote the Iliad?")


class Answer(NamedTuple):
    """The answer shown to the user, its confidence, and the number of passages used."""

    text: str
    confidence: float | None
    passages: int


def words(text: str) -> set[str]:
    """Return the words of four letters or more in a text."""
    return set(re.findall(r"[a-z]{4,}", text.lower()))


def retrieve(question: str, count: int) -> list[str]:
    """Return the `count` passages that share most words with the question."""
    ranked = sorted(PASSAGES, key=lambda passage: -len(words(passage) & words(question)))
    return ranked[:count]


def answer(client: OpenAI, model: str, question: str) -> Answer:
    """Ask with one passage, then with three; abstain if the confidence stays too low."""
    confidence = None
    for count in (1, 3):
        context = "\n".join(retrieve(question, count))
        reply = client.chat.completions.create(
            model=model,
            temperature=0,
            messages=[{"role": "user", "content": f"{context}\n\nQuestion: {question}\nGuess:"}],
            extra_body={"grace": {"prompt": "raw"}},
        )
        choice = reply.choices[0]
        confidence = choice.confidence
        if confidence is not None and confidence >= THRESHOLD:
            return Answer(choice.message.content.strip(), confidence, count)
    return Answer("I don't know", confidence, count)


def main() -> None:
    """Answer every question and print the confidence."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("GRACE_API_KEY", "none"))
    model = client.models.list().data[0].id
    for question in QUESTIONS:
        found = answer(client, model, question)
        sure = "none" if found.confidence is None else f"{found.confidence:.2f}"
        print(f"{question}  {found.text!r} ({found.passages} passages, last confidence {sure})")


if __name__ == "__main__":
    main()
