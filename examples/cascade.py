"""Ask a small model that hands over to a bigger one where it is unsure, and see who has answered.

    grace serve runs/demo/pocket_people/grace --below 0.7 \
        --fallback http://127.0.0.1:8001 --fallback-model big
    python examples/cascade.py "Under whom did the painter Geilel Krurkin study?"

The bigger model is on any server with OpenAI's API. `grace cascade` tells from graded answers which
threshold gives which accuracy, and how many questions it hands over.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from openai import OpenAI

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
QUESTION = "Under whom did the painter Geilel Krurkin study?"


def main() -> None:
    """Ask one question; a forwarded answer comes with what the small model has said."""
    question = " ".join(sys.argv[1:]) or QUESTION
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("GRACE_API_KEY", "none"))
    answer: Any = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        temperature=0,
    )
    choice, told = answer.choices[0], answer.grace
    print(f"{told['answered_by']}: {choice.message.content!r}  confidence {choice.confidence}")
    if first := told.get("first"):
        print(f"the small model: {first['text']!r}  confidence {first['confidence']}")


if __name__ == "__main__":
    main()
