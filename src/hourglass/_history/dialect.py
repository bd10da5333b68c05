"""The kind of SDK that wrote a history: an SDK that is built on Core, or an SDK with its own state machines. Pure.

Must not know: how to replay a history. The SDKs for Python, TypeScript, .NET and Ruby are built on Core, and so is
Hourglass. Their markers and ids are Core's, and Core can replay their histories. The SDKs for Go and Java (and PHP,
based on Go's) are not. Histories name their SDK since 2023, and TypeScript's since 2025. The markers and ids of older
histories show whether their SDK is built on Core, but not whether it is Python's. In that case we do not assume our
order of events.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from hourglass._evaluator.behaviour import OUR_FLAGS
from hourglass._history import events as h

_IN_OUR_ORDER = frozenset({"temporal-python"})
_ON_CORE = frozenset({"temporal-typescript", "temporal-dotnet", "temporal-ruby", "temporal-rust"})
_MARKERS = frozenset({"Version", "SideEffect", "MutableSideEffect", "LocalActivity"})
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Dialect(Enum):
    """The replay method for a history."""

    PYTHON = auto()  # by Core, in the Python SDK's order, also ours
    CORE = auto()  # by Core, in the order of another SDK
    OTHER = auto()  # not by Core


def dialect_of(events: Sequence[h.HistoryEvent]) -> Dialect:
    """Return the dialect of a history."""
    name = sdk_name(events)
    if name in _IN_OUR_ORDER:
        return Dialect.PYTHON
    if name:
        return Dialect.CORE if name in _ON_CORE else Dialect.OTHER
    attributes = [event.attributes for event in events]
    tasks = [entry for entry in attributes if isinstance(entry, h.WorkflowTaskCompleted)]
    if any(OUR_FLAGS.intersection(task.flags) for task in tasks):
        return Dialect.PYTHON  # written by the embedded engine, which records no SDK name
    markers = {entry.marker_name for entry in attributes if isinstance(entry, h.ForeignMarkerRecorded)}
    of_core = any(
        isinstance(entry, (h.MarkerRecorded, h.LocalActivityMarkerRecorded)) for entry in attributes
    )
    if (
        of_core
        or any(entry.startswith("core_") for entry in markers)
        or any(task.core_flags for task in tasks)
    ):
        return Dialect.CORE
    if markers & _MARKERS:
        return Dialect.OTHER
    activities = [
        (event.attributes.activity_id, event.id)
        for event in events
        if isinstance(event.attributes, h.ActivityTaskScheduled)
    ]
    timers = [
        (event.attributes.timer_id, event.id)
        for event in events
        if isinstance(event.attributes, h.TimerStarted)
    ]
    return Dialect.OTHER if _are_not_cores(activities, timers) else Dialect.CORE


def sdk_name(events: Sequence[h.HistoryEvent]) -> str:
    """Return the name of the SDK that the history contains, or "" if it contains none."""
    tasks = (event.attributes for event in events if isinstance(event.attributes, h.WorkflowTaskCompleted))
    return next((task.sdk_name for task in tasks if task.sdk_name), "")


def is_of_embedded_engine(events: Sequence[h.HistoryEvent]) -> bool:
    """Whether the history's tasks were completed by a worker of the embedded engine, with our flags and without the name
    of an SDK.
    """
    tasks = [event.attributes for event in events if isinstance(event.attributes, h.WorkflowTaskCompleted)]
    return not sdk_name(events) and any(OUR_FLAGS.intersection(task.flags) for task in tasks)


def _are_not_cores(activities: list[tuple[str, int]], timers: list[tuple[str, int]]) -> bool:
    """Whether these ids cannot be Core's. Core numbers activities and timers separately, each from 1."""
    both = [*activities, *timers]
    if not both:
        return False
    names = [name for name, _ in both]
    if all(_UUID.fullmatch(name) for name in names):
        return True  # Java
    if all(name == str(event_id) for name, event_id in both) or "0" in names:
        return True  # Go, current and early versions
    numbers = sorted(int(name) for name in names if name.isdigit())
    return bool(activities and timers) and numbers == list(range(1, len(names) + 1))  # one sequence for both
