"""Failures in Temporal's JSON form as chains of faults, the outermost first; and Python's stacks as text: which line
is the author's, and what it waits in. Stacks come in failures and in the answer to `__stack_trace`.

Of a failure only the messages are read: never its details, which are payloads. Must not know: this machine's paths. A
stack may come from another one, so whether a file is the author's is told by how its path looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hourglass._story.reading import Json, inner, text
from hourglass._story.spans import Fault

# --- stacks -----------------------------------------------------------------------------------------------------------


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_NOT_THE_AUTHORS = re.compile(
    r"^<|[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\d.]*[/\\]"
    r"|(?:^|[/\\])hourglass[/\\](?:_\w+|activity|client|contrib|converter|interceptors|limits|metrics|progress|replay|testing|worker|workflow)[/\\.]"
)


class Waits(StrEnum):
    """What a line of workflow code waits in."""

    SIGNAL = "signal"
    CONDITION = "condition"
    LOCK = "lock"
    TIMER = "timer"
    ACTIVITY = "activity"
    CHILD = "child"
    TASK = "task"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a fiber of a run stands: the author's innermost line, and what is called there.

    `limited`: it does not wait for ever.
    """

    fiber: str
    place: str
    code: str
    waits: Waits
    call: str = ""
    limited: bool = False


def is_authors(file: str) -> bool:
    """Whether a path looks like the author's own code, not ours, an installed package's or Python's."""
    return _NOT_THE_AUTHORS.search(file) is None


def authors_place(trace: str) -> str:
    """File and line of the author's innermost frame; empty where there is none."""
    own = [each for each in _frames(trace.splitlines()) if is_authors(each.file)]
    return f"{own[-1].file}:{own[-1].line}" if own else ""


def stands(text: str) -> tuple[Stand, ...]:
    """Where every fiber stands, from the answer to `__stack_trace`."""
    return tuple(found for label, lines in _fibers(text) if (found := _stand(label, lines)) is not None)


def _fibers(text: str) -> Iterator[tuple[str, list[str]]]:
    label, lines = "", list[str]()
    for line in text.splitlines():
        if line and not line[0].isspace():
            if lines:
                yield label, lines
            label, lines = line.strip(), []
        elif line.strip():
            lines.append(line)
    if lines:
        yield label, lines


def _frames(lines: list[str]) -> list[Frame]:
    frames: list[Frame] = []
    for at, line in enumerate(lines):
        if found := _FRAME.search(line):
            following = lines[at + 1].strip() if at + 1 < len(lines) else ""
            code = "" if _FRAME.search(following) else following
            frames.append(Frame(found["file"], int(found["line"]), found["function"] or "", code))
    return frames


def _stand(label: str, lines: list[str]) -> Stand | None:
    frames = _frames(lines)
    own = [at for at, each in enumerate(frames) if is_authors(each.file)]
    if not own:
        return None
    frame, inside = frames[own[-1]], frames[own[-1] + 1 :]
    names = [(re.split(r"[/\\]", each.file)[-1].removesuffix(".py"), each.function) for each in inside]
    return Stand(
        fiber=label,
        place=f"{frame.file}:{frame.line}",
        code=frame.code,
        waits=next((kind for name in names if (kind := _kind(*name))), Waits.UNKNOWN),
        call=names[0][1] if names else "",
        limited=any(function == "wait_with_timeout" for _, function in names),
    )


def _kind(module: str, function: str) -> Waits | None:
    return _FUNCTIONS.get((module, function)) or _MODULES.get(module)


# The first frame of ours below the author's says what was called. Workers of 0.1.0 have other files, so their names stay.
_FUNCTIONS = {
    ("_calls", "execute_activity"): Waits.ACTIVITY,
    ("_calls", "execute_local_activity"): Waits.ACTIVITY,
    ("_references", "receive"): Waits.SIGNAL,
    ("_tasks", "sleep"): Waits.TIMER,
    ("_tasks", "wait_condition"): Waits.CONDITION,
    ("_definition", "__call__"): Waits.ACTIVITY,
    ("_definitions", "__call__"): Waits.CHILD,
}
_MODULES = {
    "_calls": Waits.CHILD,
    "_channels": Waits.SIGNAL,
    "_locks": Waits.LOCK,
    "_activities": Waits.ACTIVITY,
    "_children": Waits.CHILD,
    "_tasks": Waits.TASK,
    "fibers": Waits.TASK,
}


# --- faults -----------------------------------------------------------------------------------------------------------


_LONGEST = 20
_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")
_FRAME_LINE = re.compile(r'File "([^"]+)", line (\d+)')
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
    found = _FRAME_LINE.findall(trace) or _LINE.findall(trace)[:1]
    return ":".join(found[-1]) if found else ""
