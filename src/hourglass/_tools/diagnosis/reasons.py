"""The derivation of the reasons for a run's state from its facts: `diagnose`, at the end of this file. Pure.

A closed run has one finding: its outcome and the cause (`reasons_closed`). `reasons_tasks` covers open runs with an
unprocessed workflow task. Other open runs wait for open steps in the history, or at the lines of code where their fibers are
suspended. Findings are ordered by importance, as in `Cause`. Equal findings are combined into one finding with a count.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hourglass._history import events as h
from hourglass._tools.diagnosis import advice, reasons_tasks
from hourglass._tools.diagnosis.diagnosis import Action, Cause, Diagnosis, Facts, Finding, command
from hourglass._tools.diagnosis.reasons_closed import closed
from hourglass._tools.timeline.captions import status
from hourglass._tools.timeline.faults import Position, Waits, authors_place, place_of, root
from hourglass._tools.timeline.spans import Kind, Phase, Span
from hourglass._tools.timeline.text import S, clean, duration
from hourglass._tools.timeline.timeline import is_open_turn

if TYPE_CHECKING:
    from hourglass.client import TaskQueueDescription

_MOMENT, _PATIENCE = 1_000_000_000, 10_000_000_000
"""The queue time of an activity from which it is mentioned, and from which it counts as a problem."""


def activity(facts: Facts, span: Span) -> Finding:
    """Return the finding for an open activity: it fails, times out, is paused, runs, or waits for a worker."""
    queue = reasons_tasks.queue_of(reasons_tasks.began(facts, span)) or facts.story.task_queue
    tried = replace(
        _BASE,
        since=span.start,
        place=place_of(span.faults),
        faults=span.faults,
        attempts=span.attempts,
        max_attempts=span.max_attempts,
        next_attempt=span.next_attempt,
        details=called_at(facts, Waits.ACTIVITY),
    )
    running = any(segment.phase is Phase.RUNNING for segment in span.segments[-1:])
    if span.paused:
        return _paused(facts, span, tried)
    if span.faults:
        at = _stack(facts.activity_stacks.get(span.target, "")) if running else ()
        tried = replace(tried, attempts=max(span.attempts - 1, 1), details=(*tried.details, *at))
        return _retried(facts, span, tried, queue)
    if running:
        return _running(facts, span, tried)
    polled = facts.queues.get(queue)
    if polled is not None and not polled.activity_pollers:
        return replace(
            tried,
            cause=Cause.NO_ACTIVITY_WORKER,
            what=f"waits for activity {span.name}: no worker polls task queue {queue!r} for activities",
            next_attempt=None,
            actions=advice.start_worker(
                queue, facts.options, "Start a worker with the activity's code on that queue:"
            ),
        )
    return replace(
        tried,
        cause=Cause.ACTIVITY_QUEUED,
        what=f"waits for activity {span.name}, which no worker has started yet",
        next_attempt=None,
        details=(*tried.details, *(_full(polled) if facts.now - span.start > _MOMENT else ())),
        actions=advice.start_worker(queue, facts.options, _MORE_ROOM)
        if facts.now - span.start > _PATIENCE
        else advice.check_again(facts),
    )


_MORE_ROOM = "Allow more concurrent activities (--max-concurrent-activities), or start another worker:"


def _running(facts: Facts, span: Span, tried: Finding) -> Finding:
    begun = span.segments[-1].start
    stack = facts.activity_stacks.get(span.target, "")
    spec = getattr(reasons_tasks.began(facts, span), "spec", None)
    limit = round(getattr(spec, "start_to_close_timeout", 0.0) * S)
    who = f" of {span.worker}" if span.worker else ""
    silence = f"no heartbeat{who} since it started"
    if span.last_heartbeat is not None and span.last_heartbeat > begun:
        silence = f"the last heartbeat{who} was {duration(max(facts.now - span.last_heartbeat, 0))} ago"
    return replace(
        tried,
        cause=Cause.ACTIVITY_RUNS,
        what=f"waits for activity {span.name}, which is running",
        since=begun,
        until=begun + limit if limit else None,
        place=authors_place(stack) or tried.place,
        next_attempt=None,
        details=(*tried.details, *_limits(facts, span), silence, *_stack(stack)),
        actions=advice.check_again(facts),
    )


def _stack(stack: str) -> tuple[str, ...]:
    return (f"its thread is at:\n{stack.rstrip()}",) if stack else ()


_BASE = Finding(cause=Cause.OTHER, what="")


def _full(queue: TaskQueueDescription | None) -> tuple[str, ...]:
    """Return a hint that workers poll the queue but have no free slot."""
    many = 0 if queue is None else len(queue.activity_pollers)
    if not many:
        return ()
    who = (
        "the worker that polls for activities has"
        if many == 1
        else f"the {many} workers that poll for activities have"
    )
    return (
        f"{who} no free slot for the activity: the limit of concurrent activities, or of activities per second, is reached",
    )


def _paused(facts: Facts, span: Span, tried: Finding) -> Finding:
    return replace(
        tried,
        cause=Cause.PAUSED,
        what=f"waits for activity {span.name}, which is paused: it is not retried until it is unpaused",
        attempts=max(span.attempts - 1, 1) if span.faults else 0,
        next_attempt=None,
        actions=advice.unpause(facts, span.target),
    )


def _retried(facts: Facts, span: Span, tried: Finding, queue: str) -> Finding:
    last = span.faults[-1]
    if any(fault.type == "UnknownTypeError" for fault in span.faults):
        return replace(
            tried,
            cause=Cause.UNKNOWN_ACTIVITY,
            what=f"waits for activity {span.name}, which is not registered with the worker",
            actions=advice.start_worker(
                queue,
                facts.options,
                "Start the worker with the file or module of the activity as well; the activity is retried automatically:",
            ),
        )
    if last.type.startswith(("timeout", "TimedOutError")):
        often = "timed out" if tried.attempts == 1 else "keeps timing out"
        return replace(
            tried,
            cause=Cause.ACTIVITY_TIMES_OUT,
            what=f"waits for activity {span.name}, which {often} and is retried",
            details=(*tried.details, *_limits(facts, span)),
            actions=advice.or_cancel(
                facts,
                "Make the activity faster, send heartbeats, or raise its timeout in @activity.defn(…); then restart the worker.",
            ),
        )
    return replace(
        tried,
        cause=Cause.ACTIVITY_FAILS,
        what=f"waits for activity {span.name}, which fails and is retried",
        actions=advice.or_cancel(
            facts,
            "Fix the cause, and restart the worker if the cause is in its code; the activity is retried automatically.",
        ),
    )


_LIMITS = (
    "schedule_to_close_timeout",
    "schedule_to_start_timeout",
    "start_to_close_timeout",
    "heartbeat_timeout",
)


def _limits(facts: Facts, span: Span) -> tuple[str, ...]:
    spec = getattr(reasons_tasks.began(facts, span), "spec", None)
    limits = [f"{name} {limit:g} s" for name in _LIMITS if (limit := getattr(spec, name, 0))]
    return (f"its timeouts: {', '.join(limits)}",) if limits else ()


def _timer_length(facts: Facts, span: Span) -> int:
    begun = reasons_tasks.began(facts, span)
    return begun.duration_ns if isinstance(begun, h.TimerStarted) else 0


def called_at(facts: Facts, kind: Waits) -> tuple[str, ...]:
    """Return the position that waits for this kind of event, or else for a task, unless there are several."""
    exact = [position for position in facts.positions if position.waits is kind]
    candidates = exact or [position for position in facts.positions if position.waits is Waits.TASK]
    return (f"the code waits at {candidates[0].place}: {candidates[0].code}",) if len(candidates) == 1 else ()


Step = Callable[[Facts, Span], Finding]


def open_steps(facts: Facts) -> list[Finding]:
    """Return a finding for every step that has not ended."""
    open_spans = [span for span in facts.story.spans[1:] if span.end is None and span.kind in _STEPS]
    return [_STEPS[span.kind](facts, span) for span in open_spans]


def waiting_positions(facts: Facts, steps: Sequence[Finding]) -> list[Finding]:
    """Return findings for the messages, conditions and locks that the code waits for, with their lines."""
    # If a wait for a signal has a timeout, and its timer names the signal, the wait is already covered by a step.
    has_signal_step = any(position.cause is Cause.SIGNAL for position in steps)
    positions = [
        position
        for position in facts.positions
        if not (has_signal_step and position.waits is Waits.SIGNAL and position.limited)
    ]
    findings = [made for position in positions if (made := _position(facts, position)) is not None]
    if findings or steps:
        return _limited(facts, findings)
    return [
        Finding(
            cause=Cause.MESSAGE,
            what="waits for a signal, an update, or a condition in its code",
            since=waiting_since(facts),
            details=(f"where it waits is unknown: {facts.unanswered}",) if facts.unanswered else (),
            actions=advice.send_something(facts),
        )
    ]


def waiting_since(facts: Facts) -> int | None:
    """Return the time when the run's code last ran."""
    segments = facts.story.run.segments
    return segments[-1].start if segments and segments[-1].phase is Phase.WAITING else None


