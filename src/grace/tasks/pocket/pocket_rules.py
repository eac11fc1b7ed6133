"""Which of four creatures is the heaviest or the lightest, from the pocket world."""

from __future__ import annotations

from grace.tasks import pocket
from grace.tasks.forms import ChoiceTask

TASK = ChoiceTask("pocket_rules", pocket.source, pocket.parse)
