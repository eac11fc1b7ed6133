"""Read the confidence in LangChain, which keeps logprobs and drops unknown fields.

    pip install langchain-openai
    grace serve runs/demo/pocket_people/grace  # or grace proxy
    python examples/langchain_confidence.py "Under whom did the painter Geilel Krurkin study?"

With LiteLLM and other gateways that keep logprobs, the confidence is in the same place.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

from langchain_openai import ChatOpenAI
from openai import OpenAI

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("GRACE_API_KEY", "none")
QUESTION = "Under whom did the painter Geilel Krurkin study?"


def confidence(metadata: dict[str, Any]) -> float | None:
    """Return the confidence from a reply's metadata, None for an answer that was cut off."""
    listed = metadata["logprobs"]["content"][-1]["top_logprobs"]
    last = {one["token"]: one["logprob"] for one in listed}
    return math.exp(last["<CNF>"]) if "<CNF>" in last else None


def main() -> None:
    """Ask the served model one question."""
    question = " ".join(sys.argv[1:]) or QUESTION
    model = OpenAI(base_url=f"{URL}/v1", api_key=KEY).models.list().data[0].id
    chat = ChatOpenAI(
        base_url=f"{URL}/v1", api_key=KEY, model=model, temperature=0, logprobs=True, max_tokens=64
    )
    reply = chat.invoke([("user", question)])
    print(f"{reply.text.strip()!r}  confidence {confidence(reply.response_metadata)}")


if __name__ == "__main__":
    main()
