"""Failures as chains of faults, the outermost first, and the author's lines and waits from Python stack traces.

Stack traces come with failures and with the answer to `__stack_trace`. Only the messages of a failure are read, but not its
details, because these are payloads. A stack trace may come from another machine, so the author's files are recognized by the
form of their paths, and not by the paths of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from hourglass._tools.timeline.spans import Fault
from hourglass._tools.timeline.text import clean, harmless
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.converter._stacks import is_authors

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')


class Waits(StrEnum):
    """The kind of call at which a line of workflow code waits."""

    SIGNAL = "signal"
    CONDITION = "condition"
    LOCK = "lock"
    TIMER = "timer"
    ACTIVITY = "activity"
    CHILD = "child"
    TASK = "task"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One line of a stack trace."""

    file: str
    line: int
    function: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a fiber: the author's innermost line, and the kind of call there.

    `limited` means that the wait has a timeout.
    """

    fiber: str
    place: str
    code: str
    waits: Waits
    call: str = ""
    limited: bool = False


def authors_place(trace: str) -> str:
    """Return the file and line of the author's innermost frame, or "" if there is none."""
    own = [frame for frame in _frames(trace.splitlines()) if is_authors(frame.file)]
    return f"{own[-1].file}:{own[-1].line}" if own else ""


def positions(text: str) -> tuple[Position, ...]:
    """Return the position of every fiber, from the answer to `__stack_trace`."""
    return tuple(
        position for label, lines in _fibers(text) if (position := _position(label, lines)) is not None
    )


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


def _frames(lines: list[str]) -> list[StackFrame]:
    frames: list[StackFrame] = []
    for at, line in enumerate(lines):
        if match := _FRAME.search(line):
            following = lines[at + 1].strip() if at + 1 < len(lines) else ""
            code = "" if _FRAME.search(following) else following
            frames.append(StackFrame(match["file"], int(match["line"]), match["function"] or "", code))
    return frames


def _position(label: str, lines: list[str]) -> Position | None:
    frames = _frames(lines)
    own = [at for at, entry in enumerate(frames) if is_authors(entry.file)]
    if not own:
        return None
    frame, inside = frames[own[-1]], frames[own[-1] + 1 :]
    names = [(re.split(r"[/\\]", entry.file)[-1].removesuffix(".py"), entry.function) for entry in inside]
    return Position(
        fiber=label,
        place=f"{frame.file}:{frame.line}",
        code=frame.code,
        waits=next(
            (kind for name in names if (kind := _FUNCTIONS.get(name) or _MODULES.get(name[0]))), Waits.UNKNOWN
        ),
        call=names[0][1] if names else "",
        limited=any(function == "wait_with_timeout" for _, function in names),
    )


# The library's first frame below the author's frame shows the function that was called.
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
    "_locks": Waits.LOCK,
    "_activities": Waits.ACTIVITY,
    "_children": Waits.CHILD,
    "_tasks": Waits.TASK,
    "fibers": Waits.TASK,
}


_LONGEST = 20
_LINE = re.compile(r"(?:^|\s|\()([\w./\\-]+\.\w{1,4}):(\d+)")


def chain(failure: Failure | None) -> tuple[Fault, ...]:
    """Return a failure and its causes."""
    result: list[Fault] = []
    while failure is not None and len(result) < _LONGEST:
        result.append(
            Fault(_type(failure), _message(failure), _place(failure), harmless(failure.stack_trace))
        )
        failure = failure.cause
    return tuple(result)


def root(faults: tuple[Fault, ...]) -> Fault | None:
    """Return the innermost fault, the root cause."""
    return faults[-1] if faults else None


def place_of(faults: tuple[Fault, ...]) -> str:
    """Return the author's line where the failure was raised, or "" if no fault names a line."""
    places = (fault.place for fault in reversed(faults) if fault.place)
    return next((fault for fault in places if is_authors(fault.rpartition(":")[0])), "")


def words(name: str | IntEnum) -> str:
    """Return the name of an enum member as words, or "" for an unspecified value."""
    plain = name.name if isinstance(name, IntEnum) else name
    return "" if plain in ("UNSPECIFIED", "NONE") else plain.replace("_", " ").lower()


def _type(failure: Failure) -> str:
    match failure.info:
        case ApplicationFailure(type=name):
            return clean(name) or "ApplicationError"
        case ActivityFailure(activity_type=name):
            return f"activity {clean(name)}".strip()
        case ChildWorkflowFailure(workflow_type=name):
            return f"child workflow {clean(name)}".strip()
        case TimeoutFailure(type=kind):
            return f"timeout ({words(kind)})" if kind else "timeout"
        case info:
            return _PLAIN.get(type(info), "failure")


_PLAIN: dict[type[object], str] = {
    CanceledFailure: "cancelled",
    TerminatedFailure: "terminated",
    ServerFailure: "server failure",
    ResetFailure: "reset",
}


_WRAPPER_MESSAGES = frozenset(
    (
        "Activity task failed",
        "activity error",
        "activity task failed",
        "Child Workflow execution failed",
        "child workflow execution error",
        "Workflow execution failed",
    )
)
"""Messages of wrapper failures that add no information to their type and cause."""


def _message(failure: Failure) -> str:
    message = clean(failure.message)
    if message in _WRAPPER_MESSAGES and failure.cause is not None:
        return ""
    if failure.encoded_attributes is not None:
        return f"{message} (the message is encoded)".strip()
    return message


def _place(failure: Failure) -> str:
    trace = failure.stack_trace
    if not trace:
        return ""
    if own := authors_place(trace):
        return own
    places = _FRAME.findall(trace) or _LINE.findall(trace)[:1]
    return ":".join(places[-1][:2]) if places else ""
