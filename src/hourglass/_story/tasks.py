"""How workflow tasks of a history become the run's own bar, and how those that failed become steps that nobody overlooks.

A server writes only the first of several failures in a row into the history; how many there were is told by the attempt
number of the task that came after them, or by the description of a run that is still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hourglass._story.drafts import Handler, Task, Told
from hourglass._story.faults import chain, words
from hourglass._story.reading import Event, inner, number, text
from hourglass._story.spans import Fault, Kind, Outcome, Phase, Segment, Span


def _scheduled(told: Told, event: Event) -> None:
    attempt = max(number(event.attributes.get("attempt")), 1)
    told.tasks[event.id] = Task(event.id, event.time, attempt)


def _task(told: Told, event: Event) -> Task:
    known = number(inner(event.attributes, "scheduledEventId"))
    if known not in told.tasks:
        told.tasks[known] = Task(known, event.time)
    return told.tasks[known]


def _started(told: Told, event: Event) -> None:
    _task(told, event).started = event.time


def _ended(outcome: Outcome) -> Handler:
    def ended(told: Told, event: Event) -> None:
        task = _task(told, event)
        task.end, task.outcome = event.time, outcome
        task.cause = words(text(event.attributes, "cause") or text(event.attributes, "timeoutType"))
        task.faults = chain(event.attributes.get("failure"))

    return ended


TASKS: dict[str, Handler] = {
    "WORKFLOW_TASK_SCHEDULED": _scheduled,
    "WORKFLOW_TASK_STARTED": _started,
    "WORKFLOW_TASK_COMPLETED": _ended(Outcome.DONE),
    "WORKFLOW_TASK_FAILED": _ended(Outcome.FAILED),
    "WORKFLOW_TASK_TIMED_OUT": _ended(Outcome.TIMED_OUT),
}


def run_segments(tasks: Iterable[Task], start: int, end: int) -> tuple[Segment, ...]:
    """The run's bar: its code ran, or failed, or it waited."""
    segments: list[Segment] = []
    at = start
    for task in tasks:
        if task.started is None:
            continue  # nobody took it: the run waited
        began = min(max(task.started, at), end)
        ended = min(max(began, end if task.end is None else task.end), end)
        if began > at:
            segments.append(Segment(at, began, Phase.WAITING))
        segments.append(Segment(began, ended, Phase.FAILED if task.outcome.bad else Phase.RUNNING))
        at = ended
    if end > at or not segments:
        segments.append(Segment(at, end, Phase.WAITING))
    return tuple(segments)


def failing(tasks: Iterable[Task], end: int | None, until: int, attempt: int) -> Iterator[Span]:
    """A span for every row of failed tasks: up to the next that went well, the run's end, or now."""
    row: list[Task] = []
    for task in tasks:
        if task.outcome.bad:
            row.append(task)
        elif row and task.outcome is Outcome.DONE:
            yield _row(row, row[-1].end, max(len(row), task.attempt - 1), until)
            row = []
    if row:
        still = end is None
        yield _row(row, None if still else row[-1].end, max(len(row), attempt - 1 if still else 0), until)


def _row(row: list[Task], end: int | None, attempts: int, until: int) -> Span:
    last = row[-1]
    outcome = Outcome.RETRYING if end is None else last.outcome
    return Span(
        id=row[0].id,
        kind=Kind.TASK,
        name="workflow task",
        start=row[0].scheduled,
        end=end,
        outcome=outcome,
        segments=tuple(_pieces(row, until if end is None else end)),
        attempts=attempts,
        faults=last.faults or (Fault(str(last.outcome), last.cause),),
        note=last.cause if last.faults else "",
    )


def _pieces(row: list[Task], end: int) -> Iterator[Segment]:
    at = row[0].scheduled
    for task in row:
        failed = max(at, at if task.end is None else task.end)
        began = failed if task.started is None else min(max(at, task.started), failed)
        queued = min(max(at, task.scheduled), began)
        if queued > at:
            yield Segment(at, queued, Phase.BACKOFF)
        if began > queued:
            yield Segment(queued, began, Phase.QUEUED)
        yield Segment(began, failed, Phase.FAILED)
        at = failed
    if end > at:
        yield Segment(at, end, Phase.BACKOFF)
