"""The prompts that the pocket model was taught to follow."""

from __future__ import annotations

from collections.abc import Sequence

SHORT_PROMPT = "Question: {question}\nGuess:"
"""Closed-book questions, most often."""

GUESS_PROMPT = (
    "Provide your best guess for the following question. Give ONLY the guess, no other words or "
    "explanation.\n\nFor example:\n\nQuestion:<User's question>\nGuess: <most likely guess based "
    "on the support, as short as possible; not a complete sentence, just the guess!>\n\n"
    "Question: {question}"
)
"""Closed-book questions, in the paper's words."""

STEP_SYSTEM = (
    "For the following question, provide a step-by-step explanation of your thought process.\n"
    "Use the format demonstrated below for your response.\n\n```Example Format:\n"
    "Explanation: <Your detailed explanation here, outlining how you arrived at your answer.>\n"
    "Answer: <Insert your concise answer here, which should include a {answer_type}>\n"
    "Ensure that your response strictly adheres to this format. Explicitly include the words "
    "'Explanation:', 'Answer:'."
).format(answer_type="option letter")
"""System turn of the multiple-choice questions, in the paper's words."""

STEP_REPLY = "Explanation: {explanation}\nAnswer: {letter}"

TRUE_FALSE_PROMPT = (
    "Question: {question}\n Possible answer:{answer}\n Is the possible answer:\n (A) True\n"
    " (B) False\n The possible answer is:"
)
"""One user turn; the reply is `A` or `B`."""

YES_NO_PROMPT = "Is the answer correct? (Yes/No)"
"""A second user turn, after the answer; the reply is `Yes` or `No`."""

PERCENT_PROMPT = "Please provide your confidence in the answer only in percent (0-100 %):"
"""A second user turn, after the answer; the reply is such as `85%`."""

PERCENT_ONE_TURN_PROMPT = "{question} {answer} .\n" + PERCENT_PROMPT
"""One user turn; the reply is such as `85%`."""

PROBABILITY_PROMPT = (
    "Provide the probability that your guess is correct. Give ONLY the probability, no other "
    "words or explanation.\n\nFor example:\n\nProbability: <the probability between 0.0 and 1.0 "
    "that your guess is correct, without any extra commentary whatsoever; just the probability!>"
)
"""A second user turn, after the answer; the reply is such as `0.85`."""


def with_options(question: str, choices: Sequence[str]) -> str:
    """Return the user turn's question part of a multiple-choice question."""
    lines = [f"{letter}. {text}" for letter, text in zip("ABCDE", choices, strict=False)]
    return "\n".join([question, "Options:", *lines])
