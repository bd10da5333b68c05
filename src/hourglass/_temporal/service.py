"""Every request that a client can make: which call it is, sent through Core. Refusals become our errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hourglass._contract import schedules as sc
from hourglass._contract import service as ch
from hourglass._contract import service as sd
from hourglass._contract import service as sv
from hourglass._contract import service as sw
from hourglass._temporal import (
    calls_activities,
    calls_changes,
    calls_deployments,
    calls_histories,
    calls_schedules,
    calls_views,
    calls_watch,
    calls_workflows,
    core,
    refusals,
)
from hourglass._temporal.calls import Call, Scope
from hourglass.errors import InternalError

PLANS: dict[type[sv.Request[Any]], Callable[[Any, Scope], Call]] = {
    sv.StartWorkflow: calls_workflows.start,
    sv.SignalWorkflow: calls_workflows.signal,
    sv.QueryWorkflow: calls_workflows.query,
    sv.CancelWorkflow: calls_workflows.cancel,
    sv.TerminateWorkflow: calls_workflows.terminate,
    sv.DescribeWorkflow: calls_views.describe,
    sv.ListWorkflows: calls_views.listing,
    sv.CountWorkflows: calls_views.count,
    sv.WaitForClose: calls_histories.wait_for_close,
    sv.GetHistory: calls_histories.history,
    sv.CompleteActivity: calls_activities.complete,
    sv.HeartbeatActivity: calls_activities.heartbeat,
    ch.UpdateWorkflow: calls_changes.update,
    ch.PollUpdate: calls_changes.poll_update,
    ch.UpdateWithStart: calls_changes.update_with_start,
    ch.ResetWorkflow: calls_changes.reset,
    sc.CreateSchedule: calls_schedules.create,
    sc.DescribeSchedule: calls_schedules.describe,
    sc.UpdateSchedule: calls_schedules.update,
    sc.PatchSchedule: calls_schedules.patch,
    sc.DeleteSchedule: calls_schedules.delete,
    sc.ListSchedules: calls_schedules.listing,
    sd.SetCurrentVersion: calls_deployments.set_current,
    sd.DescribeDeployment: calls_deployments.describe,
}


# What an engine may have no answer to.
OPTIONAL: dict[type[sv.Request[Any]], Callable[[Any, Scope], Call]] = {
    sw.DescribeNamespace: calls_watch.describe_namespace,
    sw.LastSeen: calls_watch.last_seen,
    sw.GetPollers: calls_watch.pollers,
}


async def perform(client: core.Ref, request: sv.Request[Any], scope: Scope, target: str) -> Any:
    """Send a request and return its answer. Raises `ServiceError` and its kinds, and `QueryFailedError`."""
    plan = PLANS.get(type(request)) or OPTIONAL.get(type(request))
    if plan is None:
        raise InternalError(f"Temporal has no answer to {type(request).__name__}")
    call = plan(request, scope)
    timeout = call.timeout if request.rpc_timeout is None else request.rpc_timeout
    try:
        data = await core.call(client, call.rpc, call.message.SerializeToString(), timeout, retry=call.retry)
    except TimeoutError:
        if call.late is not None:
            return call.late
        raise refusals.too_late(request, target) from None
    except core.RpcError as error:
        refusal = refusals.Refusal(*error.args)
        if call.late is not None and refusal.status in ("DEADLINE_EXCEEDED", "CANCELLED"):
            return call.late
        raise refusals.error_for(refusal, request, scope.namespace, target) from None
    return call.read(data)
