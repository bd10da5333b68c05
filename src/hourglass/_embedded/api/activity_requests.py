"""Requests about standalone activities, and requests that change any activity: pauses, options.

A standalone activity is a run of a special kind (`transitions.standalone`). Lists of activities are lists of runs,
selected by their ids: in a filter, `ActivityType` and `ActivityId` are replaced by the corresponding attributes of
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from hourglass._contract import activities as ac
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._embedded.api.answering import (
    MOST_LISTED,
    Handlers,
    PendingAnswer,
    answered,
    done,
    find,
    find_standalone,
    is_written,
    last_heartbeat_ns,
    pending_activity,
    state_of,
    stored,
    wait,
)
from hourglass._embedded.engine import Engine
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.starting import NO_CALLBACKS, check_room
from hourglass._embedded.store.filters import TokenKind, parse, tokens
from hourglass._embedded.transitions import standalone, transitions
from hourglass._embedded.transitions.activities import plan
from hourglass._embedded.transitions.children import may_reuse
from hourglass._embedded.transitions.run import OpenActivity, Run
from hourglass._evaluator.commands import ScheduleActivity
from hourglass._evaluator.specs import ActivitySpec
from hourglass._history import events as h
from hourglass.converter import CanceledFailure, Failure, TerminatedFailure
from hourglass.errors import ActivityAlreadyStartedError, ActivityNotFoundError, ServiceError

_Naming: TypeAlias = (
    ac.WaitForActivity
    | ac.DescribeActivity
    | ac.ActivityChange
    | ac.DeleteActivity
    | ac.UpdateActivityOptions
)
"""Requests that name a standalone activity."""


def _find_open(engine: Engine, request: _Naming) -> LoadedRun:
    record = find_standalone(engine, request.activity_id, request.run_id)
    if not record.run.is_open:
        raise ActivityNotFoundError("activity execution already completed", status="NOT_FOUND")
    return record


def _pending(
    engine: Engine, request: ac.PauseActivity | ac.UnpauseActivity | ac.UpdateActivityOptions
) -> tuple[LoadedRun, OpenActivity]:
    """Return the pending activity that a request names, either a workflow's or a standalone one, with its run."""
    workflow_id = request.workflow_id
    record = find(engine, workflow_id, request.run_id) if workflow_id else _find_open(engine, request)
    return record, pending_activity(record, request.activity_id)


async def start(engine: Engine, request: ac.StartActivity) -> PendingAnswer[wf.Started]:
    runs = engine.runs
    if not request.activity_id or not request.activity_type or not request.spec.task_queue:
        raise ServiceError("an activity needs an id, a type and a task queue", status="INVALID_ARGUMENT")
    if request.callbacks:
        raise ServiceError(NO_CALLBACKS, status="UNIMPLEMENTED")
    if request.search_attributes:
        flaw = runs.attributes.flaw(request.search_attributes)
        if flaw is not None:
            raise ServiceError(flaw.message, status="INVALID_ARGUMENT")
    existing = engine.current(standalone.PREFIX + request.activity_id)
    if existing is not None:
        if request.request_id and (made := runs.find_request(existing, request.request_id)):
            return PendingAnswer(wf.Started(made), runs.writes.newest)
        run = existing.run
        if run.is_open and request.id_conflict_policy is wf.IdConflictPolicy.USE_EXISTING:
            return PendingAnswer(wf.Started(run.run_id, started=False), runs.writes.number_of(existing))
        if run.is_open or not may_reuse(request.id_reuse_policy, run.status):
            raise ActivityAlreadyStartedError(
                f"activity {request.activity_id!r} has already started (run {run.run_id})",
                activity_id=request.activity_id,
                activity_type=run.started.workflow_type,
                run_id=run.run_id,
            )
    check_room(runs)
    if request.search_attributes:
        runs.attributes.learn(request.search_attributes)
    run_id = runs.new_run_id()
    step = standalone.begin(request, run_id, engine.clock.now_ns())
    record = runs.open_with_history(step, (request.request_id,) if request.request_id else ())
    return PendingAnswer(wf.Started(run_id), runs.writes.number_of(record))


