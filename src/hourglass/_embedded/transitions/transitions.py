"""Transitions for client requests, the passage of time, the completion of activities, and recovery: `(run, cause, now)
-> Change`. Pure.

Must not know: handles, queues, stores, the source of time, which requests were carried out before, how the engine
detects the end of a process. The transitions of a workflow task (start, completion, failure) are in `tasks`.

Invariants: a closed run never changes. A transition examines only the pending activities and timers that its arguments
name. After recovery, no worker has a task or an attempt that a worker of the ended process had. A deferred attempt
continues, because a client will complete it. A run without work in progress does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from hourglass._contract.workflows import (
    CancelWorkflow,
    PauseWorkflow,
    SignalWorkflow,
    TerminateWorkflow,
    UnpauseWorkflow,
    WorkflowStatus,
)
from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.transitions import activities, standalone
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.children import next_attempt_or_run
from hourglass._embedded.transitions.run import Change, OpenActivity, Pause, Run, RunPriority
from hourglass._embedded.transitions.task_starts import Eager, take_task
from hourglass._embedded.transitions.task_starts import start_attempt as start_attempt
from hourglass._embedded.transitions.tasks import forget_speculative_task, time_out_task, wait_before
from hourglass._embedded.transitions.versioning import PINNED, UNSPECIFIED
from hourglass._evaluator.retries import next_delay
from hourglass._evaluator.specs import ActivitySpec, Payloads, VersioningOverride
from hourglass._history import events as h
from hourglass.converter import Failure, Payload
from hourglass.errors import RetryState

NO_REASON = "terminated by user via frontend"
"""The reason of a termination whose request gives no reason. Temporal uses the same text."""


def open_run(
    run_id: str,
    started: h.WorkflowExecutionStarted,
    now_ns: int,
    signals: tuple[h.WorkflowExecutionSignaled, ...] = (),
) -> Change:
    """Open a run. Its history begins with the start event and these signals, before the first task."""
    run = Run(
        run_id=run_id,
        started=started,
        start_ns=now_ns,
        memo=started.spec.memo,
        search_attributes=started.spec.search_attributes,
        version=started.inherited_pinned_version,
        behavior=PINNED if started.inherited_pinned_version is not None else UNSPECIFIED,
    )
    builder = ChangeBuilder(run, now_ns)
    builder.write(started)
    for signal in signals:
        builder.write(signal)
    builder.want_task()
    return builder.build()


def signal(run: Run, request: SignalWorkflow, now_ns: int, *, with_start: bool = False) -> Change:
    """Record a client's signal.

    As on a server, a signal that came with a start ends the delay before the run's first task, and a plain signal does
    not.
    """
    builder = ChangeBuilder(run, now_ns)
    builder.write_or_hold(signaled(request), at_once=with_start)
    return builder.build()


def signaled(request: SignalWorkflow) -> h.WorkflowExecutionSignaled:
    """Return the history event for a signal."""
    return h.WorkflowExecutionSignaled(
        signal_name=request.signal_name,
        arguments=request.arguments,
        identity=request.identity,
        headers=request.headers,
        request_id=request.request_id,
    )


def request_cancel(run: Run, request: CancelWorkflow, now_ns: int) -> Change:
    """Record a client's cancellation request, unless the run has an earlier one. The request ends the delay before the
    run's first task.
    """
    builder = ChangeBuilder(run, now_ns)
    if not run.cancel_requested:
        builder.update(cancel_requested=True)
        requested = h.WorkflowExecutionCancelRequested(reason=request.reason, identity=request.identity)
        builder.write_or_hold(requested, at_once=True)
    return builder.build()


def terminate(run: Run, request: TerminateWorkflow, now_ns: int) -> Change:
    """Terminate the run."""
    builder = ChangeBuilder(run, now_ns)
    final = h.WorkflowExecutionTerminated(
        reason=request.reason or NO_REASON, details=request.details, identity=request.identity
    )
    builder.close(final, WorkflowStatus.TERMINATED)
    return builder.build()


def pause(run: Run, request: PauseWorkflow, now_ns: int) -> Change:
    """Pause the run. Its waiting task and attempts are withheld from workers. A worker that has received the task or an
    attempt may complete it.
    """
    builder = ChangeBuilder(run, now_ns)
    builder.drop_speculative_task()
    waiting = builder.run.task if not builder.run.task_is_started else None
    if waiting is not None:
        builder.set_task(None)
    _write_or_hold(builder, h.WorkflowExecutionPaused(identity=request.identity, reason=request.reason))
    builder.update(
        paused=Pause(reason=request.reason, identity=request.identity, since_ns=now_ns, task=waiting)
    )
    builder.touched.update(run.activities)
    return builder.build()


def unpause(run: Run, request: UnpauseWorkflow, now_ns: int) -> Change:
    """Unpause the run. It gets back the withheld task, or a new task for the events that have occurred during the pause."""
    builder = ChangeBuilder(run, now_ns)
    pause = run.paused or Pause()
    _write_or_hold(builder, h.WorkflowExecutionUnpaused(identity=request.identity, reason=request.reason))
    builder.update(paused=None)
    if pause.task is not None and builder.run.task is None:
        builder.set_task(msgspec.structs.replace(pause.task, available_ns=now_ns))
    elif pause.missed:
        builder.want_task()
    builder.touched.update(run.activities)
    return builder.build()


def _write_or_hold(builder: ChangeBuilder, attributes: h.Attributes) -> None:
    """Write an event that schedules no task. While a worker has the task, hold the event back until the task's
    completion.
    """
    if builder.run.task_is_started:
        builder.write_or_hold(attributes)
    else:
        builder.write(attributes)


def reset_activity(run: Run, activity: OpenActivity, forget_heartbeat: bool, now_ns: int) -> Change:
    """Reset the attempts of an activity. An attempt in progress continues, and the next attempt has number 1."""
    builder = ChangeBuilder(run, now_ns)
    if activity.started_ns:
        changed = msgspec.structs.replace(activity, earlier=activity.attempt)
    else:
        changed = msgspec.structs.replace(activity, earlier=activity.attempt - 1, available_ns=now_ns)
    if forget_heartbeat:
        changed = msgspec.structs.replace(changed, heartbeat_details=())
    builder.put_activity(changed)
    return builder.build()


def change_override(run: Run, override: VersioningOverride | None, identity: str, now_ns: int) -> Change:
    """Set or remove the versioning override of the run."""
    builder = ChangeBuilder(run, now_ns)
    _write_or_hold(
        builder, h.WorkflowExecutionOptionsUpdated(identity=identity, versioning_override=override)
    )
    builder.update(override=override, override_changed=True)
    return builder.build()


def change_priority(run: Run, priority: RunPriority, identity: str, now_ns: int) -> Change:
    """Set the priority of the run."""
    builder = ChangeBuilder(run, now_ns)
    fields = msgspec.structs.asdict(priority)
    _write_or_hold(builder, h.WorkflowExecutionOptionsUpdated(identity=identity, **fields))
    builder.update(priority=priority, started=priority.of(run.started))
    return builder.build()


def pause_activity(run: Run, activity: OpenActivity, paused: bool, now_ns: int) -> Change:
    """Pause or unpause an activity. While it is paused, no new attempt begins."""
    builder = ChangeBuilder(run, now_ns)
    builder.put_activity(msgspec.structs.replace(activity, paused=paused))
    return builder.build()


def change_activity(run: Run, activity: OpenActivity, spec: ActivitySpec, now_ns: int) -> Change:
    """Set the current options of an activity."""
    builder = ChangeBuilder(run, now_ns)
    changed = None if spec == activity.scheduled.spec else spec
    builder.put_activity(msgspec.structs.replace(activity, spec=spec, changed=changed))
    return builder.build()


def end_overgrown(run: Run, reason: str, now_ns: int) -> Change:
    """Terminate a run that has exceeded its limits."""
    builder = ChangeBuilder(run, now_ns)
    final = h.WorkflowExecutionTerminated(reason=reason, identity="history-service")
    builder.close(final, WorkflowStatus.TERMINATED)
    return builder.build()


def give_back_attempt(run: Run, activity: OpenActivity, now_ns: int) -> Change:
    """Return an attempt that has not reached its worker to the backlog, as if no worker had received it."""
    builder = ChangeBuilder(run, now_ns)
    waits = activities.put_off(activity, max(0, now_ns - activity.started_ns))
    builder.put_activity(msgspec.structs.replace(waits, started_ns=0, heartbeat_ns=0))
    return builder.build()


def hand_out_attempt(run: Run, activity: OpenActivity, now_ns: int) -> Change:
    """Start the timeouts of an attempt that had to wait for a commit and now reaches its worker."""
    builder = ChangeBuilder(run, now_ns)
    late = activities.put_off(activity, max(0, now_ns - activity.started_ns))
    builder.put_activity(
        msgspec.structs.replace(late, started_ns=now_ns, last_started_ns=now_ns, heartbeat_ns=now_ns)
    )
    return builder.build()


def began_later(run: Run, now_ns: int) -> bool:
    """Whether a timer, attempt or task of the run has a start time in the future, because the clock was ahead and has
    been set back.
    """
    task = run.task
    return (
        run.start_ns > now_ns
        or (task is not None and (task.started_ns > now_ns or task.available_ns > _latest_task(run, now_ns)))
        or any(timer.began_ns > now_ns for timer in run.timers.values())
        or any(_activity_began_later(activity, now_ns) for activity in run.activities.values())
    )


def _activity_began_later(activity: OpenActivity, now_ns: int) -> bool:
    latest = max(activity.scheduled_ns, activity.started_ns, activity.heartbeat_ns)
    return latest > now_ns or activity.available_ns > _latest_attempt(activity, now_ns)


def _latest_task(run: Run, now_ns: int) -> int:
    """Return the latest time at which a run's task may become available, assuming that the previous attempt failed just
    now.
    """
    return now_ns if run.task is None else now_ns + to_ns(wait_before(run, run.task.attempt))


def _latest_attempt(activity: OpenActivity, now_ns: int) -> int:
    """Return the latest time at which the next attempt may become available, assuming that the previous attempt failed
    just now.
    """
    if activity.attempt == 1:
        return now_ns
    delay = next_delay(activities.retry_rule(activity), max(activity.tries - 1, 1), activity.last_failure)
    return now_ns + to_ns(delay)


def set_back(run: Run, now_ns: int) -> Change:
    """Move the start times of timers, activities and tasks that began while the clock was ahead to the current time.
    Events in the history keep their timestamps.
    """
    builder = ChangeBuilder(run, now_ns)
    for timer in tuple(run.timers.values()):
        if timer.began_ns > now_ns:
            left = timer.due_ns - timer.began_ns
            builder.put_timer(msgspec.structs.replace(timer, began_ns=now_ns, due_ns=now_ns + left))
    for activity in tuple(run.activities.values()):
        if _activity_began_later(activity, now_ns):
            builder.put_activity(
                msgspec.structs.replace(
                    activity,
                    scheduled_ns=min(activity.scheduled_ns, now_ns),
                    after_ns=max(activity.after_ns, activity.scheduled_ns),
                    available_ns=min(activity.available_ns, _latest_attempt(activity, now_ns)),
                    started_ns=min(activity.started_ns, now_ns),
                    last_started_ns=min(activity.last_started_ns, now_ns),
                    heartbeat_ns=min(activity.heartbeat_ns, now_ns),
                )
            )
    task = run.task
    if task is not None and max(task.started_ns, task.available_ns) > now_ns:
        available = min(task.available_ns, _latest_task(run, now_ns))
        builder.set_task(
            msgspec.structs.replace(task, started_ns=min(task.started_ns, now_ns), available_ns=available)
        )
    if run.start_ns > now_ns:
        builder.update(start_ns=now_ns)
    return builder.build()


def put_off_activities(run: Run, event_ids: Iterable[int], since_ns: int, now_ns: int) -> Change:
    """Exclude the time since `since_ns` from the timeouts of these waiting activities, because the store was stalled and
    no worker could receive them.
    """
    builder = ChangeBuilder(run, now_ns)
    for event_id in event_ids:
        activity = run.activities[event_id]
        withheld = now_ns - max(since_ns, activity.available_ns)
        builder.put_activity(activities.put_off(activity, max(0, withheld)))
    return builder.build()


def defer_activity(run: Run, activity: OpenActivity, now_ns: int) -> Change:
    """Mark an attempt as deferred: a client will complete it by its token (asynchronous completion)."""
    builder = ChangeBuilder(run, now_ns)
    builder.put_activity(msgspec.structs.replace(activity, deferred=True))
    return builder.build()


def heartbeat(run: Run, activity: OpenActivity, details: Payloads, now_ns: int) -> Change:
    """Record a heartbeat of an attempt."""
    builder = ChangeBuilder(run, now_ns)
    builder.put_activity(msgspec.structs.replace(activity, heartbeat_ns=now_ns, heartbeat_details=details))
    return builder.build()


def complete_activity(
    run: Run,
    activity: OpenActivity,
    result: Payload | None,
    identity: str,
    eager: Eager | None,
    now_ns: int,
) -> Change:
    """Complete an activity with its result. With `eager`, the worker immediately receives the resulting workflow task."""
    builder = ChangeBuilder(run, now_ns)
    _end(builder, activity, activities.completed(activity, result, identity))
    if eager is not None:
        take_task(builder, eager)
    return builder.build()


def fail_activity(
    run: Run, activity: OpenActivity, failure: Failure, identity: str, now_ns: int, *, details: Payloads = ()
) -> Change:
    """Fail an attempt: retry the activity, or fail it if it cannot be retried. `details` replace those of the last
    heartbeat.
    """
    builder = ChangeBuilder(run, now_ns)
    if details:
        activity = msgspec.structs.replace(activity, heartbeat_details=details)
    match activities.next_attempt(activity, failure, now_ns):
        case OpenActivity() as again:
            builder.put_activity(again)
        case RetryState() as state:
            _end(builder, activity, activities.failed(activity, failure, state, identity))
    return builder.build()


def cancel_activity(
    run: Run, activity: OpenActivity, details: Payloads, identity: str, now_ns: int
) -> Change:
    """End an activity whose attempt was cancelled."""
    builder = ChangeBuilder(run, now_ns)
    _end(builder, activity, activities.canceled(activity, details, identity))
    return builder.build()


def elapse(
    run: Run, event_ids: Iterable[int], new_run_id: str, now_ns: int, *, task_is_withheld: bool = False
) -> Change:
    """Apply the due deadlines of these activities and timers, the earliest first, and of the run as a whole.

    `task_is_withheld`: the task may not have reached its worker, because the store is stalled. The task's timeout then
    starts again instead of expiring.
    """
    builder = ChangeBuilder(run, now_ns)
    if run.deadline_ns and now_ns >= run.deadline_ns:
        return time_out_run(builder, new_run_id)
    if run.needs_first_task:
        builder.want_task()
    named = tuple(event_ids)
    _fire_timers(builder, named)
    for event_id in named:
        activity = run.activities.get(event_id)
        if activity is not None:
            _expire(builder, activity)
    task = builder.run.task
    if task is not None and task.started_event_id:
        due = later(task.started_ns, to_ns(run.started.spec.task_timeout))
        if now_ns >= due and task_is_withheld:
            builder.set_task(msgspec.structs.replace(task, started_ns=now_ns))
        elif now_ns >= due:
            time_out_task(builder)
    return builder.build()


def _fire_timers(builder: ChangeBuilder, event_ids: Iterable[int]) -> None:
    running = [builder.run.timers[event_id] for event_id in event_ids if event_id in builder.run.timers]
    due = [timer for timer in running if timer.due_ns <= builder.now_ns]
    for timer in sorted(due, key=lambda timer: (timer.due_ns, timer.started_event_id)):
        builder.drop_timer(timer.started_event_id)
        builder.write_or_hold(h.TimerFired(timer_id=timer.timer_id, started_event_id=timer.started_event_id))


def _expire(builder: ChangeBuilder, activity: OpenActivity) -> None:
    when, kind = activities.deadline(activity)
    if when and when <= builder.now_ns:
        lose_attempt(builder, activity, activities.timeout_failure(activity, kind))


def lose_attempt(builder: ChangeBuilder, activity: OpenActivity, failure: Failure) -> None:
    """Time out an attempt: retry the activity, or end it if it cannot be retried."""
    match activities.next_attempt(activity, failure, builder.now_ns):
        case OpenActivity() as again:
            failure = activities.without_details(failure)
            builder.put_activity(msgspec.structs.replace(again, last_failure=failure))
        case RetryState() as state:
            _end(builder, activity, activities.timed_out(activity, failure, state))


def time_out_run(builder: ChangeBuilder, new_run_id: str) -> Change:
    """Time out the run. Open the next run if the retry policy or the cron schedule requires it."""
    state, follower = next_attempt_or_run(builder.run, None, new_run_id, builder.now_ns)
    following = "" if follower is None else new_run_id
    builder.close(
        h.WorkflowExecutionTimedOut(retry_state=state, new_run_id=following), WorkflowStatus.TIMED_OUT
    )
    return builder.build(follower)


def _end(builder: ChangeBuilder, activity: OpenActivity, events: tuple[h.Attributes, ...]) -> None:
    builder.drop_activity(activity.scheduled_event_id)
    if builder.run.is_standalone_activity:
        standalone.end(builder, events)
    else:
        builder.write_or_hold(*events)


def needs_recovery(run: Run) -> bool:
    """Whether a worker may have had the task or an attempt of this run."""
    return run.task_is_started or _is_speculative(run) or any(map(_was_executing, run.activities.values()))


def recover(
    run: Run,
    new_run_id: str,
    now_ns: int,
    *,
    at_once: bool = False,
    living: Collection[str] = (),
    keep_attempts: bool = False,
) -> Change:
    """Recover a run after the end of the process that served it.

    The attempts are lost as if their heartbeats had timed out. They are retried according to their policies, or
    immediately with `at_once`, if another process has taken over. Attempts of workers whose identity is in `living`
    continue. With `keep_attempts` all attempts continue. The run's task times out, and the next attempt of the task is
    scheduled immediately.
    """
    builder = ChangeBuilder(run, now_ns)
    if run.deadline_ns and now_ns >= run.deadline_ns:
        return time_out_run(builder, new_run_id)
    for activity in run.activities.values():
        if _was_executing(activity) and not keep_attempts and activity.identity not in living:
            _lose_with_process(builder, activity, at_once)
    if _is_speculative(builder.run):
        forget_speculative_task(builder)
    elif builder.run.task_is_started:
        time_out_task(builder, at_once=True)
    return builder.build()


def lose_attempt_of(run: Run, activity: OpenActivity, now_ns: int) -> Change:
    """Lose an attempt because its worker's process has ended. Other processes still serve the run."""
    builder = ChangeBuilder(run, now_ns)
    _lose_with_process(builder, activity, True)
    return builder.build()


