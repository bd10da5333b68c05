"""The steps that most runs take most of the time, each written out in one piece: a run begins; a worker takes its task; an
activity's end leads to the next task, which the worker that reports it takes at once; that worker's answer asks for
activities, of which it takes the first attempts at once; the run returns. Pure.

Must not know: handles, queues, stores. A draft (see `draft`) can do all that is done here, and everything else; without
one these take a third of the time. Invariant: what they give is, byte for byte, what the draft's transitions (in
`transitions` and `tasks`) give; where there is more to it they give None, and those are asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.transitions import activities, problems
from hourglass._embedded.transitions.draft import Eager
from hourglass._embedded.transitions.run import OpenActivity, PendingTask, Run, Transition, only
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator import commands as c
from hourglass._history import events as h
from hourglass._history.encoding import encode, encode_events
from hourglass.converter import Payload


def open_run(run: Run, now_ns: int) -> Transition:
    """A run that begins with nothing but its start, and wants its first task at once."""
    spec = run.started.spec
    events = (
        h.HistoryEvent(1, now_ns, run.started),
        h.HistoryEvent(
            2,
            now_ns,
            h.WorkflowTaskScheduled(task_queue=spec.task_queue, task_timeout=spec.task_timeout),
        ),
    )
    encoded = encode_events(events)
    after = msgspec.structs.replace(
        run,
        length=2,
        latest_ns=now_ns,
        history_size=len(encoded),
        task=PendingTask(number=1, scheduled_event_id=2, available_ns=now_ns),
        task_count=1,
    )
    return Transition(after, events, encoded)


def start_task(run: Run, task: PendingTask, identity: str, limits: Limits, now_ns: int) -> Transition:
    """A worker takes the run's task, which is not transient."""
    number, time_ns = run.length + 1, max(now_ns, run.latest_ns)
    suggest = run.length >= limits.suggest_events or run.history_size >= limits.suggest_bytes
    attributes = h.WorkflowTaskStarted(
        scheduled_event_id=task.scheduled_event_id,
        identity=identity,
        history_size=run.history_size,
        suggest_continue_as_new=suggest,
    )
    event = h.HistoryEvent(number, time_ns, attributes)
    encoded = encode(event)
    after = msgspec.structs.replace(
        run,
        length=number,
        latest_ns=time_ns,
        history_size=run.history_size + len(encoded),
        task=msgspec.structs.replace(
            task,
            started_event_id=number,
            started_ns=now_ns,
            identity=identity,
            suggest_continue_as_new=suggest,
            target_version=None,
        ),
    )
    return Transition(after, (event,), encoded)


def complete_run(
    run: Run, command: c.CompleteRun, flags: tuple[int, ...], identity: str, limits: Limits, now_ns: int
) -> Transition | None:
    """A worker answers its task, which is not transient, and the run returns. None where another run must hear of that,
    or follows.
    """
    task, started = run.task, run.started
    if task is None or run.held or run.version is not None or run.children or run.paused is not None:
        return None
    if not problems.is_untroubled(run):
        return None
    if started.parent_run_id or started.spec.cron_schedule:
        return None
    number, time_ns = run.length + 1, max(now_ns, run.latest_ns)
    final = h.WorkflowExecutionCompleted(result=command.result, task_completed_event_id=number)
    attributes = h.WorkflowTaskCompleted(
        scheduled_event_id=task.scheduled_event_id,
        started_event_id=task.started_event_id,
        identity=identity,
        flags=flags,
    )
    events = (h.HistoryEvent(number, time_ns, attributes), h.HistoryEvent(number + 1, time_ns, final))
    encoded = encode_events(events)
    if len(encoded) > limits.blob_bytes or len(encoded) > limits.payloads_warn > 0:
        return None
    after = msgspec.structs.replace(
        run,
        length=number + 1,
        latest_ns=time_ns,
        history_size=run.history_size + len(encoded),
        status=WorkflowStatus.COMPLETED,
        close_ns=time_ns,
        final=final,
        task=None,
        activities={},
        timers={},
    )
    return Transition(after, events, encoded, frozenset((*run.activities, *run.timers)))


_FEW = 20
"""An answer that asks for more is the draft's: it measures as it goes."""


