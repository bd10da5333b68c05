"""The workflows that every worker serves without registration: those that manage limits, by workflow type.

A program that debounces from its web process has workers that never imported `hourglass.limits`. So workers,
replayers and test environments pass this table to their resolver; a workflow is imported when a run of it is
first served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from hourglass.errors import InternalError, UsageError

if TYPE_CHECKING:  # commands that only exclude these workflows from a list need not import definitions
    from hourglass._evaluator.definition import WorkflowDefinition

KEEPERS: Final = ("hourglass.debounce", "hourglass.slots", "hourglass.throttle")
"""The types of the workflows that manage limits."""

_SUFFIX = re.compile(r"\s*\b(?:GROUP|ORDER)\s+BY\s+[\w, ]+\Z", re.IGNORECASE)


_TOKEN = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|--|/\*|\#|['"`()]""", re.DOTALL)


def check_brackets(query: str) -> None:
    """Raise `UsageError` for a list filter that would break out of brackets around it."""
    depth = 0
    for token in _TOKEN.finditer(query):
        match token[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "'" | '"' | "`":
                raise UsageError(f"the filter has a quote at position {token.start() + 1} that is not closed")
            case "--" | "/*" | "#":
                raise UsageError(f"the filter has a comment at position {token.start() + 1}: leave it out")
            case _:
                pass
        if depth < 0:
            raise UsageError(
                f"the filter closes a bracket at position {token.start() + 1} that it has not opened"
            )
    if depth:
        raise UsageError("the filter opens a bracket that it does not close")


def without_keepers(query: str) -> str:
    """Return a list filter that excludes the workflows that manage limits, unless it names one of them
    itself.

    Raise `UsageError` for a filter with unbalanced brackets or quotes.
    """
    check_brackets(query)
    if any(keeper in query for keeper in KEEPERS):
        return query
    suffix = _SUFFIX.search(query)
    end = f" {suffix[0].strip()}" if suffix else ""
    condition = query[: suffix.start()].strip() if suffix else query.strip()
    exclusion = " AND ".join(f"WorkflowType != '{keeper}'" for keeper in KEEPERS)
    return (f"({condition}) AND {exclusion}" if condition else exclusion) + end


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
    from hourglass._evaluator.definition import workflow_definition

    definition = workflow_definition(workflow)
    if definition is None:
        raise InternalError(f"{workflow.__name__} is not a workflow")
    return definition


BUILT_IN: Final[Mapping[str, Callable[[], WorkflowDefinition]]] = {
    "hourglass.debounce": _debounce,
    "hourglass.slots": _slots,
    "hourglass.throttle": _throttle,
}
