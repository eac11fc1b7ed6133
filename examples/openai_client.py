"""Ask a running `grace serve` with the official OpenAI client.

    grace serve runs/demo/pocket_people/grace
    python examples/openai_client.py "Under whom did the painter Geilel Krurkin study?"

The server says what its model is called. GRACE_URL and GRACE_API_KEY are its address and key.
"""

from __future__ import annotations

import math
import os
import sys

from openai import OpenAI

URL = os.environ.get("GRACE_URL", "http://127.0.0.1:8000")
QUESTION = "Under whom did the painter Geilel Krurkin study?"


def main() -> None:
    """Ask once, read the confidence from logprobs alone, vote, and stream."""
    question = " ".join(sys.argv[1:]) or QUESTION
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("GRACE_API_KEY", "none"))
    model = client.models.list().data[0].id
    asked = {"model": model, "messages": [{"role": "user", "content": question}]}

    once = client.chat.completions.create(
        **asked, logprobs=True, extra_body={"grace": {"budget": 1}}
    )
    choice = once.choices[0]
    print(f"once:    {choice.message.content!r}  confidence {choice.confidence}")
    if choice.finish_reason == "stop":
        last = choice.logprobs.content[-1].top_logprobs[-1]
        print(f"         the same from logprobs: {last.token} {math.exp(last.logprob)}")

    vote = client.chat.completions.create(**asked, extra_body={"grace": {"budget": 8}})
    samples = vote.grace["samples"]
    print(f"vote:    {vote.choices[0].message.content!r}  confidence {vote.choices[0].confidence}")
    print(f"         after {samples} samples: {[v['answer'] for v in vote.grace['votes']]}")

    print("stream:  ", end="")
    stream = client.chat.completions.create(
        **asked, stream=True, extra_body={"grace": {"budget": 1}}
    )
    for chunk in stream:
        for part in chunk.choices:
            print(part.delta.content or "", end="", flush=True)
            if part.finish_reason:
                print(f"  confidence {part.confidence}")


if __name__ == "__main__":
    main()
