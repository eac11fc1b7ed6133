"""`grace serve`: a model behind an OpenAI-compatible API, with a confidence on every choice.

`create_app` makes the application, `serve` runs it. One thread calls the model; requests wait for
it in a bounded queue and receive what they asked for as events, token by token.
"""

from __future__ import annotations

from grace.server.app import about, create_app
from grace.server.running import leave, serve
from grace.server.settings import ServerSettings

__all__ = ["ServerSettings", "about", "create_app", "leave", "serve"]
