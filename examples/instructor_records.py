"""Get records with instructor, each with the confidence that everything in it is right.

pip install instructor
grace serve runs/demo/pocket_people/grace
python examples/instructor_records.py "Under whom did the painter Geilel Krurkin study?"
"""

from __future__ import annotations

import os
import sys
from typing import Literal

import instructor
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
    """Ask for a record, and read the confidence from the answer that it was made of."""
    question = " ".join(sys.argv[1:]) or QUESTION
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    asking = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    person, answer = asking.chat.completions.create_with_completion(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        response_model=Person,
    )
    print(f"{person!r}  confidence {answer.choices[0].confidence}")


if __name__ == "__main__":
    main()
