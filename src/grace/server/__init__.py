"""`grace serve`: a model behind an OpenAI-compatible API, with a confidence on every choice.

`create_app` makes the application, `serve` runs it. Requests become jobs in a bounded queue; worker
threads run them on the model, one forward pass at a time, and report their results token by token.
"""

from __future__ import annotations

from grace.server.app import create_app
from grace.server.running import bind, leave, serve
from grace.server.settings import FallbackSettings, ServerSettings

__all__ = ["FallbackSettings", "ServerSettings", "bind", "create_app", "leave", "serve"]
