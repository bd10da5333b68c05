"""The workflows that every worker serves without being told, registered by their type names: those that keep limits.

A program that debounces from its web process has workers that never imported `hourglass.limits`. So a worker, a replayer and a
test environment hand this table to their resolver; each workflow is loaded when a run of it is first served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from hourglass.errors import InternalError

if TYPE_CHECKING:  # commands that only leave keepers out of a list need not load definitions
    from hourglass._engine.definition import WorkflowDefinition

KEEPERS: Final = ("hourglass.debounce", "hourglass.slots", "hourglass.throttle")
"""The types of the workflows that keep limits."""

_SUFFIX = re.compile(r"\s*\b(?:GROUP|ORDER)\s+BY\s+[\w, ]+\Z", re.IGNORECASE)


def without_keepers(query: str) -> str:
    """A list filter that leaves out the workflows that keep limits, unless it names one of them itself."""
    if any(each in query for each in KEEPERS):
        return query
    suffix = _SUFFIX.search(query)
    end = f" {suffix[0].strip()}" if suffix else ""
    asked = query[: suffix.start()].strip() if suffix else query.strip()
    others = " AND ".join(f"WorkflowType != '{each}'" for each in KEEPERS)
    return (f"({asked}) AND {others}" if asked else others) + end


def _debounce() -> WorkflowDefinition:
    from hourglass.limits._debouncer import Debouncer

    return _definition(Debouncer)


def _slots() -> WorkflowDefinition:
    from hourglass.limits._slots import SlotKeeper

    return _definition(SlotKeeper)


def _throttle() -> WorkflowDefinition:
    from hourglass.limits._throttles import TurnKeeper

    return _definition(TurnKeeper)


def _definition(workflow: type) -> WorkflowDefinition:
    from hourglass._engine.definition import workflow_definition

    found = workflow_definition(workflow)
    if found is None:
        raise InternalError(f"{workflow.__name__} is no workflow")
    return found


BUILT_IN: Final[Mapping[str, Callable[[], WorkflowDefinition]]] = {
    "hourglass.debounce": _debounce,
    "hourglass.slots": _slots,
    "hourglass.throttle": _throttle,
}
