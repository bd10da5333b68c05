"""How events of a history become the story: steps (activities, timers, children, other workflows, Nexus operations),
and messages and notes (signals, updates, cancellation, markers, changes).

One small handler per kind of event, in tables; they write into a `Told`, the drafts of what is known while a history
is read, event by event: the only mutable data of the story.

A history tells when an activity was scheduled, when its *last* attempt began, which attempt that was, and the retry
policy. When the attempts before began is not in it: it is worked out from the policy's intervals, and marked as
guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hourglass._story.faults import chain, words
from hourglass._story.reading import Event, Json, inner, nanoseconds, number, span_of, text
from hourglass._story.spans import Fault, Kind, Outcome, Phase, Segment, Span
from hourglass._story.text import S, duration
from hourglass._story.values import Peek, value_of

# --- what an activity did when: queued, attempts, waits between them --------------------------------------------------


MOST = 24
"""Attempts that are drawn one by one."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long is waited between attempts."""

    initial: int = S
    coefficient: float = 2.0
    maximum: int = 100 * S

    def after(self, attempt: int) -> int:
        """The wait after an attempt, from 1."""
        try:
            wait = self.initial * self.coefficient ** (attempt - 1)
        except OverflowError:
            return self.maximum
        return int(min(wait, self.maximum))


def backoff_from(attributes: Json) -> Backoff:
    """The policy in an activity's schedule, with Temporal's defaults."""
    policy = inner(attributes, "retryPolicy")
    initial = span_of(inner(policy, "initialInterval")) or S
    coefficient = inner(policy, "backoffCoefficient")
    return Backoff(
        initial,
        float(coefficient) if isinstance(coefficient, (int, float)) and coefficient >= 1 else 2.0,
        span_of(inner(policy, "maximumInterval")) or 100 * initial,
    )


def most_attempts(attributes: Json) -> int:
    """How many attempts the policy allows; 0 for any number."""
    return number(inner(attributes, "retryPolicy", "maximumAttempts"))


