"""The workflows that manage limits, by workflow type. Every worker serves them without registration.

A program may call `debounce` in its web process while its workers never import `hourglass.limits`. So workers, replayers and
test environments pass this table to their resolver. A workflow is imported when one of its runs is first served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from hourglass.errors import InternalError, UsageError

if TYPE_CHECKING:  # commands that only exclude these workflows from a list need not import the definitions
    from hourglass._evaluator.definition import WorkflowDefinition

KEEPERS: Final = ("hourglass.debounce", "hourglass.slots", "hourglass.throttle")
"""The types of the workflows that manage limits."""

_SUFFIX = re.compile(r"\s*\b(?:GROUP|ORDER)\s+BY\s+[\w, ]+\Z", re.IGNORECASE)


_TOKEN = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|--|/\*|\#|['"`()]""", re.DOTALL)


def check_brackets(query: str) -> None:
    """Raise `UsageError` for a list filter that cannot be wrapped in brackets: one with unbalanced brackets, an open quote
    or a comment."""
    depth = 0
    for token in _TOKEN.finditer(query):
        match token[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "'" | '"' | "`":
                raise UsageError(f"the filter has an unclosed quote at position {token.start() + 1}")
            case "--" | "/*" | "#":
                raise UsageError(
                    f"the filter has a comment at position {token.start() + 1}: remove the comment"
                )
            case _:
                pass
        if depth < 0:
            raise UsageError(
                f"the filter has an unmatched closing parenthesis at position {token.start() + 1}"
            )
    if depth:
        raise UsageError("the filter has an unclosed parenthesis")


def without_keepers(query: str) -> str:
    """Return the list filter extended to exclude the workflows that manage limits. A filter that names one of them is
    returned unchanged.

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
