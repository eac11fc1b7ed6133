"""Requests made up from the server's own OpenAPI document: no 5xx, no hang.

`GRACE_FUZZ_EXAMPLES` sets how many are made up per operation (100): docs/results/speed.md has a
long run.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from live_server import NAME, Live

schemathesis = pytest.importorskip("schemathesis", reason="pip install 'grace-confidence[fuzz]'")
EXAMPLES = int(os.environ.get("GRACE_FUZZ_EXAMPLES", "100"))  # per operation
SECONDS = 30
SHORT = 20  # tokens


def aimed(case: Any) -> Any:
    """Send half of the bodies to the model that is there and keep them short."""
    if isinstance(case.body, dict) and len(str(case.body)) % 2:
        case.body["model"] = NAME
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], SHORT)
        for item in case.body.get("input") or ():
            if isinstance(item, dict):  # the document cannot say "exactly one of these"
                for name in ("prompt", "messages", "choices"):
                    item.pop(name, None)
                item["question"] = f"What is {len(str(item))}?"
    return case


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["live", "proxy"])
def test_no_request_breaks_the_server(kind: str, request: pytest.FixtureRequest) -> None:
    server: Live = request.getfixturevalue(kind)
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses: Counter[tuple[str, int]] = Counter()
    for found in document.get_all_operations():
        operation = found.ok()

        @seed(0)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            response = aimed(case).call(timeout=SECONDS)
            statuses[case.path, response.status_code] += 1
            assert response.status_code < 500, (case.body, response.text)
            if response.status_code >= 400:
                assert set(response.json()) == {"error"}, (case.body, response.text)

        check()
    print(f"{kind}: {statuses.total()} calls, {dict(statuses)}")
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/score"):
        assert statuses[path, 200] > 5, statuses