def complete_and_take_task(
    run: Run, activity: OpenActivity, result: Payload | None, identity: str, now_ns: int, eager: Eager
) -> Transition:
    """An attempt returned, and nothing but this end leads to the run's next task, which the worker takes at once unless
    the run has outgrown its limits.
    """
    limits, length, started = eager.limits, run.length, run.started.spec
    event_id, began_ns = activity.scheduled_event_id, max(activity.started_ns, activity.after_ns)
    time_ns = max(now_ns, run.latest_ns, began_ns)
    first = h.ActivityTaskStarted(
        scheduled_event_id=event_id,
        attempt=activity.attempt,
        identity=activity.identity,
        last_failure=activity.last_failure,
        began_ns=began_ns,
    )
    end = h.ActivityTaskCompleted(
        scheduled_event_id=event_id, started_event_id=length + 1, result=result, identity=identity
    )
    events = [
        h.HistoryEvent(length + 1, began_ns or now_ns, first),
        h.HistoryEvent(length + 2, time_ns, end),
        h.HistoryEvent(
            length + 3,
            time_ns,
            h.WorkflowTaskScheduled(task_queue=started.task_queue, task_timeout=started.task_timeout),
        ),
    ]
    encoded = encode_events(events)
    length, size = length + 3, run.history_size + len(encoded)
    number, scheduled, taken = run.task_count + 1, length, not limits.is_overgrown(length, size)
    suggest = taken and (length >= limits.suggest_events or size >= limits.suggest_bytes)
    if taken:
        length += 1
        attributes = h.WorkflowTaskStarted(
            scheduled_event_id=scheduled,
            identity=eager.identity,
            history_size=size,
            suggest_continue_as_new=suggest,
        )
        events.append(h.HistoryEvent(length, time_ns, attributes))
        begun = encode(events[3])
        encoded += begun
        size += len(begun)
    pending = run.activities.copy()
    del pending[event_id]
    after = msgspec.structs.replace(
        run,
        length=length,
        latest_ns=time_ns,
        history_size=size,
        task=PendingTask(
            number=number,
            scheduled_event_id=scheduled,
            available_ns=now_ns,
            started_event_id=length if taken else 0,
            started_ns=now_ns if taken else 0,
            identity=eager.identity if taken else "",
            suggest_continue_as_new=suggest,
        ),
        task_count=number,
        activities=pending,
    )
    return Transition(after, tuple(events), encoded, only(event_id))


def ask_for_activities(
    run: Run,
    commands: Sequence[c.Command],
    flags: tuple[int, ...],
    eager: Eager,
    now_ns: int,
) -> Transition | None:
    """A worker answers its task, which is not transient, and asks for activities, all of which it takes at once. None where
    that is not all that is to be said: of what it asks for, of the run, or because something must be refused.
    """
    task, limits, pending, spec = run.task, eager.limits, run.activities, run.started.spec
    count = len(commands)
    if task is None or run.held or run.version is not None or run.paused is not None:
        return None
    if not problems.is_untroubled(run):
        return None
    if spec.run_timeout or run.started.expiration_ns:
        return None
    if count > eager.attempts or count > _FEW or len(pending) + count > limits.pending:
        return None
    time_ns = now_ns if now_ns > run.latest_ns else run.latest_ns
    completed = number = run.length + 1
    attributes = h.WorkflowTaskCompleted(
        scheduled_event_id=task.scheduled_event_id,
        started_event_id=task.started_event_id,
        identity=eager.identity,
        flags=flags,
    )
    events = [h.HistoryEvent(completed, time_ns, attributes)]
    pending, after, short = pending.copy(), time_ns if time_ns > now_ns else 0, limits.name_bytes // 4
    for command in commands:
        # Its id is its number, which is new in any case; its names are too short to be refused.
        if type(command) is not c.ScheduleActivity or command.activity_id != str(command.seq):
            return None
        if len(command.activity_type) > short or len(command.spec.task_queue) > short:
            return None
        scheduled = activities.plan(command, spec.task_queue, 0.0, completed)
        if scheduled.spec.task_queue != eager.task_queue:
            return None
        if eager.types is not None and scheduled.activity_type not in eager.types:
            return None  # another worker may know it
        number += 1
        events.append(h.HistoryEvent(number, time_ns, scheduled, command.event_groups))
        pending[number] = OpenActivity(
            scheduled_event_id=number,
            scheduled=scheduled,
            spec=scheduled.spec,
            scheduled_ns=now_ns,
            available_ns=now_ns,
            after_ns=after,
            started_ns=now_ns,
            last_started_ns=now_ns,
            heartbeat_ns=now_ns,
            identity=eager.identity,
        )
    encoded = encode_events(events)
    size = run.history_size + len(encoded)
    if len(encoded) > limits.payloads_warn > 0:
        return None
    if len(encoded) > min(limits.blob_bytes, limits.transaction_bytes) or limits.is_overgrown(number, size):
        return None
    after_it = msgspec.structs.replace(
        run, length=number, latest_ns=time_ns, history_size=size, task=None, activities=pending
    )
    touched = only(number) if count == 1 else frozenset(range(completed + 1, number + 1))
    return Transition(after_it, tuple(events), encoded, touched)
