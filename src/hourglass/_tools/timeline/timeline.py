"""The conversion of a history's events into the story of its run.

One pass over the events, with a table of small handlers; the result is frozen. This module knows what a history
means, but neither where it comes from nor how it is drawn. It never fails on an unusual history: unknown parts are
left out or named by their kind.

Workflow tasks become the run's own bar. Failed ones become spans of their own, so that they stand out. A server
records only the first of several consecutive failures; their number follows from the attempt number of the next task,
or from the description of an open run. The gaps between workflow tasks are the waits of the run, each named after the
event that ended it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hourglass._built_in import KEEPERS
from hourglass._contract.limits import is_keeper
from hourglass._history import events as h
from hourglass._history.tables import TASK_FAILURE_CAUSES
from hourglass._tools.timeline.captions import KINDS
from hourglass._tools.timeline.faults import chain, words
from hourglass._tools.timeline.spans import Fault, Kind, Outcome, Phase, Segment, Span, Story, Wait
from hourglass._tools.timeline.steps import MESSAGES, STEPS, Handler, SpanDraft, StoryDraft, TaskDraft, frozen
from hourglass._tools.timeline.text import S, clean, duration
from hourglass._tools.timeline.values import Peek, hidden


def _scheduled(story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowTaskScheduled) -> None:
    story.tasks[event.id] = TaskDraft(event.id, event.time_ns, max(a.attempt, 1))


def _task(story: StoryDraft, event: h.HistoryEvent, scheduled_id: int) -> TaskDraft:
    if scheduled_id not in story.tasks:
        story.tasks[scheduled_id] = TaskDraft(scheduled_id, event.time_ns)
    return story.tasks[scheduled_id]


def _task_started(story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowTaskStarted) -> None:
    _task(story, event, a.scheduled_event_id).started = event.time_ns


def _task_ended(outcome: Outcome) -> Handler:
    def ended(story: StoryDraft, event: h.HistoryEvent, a: Any) -> None:
        task = _task(story, event, a.scheduled_event_id)
        task.end, task.outcome = event.time_ns, outcome
        if outcome is Outcome.FAILED:
            task.cause, task.faults = words(TASK_FAILURE_CAUSES[a.cause]), chain(a.failure)
        elif outcome is Outcome.TIMED_OUT:
            task.cause = words(a.timeout_type)

    return ended


TASKS: dict[type[h.Attributes], Handler] = {
    h.WorkflowTaskScheduled: _scheduled,
    h.WorkflowTaskStarted: _task_started,
    h.WorkflowTaskCompleted: _task_ended(Outcome.DONE),
    h.WorkflowTaskFailed: _task_ended(Outcome.FAILED),
    h.WorkflowTaskTimedOut: _task_ended(Outcome.TIMED_OUT),
}


def _run_segments(tasks: Iterable[TaskDraft], start: int, end: int) -> tuple[Segment, ...]:
    """Return the segments of the run's own bar: its code ran, failed or waited."""
    segments: list[Segment] = []
    at = start
    for task in tasks:
        if task.started is None:
            continue  # no worker received the task, so the run waited
        began = min(max(task.started, at), end)
        ended = min(max(began, end if task.end is None else task.end), end)
        if began > at:
            segments.append(Segment(at, began, Phase.WAITING))
        segments.append(Segment(began, ended, Phase.FAILED if task.outcome.bad else Phase.RUNNING))
        at = ended
    if end > at or not segments:
        segments.append(Segment(at, end, Phase.WAITING))
    return tuple(segments)


def failing(tasks: Iterable[TaskDraft], end: int | None, until: int, attempt: int) -> Iterator[Span]:
    """Yield a span for every sequence of failed tasks. A sequence ends with the next success, the end of the run, or now."""
    row: list[TaskDraft] = []
    for task in tasks:
        if task.outcome.bad:
            row.append(task)
        elif row and task.outcome is Outcome.DONE:
            yield _row(row, row[-1].end, max(len(row), task.attempt - 1), until)
            row = []
    if row:
        still = end is None
        yield _row(row, None if still else row[-1].end, max(len(row), attempt - 1 if still else 0), until)


def _row(row: list[TaskDraft], end: int | None, attempts: int, until: int) -> Span:
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


def _pieces(row: list[TaskDraft], end: int) -> Iterator[Segment]:
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


_NAMED = (Kind.ACTIVITY, Kind.LOCAL, Kind.CHILD, Kind.SIGNAL, Kind.UPDATE, Kind.NEXUS)


def named(kind: Kind, name: str) -> str:
    """Return a span's kind and name as the object of a sentence, for example `activity charge` or `timer 30 d`."""
    if kind is Kind.EXTERNAL:
        return f"{KINDS[kind]} ({name})"
    return f"{KINDS[kind]} {name}" if kind in _NAMED else name


