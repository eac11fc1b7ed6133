"""Get records with LangChain's `with_structured_output`, with their confidence.

    pip install langchain-openai
    grace serve runs/demo/pocket_people/grace
    python examples/langchain_records.py "Under whom did the painter Geilel Krurkin study?"

The confidence is where examples/langchain_confidence.py reads that of a text.
"""

from __future__ import annotations

import os
import sys
from typing import Literal

from langchain_confidence import confidence
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("GRACE_API_KEY", "none")
QUESTION = "Under whom did the painter Geilel Krurkin study?"


class Person(BaseModel):
    """What the answer says."""

    name: str = Field(max_length=40)
    kind: Literal["painter", "writer", "other"]


def main() -> None:
    """Ask for a record; `include_raw` keeps the message that it was made of."""
    question = " ".join(sys.argv[1:]) or QUESTION
    model = OpenAI(base_url=f"{URL}/v1", api_key=KEY).models.list().data[0].id
    chat = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=model, temperature=0, logprobs=True)
    asking = chat.with_structured_output(Person, method="json_schema", include_raw=True)
    answer = asking.invoke(question)
    print(f"{answer['parsed']!r}  confidence {confidence(answer['raw'].response_metadata)}")


if __name__ == "__main__":
    main()
