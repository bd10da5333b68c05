"""What a worker is told of events that need no memory of what it asked for, and in which order. Pure.

Must not know: cursors, commands, what comes before or after.
"""

from __future__ import annotations

from hourglass._embedded.rules.seed import seed_of
from hourglass._engine import events as e
from hourglass._history import events as h


def told_of(attributes: h.Attributes) -> e.AnyEvent | None:
    """What an event tells by itself; None if that depends on what was asked for, or is nothing."""
    match attributes:
        case h.WorkflowExecutionSignaled():
            return e.SignalReceived(
                attributes.signal_name, attributes.arguments, attributes.identity, attributes.headers
            )
        case h.WorkflowTaskFailed(cause=h.RESET_WORKFLOW):
            return e.SeedChanged(seed_of(attributes.new_run_id))
        case h.WorkflowExecutionCancelRequested():
            return e.CancelRequested(attributes.reason)
        case _:
            return None


def rank(event: e.AnyEvent) -> int:
    """Core's order of jobs within an activation; equal ranks keep the order of history."""
    match event:
        case e.RunStarted():
            return 0
        case e.PatchNoticed():
            return 1
        case e.SeedChanged():
            return 2
        case e.SignalReceived() | e.UpdateReceived():
            return 3
        case e.ActivityCompleted(is_local=True) | e.ActivityFailed(is_local=True):
            return 5
        case e.ActivityCancelled(is_local=True) | e.ActivityBackedOff():
            return 5
        case _:
            return 4


def run_started(a: h.WorkflowExecutionStarted, start_ns: int) -> e.RunStarted:
    """What the worker is told of the beginning."""
    return e.RunStarted(
        workflow_type=a.workflow_type,
        workflow_id=a.workflow_id,
        arguments=a.arguments,
        seed=seed_of(a.original_run_id),
        attempt=a.attempt,
        headers=a.headers,
        identity=a.identity,
        parent_namespace=a.parent_namespace,
        parent_workflow_id=a.parent_workflow_id,
        parent_run_id=a.parent_run_id,
        root_workflow_id=a.root_workflow_id,
        root_run_id=a.root_run_id,
        execution_timeout=a.execution_timeout,
        run_timeout=a.run_timeout,
        task_timeout=a.task_timeout,
        retry_policy=a.retry_policy,
        cron_schedule=a.cron_schedule,
        continued_run_id=a.continued_run_id,
        first_execution_run_id=a.first_run_id,
        original_execution_run_id=a.original_run_id,
        last_completion_result=a.last_completion_result,
        last_failure=a.continued_failure,
        memo=a.memo,
        search_attributes=a.search_attributes,
        start_time_ns=start_ns,
        priority_key=a.priority_key,
    )