def _lose_with_process(builder: ChangeBuilder, activity: OpenActivity, at_once: bool) -> None:
    """Lose an attempt because its process has ended.

    The activity is probably not the cause. With `at_once`, it is therefore retried immediately if its policy allows a
    retry. If the previous attempt was lost as well, the activity may be what ends the processes, so the policy's
    interval applies.
    """
    before = activity.last_failure
    lose_attempt(builder, activity, activities.lost_failure(activity))
    again = builder.run.activities.get(activity.scheduled_event_id)
    if at_once and again is not None and (before is None or before.message != activities.LOST):
        builder.put_activity(msgspec.structs.replace(again, available_ns=builder.now_ns))


def lose_task(run: Run, now_ns: int) -> Change:
    """Time out the run's task because its worker's process has ended, and schedule the next attempt immediately."""
    builder = ChangeBuilder(run, now_ns)
    time_out_task(builder, at_once=True)
    return builder.build()


def is_backing_off(run: Run, now_ns: int) -> bool:
    """Whether the run's task keeps failing and the run is waiting before the next attempt."""
    task = run.task
    return task is not None and task.attempt > 1 and not task.started_event_id and task.available_ns > now_ns


def try_now(run: Run, now_ns: int) -> Change:
    """Retry a failing task immediately, because another process now serves the run, perhaps with fixed code."""
    builder = ChangeBuilder(run, now_ns)
    task = run.task
    if task is not None and is_backing_off(run, now_ns):
        builder.update(task=None)
        builder.want_task_again(task.attempt, now_ns, silent=task.silent)
    return builder.build()


def _is_speculative(run: Run) -> bool:
    """Whether the run's task was scheduled for updates that waited in memory. Such updates are lost with the process,
    and their clients repeat them.
    """
    return run.task is not None and run.task.speculative


def _was_executing(activity: OpenActivity) -> bool:
    """Whether a process was executing the attempt. A deferred attempt does not need its process any more."""
    return activity.started_ns != 0 and not activity.deferred