def _timer(facts: Facts, span: Span) -> Finding:
    length = _timer_length(facts, span)
    due = span.start + length
    if span.signal:
        return _limited_signal(facts, span, due)
    if is_open_turn(span):
        what = span.name
    else:
        what = "waits for a timer" if span.name.startswith("timer ") else f"waits for a {span.name}"
    return Finding(
        cause=Cause.TIMER,
        what=what,
        since=span.start,
        until=due,
        details=called_at(facts, Waits.TIMER) or _not_known(facts),
        actions=advice.NOTHING,
    )


def _limited_signal(facts: Facts, span: Span, due: int) -> Finding:
    """Return the finding for a wait for a signal with a timeout. The finding describes the signal instead of the timer."""
    places = [position for position in facts.positions if position.waits is Waits.SIGNAL and position.limited]
    return Finding(
        cause=Cause.SIGNAL,
        what=f"waits for signal {span.signal!r}",
        since=span.start,
        until=due,
        place=places[0].place if len(places) == 1 else "",
        code=places[0].code if len(places) == 1 else "",
        actions=advice.send_signal(facts, (span.signal,)),
    )


def _not_known(facts: Facts) -> tuple[str, ...]:
    """Return a hint that a timer may be the timeout of another wait, visible only in the code."""
    if facts.positions or not facts.unanswered:
        return ()
    return (
        f"it may wait for a message before that; the place where its code waits is unknown: {facts.unanswered}",
    )


