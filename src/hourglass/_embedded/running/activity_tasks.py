"""An attempt of an activity as a worker gets it and gives it back. Pure."""

from __future__ import annotations

from hourglass._contract.handle import ActivityTask
from hourglass._embedded.rules.draft import key_of
from hourglass._embedded.rules.run import Activity, Run
from hourglass.converter import ApplicationFailure, Failure


def activity_task(namespace: str, run: Run, activity: Activity, token: bytes) -> ActivityTask:
    """The task of an attempt that has started."""
    spec = activity.spec
    return ActivityTask(
        token=token,
        activity_id=spec.activity_id,
        activity_type=spec.activity_type,
        arguments=spec.arguments,
        attempt=activity.attempt,
        namespace=namespace,
        task_queue=spec.task_queue,
        workflow_id=run.started.workflow_id,
        run_id=run.run_id,
        workflow_type=run.started.workflow_type,
        headers=spec.headers,
        heartbeat_details=activity.heartbeat_details,
        scheduled_time_ns=activity.scheduled_ns,
        current_attempt_scheduled_time_ns=activity.available_ns,
        started_time_ns=activity.started_ns,
        schedule_to_close_timeout=spec.schedule_to_close_timeout,
        start_to_close_timeout=spec.start_to_close_timeout,
        heartbeat_timeout=spec.heartbeat_timeout,
        retry_policy=spec.retry_policy,
        priority_key=key_of(run, activity),
    )


def unasked(failure: Failure) -> Failure:
    """The failure of an attempt that stopped although nobody cancelled it (its worker shuts down): worth a
    retry.
    """
    return Failure(
        failure.message or "the attempt stopped without being asked to",
        ApplicationFailure(type="WorkerShutdown"),
        cause=failure,
    )
