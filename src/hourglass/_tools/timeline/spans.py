"""The story of a run as frozen data. Times are nanoseconds since the epoch.

A span has a duration, or is a point in time (`start == end`). Its segments are its phases: ordered, without overlap, and
within the span. A span with an `end` of None is still open. `document` converts a story to JSON for other programs. Because
these depend on the fields, fields are only added and never removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hourglass._tools.timeline.text import S, precise


class Kind(StrEnum):
    """The kind of a span."""

    RUN = "run"
    TASK = "task"
    ACTIVITY = "activity"
    LOCAL = "local"
    TIMER = "timer"
    CHILD = "child"
    NEXUS = "nexus"
    EXTERNAL = "external"
    UPDATE = "update"
    SIGNAL = "signal"
    CANCEL = "cancel"
    MARKER = "marker"


class Outcome(StrEnum):
    """The outcome of a span, or its state while it is open."""

    OPEN = "open"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    CONTINUED = "continued as new"
    LEFT = "left open"

    @property
    def bad(self) -> bool:
        """Whether the outcome is a problem that a reader should notice."""
        return self in _BAD


_BAD = frozenset((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TERMINATED, Outcome.RETRYING))


class Phase(StrEnum):
    """The phase of a segment. If several phases share a place that is too small, the phase defined last here is drawn."""

    WAITING = "waiting"
    QUEUED = "queued"
    BACKOFF = "backoff"
    RUNNING = "running"
    POINT = "point"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a span. `guessed` means that the history shows that the phase occurred, but not exactly when."""

    start: int
    end: int
    phase: Phase
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A link in a chain of failures. `trace` is the stack trace where the failure was raised, if known."""

    type: str
    message: str
    place: str = ""
    trace: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A step of a run, or an event that affected the run. A `count` above 1 is the number of equal spans folded into this
    span.

    If a timer is the timeout of a wait for a signal, `signal` is the signal's name.
    """

    id: int
    kind: Kind
    name: str
    start: int
    end: int | None
    outcome: Outcome = Outcome.DONE
    segments: tuple[Segment, ...] = ()
    attempts: int = 1
    max_attempts: int = 0
    next_attempt: int | None = None
    due: int | None = None
    faults: tuple[Fault, ...] = ()
    paused: bool = False
    last_heartbeat: int | None = None
    worker: str = ""
    note: str = ""
    target: str = ""
    child_id: str = ""
    shown: tuple[tuple[str, str], ...] = ()
    depth: int = 0
    signal: str = ""
    count: int = 1
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """A period in which the run's code did not run. `what` is the event that it waited, or waits, for."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The story of a run. `spans[0]` is the run itself. `until` is the end of the run, or the time of the snapshot."""

    workflow_id: str
    run_id: str
    workflow_type: str
    task_queue: str
    outcome: Outcome
    start: int
    end: int | None
    until: int
    spans: tuple[Span, ...]
    waits: tuple[Wait, ...] = ()
    waiting_for: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    events: int = 0
    tasks: int = 0
    failed_tasks: int = 0

    @property
    def run(self) -> Span:
        """The span of the run itself."""
        return self.spans[0]


def document(story: Story) -> dict[str, Any]:
    """Return the story as data for `json.dumps`: times in RFC 3339, durations in seconds. Never remove a field."""
    return {
        "workflow_id": story.workflow_id,
        "run_id": story.run_id,
        "workflow_type": story.workflow_type,
        "task_queue": story.task_queue,
        "outcome": str(story.outcome),
        "start": precise(story.start),
        "end": None if story.end is None else precise(story.end),
        "until": precise(story.until),
        "duration": (story.until - story.start) / S,
        "events": story.events,
        "workflow_tasks": story.tasks,
        "failed_workflow_tasks": story.failed_tasks,
        "failure": _faults(story.faults),
        "links": [{"what": what, "value": value} for what, value in story.links],
        "values": dict(story.shown),
        "waiting_for": list(story.waiting_for),
        "waits": [
            {"start": precise(item.start), "duration": (item.end - item.start) / S, "for": item.what}
            for item in story.waits
        ],
        "spans": [_span(item, story) for item in story.spans],
    }


def _span(span: Span, story: Story) -> dict[str, Any]:
    end = story.until if span.end is None else span.end
    return {
        "event_id": span.id,
        "kind": str(span.kind),
        "name": span.name,
        "outcome": str(span.outcome),
        "start": precise(span.start),
        "end": None if span.end is None else precise(span.end),
        "duration": (end - span.start) / S,
        "attempts": span.attempts,
        "maximum_attempts": span.max_attempts or None,
        "next_attempt": None if span.next_attempt is None else precise(span.next_attempt),
        "depth": span.depth,
        "note": span.note,
        "failure": _faults(span.faults),
        "values": dict(span.shown),
        "segments": [
            {
                "start": precise(segment.start),
                "duration": (segment.end - segment.start) / S,
                "phase": str(segment.phase),
                "guessed": segment.guessed,
            }
            for segment in span.segments
        ],
    }


def _faults(faults: Iterable[Fault]) -> list[dict[str, str]]:
    return [{"type": fault.type, "message": fault.message, "place": fault.place} for fault in faults]
