"""Closed-book questions about the pocket world's places."""

from __future__ import annotations

from grace.tasks import pocket
from grace.tasks.forms import OpenTask

TASK = OpenTask("pocket_places", pocket.source, pocket.parse)
