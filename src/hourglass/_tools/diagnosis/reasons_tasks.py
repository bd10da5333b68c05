"""The reasons why a run's workflow task is not processed: no worker receives the task, or the task fails and is retried (the
run is parked). Pure.

A task is not received if no worker polls its queue, if the pollers have the wrong version, or if they are busy.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hourglass._history import events as h
from hourglass._history.tables import table
from hourglass._tools.diagnosis import advice
from hourglass._tools.diagnosis.diagnosis import Cause, Facts, Finding
from hourglass._tools.timeline.faults import chain, place_of
from hourglass._tools.timeline.spans import Fault, Kind, Outcome, Span
from hourglass._tools.timeline.text import S, clean, duration, nanoseconds

if TYPE_CHECKING:
    from hourglass.client import TaskQueueDescription
    from hourglass.client._deployments import PollerInfo


def started(facts: Facts) -> h.WorkflowExecutionStarted:
    """Return the attributes of the start event, or empty attributes if the history does not begin with it."""
    first = facts.events[0].attributes if facts.events else None
    if isinstance(first, h.WorkflowExecutionStarted):
        return first
    unset: h.WorkflowExecutionStarted = table(h.WorkflowExecutionStarted).read({})
    return unset


def last(facts: Facts, kinds: Container[type[h.Attributes]]) -> h.HistoryEvent | None:
    """Return the last event of these kinds."""
    return next((event for event in reversed(facts.events) if type(event.attributes) in kinds), None)


def began(facts: Facts, span: Span) -> h.Attributes | None:
    """Return the attributes of the event that started a span."""
    return next((event.attributes for event in facts.events if event.id == span.id), None)


def queue_of(attributes: h.Attributes | None) -> str:
    """Return the task queue named by an event."""
    return clean(getattr(getattr(attributes, "spec", None), "task_queue", ""))


def wanted(facts: Facts, queue: TaskQueueDescription) -> str:
    """Return the version of the workers that may process the run, or "" for unversioned workers."""
    return facts.pinned or str(queue.current_version or "")


def _version(poller: PollerInfo) -> str:
    return str(poller.deployment_version or "")


def unserved(facts: Facts, queue: TaskQueueDescription, since: int | None) -> list[Finding]:
    """Return a finding if all workers that poll the queue have other versions."""
    needed = wanted(facts, queue)
    versions = sorted({_version(poller) for poller in queue.workflow_pollers})
    if needed in versions:
        return []
    listed = ", ".join(f"version {version}" if version else "no version" for version in versions)
    return [
        Finding(
            cause=Cause.NO_VERSION,
            what=_sentence(facts, queue, needed),
            since=since,
            details=(f"workers of {listed} poll the queue",),
            actions=advice.serve_version(queue.name, needed, versions, facts.options),
        )
    ]


def _sentence(facts: Facts, queue: TaskQueueDescription, needed: str) -> str:
    if facts.pinned:
        return f"is pinned to version {needed}, and no worker of that version polls its task queue {queue.name!r}"
    if needed:
        return f"waits for version {needed}, which is current, and no worker of that version polls task queue {queue.name!r}"
    return f"waits for a worker without a version, because no version is current on task queue {queue.name!r}"


_PATIENCE = 10_000_000_000
"""The time in nanoseconds that a task may wait although workers poll, before the wait counts as a problem."""

_CAUSES = {
    "NondeterminismError": Cause.NONDETERMINISM,
    "UnknownTypeError": Cause.UNKNOWN_WORKFLOW,
    "DecodeError": Cause.UNDECODABLE,
    "WorkflowQuarantined": Cause.HUNG,
    "WorkflowHung": Cause.HUNG,
    "ProcessDied": Cause.KILLS,
    "timed out": Cause.HUNG,
    "LaneDied": Cause.TASK_FAILS,
    "RunNotCached": Cause.TASK_FAILS,
    "InternalError": Cause.TASK_FAILS,
}
_SENTENCES = {
    Cause.NONDETERMINISM: "cannot continue, because its code no longer matches its history",
    Cause.UNKNOWN_WORKFLOW: "cannot continue, because its type is not registered with the worker",
    Cause.UNDECODABLE: "cannot continue, because its code does not accept its arguments",
    Cause.KILLS: "is quarantined, because the worker's process died while it was executing",
    Cause.HUNG: "cannot continue, because its code does not return in time",
    Cause.TASK_FAILS: "cannot continue for now: its workflow task fails and is retried",
    Cause.BUG: "is parked, because a bug in its code raises an exception",
}
_UNHANDLED = "workflow worker unhandled failure"
_PLACE = re.compile(r"\bat (\S+\.py:\d+)")
_MESSAGE_PREFIX = re.compile(r"\[TMPRL\d+\]\s*(?:Nondeterminism error:\s*)?")


def stuck(facts: Facts) -> list[Finding]:
    """Return the findings for problems that prevent the code from running. With any, the steps are irrelevant."""
    row = _failing(facts)
    if row is not None:
        return [_parked(facts, row), *not_served(facts)]
    return list(_waiting(facts))


def misfit(facts: Facts) -> list[Finding]:
    """Return a finding if the local code does not match the history, although no worker has run this code yet."""
    if facts.replayed is None:
        return []
    closed = facts.story.end is not None
    return [
        Finding(
            cause=Cause.NONDETERMINISM,
            what="no longer matches this code, and would not continue after a reset either"
            if closed
            else "will not continue with this code, which does not match its history",
            place=facts.replayed.place,
            faults=(facts.replayed,),
            actions=() if closed else advice.parked(Cause.NONDETERMINISM, facts),
        )
    ]


def not_served(facts: Facts) -> list[Finding]:
    """Return a finding if no worker, or no worker of the right version, polls the run's task queue."""
    queue = facts.queues.get(facts.story.task_queue)
    if queue is None:
        return []
    if queue.workflow_pollers:
        return unserved(facts, queue, _scheduled(facts)) or _gone(facts, queue)
    served = tuple(name for name in queue.served if name != queue.name)
    what = f"has no worker: no worker polls its task queue {queue.name!r}"
    since = _scheduled(facts)
    if not served:
        actions = advice.start_worker(queue.name, facts.options)
        return [Finding(cause=Cause.NO_WORKER, what=what, since=since, actions=actions)]
    meant = get_close_matches(queue.name, served, 1, 0.6)
    detail = f"workers serve {', '.join(repr(name) for name in served)}"
    return [
        Finding(
            cause=Cause.WRONG_QUEUE,
            what=what,
            since=since,
            details=(detail + (f": did you mean {meant[0]!r}?" if meant else ""),),
            actions=(
                *advice.start_worker(queue.name, facts.options),
                *advice.change_queue(
                    facts, clean(started(facts).parent_workflow_id), meant[0] if meant else served[0]
                ),
            ),
        )
    ]


