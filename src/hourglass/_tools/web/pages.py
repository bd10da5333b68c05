"""The rendering of pages: from a template and its data to HTML. This is the only module that uses templates.

The templates escape all values (`autoescape`). Only `time_of` marks text as safe, and it escapes its
argument. Control and line-separator characters in external text are displayed as escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hourglass._tools.timeline import captions
from hourglass._tools.timeline.run_state import run_state
from hourglass._tools.timeline.text import duration, harmless, near, near_place
from hourglass._tools.web import addresses
from hourglass._tools.web.finding import STATUSES, status_name
from hourglass.converter._stacks import is_ours


@dataclass(frozen=True)
class View:
    """The data that every page displays around its content."""

    target: str
    read_only: bool = False
    has_code: bool = False
    hides_payloads: bool = False
    payloads_requested: bool = False
    trouble: str = ""


def time_of(moment: datetime | int | None) -> Markup:
    """Return the HTML of a time in UTC; a script converts it to the reader's time zone."""
    if moment is None or moment == 0:
        return Markup("")
    at = datetime.fromtimestamp(moment / 1e9, UTC) if isinstance(moment, int) else moment.astimezone(UTC)
    utc = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(at.isoformat(), utc, utc)


def lasted(start: datetime | None, end: datetime | None) -> str:
    """Return the duration from one time to another, or to the current time."""
    if start is None:
        return ""
    elapsed = (end or datetime.now(UTC)) - start
    return duration(max(0, int(elapsed.total_seconds() * 1e9)))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("hourglass._tools.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            value if isinstance(value, Markup) else harmless("" if value is None else str(value))
        ),
    )
    environment.filters.update(
        time=time_of, duration=duration, near=near, near_place=near_place, is_ours=is_ours
    )
    environment.globals.update(
        lasted=lasted,
        lasted_for=lambda length: duration(int(length.total_seconds() * 1e9)),
        statuses=STATUSES,
        status_name=status_name,
        outcome_of=captions.outcome,
        kinds=captions.KINDS,
        state_of=run_state,
        address=addresses,
    )
    return environment


def render(template: str, view: View, **data: Any) -> str:
    """Render a page, or a part of a page, from its data."""
    return _templates().get_template(f"{template}.html").render(view=view, **data)
