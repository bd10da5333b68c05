"""What clients ask of the in-memory engine: one small handler per request, and the table of them.

Must not know: handles, activations. Refusals are worded as the Temporal server words them. Long polls end
after `LONG_POLL` seconds of real time, whatever the engine's clock says: they are about patience, not about
workflows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from hourglass._bridge import service as s
from hourglass._embedded import history as h
from hourglass._embedded import transitions
from hourglass._embedded.engine import MemoryEngine, Record, Token
from hourglass._embedded.history_json import event_json
from hourglass._embedded.listing import matches, parse_filter, summary
from hourglass._embedded.queries import Query
from hourglass._embedded.run import Activity
from hourglass._embedded.starting import start_workflow
from hourglass._engine.events import QueryReceived
from hourglass.errors import ServiceError, WorkflowNotFoundError

LONG_POLL = 20.0
PAGE = 1000


async def start(engine: MemoryEngine, request: s.StartWorkflow) -> s.Started:
    """Start a workflow."""
    return start_workflow(engine, request)


async def signal(engine: MemoryEngine, request: s.SignalWorkflow) -> s.Nothing:
    """Send a signal."""
    record = _open(engine, request.workflow_id, request.run_id)
    engine.change(record, lambda run, now: transitions.signal(run, request, now))
    return s.Nothing()


async def query(engine: MemoryEngine, request: s.QueryWorkflow) -> s.QueryAnswer:
    """Ask a question."""
    record = find(engine, request.workflow_id, request.run_id)
    queue = record.run.started.task_queue
    if not any(taker.takes_workflows for taker in engine.offers.takers(queue)):
        raise ServiceError(
            f"no poller seen for task queue recently, worker may be down (task queue {queue!r})",
            status="FAILED_PRECONDITION",
        )
    if record.run.task is not None and record.run.task.attempt > 2:
        raise ServiceError(
            "Cannot query workflow: its workflow task keeps failing", status="FAILED_PRECONDITION"
        )
    event = QueryReceived(engine.new_run_id(), request.query_name, request.arguments, request.headers)
    asked = Query(event, asyncio.get_running_loop().create_future())
    engine.ask(record, asked)
    result = await asked.answer
    return s.QueryAnswer(() if result is None else (result,))


async def cancel(engine: MemoryEngine, request: s.CancelWorkflow) -> s.Nothing:
    """Ask a workflow to cancel. One that has closed does not mind."""
    record = find(engine, request.workflow_id, request.run_id, request.first_execution_run_id)
    if record.run.is_open:
        engine.change(record, lambda run, now: transitions.request_cancel(run, request, now))
    return s.Nothing()


async def terminate(engine: MemoryEngine, request: s.TerminateWorkflow) -> s.Nothing:
    """End a workflow now."""
    record = _open(engine, request.workflow_id, request.run_id, request.first_execution_run_id)
    engine.change(record, lambda run, now: transitions.terminate(run, request, now))
    return s.Nothing()


async def describe(engine: MemoryEngine, request: s.DescribeWorkflow) -> s.Description:
    """Look at one run."""
    run = find(engine, request.workflow_id, request.run_id).run
    return s.Description(
        summary=summary(run),
        pending_activities=tuple(_pending(activity) for activity in run.activities.values()),
        task_attempt=run.task.attempt if run.task else 0,
        first_execution_run_id=run.started.first_run_id,
        static_summary=run.started.static_summary,
        static_details=run.started.static_details,
    )


async def list_workflows(engine: MemoryEngine, request: s.ListWorkflows) -> s.Page:
    """List runs, newest first."""
    terms = parse_filter(request.query)
    chosen = [record.run for record in engine.records() if matches(record.run, terms)][::-1]
    begin = _offset(request.next_page_token)
    end = begin + max(1, request.page_size)
    token = str(end).encode() if end < len(chosen) else b""
    return s.Page(tuple(summary(run) for run in chosen[begin:end]), token)


async def count(engine: MemoryEngine, request: s.CountWorkflows) -> s.Count:
    """Count runs."""
    terms = parse_filter(request.query)
    return s.Count(sum(matches(record.run, terms) for record in engine.records()))


async def wait_for_close(engine: MemoryEngine, request: s.WaitForClose) -> s.Outcome:
    """Wait until a run closes."""
    record = find(engine, request.workflow_id, request.run_id)
    await _wait(record, lambda: not record.run.is_open, request.rpc_timeout)
    return _outcome(record)


async def get_history(engine: MemoryEngine, request: s.GetHistory) -> s.HistoryPage:
    """A page of a history."""
    record = find(engine, request.workflow_id, request.run_id)
    begin = _offset(request.next_page_token)
    if request.wait_new:
        await _wait(record, lambda: len(record.events) > begin or not record.run.is_open, request.rpc_timeout)
    end = min(begin + PAGE, len(record.events))
    more = end < len(record.events) or (request.wait_new and record.run.is_open)
    page = tuple(event_json(event) for event in record.events[begin:end])
    return s.HistoryPage(page, str(end).encode() if more else b"")


async def complete_activity(engine: MemoryEngine, request: s.CompleteActivity) -> s.Nothing:
    """End an activity from outside."""
    token, record, activity = _attempt(
        engine, request.token, request.workflow_id, request.run_id, request.activity_id
    )
    who = request.identity
    failure = request.failure
    if failure is None and request.cancelled and not activity.cancel_requested_event_id:
        raise ServiceError("the activity was not asked to cancel", status="INVALID_ARGUMENT")
    engine.release(token)
    if failure is not None:
        engine.change(record, lambda run, now: transitions.fail_activity(run, activity, failure, who, now))
    elif request.cancelled:
        details = request.cancelled_details
        engine.change(record, lambda run, now: transitions.cancel_activity(run, activity, details, who, now))
    else:
        engine.change(
            record, lambda run, now: transitions.complete_activity(run, activity, request.result, who, now)
        )
    return s.Nothing()


async def heartbeat_activity(engine: MemoryEngine, request: s.HeartbeatActivity) -> s.HeartbeatAnswer:
    """Report that an activity lives."""
    _, record, activity = _attempt(
        engine, request.token, request.workflow_id, request.run_id, request.activity_id
    )
    engine.change(record, lambda run, now: transitions.heartbeat(run, activity, request.details, now))
    return s.HeartbeatAnswer(bool(activity.cancel_requested_event_id))


HANDLERS: dict[type[s.Request[Any]], Callable[[MemoryEngine, Any], Awaitable[Any]]] = {
    s.StartWorkflow: start,
    s.SignalWorkflow: signal,
    s.QueryWorkflow: query,
    s.CancelWorkflow: cancel,
    s.TerminateWorkflow: terminate,
    s.DescribeWorkflow: describe,
    s.ListWorkflows: list_workflows,
    s.CountWorkflows: count,
    s.WaitForClose: wait_for_close,
    s.GetHistory: get_history,
    s.CompleteActivity: complete_activity,
    s.HeartbeatActivity: heartbeat_activity,
}
"""Who handles what; a request that is not here is one that this engine does not know yet."""

PATIENT: tuple[type[s.Request[Any]], ...] = (s.WaitForClose, s.GetHistory)
"""Requests whose time limit ends the wait with an answer, not with an error."""


def find(engine: MemoryEngine, workflow_id: str, run_id: str = "", first_run_id: str = "") -> Record:
    """The run that a request names; raises `WorkflowNotFoundError`."""
    record = engine.record(run_id) if run_id else engine.current(workflow_id)
    if record is None or record.run.started.workflow_id != workflow_id:
        raise WorkflowNotFoundError(f"workflow not found for ID: {workflow_id}", status="NOT_FOUND")
    if first_run_id and record.run.started.first_run_id != first_run_id:
        raise WorkflowNotFoundError(
            f"workflow not found for ID: {workflow_id} with first run {first_run_id}", status="NOT_FOUND"
        )
    return record


def _open(engine: MemoryEngine, workflow_id: str, run_id: str, first_run_id: str = "") -> Record:
    record = find(engine, workflow_id, run_id, first_run_id)
    if not record.run.is_open:
        raise WorkflowNotFoundError("workflow execution already completed", status="NOT_FOUND")
    return record


def _attempt(
    engine: MemoryEngine, token: bytes, workflow_id: str, run_id: str, activity_id: str
) -> tuple[Token, Record, Activity]:
    """The running attempt that a request names, by token or by ids."""
    found: tuple[Record, Activity] | None = None
    if token:
        try:
            name = Token.decode(token)
        except ValueError:
            raise ServiceError("the task token is malformed", status="INVALID_ARGUMENT") from None
        found = engine.attempt(name)
        if found is not None:
            return name, *found
    else:
        record = find(engine, workflow_id, run_id)
        for activity in record.run.activities.values():
            if activity.spec.activity_id == activity_id and activity.started_ns:
                name = Token(record.run.run_id, activity.scheduled_event_id, activity.attempt)
                return name, record, activity
    raise ServiceError(
        "invalid activityID or activity already timed out or invoking workflow is completed",
        status="NOT_FOUND",
    )


def _offset(token: bytes) -> int:
    if not token:
        return 0
    if not token.isdigit():
        raise ServiceError("the page token is malformed", status="INVALID_ARGUMENT")
    return int(token)


async def _wait(record: Record, done: Callable[[], bool], limit: float | None) -> None:
    """Wait until it is done, or until patience ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONG_POLL if limit is None else min(limit, LONG_POLL)):
            while not done():
                await record.changed.wait()