async def wait_for_end(engine: Engine, request: ac.WaitForActivity) -> PendingAnswer[ac.ActivityOutcome]:
    """Wait until a standalone activity has ended, and return its outcome."""
    record = find_standalone(engine, request.activity_id, request.run_id)
    await wait(engine, record, record.closed, lambda: not record.run.is_open, request.rpc_timeout)
    return PendingAnswer(_outcome(record.run), engine.writes.number_of(record))


def _outcome(run: Run) -> ac.ActivityOutcome:
    match run.final:
        case h.WorkflowExecutionCompleted(result=result):
            return ac.ActivityOutcome(result=(result,))
        case h.WorkflowExecutionFailed(failure=failure):
            return ac.ActivityOutcome(failure=failure)
        case h.WorkflowExecutionCanceled(details=details):
            return ac.ActivityOutcome(failure=Failure("Activity canceled", CanceledFailure(details)))
        case h.WorkflowExecutionTerminated(reason=reason):
            return ac.ActivityOutcome(failure=Failure(reason, TerminatedFailure()))
        case _:
            return ac.ActivityOutcome(closed=False)


async def describe(engine: Engine, request: ac.DescribeActivity) -> PendingAnswer[ac.ActivityDescription]:
    record = find_standalone(engine, request.activity_id, request.run_id)
    return await answered(
        engine,
        engine.writes.number_of(record),
        _described(record.run, record.events),
        lambda: _described(stored(engine, record).run, stored(engine, record).events),
    )


def _described(run: Run, events: Sequence[h.HistoryEvent]) -> ac.ActivityDescription:
    notes = run.started.spec
    fields: dict[str, Any] = {
        "summary": _summary(run),
        "static_summary": notes.static_summary,
        "static_details": notes.static_details,
        "canceled_reason": "",
    }
    for event in events:
        match event.attributes:
            case h.ActivityTaskScheduled() as scheduled:
                fields |= {"spec": scheduled.spec, "arguments": scheduled.arguments}
            case h.ActivityTaskStarted() as began:
                fields |= {
                    "attempt": began.attempt,
                    "last_worker_identity": began.identity,
                    "last_failure": began.last_failure,
                    "last_started_time_ns": event.time_ns,
                }
            case h.WorkflowExecutionCancelRequested(reason=reason):
                fields["canceled_reason"] = reason
    for activity in run.activities.values():
        fields |= _of_pending(activity)
    return ac.ActivityDescription(**fields)


def _of_pending(activity: OpenActivity) -> dict[str, Any]:
    return {
        "spec": activity.spec,
        "state": state_of(activity),
        "attempt": activity.attempt - activity.earlier or 1,
        "heartbeat_details": activity.heartbeat_details,
        "last_heartbeat_time_ns": last_heartbeat_ns(activity),
        "last_started_time_ns": activity.last_started_ns,
        "last_worker_identity": activity.identity,
        "last_failure": activity.last_failure,
        "next_attempt_time_ns": 0 if activity.started_ns else activity.available_ns,
    }


def _summary(run: Run) -> ac.ActivitySummary:
    return ac.ActivitySummary(
        activity_id=run.started.workflow_id.removeprefix(standalone.PREFIX),
        run_id=run.run_id,
        activity_type=run.started.workflow_type,
        status=standalone.STATUS[run.status],
        task_queue=run.started.spec.task_queue,
        schedule_time_ns=run.start_ns,
        close_time_ns=run.close_ns,
        search_attributes=run.search_attributes,
    )


_NAMES = {"ActivityType": "WorkflowType", "ActivityId": "RootWorkflowId"}


def named_as_runs(query: str) -> str:
    """Return a filter of activities with attribute names replaced by those of runs."""
    parse(query)  # report an invalid filter as it was written
    for token in reversed(tokens(query)):
        if token.kind is TokenKind.NAME and token.value in _NAMES:
            begin = token.position - 1
            query = f"{query[:begin]}{_NAMES[str(token.value)]}{query[begin + len(token.raw) :]}"
    return query


