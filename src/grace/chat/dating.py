"""A chat template that prints today's date is saved with one date, so that prompts never drift."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

from grace.errors import ConfigError

_MARK = re.compile(r"\{# date (\d{4}-\d\d-\d\d) #\}")
_DIRECTIVE = re.compile(r"(?<!\{)%-?[A-Za-z]")


def today() -> str:
    """Return the date of today, such as 2026-11-26."""
    return datetime.date.today().isoformat()


def frozen_date(template: Any) -> str:
    """Return the date that `with_date` has written into a chat template, "" if none."""
    found = _MARK.search(template) if isinstance(template, str) else None
    return found[1] if found else ""


def with_date(template: str, date: str = "") -> str:
    """Return a template with a macro `strftime_now` of one date, which all engines render alike."""
    if not re.search(r"\bstrftime_now\b", template) or frozen_date(template):
        return template
    try:
        day = datetime.date.fromisoformat(date or today())
    except ValueError:
        raise ConfigError(f"model.date is {date!r}; write a day such as 2026-11-26") from None
    said = "format"
    for directive in dict.fromkeys(_DIRECTIVE.findall(template)):
        said += f" | replace({json.dumps(directive)}, {json.dumps(day.strftime(directive))})"
    macro = f"{{% macro strftime_now(format) %}}{{{{ {said} }}}}{{% endmacro %}}"
    return f"{{# date {day.isoformat()} #}}{macro}{template}"
