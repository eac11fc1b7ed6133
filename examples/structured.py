"""Ask a running `grace serve` for records, with the official OpenAI client.

    grace serve runs/demo/pocket_people/grace
    python examples/structured.py "Under whom did the painter Geilel Krurkin study?"

The confidence is that of the whole record. GRACE_URL and GRACE_API_KEY are the server's address and
key.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

import openai
from openai import OpenAI
from pydantic import BaseModel, Field

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
QUESTION = "Under whom did the painter Geilel Krurkin study?"


class Person(BaseModel):
    """What the answer says."""

    name: str = Field(max_length=40)
    kind: Literal["painter", "writer", "other"]


def main() -> None:
    """Ask for a record as the content of an answer, and as the arguments of a function."""
    question = " ".join(sys.argv[1:]) or QUESTION
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("GRACE_API_KEY", "none"))
    asked: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
    }

    answer = client.chat.completions.parse(**asked, response_format=Person)
    choice = answer.choices[0]
    print(f"content:   {choice.message.parsed!r}  confidence {choice.confidence}")

    answer = client.chat.completions.parse(
        **asked, tools=[openai.pydantic_function_tool(Person)], tool_choice="required"
    )
    (call,) = answer.choices[0].message.tool_calls
    parsed = call.function.parsed_arguments
    print(f"arguments: {parsed!r}  confidence {answer.choices[0].confidence}")


if __name__ == "__main__":
    main()
