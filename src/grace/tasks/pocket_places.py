"""Closed-book questions about the pocket world's places."""

from __future__ import annotations

from grace.tasks import _pocket
from grace.tasks.forms import OpenTask

TASK = OpenTask("pocket_places", _pocket.source, _pocket.parse)