def _gone(facts: Facts, queue: TaskQueueDescription) -> list[Finding]:
    """Return a finding if all pollers polled last before the task existed.

    A server lists pollers for minutes after they have left.
    """
    since, needed = _scheduled(facts), wanted(facts, queue)
    fitting = (poller for poller in queue.workflow_pollers if _version(poller) == needed)
    last = max(nanoseconds(poller.last_seen) or 0 for poller in fitting)
    if since is None or last >= since or facts.story.until - since < _PATIENCE:
        return []
    who = ", ".join(sorted({poller.identity for poller in queue.workflow_pollers})[:3])
    return [
        Finding(
            cause=Cause.NO_WORKER,
            what=f"has no worker: the workers of task queue {queue.name!r} have ended, or accept no more tasks",
            since=since,
            details=(f"{who} was last seen {duration(facts.story.until - last)} ago",),
            actions=advice.start_worker(queue.name, facts.options),
        )
    ]


def _failing(facts: Facts) -> Span | None:
    rows = [span for span in facts.story.spans if span.kind is Kind.TASK and span.end is None]
    return rows[-1] if rows and facts.story.outcome is Outcome.RETRYING else None


def _parked(facts: Facts, row: Span) -> Finding:
    cause = _cause(row, facts.story.workflow_type)
    faults = tuple(
        Fault(fault.type, _MESSAGE_PREFIX.sub("", fault.message), fault.place) for fault in row.faults
    )
    place = place_of(faults) or next(
        (match[1] for fault in faults if (match := _PLACE.search(fault.message))), ""
    )
    details = () if facts.next_task is not None else (_paced(facts),)
    if facts.replayed is not None:  # from the replay of the current code that has just run
        faults, place = (facts.replayed,), facts.replayed.place or place
        cause = _CAUSES.get(facts.replayed.type, Cause.BUG)
    if facts.died:  # the process died before it could report the failure
        cause, faults, place = Cause.KILLS, (Fault("ProcessDied", facts.died, ""),), ""
    return Finding(
        cause=cause,
        what=_FIXED if facts.fits else _SENTENCES[cause],
        since=row.start,
        place=place,
        faults=faults,
        attempts=max(row.attempts, 1),
        next_attempt=facts.next_task,
        details=details,
        actions=advice.start_worker(facts.story.task_queue, facts.options, _RESTART)
        if facts.fits
        else advice.parked(cause, facts),
    )