async def list_activities(engine: Engine, request: ac.ListActivities) -> PendingAnswer[ac.ActivityPage]:
    await is_written(engine, engine.writes.newest)  # the store reads only durable data
    size = min(max(1, request.page_size), MOST_LISTED)
    page = await engine.store.page(
        named_as_runs(request.query), request.next_page_token, size, activities=True
    )
    shown = tuple(
        ac.ActivitySummary(
            activity_id=workflow.workflow_id.removeprefix(standalone.PREFIX),
            run_id=workflow.run_id,
            activity_type=workflow.workflow_type,
            status=standalone.STATUS.get(workflow.status, ac.ActivityExecutionStatus.PAUSED),
            task_queue=workflow.task_queue,
            schedule_time_ns=workflow.start_time_ns,
            close_time_ns=workflow.close_time_ns,
            search_attributes=workflow.search_attributes,
        )
        for workflow in page.workflows
    )
    return PendingAnswer(ac.ActivityPage(shown, page.next_page_token), 0)


async def count(engine: Engine, request: ac.CountActivities) -> PendingAnswer[wf.Count]:
    await is_written(engine, engine.writes.newest)
    return PendingAnswer(await engine.store.count(named_as_runs(request.query), activities=True), 0)


async def cancel(engine: Engine, request: ac.CancelActivity) -> PendingAnswer[s.Nothing]:
    record = _find_open(engine, request)
    engine.runs.change(record, lambda run, now: standalone.request_cancel(run, request, now))
    return done(engine, record)


async def terminate(engine: Engine, request: ac.TerminateActivity) -> PendingAnswer[s.Nothing]:
    record = _find_open(engine, request)
    _terminate(engine, record, request.reason, request.identity)
    return done(engine, record)


def _terminate(engine: Engine, record: LoadedRun, reason: str, identity: str) -> None:
    ended = wf.TerminateWorkflow(workflow_id=record.run.started.workflow_id, reason=reason, identity=identity)
    engine.runs.change(record, lambda run, now: transitions.terminate(run, ended, now))


async def delete(engine: Engine, request: ac.DeleteActivity) -> PendingAnswer[s.Nothing]:
    record = find_standalone(engine, request.activity_id, request.run_id)
    if record.run.is_open:
        _terminate(engine, record, "Delete activity execution", "")
    await engine.durable(engine.writes.number_of(record))
    return PendingAnswer(s.Nothing(), engine.runs.forget(record))


async def pause(engine: Engine, request: ac.PauseActivity | ac.UnpauseActivity) -> PendingAnswer[s.Nothing]:
    record, activity = _pending(engine, request)
    paused = isinstance(request, ac.PauseActivity)
    engine.runs.change(record, lambda run, now: transitions.pause_activity(run, activity, paused, now))
    return done(engine, record)


async def update_options(
    engine: Engine, request: ac.UpdateActivityOptions
) -> PendingAnswer[ac.ActivityOptionsNow]:
    """Change the options of an activity, or restore its original options."""
    record, activity = _pending(engine, request)
    spec = activity.scheduled.spec
    if not request.restore_original:
        values = {name: getattr(request.spec, name) for name in request.fields}
        spec = _complete(msgspec.structs.replace(activity.spec, **values))
    engine.runs.change(record, lambda run, now: transitions.change_activity(run, activity, spec, now))
    return PendingAnswer(ac.ActivityOptionsNow(spec), engine.writes.number_of(record))


def _complete(spec: ActivitySpec) -> ActivitySpec:
    """Return the changed options with the engine's defaults filled in. Raise `ServiceError` if they are invalid."""
    if not spec.start_to_close_timeout and not spec.schedule_to_close_timeout:
        raise ServiceError(
            "an activity needs a start_to_close_timeout or a schedule_to_close_timeout",
            status="INVALID_ARGUMENT",
        )
    command = ScheduleActivity(seq=1, activity_id="", activity_type="", spec=spec)
    return plan(command, spec.task_queue, 0.0, 0).spec


ACTIVITY_HANDLERS: Handlers = {
    ac.StartActivity: start,
    ac.WaitForActivity: wait_for_end,
    ac.DescribeActivity: describe,
    ac.CancelActivity: cancel,
    ac.TerminateActivity: terminate,
    ac.DeleteActivity: delete,
    ac.PauseActivity: pause,
    ac.UnpauseActivity: pause,
    ac.UpdateActivityOptions: update_options,
    ac.ListActivities: list_activities,
    ac.CountActivities: count,
}
