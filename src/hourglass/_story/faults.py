"""Failures in Temporal's JSON form as chains of faults, the outermost first. Messages only: never details, which are payloads."""

from __future__ import annotations

import re
from typing import Any

from hourglass._story.reading import Json, inner, text
from hourglass._story.spans import Fault
from hourglass._story.stacks import authors_place, is_authors

_LONGEST = 20
_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LINE = re.compile(r"(?:^|\s|\()([\w./\\-]+\.\w{1,4}):(\d+)")


def chain(failure: Any) -> tuple[Fault, ...]:
    """A failure and its causes."""
    found: list[Fault] = []
    while isinstance(failure, dict) and len(found) < _LONGEST:
        found.append(Fault(_type(failure), _message(failure), _place(failure)))
        failure = failure.get("cause")
    return tuple(found)


def root(faults: tuple[Fault, ...]) -> Fault | None:
    """What it all began with."""
    return faults[-1] if faults else None


def place_of(faults: tuple[Fault, ...]) -> str:
    """The author's line that it all began at; empty where no link names one."""
    places = (each.place for each in reversed(faults) if each.place)
    return next((each for each in places if is_authors(each.rpartition(":")[0])), "")


def words(name: str) -> str:
    """An enum's name, in either spelling, as words."""
    plain = re.sub(r"^.*_(?:CAUSE|TYPE|STATE)_(?=[A-Z])", "", name)
    return (plain if "_" in plain or plain.isupper() else _CAPITALS.sub("_", plain)).replace("_", " ").lower()


def _type(failure: Json) -> str:
    if inner(failure, "applicationFailureInfo") is not None:
        return text(failure, "applicationFailureInfo", "type") or "ApplicationError"
    if inner(failure, "activityFailureInfo") is not None:
        return f"activity {text(failure, 'activityFailureInfo', 'activityType', 'name')}".strip()
    if inner(failure, "childWorkflowExecutionFailureInfo") is not None:
        name = text(failure, "childWorkflowExecutionFailureInfo", "workflowType", "name")
        return f"child workflow {name}".strip()
    if inner(failure, "timeoutFailureInfo") is not None:
        kind = words(text(failure, "timeoutFailureInfo", "timeoutType"))
        return f"timeout ({kind})" if kind else "timeout"
    for key, name in _PLAIN.items():
        if inner(failure, key) is not None:
            return name
    return "failure"


_PLAIN = {
    "canceledFailureInfo": "cancelled",
    "terminatedFailureInfo": "terminated",
    "serverFailureInfo": "server failure",
    "resetWorkflowFailureInfo": "reset",
    "nexusOperationExecutionFailureInfo": "nexus operation",
    "nexusHandlerFailureInfo": "nexus handler",
}


_SAYS_NOTHING = frozenset(
    (
        "Activity task failed",
        "activity error",
        "activity task failed",
        "Child Workflow execution failed",
        "child workflow execution error",
        "Workflow execution failed",
    )
)
"""What servers and SDKs write on the wrapper of a failure: its type and its cause say all."""


def _message(failure: Json) -> str:
    said = text(failure, "message")
    if said in _SAYS_NOTHING and inner(failure, "cause") is not None:
        return ""
    if inner(failure, "encodedAttributes") is not None:
        return f"{said} (the message is encoded)".strip()
    return said


def _place(failure: Json) -> str:
    trace = inner(failure, "stackTrace")
    if not isinstance(trace, str) or not trace:
        return ""
    if own := authors_place(trace):
        return own
    found = _FRAME.findall(trace) or _LINE.findall(trace)[:1]
    return ":".join(found[-1]) if found else ""
