"""What a run waited for, and how long: the times between its workflow tasks, each by the event that ended it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hourglass._story.drafts import Draft, Task, Told
from hourglass._story.durations import duration
from hourglass._story.reading import Event, inner, number
from hourglass._story.spans import Kind, Outcome, Wait

_NAMES = {
    Kind.ACTIVITY: "activity {}",
    Kind.LOCAL: "local activity {}",
    Kind.CHILD: "child workflow {}",
    Kind.SIGNAL: "signal {}",
    Kind.UPDATE: "update {}",
    Kind.NEXUS: "nexus operation {}",
    Kind.EXTERNAL: "another workflow ({})",
}


def named(kind: Kind, name: str) -> str:
    """A span as the object of a sentence: `activity charge`, `timer 30 d`."""
    return _NAMES.get(kind, "{}").format(name)


def waits(events: Sequence[Event], told: Told) -> tuple[Wait, ...]:
    """Every wait that ended."""
    return tuple(each for each in _waits(events, told) if each.end > each.start)


def _waits(events: Sequence[Event], told: Told) -> Iterator[Wait]:
    since: int | None = None
    waking: Event | None = None
    for event in events:
        if event.kind == "WORKFLOW_TASK_COMPLETED":
            since, waking = event.time, None
        elif since is None:
            continue
        elif event.kind == "WORKFLOW_TASK_SCHEDULED":
            if waking is not None:
                yield Wait(since, event.time, _what(waking, told))
            since = None
        elif event.kind.startswith("WORKFLOW_EXECUTION_") and event.kind.rpartition("_")[2] in _ENDS:
            yield Wait(since, event.time, _NOTHING if told.run is None else f"its end ({told.run.outcome})")
            since = None
        elif "workflowTaskCompletedEventId" not in event.attributes:
            waking = event  # the last one before a task is what the task is for


_NOTHING = "a signal or an update"
_ENDS = ("TERMINATED", "OUT")


def _what(event: Event, told: Told) -> str:
    for key in ("scheduledEventId", "initiatedEventId", "startedEventId"):
        draft = told.drafts.get(number(inner(event.attributes, key)))
        if draft is not None:
            said = named(draft.kind, draft.name)
            return f"the start of {said}" if event.kind == "CHILD_WORKFLOW_EXECUTION_STARTED" else said
    draft = told.drafts.get(event.id)
    return event.kind.replace("_", " ").lower() if draft is None else named(draft.kind, draft.name)


def waiting_for(told: Told, until: int) -> tuple[str, ...]:
    """What an open run waits for now, the most telling first."""
    last = next(reversed(told.tasks.values()), None)
    if last is not None and last.outcome is Outcome.OPEN:
        return (_task(last, until),)
    if last is not None and last.outcome.bad:
        return ("its code to be mended: the workflow task fails, and is tried again",)
    if last is None:
        delay = told.first_task_delay
        return (f"its start, delayed by {duration(delay)}",) if delay else ("its first workflow task",)
    steps = [each for each in dict.fromkeys(told.drafts.values()) if each.end is None]
    return tuple(_step(each, until) for each in steps) or (_NOTHING,)


def _task(task: Task, until: int) -> str:
    if task.started is not None:
        return f"its workflow task to end, begun {duration(until - task.started)} ago"
    return f"a worker: its workflow task was scheduled {duration(until - task.scheduled)} ago"


def _step(draft: Draft, until: int) -> str:
    said = named(draft.kind, draft.name)
    if draft.due is not None:
        left = draft.due - until
        return f"{said}, {duration(left)} left" if left > 0 else f"{said}, due"
    if draft.attempts > 1:
        said += f", attempt {draft.attempts}" + (f" of {draft.max_attempts}" if draft.max_attempts else "")
    if draft.paused:
        return f"{said}, paused"
    if draft.next_attempt is not None and draft.begun is None:
        left = draft.next_attempt - until
        return f"{said}, again in {duration(left)}" if left > 0 else f"{said}, due for {duration(-left)}"
    if draft.kind is Kind.ACTIVITY and draft.begun is None and draft.attempts == 1:
        return f"{said}, not begun for {duration(until - draft.start)}"
    return f"{said}, for {duration(until - draft.start)}"
