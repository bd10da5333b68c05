"""What happens to a run from outside, and from time passing: `(run, occurrence, now) -> Step`. Pure.

Must not know: handles, queues, where time comes from. The transitions of a workflow task (start, answer,
failure) are in `task_transitions`. Invariants: a closed run never changes; the same request id counts once.
"""

from __future__ import annotations

import msgspec

from hourglass._bridge.service import CancelWorkflow, SignalWorkflow, TerminateWorkflow, WorkflowStatus
from hourglass._embedded import activities
from hourglass._embedded import history as h
from hourglass._embedded.clock import to_ns
from hourglass._embedded.draft import Draft, first_task_ns
from hourglass._embedded.followers import retry_follower
from hourglass._embedded.run import Activity, Run, Step
from hourglass._embedded.task_transitions import time_out_task
from hourglass._engine.events import Payloads
from hourglass.converter import Failure, Payload
from hourglass.errors import RetryState


def open_run(
    run_id: str,
    started: h.WorkflowExecutionStarted,
    now_ns: int,
    signal: h.WorkflowExecutionSignaled | None = None,
) -> Step:
    """A new run; a signal that starts it stands in its history before its first task."""
    run = Run(
        run_id=run_id,
        started=started,
        start_ns=now_ns,
        memo=started.memo,
        search_attributes=started.search_attributes,
    )
    draft = Draft(run, now_ns)
    draft.write(started)
    if signal is not None:
        draft.write(signal)
    draft.want_task()
    return draft.step()


def remember_id(request_id: str, run: Run, now_ns: int) -> Step:
    """A request has been carried out: the same id again changes nothing."""
    draft = Draft(run, now_ns)
    _is_new(draft, request_id)
    return draft.step()


def signal(run: Run, request: SignalWorkflow, now_ns: int) -> Step:
    """Somebody sends a signal."""
    draft = Draft(run, now_ns)
    if _is_new(draft, request.request_id):
        draft.happen(signaled(request))
    return draft.step()


def signaled(request: SignalWorkflow) -> h.WorkflowExecutionSignaled:
    """The event of a signal."""
    return h.WorkflowExecutionSignaled(
        signal_name=request.signal_name,
        arguments=request.arguments,
        identity=request.identity,
        headers=request.headers,
    )


def request_cancel(run: Run, request: CancelWorkflow, now_ns: int) -> Step:
    """Somebody asks the run to cancel; once is enough."""
    draft = Draft(run, now_ns)
    if not run.cancel_requested:
        draft.change(cancel_requested=True)
        draft.happen(h.WorkflowExecutionCancelRequested(reason=request.reason, identity=request.identity))
    return draft.step()


def terminate(run: Run, request: TerminateWorkflow, now_ns: int) -> Step:
    """Somebody ends the run without asking it."""
    draft = Draft(run, now_ns)
    final = h.WorkflowExecutionTerminated(
        reason=request.reason, details=request.details, identity=request.identity
    )
    draft.close(final, WorkflowStatus.TERMINATED)
    return draft.step()


def start_attempt(run: Run, activity: Activity, identity: str, now_ns: int) -> Step:
    """A worker takes an activity's attempt."""
    draft = Draft(run, now_ns)
    _put(
        draft,
        msgspec.structs.replace(
            activity, started_ns=now_ns, last_started_ns=now_ns, heartbeat_ns=now_ns, identity=identity
        ),
    )
    return draft.step()


def heartbeat(run: Run, activity: Activity, details: Payloads, now_ns: int) -> Step:
    """An attempt reports that it lives."""
    draft = Draft(run, now_ns)
    _put(draft, msgspec.structs.replace(activity, heartbeat_ns=now_ns, heartbeat_details=details))
    return draft.step()


def complete_activity(
    run: Run, activity: Activity, result: Payload | None, identity: str, now_ns: int
) -> Step:
    """An attempt returned."""
    draft = Draft(run, now_ns)
    _end(draft, activity, activities.completed(activity, result, identity))
    return draft.step()


def fail_activity(run: Run, activity: Activity, failure: Failure, identity: str, now_ns: int) -> Step:
    """An attempt failed: try again, or give up."""
    draft = Draft(run, now_ns)
    match activities.next_attempt(activity, failure, now_ns):
        case Activity() as again:
            _put(draft, again)
        case RetryState() as state:
            _end(draft, activity, activities.failed(activity, failure, state, identity))
    return draft.step()


