"""What begins when a worker takes something of a run: its task, or an attempt of an activity. Pure.

Must not know: how either ends, queues, handles. A worker that ends something while it waits for more takes what that
leads to at once (Temporal says eagerly): then the end and the beginning are one step, which costs half of two.
Invariant: what is taken at once is what the worker would have been given next, with the same events and times.
"""

from __future__ import annotations

import msgspec

from hourglass._embedded.rules.draft import Draft
from hourglass._embedded.rules.limits import Limits
from hourglass._embedded.rules.priorities import level_of
from hourglass._embedded.rules.run import Activity, Run, Step, Task
from hourglass._engine.versions import WorkerDeploymentVersion
from hourglass._history import events as h


class Eager(msgspec.Struct, frozen=True, gc=False):
    """A worker that takes at once what its answer leads to: the run's task, or so many attempts on its queue."""

    identity: str
    task_queue: str
    limits: Limits
    attempts: int = 0


def start_task(
    run: Run, identity: str, limits: Limits, now_ns: int, target: WorkerDeploymentVersion | None = None
) -> Step:
    """A worker takes the run's task. `target` is where a run that is pinned would go otherwise."""
    draft = Draft(run, now_ns)
    _begin_task(draft, task_of(run), identity, limits, target)
    return draft.step()


def take_task(draft: Draft, eager: Eager) -> None:
    """Whoever wrote what stands in the draft takes the task that it leads to, if it leads to one."""
    task = draft.run.task
    if task is None or task.started_event_id or task.available_ns > draft.now_ns:
        return
    if not eager.limits.overgrown(draft.run):
        _begin_task(draft, task, eager.identity, eager.limits)


def start_attempt(run: Run, activity: Activity, identity: str, now_ns: int) -> Step:
    """A worker takes an activity's attempt."""
    draft = Draft(run, now_ns)
    _begin_attempt(draft, activity, identity)
    return draft.step()


def take_attempts(draft: Draft, eager: Eager) -> None:
    """Whoever asked for activities in the draft takes those that wait on its queue, as many as it can."""
    left = 0 if eager.limits.overgrown(draft.run) else eager.attempts
    wanted: list[Activity] = []
    for event_id in sorted(draft.touched) if left else ():
        activity = draft.run.activities.get(event_id)
        if activity is not None and not activity.started_ns and activity.spec.task_queue == eager.task_queue:
            wanted.append(activity)
    if len(wanted) > left:  # not all of them can be taken
        wanted.sort(key=lambda each: level_of(draft.run, each))
    for activity in wanted[:left]:
        _begin_attempt(draft, activity, eager.identity)


def unwritten(run: Run) -> tuple[h.HistoryEvent, ...]:
    """The first two events of a started task that are not in the history yet, as a worker must see them."""
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


def write_unwritten(draft: Draft) -> None:
    """Write the first two events of the task in hand, if they are not in the history yet."""
    for event in unwritten(draft.run) if task_of(draft.run).transient else ():
        draft.write(event.attributes, time_ns=event.time_ns)


def task_of(run: Run) -> Task:
    """The task of a run that must have one."""
    if run.task is None:
        raise RuntimeError(f"run {run.run_id} has no task")
    return run.task


def _begin_task(
    draft: Draft,
    task: Task,
    identity: str,
    limits: Limits,
    target: WorkerDeploymentVersion | None = None,
) -> None:
    run = draft.run
    suggest = limits.suggests_continue_as_new(run)
    started = run.length + 2
    if not task.transient:
        started = draft.write(
            h.WorkflowTaskStarted(
                scheduled_event_id=task.scheduled_event_id,
                identity=identity,
                history_size=run.history_size,
                suggest_continue_as_new=suggest,
                target_version_changed=target is not None,
            )
        )
    draft.set_task(
        msgspec.structs.replace(
            task,
            scheduled_event_id=task.scheduled_event_id or started - 1,
            started_event_id=started,
            started_ns=draft.now_ns,
            identity=identity,
            suggest_continue_as_new=suggest,
            target_version=target,
        )
    )


def _begin_attempt(draft: Draft, activity: Activity, identity: str) -> None:
    now = draft.now_ns
    draft.put_activity(
        msgspec.structs.replace(
            activity, started_ns=now, last_started_ns=now, heartbeat_ns=now, identity=identity
        )
    )


def _scheduled(run: Run, task: Task) -> h.WorkflowTaskScheduled:
    return h.WorkflowTaskScheduled(
        task_queue=run.started.task_queue, task_timeout=run.started.task_timeout, attempt=task.attempt
    )


def _started(run: Run, task: Task) -> h.WorkflowTaskStarted:
    return h.WorkflowTaskStarted(
        scheduled_event_id=task.scheduled_event_id,
        identity=task.identity,
        history_size=run.history_size,
        suggest_continue_as_new=task.suggest_continue_as_new,
        target_version_changed=task.target_version is not None,
    )
