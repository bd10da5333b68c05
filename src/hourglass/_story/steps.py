"""How events of a history become steps of the story: activities, timers, children, other workflows, Nexus operations."""

from __future__ import annotations

from collections.abc import Callable

from hourglass._story.attempts import backoff_from, most_attempts
from hourglass._story.drafts import Handler, Told
from hourglass._story.durations import duration
from hourglass._story.faults import chain, words
from hourglass._story.reading import Event, inner, number, span_of, text
from hourglass._story.spans import Fault, Kind, Outcome, Phase
from hourglass._story.values import value_of


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