def cancel_activity(run: Run, activity: Activity, details: Payloads, identity: str, now_ns: int) -> Step:
    """An attempt ended as it was asked to."""
    draft = Draft(run, now_ns)
    _end(draft, activity, activities.canceled(activity, details, identity))
    return draft.step()


def next_due_ns(run: Run) -> int:
    """When time will do something to the run next; 0 for never."""
    if not run.is_open:
        return 0
    due = [timer.due_ns for timer in run.timers.values()]
    due += [when for when, _ in map(activities.deadline, run.activities.values()) if when]
    if run.deadline_ns:
        due.append(run.deadline_ns)
    if run.task is not None and run.task.started_event_id:
        due.append(run.task.started_ns + to_ns(run.started.task_timeout))
    elif run.task is None and run.task_count == 0:
        due.append(first_task_ns(run))
    return min(due, default=0)


def next_wake_ns(run: Run, now_ns: int) -> int:
    """When the engine must look at the run again: something is due, or a task or attempt may be taken. 0:
    never.
    """
    wakes = [next_due_ns(run)]
    if run.task is not None and not run.task.started_event_id:
        wakes.append(run.task.available_ns)
    wakes += [activity.available_ns for activity in run.activities.values() if not activity.started_ns]
    due = next_due_ns(run)
    return min([wake for wake in wakes if wake > now_ns or (wake and wake == due)], default=0)


def elapse(run: Run, new_run_id: str, now_ns: int) -> Step:
    """Time has passed: do what is due, earliest first."""
    draft = Draft(run, now_ns)
    if run.deadline_ns and now_ns >= run.deadline_ns:
        return _time_out_run(draft, new_run_id)
    if run.task is None and run.task_count == 0:
        draft.want_task()
    _fire_timers(draft)
    for activity in run.activities.values():
        _expire(draft, activity)
    task = draft.run.task
    if task is not None and task.started_event_id:
        due = task.started_ns + to_ns(run.started.task_timeout)
        if now_ns >= due:
            time_out_task(draft)
    return draft.step()


def _fire_timers(draft: Draft) -> None:
    due = sorted(
        (timer.due_ns, timer.started_event_id, timer_id)
        for timer_id, timer in draft.run.timers.items()
        if timer.due_ns <= draft.now_ns
    )
    for _, started, timer_id in due:
        draft.change(timers={key: value for key, value in draft.run.timers.items() if key != timer_id})
        draft.happen(h.TimerFired(timer_id=timer_id, started_event_id=started))


def _expire(draft: Draft, activity: Activity) -> None:
    when, kind = activities.deadline(activity)
    if not when or when > draft.now_ns:
        return
    failure = activities.timeout_failure(activity, kind)
    match activities.next_attempt(activity, failure, draft.now_ns):
        case Activity() as again:
            _put(draft, again)
        case RetryState() as state:
            _end(draft, activity, activities.timed_out(activity, failure, state))


def _time_out_run(draft: Draft, new_run_id: str) -> Step:
    follower = retry_follower(draft.run, None, new_run_id, draft.now_ns)
    if isinstance(follower, RetryState):
        draft.close(h.WorkflowExecutionTimedOut(retry_state=follower), WorkflowStatus.TIMED_OUT)
        return draft.step()
    final = h.WorkflowExecutionTimedOut(retry_state=RetryState.IN_PROGRESS, new_run_id=new_run_id)
    draft.close(final, WorkflowStatus.TIMED_OUT)
    return draft.step(follower)


def _is_new(draft: Draft, request_id: str) -> bool:
    if not request_id:
        return True
    if request_id in draft.run.request_ids:
        return False
    draft.change(request_ids=draft.run.request_ids | {request_id})
    return True


def _put(draft: Draft, activity: Activity) -> None:
    draft.change(activities=draft.run.activities | {activity.scheduled_event_id: activity})


def _end(draft: Draft, activity: Activity, events: tuple[h.Attributes, ...]) -> None:
    left = dict(draft.run.activities)
    del left[activity.scheduled_event_id]
    draft.change(activities=left)
    draft.happen(*events)