# In a history, a wait for a limit consists of signals to and from a keeper, possibly a child that becomes the keeper, and
# timers with the key in their summaries. A picture shows all of them as one span: the run waited for its turn.


_ANSWERS = "hourglass.limits."
_A_TURN = "a turn"
_TURN = re.compile(r"timer: (?:waits for a (slot) of|waits for a turn of|until the turn of) (.+)\Z")
_KEPT = "timer: keeps, for a moment, slots of "
_OPEN_TURN = "waits for a turn: "


def open_turn(key: str, *, slot: bool) -> str:
    """Return the name of the step that shows a run's wait for a slot or a turn of a key."""
    return f"{_OPEN_TURN}{'slot of ' if slot else ''}{key!r}"


def is_open_turn(span: Span) -> bool:
    """Whether a step is a wait for a slot or a turn of any key."""
    return span.kind is Kind.TIMER and span.name.startswith(_OPEN_TURN)


def _turn(name: str) -> str | None:
    """Return the slot or turn that a timer with this name waits for, for example `slot of 'crane'` or `'hourly'`."""
    match = _TURN.match(name)
    return None if match is None else f"{'slot of ' if match[1] else ''}{match[2]}"


def _is_of_limit(kind: Kind, name: str, note: str) -> bool:
    """Whether a step is only communication between a run and a keeper."""
    match kind:
        case Kind.CHILD:
            return name in KEEPERS
        case Kind.SIGNAL:
            return name.startswith(_ANSWERS)
        case Kind.EXTERNAL:
            return is_keeper(note.removeprefix("to "))
        case Kind.TIMER:
            return name.startswith(_KEPT)
        case _:
            return False