_FIXED = "is parked, but would continue with the code of --code"
_RESTART = "Restart the worker with this code; the workflow continues automatically:"


def _cause(row: Span, workflow_type: str) -> Cause:
    if "non deterministic" in row.note:
        return Cause.NONDETERMINISM
    first = row.faults[0]
    # The start arguments do not match the signature.
    if first.type == "ArgumentError" and first.message.startswith(f"workflow {workflow_type} "):
        return Cause.UNDECODABLE
    types = (fault.type for fault in row.faults if fault.type in _CAUSES)
    # For any other cause, the engine has rejected the commands.
    fallback = (
        Cause.BUG if row.note in ("", _UNHANDLED) and row.faults[0].type != "failed" else Cause.TASK_FAILS
    )
    return _CAUSES.get(next(types, ""), fallback)


def _paced(facts: Facts) -> str:
    limit = round(started(facts).spec.task_timeout * S)
    often = f"about every {duration(limit)}, later less often" if limit else "repeatedly"
    return f"it is retried {often}"


def _waiting(facts: Facts) -> Iterator[Finding]:
    task = last(facts, h.TASK_KINDS)
    if task is None:
        yield from _not_begun(facts)
    elif isinstance(task.attributes, h.WorkflowTaskScheduled):
        yield from not_served(facts) or [_slow(facts, task)]
    elif isinstance(task.attributes, h.WorkflowTaskStarted):
        who = clean(task.attributes.identity)
        yield Finding(
            cause=Cause.CODE_RUNS,
            what="is being executed by a worker" + (f", {who}" if who else ""),
            since=task.time_ns,
            details=("if the worker has died, another one takes over when the task times out",),
            actions=advice.check_again(facts),
        )


def _scheduled(facts: Facts) -> int | None:
    task = last(facts, h.TASK_KINDS)
    waits = task is not None and isinstance(task.attributes, h.WorkflowTaskScheduled)
    return task.time_ns if task is not None and waits else None


def _not_begun(facts: Facts) -> Iterator[Finding]:
    delay = round(started(facts).first_task_backoff * S)
    due = facts.story.start + delay
    if due > facts.story.until:
        yield _delayed(facts, due)
    yield from not_served(facts)
    if due <= facts.story.until:
        yield Finding(cause=Cause.WORKER_BUSY, what="has not started yet", since=facts.story.start)


def _delayed(facts: Facts, due: int) -> Finding:
    """Return the finding for a run that begins later: start delay, cron schedule, or retry."""
    attempt = started(facts).attempt
    faults = chain(started(facts).continued_failure)
    if attempt > 1:
        return Finding(
            cause=Cause.DELAYED,
            what=f"failed and is retried by its retry policy: attempt {attempt} has not started",
            until=due,
            place=place_of(faults),
            faults=faults,
            actions=advice.see(facts),
        )
    cron = clean(started(facts).spec.cron_schedule)
    why = f"by its cron schedule, {cron}" if cron else "its start is delayed"
    return Finding(cause=Cause.DELAYED, what=f"has not started: {why}", until=due, actions=advice.NOTHING)


def _slow(facts: Facts, task: h.HistoryEvent) -> Finding:
    queue = facts.queues.get(facts.story.task_queue)
    waited = facts.story.until - task.time_ns
    many = 0 if queue is None else len(queue.workflow_pollers)
    detail = f"{many} worker{'s' * (many != 1)} poll{'s' * (many == 1)} the queue" if many else ""
    return Finding(
        cause=Cause.WORKER_BUSY,
        what=f"waits for a worker of task queue {facts.story.task_queue!r}",
        since=task.time_ns,
        details=(detail,) if detail else (),
        actions=advice.start_worker(
            facts.story.task_queue,
            facts.options,
            "Check the workers (log, /status), or start another worker:",
        )
        if waited > _PATIENCE
        else advice.check_again(facts),
    )
