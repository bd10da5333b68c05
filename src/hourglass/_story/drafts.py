"""What is known while a history is read, event by event: the only mutable data of the story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hourglass._story.attempts import Backoff, before_last
from hourglass._story.reading import Event, inner, number
from hourglass._story.spans import Fault, Kind, Outcome, Phase, Segment, Span
from hourglass._story.values import Peek


@dataclass(eq=False)
class Draft:
    """A span in the making."""

    id: int
    kind: Kind
    name: str
    start: int
    first_phase: Phase = Phase.RUNNING
    begun: int | None = None
    end: int | None = None
    outcome: Outcome = Outcome.OPEN
    attempts: int = 1
    max_attempts: int = 0
    next_attempt: int | None = None
    paused: bool = False
    backoff: Backoff = field(default_factory=Backoff)
    faults: tuple[Fault, ...] = ()
    notes: list[str] = field(default_factory=list)
    target: str = ""
    child_id: str = ""
    due: int | None = None
    shown: list[tuple[str, str]] = field(default_factory=list)

    def close(self, event: Event, outcome: Outcome, faults: tuple[Fault, ...] = ()) -> None:
        """It ended with this event."""
        self.end, self.outcome = max(event.time, self.start), outcome
        self.faults = faults or self.faults

    def show(self, what: str, value: str) -> None:
        """A payload that may be seen."""
        if value:
            self.shown.append((what, value))


@dataclass(eq=False)
class Task:
    """A workflow task in the making."""

    id: int
    scheduled: int
    attempt: int = 1
    started: int | None = None
    end: int | None = None
    outcome: Outcome = Outcome.OPEN
    faults: tuple[Fault, ...] = ()
    cause: str = ""


@dataclass(eq=False)
class Told:
    """All that is known so far."""

    peek: Peek
    drafts: dict[int, Draft] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    run: Draft | None = None
    facts: dict[str, str] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    first_task_delay: int = 0

    def add(self, event: Event, kind: Kind, name: str, first_phase: Phase = Phase.RUNNING) -> Draft:
        """Something begins."""
        draft = Draft(event.id, kind, name, event.time, first_phase)
        self.drafts[event.id] = draft
        return draft

    def point(self, event: Event, kind: Kind, name: str, outcome: Outcome = Outcome.DONE) -> Draft:
        """Something happened in a moment."""
        draft = self.add(event, kind, name, Phase.POINT)
        draft.end, draft.outcome = event.time, outcome
        return draft

    def found(self, event: Event, key: str) -> Draft | None:
        """The span that an event speaks of."""
        return self.drafts.get(number(inner(event.attributes, key)))


Handler: TypeAlias = Callable[[Told, Event], None]


def frozen(draft: Draft, until: int) -> Span:
    """The finished span; `until` is where an open one ends for now."""
    end = until if draft.end is None else draft.end
    return Span(
        id=draft.id,
        kind=draft.kind,
        name=draft.name,
        start=draft.start,
        end=draft.end,
        outcome=draft.outcome,
        segments=_segments(draft, max(end, draft.start)),
        attempts=draft.attempts,
        max_attempts=draft.max_attempts,
        next_attempt=draft.next_attempt,
        paused=draft.paused,
        faults=draft.faults,
        note=", ".join(draft.notes),
        target=draft.target,
        child_id=draft.child_id,
        shown=tuple(draft.shown),
    )


def _segments(draft: Draft, end: int) -> tuple[Segment, ...]:
    last = Phase.FAILED if draft.outcome in _FAILED else Phase.RUNNING
    if draft.first_phase is Phase.POINT:
        return (Segment(draft.start, end, Phase.POINT),)
    if draft.first_phase is Phase.WAITING:
        return (Segment(draft.start, end, Phase.WAITING),)
    if draft.begun is None:
        if draft.first_phase is Phase.QUEUED and draft.attempts > 1:
            again = end if draft.next_attempt is None else draft.next_attempt
            tried = before_last(draft.start, again, draft.attempts, draft.backoff)
            return _until(end, (*tried, Segment(again, max(again, end), Phase.QUEUED)))
        return (Segment(draft.start, end, last if last is Phase.FAILED else draft.first_phase),)
    begun = min(max(draft.begun, draft.start), end)
    # Attempts that timed out took longer than the one that did not.
    timed_out = any(each.type.startswith("timeout") for each in draft.faults)
    usual = None if timed_out or draft.end is None else end - begun
    before = before_last(draft.start, begun, draft.attempts, draft.backoff, usual)
    return (*before, Segment(begun, end, last))


def _until(end: int, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return tuple(replace(each, end=min(each.end, end)) for each in segments if each.start < end)


_FAILED = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TERMINATED)