def _child(facts: Facts, span: Span) -> Finding:
    begun = bool(span.target)
    return Finding(
        cause=Cause.CHILD,
        what=f"waits for child workflow {span.name} ({span.child_id})"
        + ("" if begun else ", which has not been started yet"),
        since=span.start,
        details=called_at(facts, Waits.CHILD),
        actions=(Action("Diagnose the child:", facts.command(f"why {shlex.quote(span.child_id)}")),)
        if begun
        else (),
        inner=facts.children.get(span.child_id),
    )


def _update(facts: Facts, span: Span) -> Finding:
    position = next(
        (position for position in facts.positions if position.fiber == f"update {span.name}"), None
    )
    return Finding(
        cause=Cause.UPDATE,
        what=f"handles update {span.name!r}, which has not completed",
        since=span.start,
        place="" if position is None else position.place,
        code="" if position is None else position.code,
        details=(f"where its handler waits is unknown: {facts.unanswered}",) if facts.unanswered else (),
        actions=advice.send_something(facts, without=span.name),
    )


def _other(facts: Facts, span: Span) -> Finding:
    named = f"nexus operation {span.name}" if span.kind is Kind.NEXUS else f"another workflow: {span.name}"
    return Finding(cause=Cause.OTHER, what=f"waits for {named}", since=span.start, faults=span.faults)


