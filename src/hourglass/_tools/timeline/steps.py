"""The conversion of history events to the parts of a story: steps (activities, timers, children, other workflows, Nexus
operations), and messages and notes (signals, updates, cancellation, markers, changes).

Tables contain one small handler per kind of event. The handlers write into a `StoryDraft`, the only mutable data of the
story, while a history is read event by event.

A history records when an activity was scheduled, when its *last* attempt started, the number of that attempt, and the retry
policy. The start times of earlier attempts are missing, so they are estimated from the policy's intervals and marked as
guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import msgspec

from hourglass._evaluator.retries import backoff
from hourglass._evaluator.specs import RetryRule
from hourglass._evaluator.words import signal_waited_for
from hourglass._history import events as h
from hourglass._tools.timeline.faults import chain, words
from hourglass._tools.timeline.spans import Fault, Kind, Outcome, Phase, Segment, Span
from hourglass._tools.timeline.text import S, clean, duration
from hourglass._tools.timeline.values import Peek, value_of
from hourglass.converter import CanceledFailure, Failure
from hourglass.errors import RetryState

MOST = 24
"""The maximum number of attempts that are drawn individually."""


def _with_defaults(policy: RetryRule | None) -> RetryRule:
    policy = policy or RetryRule()
    coefficient = policy.backoff_coefficient
    return msgspec.structs.replace(
        policy,
        initial_interval=policy.initial_interval or 1.0,
        backoff_coefficient=coefficient if coefficient >= 1 else 2.0,
    )


def before_last(
    start: int, last: int, attempt: int, policy: RetryRule, usual: int | None = None
) -> tuple[Segment, ...]:
    """Return the segments before the last attempt's start: the time in the queue, or the failed attempts with the intervals
    after them.

    `usual` is the longest plausible duration of an attempt, if known. Any longer time was spent waiting.
    """
    last = max(last, start)
    if attempt <= 1:
        return _kept(Segment(start, last, Phase.QUEUED))
    if attempt - 1 > MOST:
        return _kept(Segment(start, last, Phase.BACKOFF, guessed=True))
    waits = [round(backoff(policy, number) * S) for number in range(1, attempt)]
    ran = (last - start - sum(waits)) // len(waits)
    if ran < 0:
        # The intervals were shorter than in the policy. An operator may have changed the policy, or ended a wait early.
        waits = [interval * 4 * (last - start) // (5 * sum(waits)) for interval in waits]
        ran = (last - start - sum(waits)) // len(waits)
    elif usual is not None and usual < ran:
        waits = [interval + ran - usual for interval in waits]
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
    # Keep a failed attempt even if it has no duration.
    return tuple(
        segment for segment in segments if segment.end > segment.start or segment.phase is Phase.FAILED
    )


@dataclass(eq=False)
class SpanDraft:
    """A span under construction."""

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
    last_heartbeat: int | None = None
    worker: str = ""
    policy: RetryRule = field(default_factory=RetryRule)
    faults: tuple[Fault, ...] = ()
    notes: list[str] = field(default_factory=list)
    target: str = ""
    child_id: str = ""
    due: int | None = None
    signal: str = ""
    shown: tuple[tuple[str, str], ...] = ()

    def close(self, event: h.HistoryEvent, outcome: Outcome, faults: tuple[Fault, ...] = ()) -> None:
        """Close the span with this event."""
        self.end, self.outcome = max(event.time_ns, self.start), outcome
        self.faults = faults or self.faults

    def note(self, text: str) -> None:
        """Add a note to the span."""
        if cleaned := clean(text):
            self.notes.append(cleaned)

    def show(self, what: str, value: str) -> None:
        """Add a payload that may be displayed."""
        if value:
            self.shown += ((what, value),)


@dataclass(eq=False)
class TaskDraft:
    """A workflow task under construction."""

    id: int
    scheduled: int
    attempt: int = 1
    started: int | None = None
    end: int | None = None
    outcome: Outcome = Outcome.OPEN
    faults: tuple[Fault, ...] = ()
    cause: str = ""


@dataclass(eq=False)
class StoryDraft:
    """A story under construction."""

    peek: Peek
    drafts: dict[int, SpanDraft] = field(default_factory=dict)
    tasks: dict[int, TaskDraft] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    run: SpanDraft | None = None
    facts: dict[str, str] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    first_task_delay: int = 0

    def add(
        self, event: h.HistoryEvent, kind: Kind, name: str, first_phase: Phase = Phase.RUNNING
    ) -> SpanDraft:
        """Open a span."""
        draft = SpanDraft(event.id, kind, clean(name), event.time_ns, first_phase)
        self.drafts[event.id] = draft
        return draft

    def point(
        self, event: h.HistoryEvent, kind: Kind, name: str, outcome: Outcome = Outcome.DONE
    ) -> SpanDraft:
        """Add a point in time."""
        draft = self.add(event, kind, name, Phase.POINT)
        draft.end, draft.outcome = event.time_ns, outcome
        return draft


Handler: TypeAlias = Callable[[StoryDraft, h.HistoryEvent, Any], object]
"""A function that applies an event and its attributes to the draft."""


def frozen(draft: SpanDraft, until: int) -> Span:
    """Return the finished span. An open span ends at `until` for now."""
    end = until if draft.end is None else draft.end
    return Span(
        **{name: getattr(draft, name) for name in _COMMON_FIELDS},
        segments=_segments(draft, max(end, draft.start)),
        note=", ".join(draft.notes),
    )


_COMMON_FIELDS = {name.name for name in fields(SpanDraft)} & {name.name for name in fields(Span)}


def _segments(draft: SpanDraft, end: int) -> tuple[Segment, ...]:
    last = Phase.FAILED if draft.outcome in _FAILED else Phase.RUNNING
    if draft.first_phase is Phase.POINT:
        return (Segment(draft.start, end, Phase.POINT),)
    if draft.first_phase is Phase.WAITING:
        return (Segment(draft.start, end, Phase.WAITING),)
    if draft.begun is None:
        if draft.first_phase is Phase.QUEUED and draft.attempts > 1:
            again = end if draft.next_attempt is None else draft.next_attempt
            tried = before_last(draft.start, again, draft.attempts, draft.policy)
            segments = (*tried, Segment(again, max(again, end), Phase.QUEUED))
            return tuple(
                replace(segment, end=min(segment.end, end)) for segment in segments if segment.start < end
            )
        return (Segment(draft.start, end, last if last is Phase.FAILED else draft.first_phase),)
    begun = min(max(draft.begun, draft.start), end)
    # Attempts that timed out took longer than the last attempt, so its duration is no estimate for them.
    timed_out = any(fault.type.startswith("timeout") for fault in draft.faults)
    usual = None if timed_out or draft.end is None else end - begun
    before = before_last(draft.start, begun, draft.attempts, draft.policy, usual)
    return (*before, Segment(begun, end, last))


_FAILED = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.TERMINATED)


def _signaled(story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowExecutionSignaled) -> None:
    draft = story.point(event, Kind.SIGNAL, a.signal_name or "signal")
    draft.show("input", story.peek(a.arguments))


def _update_accepted(story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowExecutionUpdateAccepted) -> None:
    admitted = story.drafts.get(story.updates.get(a.update_id, 0))
    if admitted is not None and admitted.begun is None:
        admitted.begun = event.time_ns
        story.drafts[event.id] = admitted
        return
    _update_begins(story, event, a.request, a.update_id, Phase.RUNNING)


def _update_begins(
    story: StoryDraft, event: h.HistoryEvent, request: h.UpdateRequest | None, update_id: str, phase: Phase
) -> None:
    draft = story.add(event, Kind.UPDATE, request.name if request else "update", phase)
    draft.name = draft.name or "update"
    if request is not None:
        update_id = update_id or request.update_id
        draft.show("input", story.peek(request.arguments))
    draft.target = clean(update_id)
    story.updates[update_id] = event.id


def _update_rejected(story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowExecutionUpdateRejected) -> None:
    name = a.request.name if a.request else ""
    draft = story.point(event, Kind.UPDATE, name or "update", Outcome.FAILED)
    draft.faults = chain(a.failure)
    draft.note("refused")


def _update_completed(
    story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowExecutionUpdateCompleted
) -> None:
    draft = story.drafts.get(a.accepted_event_id) or story.drafts.get(story.updates.get(a.update_id, 0))
    if draft is None:
        return
    draft.close(event, Outcome.DONE if a.failure is None else Outcome.FAILED, chain(a.failure))
    if a.result is not None:
        draft.show("result", story.peek((a.result,)))


def _marker(story: StoryDraft, event: h.HistoryEvent, a: h.ForeignMarkerRecorded) -> None:
    match a.marker_name:
        case "Version":
            story.point(event, Kind.MARKER, "version")
        case "LocalActivity" | "core_local_activity":
            draft = story.point(event, Kind.LOCAL, "local activity", _local_outcome(a.failure))
            draft.faults = chain(a.failure)
        case name:
            story.point(event, Kind.MARKER, f"marker {name}")


def _local_activity(story: StoryDraft, event: h.HistoryEvent, a: h.LocalActivityMarkerRecorded) -> None:
    """Add a local activity.

    Core records the activity's schedule time by the wall clock, and its end by the workflow task's clock, so only the
    duration is reliable.
    """
    starts = (task.started for task in reversed(story.tasks.values()) if task.started is not None)
    began = next(starts, event.time_ns)
    scheduled = a.original_schedule_ns or began
    ran = max(a.complete_ns - began, 0)
    draft = story.add(event, Kind.LOCAL, a.activity_type or "local activity")
    draft.start = min(max(scheduled, began), event.time_ns)
    draft.attempts = max(a.attempt, 1)
    draft.target = clean(a.activity_id)
    draft.close(event, _local_outcome(a.failure), chain(a.failure))
    draft.end = min(draft.start + ran, event.time_ns)
    if a.backoff_ns:
        draft.note("will be retried")
    if a.result is not None:
        draft.show("result", story.peek((a.result,)))


def _local_outcome(failure: Failure | None) -> Outcome:
    if failure is None:
        return Outcome.DONE
    return Outcome.CANCELLED if isinstance(failure.info, CanceledFailure) else Outcome.FAILED


def _changed(what: str) -> Handler:
    return lambda story, event, _: story.point(event, Kind.MARKER, what)


MESSAGES: dict[type[h.Attributes], Handler] = {
    h.WorkflowExecutionSignaled: _signaled,
    h.WorkflowExecutionCancelRequested: lambda story, event, a: story.point(
        event, Kind.CANCEL, "cancel requested"
    ).note(a.reason),
    h.WorkflowExecutionUpdateAdmitted: lambda story, event, a: _update_begins(
        story, event, a.request, "", Phase.QUEUED
    ),
    h.WorkflowExecutionUpdateAccepted: _update_accepted,
    h.WorkflowExecutionUpdateRejected: _update_rejected,
    h.WorkflowExecutionUpdateCompleted: _update_completed,
    h.MarkerRecorded: lambda story, event, a: story.point(event, Kind.MARKER, f"patch {a.patch_id}"),
    h.LocalActivityMarkerRecorded: _local_activity,
    h.ForeignMarkerRecorded: _marker,
    h.UpsertWorkflowSearchAttributes: _changed("search attributes set"),
    h.WorkflowPropertiesModified: _changed("memo set"),
    h.WorkflowPropertiesModifiedExternally: _changed("properties changed from outside"),
    h.ActivityPropertiesModifiedExternally: _changed("activity's properties changed from outside"),
    h.WorkflowExecutionOptionsUpdated: _changed("options changed from outside"),
    h.WorkflowExecutionPaused: _changed("paused"),
    h.WorkflowExecutionUnpaused: _changed("continued after a pause"),
}


def _summary(a: h.ActivityTaskScheduled | h.TimerStarted) -> str:
    summary = value_of(a.summary)
    return summary.strip() if isinstance(summary, str) else ""


def _activity_scheduled(story: StoryDraft, event: h.HistoryEvent, a: h.ActivityTaskScheduled) -> None:
    draft = story.add(event, Kind.ACTIVITY, a.activity_type or "activity", Phase.QUEUED)
    draft.policy = _with_defaults(a.spec.retry_policy)
    draft.max_attempts = draft.policy.maximum_attempts
    draft.target = clean(a.activity_id)
    queue = clean(a.spec.task_queue)
    if queue and queue != story.facts.get("task_queue"):
        draft.note(f"on task queue {queue}")
    draft.note(_summary(a))
    draft.show("input", story.peek(a.arguments))


def _activity_started(story: StoryDraft, event: h.HistoryEvent, a: h.ActivityTaskStarted) -> None:
    if draft := story.drafts.get(a.scheduled_event_id):
        draft.begun = event.time_ns
        draft.attempts = max(a.attempt, 1)
        draft.faults = chain(a.last_failure)


def _step_ended(outcome: Outcome, key: str = "scheduled_event_id") -> Handler:
    def ended(story: StoryDraft, event: h.HistoryEvent, a: Any) -> None:
        draft = story.drafts.get(getattr(a, key))
        if draft is None:
            return
        if draft.begun == event.time_ns and draft.attempts == 1:
            # The start was recorded only at the end, so the time in the queue is unknown.
            draft.begun = draft.start
        draft.close(event, outcome, chain(getattr(a, "failure", None)))
        state = getattr(a, "retry_state", None)
        if outcome.bad and state is not None:
            draft.note(_WHY_NO_RETRY.get(state, ""))
        result = getattr(a, "result", None)
        if result is not None:
            draft.show("result", story.peek((result,)))

    return ended


_WHY_NO_RETRY = {
    RetryState.NON_RETRYABLE_FAILURE: "non-retryable",
    RetryState.MAXIMUM_ATTEMPTS_REACHED: "no attempts left",
    RetryState.TIMEOUT: "no time left for another attempt",
}


def _operation_cancel_requested(story: StoryDraft, event: h.HistoryEvent, a: Any) -> None:
    if draft := story.drafts.get(a.scheduled_event_id):
        draft.note("cancellation requested")


def _timer_started(story: StoryDraft, event: h.HistoryEvent, a: h.TimerStarted) -> None:
    summary = _summary(a)
    name = f"timer {duration(a.duration_ns)}" if not summary else f"timer: {summary}"
    draft = story.add(event, Kind.TIMER, name, Phase.WAITING)
    draft.due = event.time_ns + a.duration_ns
    draft.target = clean(a.timer_id)
    if signal := signal_waited_for(summary):
        draft.signal, draft.name = clean(signal), f"wait for signal {clean(signal)}"
        draft.note(f"for at most {duration(a.duration_ns)}")
    elif summary:
        draft.note(duration(a.duration_ns))


def _child_initiated(
    story: StoryDraft, event: h.HistoryEvent, a: h.StartChildWorkflowExecutionInitiated
) -> None:
    draft = story.add(event, Kind.CHILD, a.workflow_type or "child workflow", Phase.QUEUED)
    draft.child_id = clean(a.workflow_id)
    draft.note(f"id {draft.child_id}")
    draft.show("input", story.peek(a.arguments))


def _begins(key: str = "scheduled_event_id") -> Handler:
    def begins(story: StoryDraft, event: h.HistoryEvent, a: Any) -> None:
        if draft := story.drafts.get(getattr(a, key)):
            draft.begun = event.time_ns
            draft.target = clean(getattr(a, "run_id", "")) or draft.target

    return begins


def _rejected(story: StoryDraft, event: h.HistoryEvent, a: Any) -> None:
    """Close the span of a child that could not be started, or of an unreachable workflow, with the cause of the failure."""
    if draft := story.drafts.get(a.initiated_event_id):
        draft.close(event, Outcome.FAILED, (Fault("refused", words(a.cause)),))


def _signal_sent(
    story: StoryDraft, event: h.HistoryEvent, a: h.SignalExternalWorkflowExecutionInitiated
) -> None:
    draft = story.add(event, Kind.EXTERNAL, f"signal {a.signal_name}")
    draft.note(f"to {a.workflow_id}")
    draft.show("input", story.peek(a.arguments))


def _nexus_scheduled(story: StoryDraft, event: h.HistoryEvent, a: h.NexusOperationScheduled) -> None:
    name = ".".join(filter(None, (a.service, a.operation)))
    draft = story.add(event, Kind.NEXUS, name or "nexus operation", Phase.QUEUED)
    draft.note(f"at {a.endpoint}")


STEPS: dict[type[h.Attributes], Handler] = {
    h.ActivityTaskScheduled: _activity_scheduled,
    h.ActivityTaskStarted: _activity_started,
    h.ActivityTaskCompleted: _step_ended(Outcome.DONE),
    h.ActivityTaskFailed: _step_ended(Outcome.FAILED),
    h.ActivityTaskTimedOut: _step_ended(Outcome.TIMED_OUT),
    h.ActivityTaskCanceled: _step_ended(Outcome.CANCELLED),
    h.ActivityTaskCancelRequested: _operation_cancel_requested,
    h.TimerStarted: _timer_started,
    h.TimerFired: _step_ended(Outcome.DONE, "started_event_id"),
    h.TimerCanceled: _step_ended(Outcome.CANCELLED, "started_event_id"),
    h.StartChildWorkflowExecutionInitiated: _child_initiated,
    h.StartChildWorkflowExecutionFailed: _rejected,
    h.ChildWorkflowExecutionStarted: _begins("initiated_event_id"),
    h.ChildWorkflowExecutionCompleted: _step_ended(Outcome.DONE, "initiated_event_id"),
    h.ChildWorkflowExecutionFailed: _step_ended(Outcome.FAILED, "initiated_event_id"),
    h.ChildWorkflowExecutionCanceled: _step_ended(Outcome.CANCELLED, "initiated_event_id"),
    h.ChildWorkflowExecutionTimedOut: _step_ended(Outcome.TIMED_OUT, "initiated_event_id"),
    h.ChildWorkflowExecutionTerminated: _step_ended(Outcome.TERMINATED, "initiated_event_id"),
    h.SignalExternalWorkflowExecutionInitiated: _signal_sent,
    h.SignalExternalWorkflowExecutionFailed: _rejected,
    h.ExternalWorkflowExecutionSignaled: _step_ended(Outcome.DONE, "initiated_event_id"),
    h.RequestCancelExternalWorkflowExecutionInitiated: lambda story, event, a: story.add(
        event, Kind.EXTERNAL, "cancel"
    ).note(f"to {a.workflow_id}"),
    h.RequestCancelExternalWorkflowExecutionFailed: _rejected,
    h.ExternalWorkflowExecutionCancelRequested: _step_ended(Outcome.DONE, "initiated_event_id"),
    h.NexusOperationScheduled: _nexus_scheduled,
    h.NexusOperationStarted: _begins(),
    h.NexusOperationCompleted: _step_ended(Outcome.DONE),
    h.NexusOperationFailed: _step_ended(Outcome.FAILED),
    h.NexusOperationCanceled: _step_ended(Outcome.CANCELLED),
    h.NexusOperationTimedOut: _step_ended(Outcome.TIMED_OUT),
    h.NexusOperationCancelRequested: _operation_cancel_requested,
}
