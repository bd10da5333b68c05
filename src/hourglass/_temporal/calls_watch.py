"""Calls about the server and who polls it: whether it serves our namespace, whom it has seen. Pure."""

from __future__ import annotations

import temporalio.api.enums.v1 as enums
import temporalio.api.workflowservice.v1 as ws

from hourglass._contract import service as sw
from hourglass._temporal.calls import Call, Scope
from hourglass._temporal.calls_deployments import poller_version, version_in
from hourglass.errors import NamespaceNotFoundError


def describe_namespace(request: sw.DescribeNamespace, scope: Scope) -> Call:
    """Whether the server is there, and has our namespace."""

    def read(data: bytes) -> sw.Namespace:
        info = ws.DescribeNamespaceResponse.FromString(data).namespace_info
        if info.state == enums.NamespaceState.NAMESPACE_STATE_DELETED:  # marked first, gone a little later
            raise NamespaceNotFoundError(
                f"the namespace {scope.namespace!r} is being deleted on the server", status="NOT_FOUND"
            )
        return sw.Namespace(info.name)

    message = ws.DescribeNamespaceRequest(namespace=scope.namespace)
    return Call("describe_namespace", message, read, retry=False)


def last_seen(request: sw.LastSeen, scope: Scope) -> Call:
    """Look for one identity among a queue's pollers."""

    def read(data: bytes) -> sw.Sighting:
        answer = ws.DescribeTaskQueueResponse.FromString(data)
        ours = [each for each in answer.pollers if each.identity == request.polled_by]
        return sw.Sighting(max((each.last_access_time.ToNanoseconds() for each in ours), default=0))

    return Call("describe_task_queue", _describe(request.task_queue, request.activities, scope), read)


def pollers(request: sw.GetPollers, scope: Scope) -> Call:
    """All of a queue's pollers."""

    def read(data: bytes) -> sw.Pollers:
        answer = ws.DescribeTaskQueueResponse.FromString(data)
        found = tuple(
            sw.Poller(each.identity, each.last_access_time.ToNanoseconds(), poller_version(each))
            for each in answer.pollers
        )
        return sw.Pollers(found, current=version_in(answer.versioning_info, "current_deployment_version"))

    return Call("describe_task_queue", _describe(request.task_queue, request.activities, scope), read)


def _describe(task_queue: str, activities: bool, scope: Scope) -> ws.DescribeTaskQueueRequest:
    message = ws.DescribeTaskQueueRequest(
        namespace=scope.namespace,
        task_queue_type=(
            enums.TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
            if activities
            else enums.TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        ),
    )
    message.task_queue.name = task_queue
    return message