def _outcome(record: Record) -> s.Outcome:
    match record.run.final:
        case h.WorkflowExecutionCompleted() as final:
            return s.RunCompleted((final.result,), final.new_run_id)
        case h.WorkflowExecutionFailed() as final:
            return s.RunFailed(final.failure, final.new_run_id)
        case h.WorkflowExecutionCanceled() as final:
            return s.RunCanceled(final.details)
        case h.WorkflowExecutionTerminated() as final:
            return s.RunTerminated(final.reason, final.details)
        case h.WorkflowExecutionTimedOut() as final:
            return s.RunTimedOut(final.new_run_id)
        case h.WorkflowExecutionContinuedAsNew() as final:
            return s.RunContinued(final.new_run_id)
        case _:
            return s.StillOpen(record.run.run_id)


def _pending(activity: Activity) -> s.PendingActivity:
    state = "SCHEDULED"
    if activity.started_ns:
        state = "CANCEL_REQUESTED" if activity.cancel_requested_event_id else "STARTED"
    return s.PendingActivity(
        activity_id=activity.spec.activity_id,
        activity_type=activity.spec.activity_type,
        state=state,
        attempt=activity.attempt,
        maximum_attempts=activity.spec.retry_policy.maximum_attempts,
        last_failure=activity.last_failure,
        next_attempt_time_ns=0 if activity.started_ns else activity.available_ns,
        last_started_time_ns=activity.last_started_ns,
        last_worker_identity=activity.identity,
    )
