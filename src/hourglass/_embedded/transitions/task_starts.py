"""The start of a workflow task and of an attempt, when a worker receives it. Pure.

Must not know: how a task or an attempt ends, queues, handles. A worker with free slots eagerly receives the work that
its own completion creates, such as an attempt that the completion schedules. The completion and the start are then one
change, at half the cost of two. Invariant: the worker receives only work that it would have received next in any case,
with the same events and timestamps.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.run import Change, OpenActivity, PendingTask, Run, level_of
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass._history import events as h


class Eager(msgspec.Struct, frozen=True, gc=False):
    """A worker that eagerly receives the work that its completion creates: the run's next task, or at most `attempts`
    attempts on the worker's task queue.
    """

    identity: str
    task_queue: str
    limits: Limits
    attempts: int = 0
    types: frozenset[str] | None = None
    """The activity types that the worker can execute, if another worker may know more types. None means all types."""


def take_task(builder: ChangeBuilder, eager: Eager) -> None:
    """Start the task that the builder has scheduled, if any, on the worker whose completion led to the task."""
    task = builder.run.task
    if task is None or task.started_event_id or task.available_ns > builder.now_ns:
        return
    limits, size = eager.limits, builder.measure()
    if builder.length <= limits.history_events and size <= limits.history_bytes:
        begin_task(builder, task, eager.identity, limits, size)


def start_attempt(run: Run, activity: OpenActivity, identity: str, now_ns: int) -> Change:
    """Record that a worker has received an attempt."""
    builder = ChangeBuilder(run, now_ns)
    _begin_attempt(builder, activity, identity)
    return builder.build()


def take_attempts(builder: ChangeBuilder, eager: Eager, size: int) -> None:
    """Start attempts that the worker's commands have scheduled on its own task queue, up to its number of free slots.
    `size` is the size of the history with the events of these commands, in bytes.
    """
    run, limits = builder.run, eager.limits
    if builder.length > limits.history_events or size > limits.history_bytes or run.paused is not None:
        return
    candidates: list[OpenActivity] = []
    for event_id in sorted(builder.touched) if len(builder.touched) > 1 else builder.touched:
        activity = run.activities.get(event_id)
        if activity is None or activity.started_ns or activity.spec.task_queue != eager.task_queue:
            continue
        if eager.types is None or activity.scheduled.activity_type in eager.types:
            candidates.append(activity)
    if len(candidates) > eager.attempts:
        candidates.sort(key=lambda activity: level_of(run, activity))
        del candidates[eager.attempts :]
    for activity in candidates:
        _begin_attempt(builder, activity, eager.identity)


def unwritten(run: Run) -> tuple[h.HistoryEvent, ...]:
    """Return the first two events of a started transient task, which its worker must see although they are not in the
    history yet.
    """
    task = run.task
    if task is None or not task.transient or not task.started_event_id:
        return ()
    return tuple(
        h.HistoryEvent(number, max(time_ns, run.latest_ns), attributes)
        for number, time_ns, attributes in (
            (task.scheduled_event_id, task.started_ns, _scheduled(run, task)),
            (task.started_event_id, task.started_ns, _started(run, task)),
        )
    )


def write_unwritten(builder: ChangeBuilder) -> None:
    """Write the first two events of the started task if they are not in the history yet."""
    for event in unwritten(builder.run) if task_of(builder.run).transient else ():
        builder.write_at(event.attributes, event.time_ns)


def task_of(run: Run) -> PendingTask:
    """Return the workflow task of a run. Raise `RuntimeError` if the run has none."""
    if run.task is None:
        raise RuntimeError(f"run {run.run_id} has no workflow task")
    return run.task


def begin_task(
    builder: ChangeBuilder,
    task: PendingTask,
    identity: str,
    limits: Limits,
    size: int,
    target: WorkerDeploymentVersion | None = None,
) -> None:
    """Mark the task as started by the worker with this identity. `size` is the size of the history in bytes. `target` is
    the version that the run would move to if it were not pinned.
    """
    suggest = builder.length >= limits.suggest_events or size >= limits.suggest_bytes
    started = builder.length + 2
    if not task.transient:
        started = builder.write(
            h.WorkflowTaskStarted(
                scheduled_event_id=task.scheduled_event_id,
                identity=identity,
                history_size=size,
                suggest_continue_as_new=suggest,
                target_version_changed=target is not None,
            )
        )
    builder.set_task(
        replace(
            task,
            scheduled_event_id=task.scheduled_event_id or started - 1,
            started_event_id=started,
            started_ns=builder.now_ns,
            identity=identity,
            suggest_continue_as_new=suggest,
            target_version=target,
        )
    )


def _begin_attempt(builder: ChangeBuilder, activity: OpenActivity, identity: str) -> None:
    now = builder.now_ns
    builder.put_activity(
        replace(activity, started_ns=now, last_started_ns=now, heartbeat_ns=now, identity=identity)
    )


def _scheduled(run: Run, task: PendingTask) -> h.WorkflowTaskScheduled:
    return h.WorkflowTaskScheduled(
        task_queue=run.started.spec.task_queue,
        task_timeout=run.started.spec.task_timeout,
        attempt=task.attempt,
    )


def _started(run: Run, task: PendingTask) -> h.WorkflowTaskStarted:
    return h.WorkflowTaskStarted(
        scheduled_event_id=task.scheduled_event_id,
        identity=task.identity,
        history_size=run.history_size,
        suggest_continue_as_new=task.suggest_continue_as_new,
        target_version_changed=task.target_version is not None,
    )