def with_turns(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the steps. The parts of a wait for a turn are replaced by a single step."""
    waited: dict[str, Span] = {}
    for span in spans:
        if _is_of_limit(span.kind, span.name, span.note):
            continue
        awaited_turn = _turn(span.name) if span.kind is Kind.TIMER else None
        if awaited_turn is None:
            yield span
            continue
        name = f"{_OPEN_TURN if span.end is None else 'waited for a turn: '}{awaited_turn}"
        before = waited.get(awaited_turn)
        outcome = Outcome.DONE if span.outcome is Outcome.CANCELLED else span.outcome
        turn = replace(span, name=name, outcome=outcome, note="", due=None)
        if before is not None and before.end is not None and span.start - before.end < _SOON:
            turn = replace(
                turn, id=before.id, start=before.start, segments=(*before.segments, *turn.segments)
            )
        elif before is not None:
            yield before
        waited[awaited_turn] = turn
    yield from waited.values()


_SOON = 50_000_000


def _waits(events: Sequence[h.HistoryEvent], story: StoryDraft) -> Iterator[Wait]:
    """Yield every wait that has ended. A signal does not end a wait if the code issued no command after it."""
    since: int | None = None
    waking: h.HistoryEvent | None = None
    signal: Wait | None = None  # a wait that a signal ended, until it is known whether the code reacted
    for event in events:
        kind = type(event.attributes)
        if kind is h.WorkflowTaskCompleted:
            since, waking = event.time_ns, None
        elif since is None:
            continue
        elif kind is h.WorkflowTaskScheduled:
            if waking is not None:
                wait = Wait(since if signal is None else signal.start, event.time_ns, _what(waking, story))
                signal = wait if isinstance(waking.attributes, h.WorkflowExecutionSignaled) else None
                if signal is None:
                    yield wait
            since = None
        elif kind in (h.WorkflowExecutionTerminated, h.WorkflowExecutionTimedOut):
            ended = _NOTHING if story.run is None else f"its end ({story.run.outcome})"
            yield Wait(since if signal is None else signal.start, event.time_ns, ended)
            since = signal = None
        elif kind in (h.WorkflowExecutionPaused, h.WorkflowExecutionUnpaused):
            # An event that arrives while the run is paused is handled by the next task.
            waking = waking or (event if kind is h.WorkflowExecutionUnpaused else None)
        elif not _was_asked_for(event.attributes):
            waking = event  # a task handles the last event before it
        elif signal is not None:
            yield signal
            signal = None


_NOTHING = "a signal or an update"


def _was_asked_for(attributes: h.Attributes) -> bool:
    """Whether an event is a consequence of a command, and therefore names the workflow task."""
    if isinstance(attributes, h.UnknownEvent):
        return "workflowTaskCompletedEventId" in attributes.document
    return bool(getattr(attributes, "task_completed_event_id", 0))


def _what(event: h.HistoryEvent, story: StoryDraft) -> str:
    a = event.attributes
    if isinstance(a, h.WorkflowExecutionSignaled) and a.signal_name.startswith(_ANSWERS):
        return _A_TURN
    for key in ("scheduled_event_id", "initiated_event_id", "started_event_id"):
        draft = story.drafts.get(getattr(a, key, 0))
        if draft is not None:
            span_name = named(draft.kind, draft.name)
            if _is_of_limit(draft.kind, draft.name, " ".join(draft.notes)) or _TURN.match(draft.name):
                return _A_TURN
            if draft.signal:
                return f"signal {draft.signal}, which did not arrive"
            return (
                f"the start of {span_name}" if isinstance(a, h.ChildWorkflowExecutionStarted) else span_name
            )
    draft = story.drafts.get(event.id)
    return _spaced(a) if draft is None else named(draft.kind, draft.name)


def _spaced(attributes: h.Attributes) -> str:
    if isinstance(attributes, h.UnknownEvent):
        return clean(attributes.name).replace("_", " ").lower()
    return "".join(
        f" {character.lower()}" if character.isupper() else character for character in h.kind_of(attributes)
    ).strip()


def waiting_for(story: StoryDraft, until: int) -> tuple[str, ...]:
    """Return the descriptions of the events that an open run waits for, the most informative first."""
    last = next(reversed(story.tasks.values()), None)
    if last is not None and last.outcome is Outcome.OPEN:
        if last.started is not None:
            return (f"the end of its workflow task, started {duration(until - last.started)} ago",)
        return (f"a worker: its workflow task was scheduled {duration(until - last.scheduled)} ago",)
    if last is not None and last.outcome.bad:
        return ("a fix of its code: the workflow task fails and is retried",)
    if last is None:
        delay = story.first_task_delay
        return (f"its start, delayed by {duration(delay)}",) if delay else ("its first workflow task",)
    steps = [
        draft
        for draft in dict.fromkeys(story.drafts.values())
        if draft.end is None and not _is_of_limit(draft.kind, draft.name, " ".join(draft.notes))
    ]
    return tuple(_step(draft, until) for draft in steps) or (_NOTHING,)


def _step(draft: SpanDraft, until: int) -> str:
    step_name = named(draft.kind, draft.name)
    turn = _turn(draft.name) if draft.kind is Kind.TIMER else None
    if turn is not None:
        return f"a turn: {turn}, for {duration(until - draft.start)}"
    if draft.due is not None:
        left = draft.due - until
        if draft.signal and left > 0:
            return f"signal {draft.signal}, for at most {duration(left)} more"
        if draft.signal:
            return f"{step_name}, which is overdue"
        return f"{step_name}, {duration(left)} left" if left > 0 else f"{step_name}, due"
    if draft.attempts > 1:
        of = f" of {draft.max_attempts}" if draft.max_attempts else ""
        step_name += f", attempt {draft.attempts}{of}"
    if draft.paused:
        return f"{step_name}, paused"
    if draft.next_attempt is not None and draft.begun is None:
        left = draft.next_attempt - until
        return f"{step_name}, " + (f"again in {duration(left)}" if left > 0 else f"due for {duration(-left)}")
    if draft.kind is Kind.ACTIVITY and draft.begun is None and draft.attempts == 1:
        return f"{step_name}, not started for {duration(until - draft.start)}"
    return f"{step_name}, for {duration(until - draft.start)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Properties of an open activity that its description contains and the history does not."""

    activity_id: str
    attempt: int = 1
    max_attempts: int = 0
    faults: tuple[Fault, ...] = ()
    last_started: int | None = None
    next_attempt: int | None = None
    running: bool = False
    paused: bool = False
    last_heartbeat: int | None = None
    worker: str = ""


def build_story(
    events: Sequence[h.HistoryEvent],
    *,
    now: int | None = None,
    pending: Iterable[Pending] = (),
    task_attempt: int = 0,
    peek: Peek = hidden,
) -> Story:
    """Return the story of a run. The story of an open run ends at `now`, or without it at the last event."""
    draft = StoryDraft(peek)
    for event in events:
        _HANDLERS.get(type(event.attributes), _other)(draft, event, event.attributes)
    run = draft.run or SpanDraft(0, Kind.RUN, "workflow", events[0].time_ns)
    last = max(item.time_ns for item in events)
    until = run.end if run.end is not None else max(last, now or 0)
    if run.end is not None:
        # The history will never show the end of the steps that are still open.
        for step in draft.drafts.values():
            if step.end is None:
                step.end, step.outcome = max(run.end, step.start), Outcome.LEFT
    for item in pending:
        _know(draft, item)
    tasks = list(draft.tasks.values())
    broken = list(failing(tasks, run.end, until, task_attempt))
    steps = list(with_turns([frozen(item, until) for item in dict.fromkeys(draft.drafts.values())]))
    spans = sorted((*steps, *broken), key=lambda item: (item.start, item.id))
    parked = run.end is None and broken and broken[-1].end is None
    outcome = Outcome.RETRYING if parked else run.outcome
    segments = _run_segments(tasks, run.start, max(until, run.start))
    own = replace(frozen(run, until), segments=segments, outcome=outcome)
    return Story(
        workflow_id=draft.facts.get("workflow_id", ""),
        run_id=draft.facts.get("run_id", ""),
        workflow_type=run.name,
        task_queue=draft.facts.get("task_queue", ""),
        outcome=outcome,
        start=run.start,
        end=run.end,
        until=until,
        spans=(own, *spans),
        waits=tuple(wait for wait in _waits(events, draft) if wait.end > wait.start),
        waiting_for=waiting_for(draft, until) if run.end is None else (),
        faults=run.faults or (broken[-1].faults if broken and broken[-1].end is None else ()),
        links=tuple(draft.links),
        shown=run.shown,
        events=len(events),
        tasks=len(tasks),
        failed_tasks=sum(item.attempts for item in broken),
    )


def nest(story: Story, children: Mapping[str, Story]) -> Story:
    """Return the story with the steps of each child below its span. `children` has stories by run id."""
    spans: list[Span] = []
    for span in story.spans:
        spans.append(span)
        child = children.get(span.target) if span.kind is Kind.CHILD else None
        if child is not None:
            spans += [replace(item, depth=item.depth + span.depth + 1) for item in child.spans[1:]]
    until = max(story.until, *(max(item.end or item.start, item.start) for item in spans))
    return replace(story, spans=tuple(spans), until=until)


def _know(story: StoryDraft, pending: Pending) -> None:
    for draft in story.drafts.values():
        if draft.kind is Kind.ACTIVITY and draft.target == pending.activity_id and draft.end is None:
            draft.attempts = max(pending.attempt, 1)
            draft.max_attempts = pending.max_attempts or draft.max_attempts
            draft.faults = pending.faults or draft.faults
            draft.next_attempt = pending.next_attempt
            draft.paused = pending.paused
            draft.last_heartbeat, draft.worker = pending.last_heartbeat, pending.worker
            draft.begun = pending.last_started if pending.running else None
            if pending.faults or pending.attempt > 1:
                draft.outcome = Outcome.RETRYING


def _started(story: StoryDraft, event: h.HistoryEvent, a: h.WorkflowExecutionStarted) -> None:
    run = SpanDraft(event.id, Kind.RUN, clean(a.workflow_type) or "workflow", event.time_ns, Phase.WAITING)
    story.run = run
    story.first_task_delay = round(a.first_task_backoff * S)
    story.facts["workflow_id"] = clean(a.workflow_id)
    story.facts["run_id"] = clean(a.original_run_id)
    story.facts["task_queue"] = clean(a.spec.task_queue)
    for label, value in (("continues run", a.continued_run_id), ("child of", a.parent_workflow_id)):
        if value:
            story.links.append((label, clean(value)))
    if story.first_task_delay:
        story.links.append(("start delayed by", duration(story.first_task_delay)))
    run.show("input", story.peek(a.arguments))


def _ended(outcome: Outcome) -> Handler:
    def ended(story: StoryDraft, event: h.HistoryEvent, a: Any) -> None:
        if story.run is None:
            return
        story.run.close(event, outcome, chain(getattr(a, "failure", None)))
        if reason := clean(getattr(a, "reason", "")):
            story.run.faults = (Fault(str(outcome), reason),)
        if successor := clean(getattr(a, "new_run_id", "")):
            story.links.append(("continued by run", successor))
        result = getattr(a, "result", None)
        if result is not None:
            story.run.show("result", story.peek((result,)))

    return ended


def _other(story: StoryDraft, event: h.HistoryEvent, a: h.Attributes) -> None:
    """Add an event of an unknown kind, unless it only repeats another event."""
    if _was_asked_for(a) or (isinstance(a, h.UnknownEvent) and not a.document):
        story.point(event, Kind.MARKER, _spaced(a))


_HANDLERS: dict[type[h.Attributes], Handler] = {
    h.WorkflowExecutionStarted: _started,
    h.WorkflowExecutionCompleted: _ended(Outcome.DONE),
    h.WorkflowExecutionFailed: _ended(Outcome.FAILED),
    h.WorkflowExecutionTimedOut: _ended(Outcome.TIMED_OUT),
    h.WorkflowExecutionCanceled: _ended(Outcome.CANCELLED),
    h.WorkflowExecutionTerminated: _ended(Outcome.TERMINATED),
    h.WorkflowExecutionContinuedAsNew: _ended(Outcome.CONTINUED),
    **TASKS,
    **STEPS,
    **MESSAGES,
}
