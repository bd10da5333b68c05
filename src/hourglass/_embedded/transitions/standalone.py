"""Standalone activities: each is a run that has one activity, no code and no workflow task. Pure.

The run opens with the activity and closes when the activity ends. The rules for attempts, retries and timeouts are those
in `activities` and `transitions`. The run is marked by its `root_run_id`, and has a workflow id that no workflow can
have. Lists distinguish activities from workflows by that id (`api.activity_requests`).
"""

from __future__ import annotations

import msgspec

from hourglass._contract.activities import ActivityExecutionStatus, CancelActivity, StartActivity
from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import later, to_ns
from hourglass._embedded.transitions import activities
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.run import STANDALONE, Change, OpenActivity, Run
from hourglass._evaluator.commands import ScheduleActivity
from hourglass._evaluator.specs import StartSpec
from hourglass._history import events as h
from hourglass.converter import Payload

PREFIX = "__activity/"
"""The prefix of the workflow ids of standalone activities."""

RESERVED = (
    f"workflow ids that begin with {PREFIX!r} belong to activities without a workflow: choose another id"
)

STATUS = {
    WorkflowStatus.RUNNING: ActivityExecutionStatus.RUNNING,
    WorkflowStatus.COMPLETED: ActivityExecutionStatus.COMPLETED,
    WorkflowStatus.FAILED: ActivityExecutionStatus.FAILED,
    WorkflowStatus.CANCELED: ActivityExecutionStatus.CANCELED,
    WorkflowStatus.TERMINATED: ActivityExecutionStatus.TERMINATED,
    WorkflowStatus.TIMED_OUT: ActivityExecutionStatus.TIMED_OUT,
}


def begin(request: StartActivity, run_id: str, now_ns: int) -> Change:
    """Open the run of a new standalone activity. Its first attempt waits for a worker."""
    spec = request.spec
    started = h.WorkflowExecutionStarted(
        workflow_id=PREFIX + request.activity_id,
        workflow_type=request.activity_type,
        original_run_id=run_id,
        first_run_id=run_id,
        identity=request.identity,
        root_workflow_id=request.activity_id,
        root_run_id=STANDALONE,
        spec=StartSpec(
            task_queue=spec.task_queue,
            search_attributes=request.search_attributes,
            static_summary=request.static_summary,
            static_details=request.static_details,
        ),
    )
    run = Run(run_id=run_id, started=started, start_ns=now_ns, search_attributes=request.search_attributes)
    builder = ChangeBuilder(run, now_ns)
    builder.write(started)
    command = ScheduleActivity(
        seq=1,
        activity_id=request.activity_id,
        activity_type=request.activity_type,
        spec=spec,
        arguments=request.arguments,
        headers=request.headers,
    )
    scheduled = activities.plan(command, spec.task_queue, 0.0, 0)
    builder.put_activity(
        OpenActivity(
            scheduled_event_id=builder.write(scheduled),
            scheduled=scheduled,
            spec=scheduled.spec,
            scheduled_ns=now_ns,
            available_ns=later(now_ns, to_ns(request.start_delay)),
        )
    )
    return builder.build()


def end(builder: ChangeBuilder, events: tuple[h.Attributes, ...]) -> None:
    """Write the events that end the activity, and close the run."""
    builder.write_occurrences(events)
    match events[-1]:
        case h.ActivityTaskCompleted(result=result):
            final: h.Attributes = h.WorkflowExecutionCompleted(
                result=h.NO_RESULT if result is None else result, task_completed_event_id=0
            )
            builder.close(final, WorkflowStatus.COMPLETED)
        case h.ActivityTaskCanceled(details=details):
            final = h.WorkflowExecutionCanceled(task_completed_event_id=0, details=details)
            builder.close(final, WorkflowStatus.CANCELED)
        case h.ActivityTaskTimedOut(failure=failure, retry_state=state):
            final = h.WorkflowExecutionFailed(failure=failure, retry_state=state, task_completed_event_id=0)
            builder.close(final, WorkflowStatus.TIMED_OUT)
        case h.ActivityTaskFailed(failure=failure, retry_state=state):
            final = h.WorkflowExecutionFailed(failure=failure, retry_state=state, task_completed_event_id=0)
            builder.close(final, WorkflowStatus.FAILED)


def request_cancel(run: Run, request: CancelActivity, now_ns: int) -> Change:
    """Record a client's request to cancel the activity. A running attempt is notified, and a waiting attempt never
    starts.
    """
    builder = ChangeBuilder(run, now_ns)
    if run.cancel_requested:
        return builder.build()
    builder.write(h.WorkflowExecutionCancelRequested(reason=request.reason, identity=request.identity))
    builder.update(cancel_requested=True)
    for activity in tuple(run.activities.values()):
        scheduled = activity.scheduled_event_id
        requested_event_id = builder.write(
            h.ActivityTaskCancelRequested(scheduled_event_id=scheduled, task_completed_event_id=0)
        )
        activity = msgspec.structs.replace(activity, cancel_requested_event_id=requested_event_id)
        if activity.started_ns:
            builder.put_activity(activity)
        else:
            builder.drop_activity(scheduled)
            details: tuple[Payload, ...] = ()
            end(builder, activities.canceled(activity, details, request.identity))
    return builder.build()
