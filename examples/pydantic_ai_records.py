"""Get records with pydantic-ai, with their confidence.

pip install 'pydantic-ai-slim[openai]'
grace serve runs/demo/pocket_people/grace
python examples/pydantic_ai_records.py "Under whom did the painter Geilel Krurkin study?"
"""

from __future__ import annotations

import math
import os
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("GRACE_API_KEY", "none")
QUESTION = "Under whom did the painter Geilel Krurkin study?"


class Person(BaseModel):
    """What the answer says."""

    name: str = Field(max_length=40)
    kind: Literal["painter", "writer", "other"]


def confidence(response: ModelResponse) -> float | None:
    """Return the confidence of a response, None for one that was cut off."""
    listed = (response.provider_details or {}).get("logprobs") or [{"top_logprobs": []}]
    last = {one["token"]: one["logprob"] for one in listed[-1]["top_logprobs"]}
    return math.exp(last["<CNF>"]) if "<CNF>" in last else None


def main() -> None:
    """Ask for a record as the content of an answer, which has log-probabilities."""
    question = " ".join(sys.argv[1:]) or QUESTION
    model = OpenAI(base_url=f"{URL}/v1", api_key=KEY).models.list().data[0].id
    agent = Agent(
        OpenAIChatModel(model, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)),
        output_type=NativeOutput(Person),
        model_settings=OpenAIChatModelSettings(temperature=0, openai_logprobs=True),
    )
    run = agent.run_sync(question)
    print(f"{run.output!r}  confidence {confidence(run.response)}")


if __name__ == "__main__":
    main()