_STEPS: dict[Kind, Step] = {
    Kind.ACTIVITY: activity,
    Kind.TIMER: _timer,
    Kind.CHILD: _child,
    Kind.UPDATE: _update,
    Kind.NEXUS: _other,
    Kind.EXTERNAL: _other,
}


def _position(facts: Facts, position: Position) -> Finding | None:
    if position.fiber.startswith("update "):
        return None  # part of the update's finding
    made = _FINDINGS.get(position.waits)
    if made is None:
        return None
    return replace(
        made(facts, position), since=waiting_since(facts), place=position.place, code=position.code
    )


def _signal(facts: Facts, position: Position) -> Finding:
    names = facts.awaited or facts.signals
    quoted = " or ".join(repr(name) for name in names)
    return Finding(
        cause=Cause.SIGNAL,
        what=f"waits for signal {quoted}" if names else "waits for a signal",
        actions=advice.send_signal(facts, names),
    )


def _condition(facts: Facts, position: Position) -> Finding:
    return Finding(
        cause=Cause.CONDITION,
        what="waits for a condition in its code to become true",
        actions=advice.send_something(facts),
    )


def _lock(facts: Facts, position: Position) -> Finding:
    siblings = [fiber for fiber in facts.positions if fiber is not position]
    return Finding(
        cause=Cause.LOCK,
        what=f"waits for {_LOCKS.get(position.call, 'a lock')} in its code",
        details=tuple(f"meanwhile {fiber.fiber} is at {fiber.place}: {fiber.code}" for fiber in siblings[:3]),
        actions=(
            Action("Another task of the workflow must act first: check where the other tasks wait."),
            *advice.send_something(facts),
        ),
    )


_LOCKS = {
    "__enter__": "a lock or semaphore that is held",
    "acquire": "a lock or semaphore that is held",
    "wait": "an event to be set",
    "get": "an item in a queue",
    "put": "a free place in a queue",
}
_FINDINGS: dict[Waits, Callable[[Facts, Position], Finding]] = {
    Waits.SIGNAL: _signal,
    Waits.CONDITION: _condition,
    Waits.LOCK: _lock,
}


def _limited(facts: Facts, findings: list[Finding]) -> list[Finding]:
    """Combine a wait that has a timeout with its timer, if there is exactly one wait and one timer."""
    timers = [item for item in facts.story.spans[1:] if item.end is None and item.kind is Kind.TIMER]
    limited = [item.place for item in facts.positions if item.limited]
    if len(timers) != 1 or len(limited) != 1:
        return findings
    due = timers[0].start + _timer_length(facts, timers[0])
    return [replace(item, until=due) if item.place == limited[0] else item for item in findings]


_ORDER = {cause: at for at, cause in enumerate(Cause)}
_WRONG = frozenset(list(Cause)[: _ORDER[Cause.WORKER_BUSY]]) | {
    Cause.FAILED,
    Cause.TIMED_OUT,
    Cause.TERMINATED,
}


def diagnose(facts: Facts) -> Diagnosis:
    """Return the diagnosis of a run from its facts."""
    story = facts.story
    unsorted = [*reasons_tasks.misfit(facts), *closed(facts)] if story.end is not None else _open(facts)
    findings = _folded(sorted(unsorted, key=lambda finding: _ORDER[finding.cause]))
    return Diagnosis(
        workflow_id=story.workflow_id,
        workflow_type=story.workflow_type,
        run_id=story.run_id,
        task_queue=story.task_queue,
        state=status(story),
        start=story.start,
        end=story.end,
        now=facts.now,
        findings=findings,
        wrong=any(is_wrong(finding) for finding in findings),
    )


def is_wrong(finding: Finding) -> bool:
    """Whether an operator should act on the finding. Problems of a child are reported by the child's diagnosis."""
    return finding.cause in _WRONG or (finding.inner is not None and finding.inner.wrong)


