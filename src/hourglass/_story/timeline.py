"""From the events of a history to the story of its run.

One pass over the events by a table of small handlers, then everything is frozen. Knows what a history means; not where it came
from, nor how it is drawn. Never fails on a history that is odd: what is not understood is left out or named by its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hourglass._story.drafts import Draft, Handler, Told, frozen
from hourglass._story.durations import duration
from hourglass._story.faults import chain
from hourglass._story.messages import MESSAGES
from hourglass._story.reading import Event, span_of, text
from hourglass._story.spans import Fault, Kind, Outcome, Phase, Span, Story
from hourglass._story.steps import STEPS
from hourglass._story.tasks import TASKS, failing, run_segments
from hourglass._story.values import Peek, hidden
from hourglass._story.waits import waiting_for, waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What a description tells of an open activity that its history does not."""

    activity_id: str
    attempt: int = 1
    max_attempts: int = 0
    faults: tuple[Fault, ...] = ()
    last_started: int | None = None
    next_attempt: int | None = None
    running: bool = False
    paused: bool = False


def tell(
    events: Sequence[Event],
    *,
    now: int | None = None,
    pending: Iterable[Pending] = (),
    task_attempt: int = 0,
    peek: Peek = hidden,
) -> Story:
    """The story of a run. `now` ends the picture of an open run; without it, its last event does."""
    told = Told(peek)
    for event in events:
        _HANDLERS.get(event.kind, _other)(told, event)
    run = told.run or Draft(0, Kind.RUN, "workflow", events[0].time)
    last = max(each.time for each in events)
    until = run.end if run.end is not None else max(last, now or 0)
    if run.end is not None:
        _leave(told, run.end)
    for each in pending:
        _know(told, each)
    tasks = list(told.tasks.values())
    broken = list(failing(tasks, run.end, until, task_attempt))
    steps = [frozen(each, until) for each in dict.fromkeys(told.drafts.values())]
    spans = sorted((*steps, *broken), key=lambda each: (each.start, each.id))
    return Story(
        workflow_id=told.facts.get("workflow_id", ""),
        run_id=told.facts.get("run_id", ""),
        workflow_type=run.name,
        task_queue=told.facts.get("task_queue", ""),
        outcome=_outcome(run, broken),
        start=run.start,
        end=run.end,
        until=until,
        spans=(_run(run, told, until, _outcome(run, broken)), *spans),
        waits=waits(events, told),
        waiting_for=waiting_for(told, until) if run.end is None else (),
        faults=run.faults or (broken[-1].faults if broken and broken[-1].end is None else ()),
        links=tuple(told.links),
        shown=tuple(run.shown),
        events=len(events),
        tasks=len(tasks),
        failed_tasks=sum(each.attempts for each in broken),
    )


def nest(story: Story, children: Mapping[str, Story]) -> Story:
    """The same story with the steps of its children below them, as far as their stories are given by run id."""
    spans: list[Span] = []
    for span in story.spans:
        spans.append(span)
        child = children.get(span.target) if span.kind is Kind.CHILD else None
        if child is not None:
            spans += [replace(each, depth=each.depth + span.depth + 1) for each in child.spans[1:]]
    until = max(story.until, *(max(each.end or each.start, each.start) for each in spans))
    return replace(story, spans=tuple(spans), until=until)


def _outcome(run: Draft, broken: list[Span]) -> Outcome:
    parked = run.end is None and broken and broken[-1].end is None
    return Outcome.RETRYING if parked else run.outcome


def _run(run: Draft, told: Told, until: int, outcome: Outcome) -> Span:
    span = frozen(run, until)
    segments = run_segments(told.tasks.values(), run.start, max(until, run.start))
    return replace(span, segments=segments, outcome=outcome)


def _leave(told: Told, end: int) -> None:
    """What is still open when its run closes stays so for ever, as far as this history knows."""
    for draft in told.drafts.values():
        if draft.end is None:
            draft.end, draft.outcome = max(end, draft.start), Outcome.LEFT


def _know(told: Told, pending: Pending) -> None:
    for draft in told.drafts.values():
        if draft.kind is Kind.ACTIVITY and draft.target == pending.activity_id and draft.end is None:
            draft.attempts = max(pending.attempt, 1)
            draft.max_attempts = pending.max_attempts or draft.max_attempts
            draft.faults = pending.faults or draft.faults
            draft.next_attempt = pending.next_attempt
            draft.paused = pending.paused
            draft.begun = pending.last_started if pending.running else None
            if pending.faults or pending.attempt > 1:
                draft.outcome = Outcome.RETRYING


# --- the run itself --------------------------------------------------------------------------------------------------


def _started(told: Told, event: Event) -> None:
    a = event.attributes
    run = Draft(event.id, Kind.RUN, text(a, "workflowType", "name") or "workflow", event.time, Phase.WAITING)
    told.run = run
    told.first_task_delay = span_of(a.get("firstWorkflowTaskBackoff"))
    told.facts["workflow_id"] = text(a, "workflowId")
    told.facts["run_id"] = text(a, "originalExecutionRunId")
    told.facts["task_queue"] = text(a, "taskQueue", "name")
    for label, path in (
        ("continues run", ("continuedExecutionRunId",)),
        ("child of", ("parentWorkflowExecution", "workflowId")),
    ):
        if found := text(a, *path):
            told.links.append((label, found))
    if told.first_task_delay:
        told.links.append(("start delayed by", duration(told.first_task_delay)))
    run.show("input", told.peek(a.get("input")))


def _ended(outcome: Outcome) -> Handler:
    def ended(told: Told, event: Event) -> None:
        if told.run is None:
            return
        a = event.attributes
        told.run.close(event, outcome, chain(a.get("failure")))
        if reason := text(a, "reason"):
            told.run.faults = (Fault(str(outcome), reason),)
        if found := text(a, "newExecutionRunId"):
            told.links.append(("continued by run", found))
        told.run.show("result", told.peek(a.get("result")))

    return ended


def _other(told: Told, event: Event) -> None:
    """A kind that is not known yet: seen, if it is more than the echo of another."""
    if "workflowTaskCompletedEventId" in event.attributes or not event.attributes:
        told.point(event, Kind.MARKER, event.kind.replace("_", " ").lower())


_HANDLERS: dict[str, Handler] = {
    "WORKFLOW_EXECUTION_STARTED": _started,
    "WORKFLOW_EXECUTION_COMPLETED": _ended(Outcome.DONE),
    "WORKFLOW_EXECUTION_FAILED": _ended(Outcome.FAILED),
    "WORKFLOW_EXECUTION_TIMED_OUT": _ended(Outcome.TIMED_OUT),
    "WORKFLOW_EXECUTION_CANCELED": _ended(Outcome.CANCELLED),
    "WORKFLOW_EXECUTION_TERMINATED": _ended(Outcome.TERMINATED),
    "WORKFLOW_EXECUTION_CONTINUED_AS_NEW": _ended(Outcome.CONTINUED),
    **TASKS,
    **STEPS,
    **MESSAGES,
}
