"""Request handlers that only read: descriptions, lists, counts, histories.

Must not know: handles, tasks. The returned data is durable or about to be. If a commit takes long, the stored state
is returned instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from hourglass._contract import workflows as wf
from hourglass._embedded.api.answering import (
    MOST_LISTED,
    Handlers,
    PendingAnswer,
    answered,
    find,
    is_written,
    last_heartbeat_ns,
    state_of,
    stored,
    wait,
)
from hourglass._embedded.engine import Engine
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.store.store import summary
from hourglass._embedded.transitions.activities import retry_rule
from hourglass._embedded.transitions.run import OpenActivity, OpenChild, Run
from hourglass._embedded.transitions.versioning import behavior, pinned_version
from hourglass._history import events as h
from hourglass._history.codec import event_json
from hourglass.errors import ServiceError

PAGE = 1000
"""The maximum number of events on a page of history."""


async def describe(engine: Engine, request: wf.DescribeWorkflow) -> PendingAnswer[wf.Description]:
    record = find(engine, request.workflow_id, request.run_id)
    return await answered(
        engine,
        engine.writes.number_of(record),
        _described(record.run, _pending_updates(engine, record)),
        lambda: _described(stored(engine, record).run),
    )


def _pending_updates(engine: Engine, record: LoadedRun) -> tuple[wf.PendingUpdate, ...]:
    if record.updates is None or not record.run.is_open:
        return ()
    waiting = engine.updates.of(record).waiting.values()
    return tuple(
        wf.PendingUpdate(update_id=update.request.update_id, name=update.request.name) for update in waiting
    )


def _described(run: Run, updates: tuple[wf.PendingUpdate, ...] = ()) -> wf.Description:
    return wf.Description(
        summary=summary(run),
        pending_activities=tuple(_pending(activity) for activity in run.activities.values()),
        task_attempt=run.task.attempt if run.task else 0,
        first_execution_run_id=run.started.first_run_id,
        static_summary=run.started.spec.static_summary,
        static_details=run.started.spec.static_details,
        pending_children=tuple(_pending_child(child) for child in run.children.values()),
        next_task_time_ns=0 if run.task is None or run.task.started_event_id else run.task.available_ns,
        versioning_behavior=behavior(run),
        deployment_version=pinned_version(run) or run.version,
        pending_updates=updates,
    )


def _pending(activity: OpenActivity) -> wf.PendingActivity:
    return wf.PendingActivity(
        activity_id=activity.scheduled.activity_id,
        activity_type=activity.scheduled.activity_type,
        state=state_of(activity),
        task_queue=activity.spec.task_queue,
        attempt=activity.attempt - activity.earlier or 1,
        maximum_attempts=retry_rule(activity).maximum_attempts,
        last_failure=activity.last_failure,
        scheduled_time_ns=activity.scheduled_ns,
        next_attempt_time_ns=0 if activity.started_ns else activity.available_ns,
        last_started_time_ns=activity.last_started_ns,
        last_worker_identity=activity.identity,
        last_heartbeat_time_ns=last_heartbeat_ns(activity),
    )


def _pending_child(child: OpenChild) -> wf.PendingChild:
    return wf.PendingChild(
        workflow_id=child.initiated.workflow_id,
        run_id=child.run_id,
        workflow_type=child.initiated.workflow_type,
        parent_close_policy=child.initiated.child.parent_close_policy,
    )


async def list_workflows(engine: Engine, request: wf.ListWorkflows) -> PendingAnswer[wf.Page]:
    await is_written(engine, engine.writes.newest)  # the store reads only durable data
    size = min(max(1, request.page_size), MOST_LISTED)
    page = await engine.store.page(request.query, request.next_page_token, size)
    return PendingAnswer(page, 0)


async def count(engine: Engine, request: wf.CountWorkflows) -> PendingAnswer[wf.Count]:
    await is_written(engine, engine.writes.newest)
    return PendingAnswer(await engine.store.count(request.query), 0)


async def get_history(engine: Engine, request: wf.GetHistory) -> PendingAnswer[wf.HistoryPage]:
    record = find(engine, request.workflow_id, request.run_id)
    begin = _offset(request.next_page_token)
    closing = request.event_filter is wf.HistoryEventFilter.CLOSE_EVENT
    if request.wait_new:
        await wait(
            engine,
            record,
            record.changed,
            lambda: (len(record.events) > begin and not closing) or not record.run.is_open,
            request.rpc_timeout,
        )
        if closing and record.run.is_open:
            return PendingAnswer(wf.HistoryPage((), b"0"), engine.writes.number_of(record))
        page = _history_page(record.events, request, goes_on=record.run.is_open)
        return PendingAnswer(page, engine.writes.number_of(record))
    return await answered(
        engine,
        engine.writes.number_of(record),
        _history_page(record.events, request),
        lambda: _history_page(stored(engine, record).events, request),
    )


def _history_page(
    events: Sequence[h.HistoryEvent], request: wf.GetHistory, goes_on: bool = False
) -> wf.HistoryPage:
    size = min(request.page_size, PAGE) if request.page_size else PAGE
    token = request.next_page_token
    if request.event_filter is wf.HistoryEventFilter.CLOSE_EVENT:
        return wf.HistoryPage(tuple(event_json(event) for event in events[-1:]))
    if request.newest_first:
        end = min(_offset(token), len(events)) if token else len(events)
        begin = max(0, end - size)
        back = tuple(event_json(event) for event in reversed(events[begin:end]))
        return wf.HistoryPage(back, str(begin).encode() if begin else b"")
    begin = _offset(token)
    end = min(begin + size, len(events))
    more = end < len(events) or goes_on
    page = tuple(event_json(event) for event in events[begin:end])
    return wf.HistoryPage(page, str(end).encode() if more else b"")


def _offset(token: bytes) -> int:
    if not token:
        return 0
    if not token.isdigit():
        raise ServiceError("the page token is malformed", status="INVALID_ARGUMENT")
    return int(token)


VIEW_HANDLERS: Handlers = {
    wf.DescribeWorkflow: describe,
    wf.ListWorkflows: list_workflows,
    wf.CountWorkflows: count,
    wf.GetHistory: get_history,
}
"""The handlers of read-only requests."""