def _open(facts: Facts) -> list[Finding]:
    cancellation = _cancelling(facts)
    stuck = reasons_tasks.stuck(facts)
    if stuck:
        parked = any(finding.attempts for finding in stuck)  # the failing task reports it
        return [*(() if parked else reasons_tasks.misfit(facts)), *stuck, *cancellation]
    steps = open_steps(facts)
    waiting = waiting_positions(facts, steps)
    # the timer of a wait with a timeout is covered by the finding for that wait
    limits = {finding.until for finding in waiting}
    steps = [finding for finding in steps if finding.cause is not Cause.TIMER or finding.until not in limits]
    served = reasons_tasks.not_served(facts)
    return [*reasons_tasks.misfit(facts), *served, *cancellation, *_unheard(facts), *steps, *waiting]


def _unheard(facts: Facts) -> list[Finding]:
    """Return findings for signals that no handler or channel has received, but with a name similar to an existing one. The
    name is probably misspelt.

    A signal with a different name may still be meant for a channel that the code has not reached yet.
    """
    if facts.unanswered or facts.takes_any:
        return []
    last: dict[str, int] = {}
    for event in facts.events:
        if isinstance(event.attributes, h.WorkflowExecutionSignaled):
            last[clean(event.attributes.signal_name)] = event.time_ns
    findings = []
    for name, at in last.items():
        meant = (
            [] if name in facts.signals else get_close_matches(name, facts.awaited or facts.signals, 1, 0.6)
        )
        if meant:
            findings.append(
                Finding(
                    cause=Cause.UNHEARD,
                    what=f"received signal {name!r}, which has no handler",
                    since=at,
                    details=(f"did you mean {meant[0]!r}?",),
                    actions=advice.send_signal(facts, (meant[0],)),
                )
            )
    return findings


def _cancelling(facts: Facts) -> list[Finding]:
    request = next(
        (event for event in facts.events if isinstance(event.attributes, h.WorkflowExecutionCancelRequested)),
        None,
    )
    if request is None:
        return []
    reason = clean(getattr(request.attributes, "reason", ""))
    return [
        Finding(
            cause=Cause.CANCELLING,
            what="received a cancellation request, but has not ended: its code is cleaning up, or ignores the request",
            since=request.time_ns,
            details=(f"reason: {reason}",) if reason else (),
            actions=(
                Action("If the workflow is cleaning up, wait. To end it without any cleanup:"),
                Action("", facts.command(f"terminate {facts.id}")),
            ),
        )
    ]


def not_found(workflow_id: str, similar: Sequence[str], options: str) -> Diagnosis:
    """Return the diagnosis of a workflow that does not exist."""
    finding = Finding(
        cause=Cause.NOT_FOUND,
        what="does not exist on this target",
        details=(f"similar ids: {', '.join(similar)}",)
        if similar
        else ("no other workflow has a similar id",),
        actions=(
            *(
                Action(
                    "Diagnose the workflow with the correct id:", command(f"why {shlex.quote(name)}", options)
                )
                for name in similar[:1]
            ),
            Action("List the workflows:", command("list", options)),
            Action(
                "Or use another --target or --namespace; closed workflows are deleted after the retention period."
            ),
        ),
    )
    return Diagnosis(workflow_id=workflow_id, state="not found", findings=(finding,), wrong=True)


def unreachable(workflow_id: str, target: str, reason: str, options: str) -> Diagnosis:
    """Return the diagnosis if the engine cannot be reached."""
    finding = Finding(
        cause=Cause.UNREACHABLE,
        what=f"cannot be diagnosed: {target} cannot be reached",
        details=(reason,),
        actions=(
            Action("Check the target and the connection:", command("doctor", options)),
            Action("Or choose another target: --target host:port, --target local:FILE, or HOURGLASS_TARGET."),
        ),
    )
    return Diagnosis(workflow_id=workflow_id, state="unknown", findings=(finding,), wrong=True)


def _folded(findings: list[Finding]) -> tuple[Finding, ...]:
    merged: dict[tuple[Cause, str, str], Finding] = {}
    for finding in findings:
        first = root(finding.faults)
        key = finding.cause, finding.what, "" if first is None else first.message
        previous = merged.get(key)
        merged[key] = finding if previous is None else replace(previous, count=previous.count + 1)
    return tuple(merged.values())