def before_last(
    start: int, last: int, attempt: int, backoff: Backoff, usual: int | None = None
) -> tuple[Segment, ...]:
    """From the schedule to the start of the last attempt: queued, or the failed attempts with the waits after them.

    `usual` is how long an attempt takes at most, where that can be told: what is left over was spent waiting.
    """
    last = max(last, start)
    if attempt <= 1:
        return _kept(Segment(start, last, Phase.QUEUED))
    if attempt - 1 > MOST:
        return _kept(Segment(start, last, Phase.BACKOFF, guessed=True))
    waits = [backoff.after(each) for each in range(1, attempt)]
    ran = (last - start - sum(waits)) // len(waits)
    if ran < 0:
        # The waits were shorter than the policy says: an operator may have changed it, or ended a wait.
        waits = [each * 4 * (last - start) // (5 * sum(waits)) for each in waits]
        ran = (last - start - sum(waits)) // len(waits)
    elif usual is not None and usual < ran:
        waits = [each + ran - usual for each in waits]
        ran = usual
    segments: list[Segment] = []
    at = start
    for wait in waits:
        failed, again = at + ran, at + ran + wait
        segments += Segment(at, failed, Phase.FAILED, True), Segment(failed, again, Phase.BACKOFF, True)
        at = again
    if at < last:
        segments.append(Segment(at, last, Phase.BACKOFF, True))
    return _kept(*segments)


def _kept(*segments: Segment) -> tuple[Segment, ...]:
    # A failed attempt of no length is still an attempt.
    return tuple(each for each in segments if each.end > each.start or each.phase is Phase.FAILED)


# --- drafts -----------------------------------------------------------------------------------------------------------


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


# --- signals and cancellation -----------------------------------------------------------------------------------------


LOCAL_ACTIVITY, PATCH = "core_local_activity", "core_patch"


def _signaled(told: Told, event: Event) -> None:
    draft = told.point(event, Kind.SIGNAL, text(event.attributes, "signalName") or "signal")
    draft.show("input", told.peek(event.attributes.get("input")))


def _cancel_requested(told: Told, event: Event) -> None:
    draft = told.point(event, Kind.CANCEL, "cancel requested")
    draft.notes += [each for each in (text(event.attributes, "cause"),) if each]


# --- updates ---------------------------------------------------------------------------------------------------------


def _update_admitted(told: Told, event: Event) -> None:
    _update_begins(told, event, inner(event.attributes, "request"), "", Phase.QUEUED)


def _update_accepted(told: Told, event: Event) -> None:
    request = inner(event.attributes, "acceptedRequest")
    known = text(request, "meta", "updateId") or text(event.attributes, "protocolInstanceId")
    admitted = told.drafts.get(told.updates.get(known, 0))
    if admitted is not None and admitted.begun is None:
        admitted.begun = event.time
        told.drafts[event.id] = admitted
        return
    _update_begins(told, event, request, known, Phase.RUNNING)


def _update_begins(told: Told, event: Event, request: Json | None, known: str, phase: Phase) -> None:
    draft = told.add(event, Kind.UPDATE, text(request, "input", "name") or "update", phase)
    draft.target = known or text(request, "meta", "updateId")
    draft.show("input", told.peek(inner(request, "input", "args")))
    told.updates[draft.target] = event.id


def _update_rejected(told: Told, event: Event) -> None:
    request = inner(event.attributes, "rejectedRequest")
    draft = told.point(event, Kind.UPDATE, text(request, "input", "name") or "update", Outcome.FAILED)
    draft.faults = chain(event.attributes.get("failure"))
    draft.notes.append("refused")


def _update_completed(told: Told, event: Event) -> None:
    draft = told.found(event, "acceptedEventId")
    if draft is None:
        draft = told.drafts.get(told.updates.get(text(event.attributes, "meta", "updateId"), 0))
    if draft is None:
        return
    outcome = inner(event.attributes, "outcome")
    failure = inner(outcome, "failure")
    draft.close(event, Outcome.DONE if failure is None else Outcome.FAILED, chain(failure))
    draft.show("result", told.peek(inner(outcome, "success")))


# --- markers ---------------------------------------------------------------------------------------------------------


def _marker(told: Told, event: Event) -> None:
    name = text(event.attributes, "markerName")
    if name == LOCAL_ACTIVITY:
        _local_activity(told, event)
    elif name == PATCH:
        told.point(event, Kind.MARKER, f"patch {_patch_id(event)}")
    elif name == "Version":
        told.point(event, Kind.MARKER, "version")
    elif name == "LocalActivity":
        draft = told.point(event, Kind.LOCAL, "local activity", _local_outcome(event))
        draft.faults = chain(event.attributes.get("failure"))
    else:
        told.point(event, Kind.MARKER, f"marker {name}".strip())


def _patch_id(event: Event) -> str:
    data = _first(inner(event.attributes, "details", "patch-data"))
    return str(
        inner(data, "id") or text(_first(inner(event.attributes, "details", "patch-id"))) or ""
    ).strip()


def _local_activity(told: Told, event: Event) -> None:
    """Core writes when it was asked for by the wall clock, and when it ended by the task's: only its length is sure."""
    data = _first(inner(event.attributes, "details", "data"))
    starts = (each.started for each in reversed(told.tasks.values()) if each.started is not None)
    began = next(starts, event.time)
    asked = nanoseconds(inner(data, "original_schedule_time")) or began
    ran = max(nanoseconds(inner(data, "complete_time")) - began, 0)
    draft = told.add(event, Kind.LOCAL, text(data, "activity_type") or "local activity")
    draft.start = min(max(asked, began), event.time)
    draft.attempts = max(number(inner(data, "attempt")), 1)
    draft.target = text(data, "activity_id")
    draft.close(event, _local_outcome(event), chain(event.attributes.get("failure")))
    draft.end = min(draft.start + ran, event.time)
    if inner(data, "backoff"):
        draft.notes.append("to be tried again")
    draft.show("result", told.peek(inner(event.attributes, "details", "result")))


def _local_outcome(event: Event) -> Outcome:
    failure = event.attributes.get("failure")
    if failure is None:
        return Outcome.DONE
    return Outcome.CANCELLED if inner(failure, "canceledFailureInfo") is not None else Outcome.FAILED


def _first(payloads: object) -> object:
    listed = inner(payloads, "payloads")
    if not isinstance(listed, list) or not listed:
        return None
    return value_of(listed[0]) if isinstance(listed[0], dict) and "data" in listed[0] else listed[0]


# --- changes ---------------------------------------------------------------------------------------------------------


def _changed(what: str) -> Handler:
    def changed(told: Told, event: Event) -> None:
        told.point(event, Kind.MARKER, what)

    return changed


MESSAGES: dict[str, Handler] = {
    "WORKFLOW_EXECUTION_SIGNALED": _signaled,
    "WORKFLOW_EXECUTION_CANCEL_REQUESTED": _cancel_requested,
    "WORKFLOW_EXECUTION_UPDATE_ADMITTED": _update_admitted,
    "WORKFLOW_EXECUTION_UPDATE_ACCEPTED": _update_accepted,
    "WORKFLOW_EXECUTION_UPDATE_REJECTED": _update_rejected,
    "WORKFLOW_EXECUTION_UPDATE_COMPLETED": _update_completed,
    "MARKER_RECORDED": _marker,
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES": _changed("search attributes set"),
    "WORKFLOW_PROPERTIES_MODIFIED": _changed("memo set"),
    "WORKFLOW_PROPERTIES_MODIFIED_EXTERNALLY": _changed("properties changed from outside"),
    "ACTIVITY_PROPERTIES_MODIFIED_EXTERNALLY": _changed("activity's properties changed from outside"),
    "WORKFLOW_EXECUTION_OPTIONS_UPDATED": _changed("options changed from outside"),
    "WORKFLOW_EXECUTION_PAUSED": _changed("paused"),
    "WORKFLOW_EXECUTION_UNPAUSED": _changed("continued after a pause"),
}


# --- steps ------------------------------------------------------------------------------------------------------------


def _summary(event: Event) -> str:
    summary = value_of(inner(event.metadata, "summary"))
    return summary.strip() if isinstance(summary, str) else ""


def _activity_scheduled(told: Told, event: Event) -> None:
    a = event.attributes
    draft = told.add(event, Kind.ACTIVITY, text(a, "activityType", "name") or "activity", Phase.QUEUED)
    draft.backoff, draft.max_attempts = backoff_from(a), most_attempts(a)
    draft.target = text(a, "activityId")
    queue = text(a, "taskQueue", "name")
    if queue and queue != told.facts.get("task_queue"):
        draft.notes.append(f"on task queue {queue}")
    draft.notes += [each for each in (_summary(event),) if each]
    draft.show("input", told.peek(a.get("input")))


def _activity_started(told: Told, event: Event) -> None:
    if draft := told.found(event, "scheduledEventId"):
        draft.begun = event.time
        draft.attempts = max(number(event.attributes.get("attempt")), 1)
        draft.faults = chain(event.attributes.get("lastFailure"))


def _step_ended(outcome: Outcome, key: str = "scheduledEventId") -> Handler:
    def ended(told: Told, event: Event) -> None:
        draft = told.found(event, key)
        if draft is None:
            return
        if draft.begun == event.time and draft.attempts == 1:
            draft.begun = draft.start  # stamped only when it ended: it is not known how long it was queued
        draft.close(event, outcome, chain(event.attributes.get("failure")))
        state = words(text(event.attributes, "retryState"))
        if outcome.bad and state in _WHY_NO_RETRY:
            draft.notes.append(_WHY_NO_RETRY[state])
        draft.show("result", told.peek(event.attributes.get("result")))

    return ended


_WHY_NO_RETRY = {
    "non retryable failure": "not to be retried",
    "maximum attempts reached": "no attempts left",
    "timeout": "no time left for another attempt",
}


def _noted(key: str, note: str) -> Handler:
    def noted(told: Told, event: Event) -> None:
        if draft := told.found(event, key):
            draft.notes.append(note)

    return noted


def _timer_started(told: Told, event: Event) -> None:
    length = span_of(event.attributes.get("startToFireTimeout"))
    summary = _summary(event)
    name = f"timer {duration(length)}" if not summary else f"timer: {summary}"
    draft = told.add(event, Kind.TIMER, name, Phase.WAITING)
    draft.due = event.time + length
    draft.target = text(event.attributes, "timerId")
    if summary:
        draft.notes.append(duration(length))


def _child_initiated(told: Told, event: Event) -> None:
    a = event.attributes
    draft = told.add(event, Kind.CHILD, text(a, "workflowType", "name") or "child workflow", Phase.QUEUED)
    draft.child_id = text(a, "workflowId")
    draft.notes.append(f"id {draft.child_id}")
    draft.show("input", told.peek(a.get("input")))


def _child_started(told: Told, event: Event) -> None:
    if draft := told.found(event, "initiatedEventId"):
        draft.begun = event.time
        draft.target = text(event.attributes, "workflowExecution", "runId")


def _refused(told: Told, event: Event) -> None:
    """A child that could not be started, a workflow that could not be reached: the event says why in one word."""
    if draft := told.found(event, "initiatedEventId"):
        draft.close(event, Outcome.FAILED, (Fault("refused", words(text(event.attributes, "cause"))),))


def _external(verb: Callable[[Event], str]) -> Handler:
    def initiated(told: Told, event: Event) -> None:
        draft = told.add(event, Kind.EXTERNAL, verb(event))
        draft.notes.append(f"to {text(event.attributes, 'workflowExecution', 'workflowId')}")
        draft.show("input", told.peek(event.attributes.get("input")))

    return initiated


def _nexus_scheduled(told: Told, event: Event) -> None:
    name = ".".join(filter(None, (text(event.attributes, "service"), text(event.attributes, "operation"))))
    draft = told.add(event, Kind.NEXUS, name or "nexus operation", Phase.QUEUED)
    draft.notes.append(f"at {text(event.attributes, 'endpoint')}")


def _nexus_started(told: Told, event: Event) -> None:
    if draft := told.found(event, "scheduledEventId"):
        draft.begun = event.time


STEPS: dict[str, Handler] = {
    "ACTIVITY_TASK_SCHEDULED": _activity_scheduled,
    "ACTIVITY_TASK_STARTED": _activity_started,
    "ACTIVITY_TASK_COMPLETED": _step_ended(Outcome.DONE),
    "ACTIVITY_TASK_FAILED": _step_ended(Outcome.FAILED),
    "ACTIVITY_TASK_TIMED_OUT": _step_ended(Outcome.TIMED_OUT),
    "ACTIVITY_TASK_CANCELED": _step_ended(Outcome.CANCELLED),
    "ACTIVITY_TASK_CANCEL_REQUESTED": _noted("scheduledEventId", "asked to cancel"),
    "TIMER_STARTED": _timer_started,
    "TIMER_FIRED": _step_ended(Outcome.DONE, "startedEventId"),
    "TIMER_CANCELED": _step_ended(Outcome.CANCELLED, "startedEventId"),
    "START_CHILD_WORKFLOW_EXECUTION_INITIATED": _child_initiated,
    "START_CHILD_WORKFLOW_EXECUTION_FAILED": _refused,
    "CHILD_WORKFLOW_EXECUTION_STARTED": _child_started,
    "CHILD_WORKFLOW_EXECUTION_COMPLETED": _step_ended(Outcome.DONE, "initiatedEventId"),
    "CHILD_WORKFLOW_EXECUTION_FAILED": _step_ended(Outcome.FAILED, "initiatedEventId"),
    "CHILD_WORKFLOW_EXECUTION_CANCELED": _step_ended(Outcome.CANCELLED, "initiatedEventId"),
    "CHILD_WORKFLOW_EXECUTION_TIMED_OUT": _step_ended(Outcome.TIMED_OUT, "initiatedEventId"),
    "CHILD_WORKFLOW_EXECUTION_TERMINATED": _step_ended(Outcome.TERMINATED, "initiatedEventId"),
    "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED": _external(
        lambda event: f"signal {text(event.attributes, 'signalName')}"
    ),
    "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED": _refused,
    "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED": _step_ended(Outcome.DONE, "initiatedEventId"),
    "REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED": _external(lambda event: "cancel"),
    "REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED": _refused,
    "EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED": _step_ended(Outcome.DONE, "initiatedEventId"),
    "NEXUS_OPERATION_SCHEDULED": _nexus_scheduled,
    "NEXUS_OPERATION_STARTED": _nexus_started,
    "NEXUS_OPERATION_COMPLETED": _step_ended(Outcome.DONE),
    "NEXUS_OPERATION_FAILED": _step_ended(Outcome.FAILED),
    "NEXUS_OPERATION_CANCELED": _step_ended(Outcome.CANCELLED),
    "NEXUS_OPERATION_TIMED_OUT": _step_ended(Outcome.TIMED_OUT),
    "NEXUS_OPERATION_CANCEL_REQUESTED": _noted("scheduledEventId", "asked to cancel"),
}
