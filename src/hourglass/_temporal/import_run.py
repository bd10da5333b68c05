"""The run of an import on the server: the RPCs that start, drive, read, release and remove it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from time import monotonic
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TaskQueueKind, VersioningBehavior
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue

from hourglass._contract.ids import new_id
from hourglass._temporal.calls import CallScope
from hourglass._temporal.import_commands import BUILD, DEPLOYMENT, put_version
from hourglass._temporal.import_plan import kind_of
from hourglass.errors import ServiceError

STEP_TIMEOUT = 60.0
"""Seconds to wait for one effect to become visible on the server."""

Call = Callable[[str, Any, float], Coroutine[Any, Any, bytes]]
"""A function that sends a message by an RPC, with a timeout in seconds, and raises `ServiceError` on failure."""


class ImportedRun:
    """The run of an import. `run_id` is empty until it is started."""

    def __init__(self, call: Call, scope: CallScope, workflow_id: str, task_queue: str) -> None:
        self._call = call
        self._scope = scope
        self._workflow_id = workflow_id
        self._task_queue = task_queue
        self._started_attempts: set[str] = set()  # ids of activities with an attempt received by this import
        self.run_id = ""

    @property
    def _execution(self) -> WorkflowExecution:
        return WorkflowExecution(workflow_id=self._workflow_id, run_id=self.run_id)

    async def start(self, message: Any) -> str:
        """Start the run, or find the run that this request has started before. Return its run id."""
        deadline = monotonic() + STEP_TIMEOUT
        while True:
            try:
                data = await self._call("start_workflow_execution", message, 10.0)
                return ws.StartWorkflowExecutionResponse.FromString(data).run_id
            except ServiceError as error:
                # The server learns of a version from polls, some time after the first poll.
                if "not present" not in str(error) or monotonic() > deadline:
                    raise
            # The poll must end before the run starts: otherwise it would receive the first task before the run's first
            # inputs.
            await _ignore_errors(self._call("poll_workflow_task_queue", self._poll_message(), 3.0))

    async def withhold_activities(self, task_queues: Iterable[str]) -> None:
        """Poll these task queues for activities with the version of this import. The server then withholds the
        run's activity tasks until the release.
        """
        polls = []
        for task_queue in sorted(task_queues):
            message = ws.PollActivityTaskQueueRequest(
                namespace=self._scope.namespace,
                task_queue=_queue(task_queue),
                identity=self._scope.identity,
            )
            put_version(message.deployment_options)
            polls.append(_ignore_errors(self._call("poll_activity_task_queue", message, 3.0)))
        await asyncio.gather(*polls)

    def _poll_message(self) -> Any:
        message = ws.PollWorkflowTaskQueueRequest(
            namespace=self._scope.namespace,
            task_queue=_queue(self._task_queue),
            identity=self._scope.identity,
        )
        put_version(message.deployment_options)
        return message

    async def next_task(self) -> bytes:
        """Receive the run's next workflow task and return its token."""
        deadline = monotonic() + STEP_TIMEOUT
        while monotonic() < deadline:
            try:
                data = await self._call("poll_workflow_task_queue", self._poll_message(), 65.0)
                answer = ws.PollWorkflowTaskQueueResponse.FromString(data)
            except ServiceError as error:
                if error.status not in ("DEADLINE_EXCEEDED", "CANCELLED"):
                    raise
                continue
            if answer.workflow_execution.run_id == self.run_id:
                return bytes(answer.task_token)
        raise ServiceError(
            "the server did not deliver the next workflow task of the run in time", status="DEADLINE_EXCEEDED"
        )

    async def complete_task(
        self, token: bytes, completed: HistoryEvent, commands: Sequence[Command], *, force_new: bool
    ) -> None:
        """Complete a workflow task with commands, and with the SDK metadata of the recorded completion."""
        message = ws.RespondWorkflowTaskCompletedRequest(
            namespace=self._scope.namespace,
            task_token=token,
            identity=self._scope.identity,
            commands=commands,
            force_create_new_workflow_task=force_new,
            versioning_behavior=VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE,
        )
        attributes = completed.workflow_task_completed_event_attributes
        if attributes.HasField("sdk_metadata"):
            message.sdk_metadata.CopyFrom(attributes.sdk_metadata)
        put_version(message.deployment_options)
        await self._call("respond_workflow_task_completed", message, 10.0)

    async def signal(self, attributes: Any) -> None:
        """Send a recorded signal."""
        message = ws.SignalWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._execution,
            signal_name=attributes.signal_name,
            input=attributes.input if attributes.HasField("input") else None,
            header=attributes.header if attributes.HasField("header") else None,
            identity=attributes.identity,
            request_id=new_id(),
        )
        await self._call("signal_workflow_execution", message, 10.0)

    async def request_cancel(self, attributes: Any) -> None:
        """Request the cancellation of the run, as recorded."""
        message = ws.RequestCancelWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._execution,
            reason=attributes.cause,
            identity=attributes.identity,
            request_id=new_id(),
        )
        await self._call("request_cancel_workflow_execution", message, 10.0)

    async def end_activity(self, event: HistoryEvent, activity_id: str, task_queue: str) -> None:
        """End an activity that waits on a task queue, with its recorded result or failure."""
        attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
        message: Any
        if event.event_type == kind_of("ACTIVITY_TASK_COMPLETED"):
            message = ws.RespondActivityTaskCompletedByIdRequest(activity_id=activity_id)
            if attributes.HasField("result"):
                message.result.CopyFrom(attributes.result)
            rpc = "respond_activity_task_completed_by_id"
        elif event.event_type == kind_of("ACTIVITY_TASK_FAILED"):
            message = ws.RespondActivityTaskFailedByIdRequest(
                activity_id=activity_id, failure=attributes.failure
            )
            rpc = "respond_activity_task_failed_by_id"
            await self._start_attempt(activity_id, task_queue)
        else:
            message = ws.RespondActivityTaskCanceledByIdRequest(
                activity_id=activity_id, details=attributes.details
            )
            rpc = "respond_activity_task_canceled_by_id"
            await self._start_attempt(activity_id, task_queue)
        message.namespace, message.identity = self._scope.namespace, attributes.identity
        message.workflow_id, message.run_id = self._workflow_id, self.run_id
        await self._call(rpc, message, 10.0)

    async def _start_attempt(self, activity_id: str, task_queue: str) -> None:
        """Receive the attempt of an activity, because only a started attempt can fail."""
        message = ws.PollActivityTaskQueueRequest(
            namespace=self._scope.namespace,
            task_queue=_queue(task_queue),
            identity=self._scope.identity,
        )
        deadline = monotonic() + STEP_TIMEOUT
        while activity_id not in self._started_attempts and monotonic() < deadline:
            with contextlib.suppress(ServiceError):
                answer = ws.PollActivityTaskQueueResponse.FromString(
                    await self._call("poll_activity_task_queue", message, 10.0)
                )
                if answer.workflow_execution.run_id == self.run_id:
                    self._started_attempts.add(answer.activity_id)

    async def release(self) -> None:
        """Make the run available to all workers."""
        message = ws.UpdateWorkflowExecutionOptionsRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._execution,
            identity=self._scope.identity,
        )
        message.workflow_execution_options.SetInParent()
        message.update_mask.paths.append("versioning_override")
        await self._call("update_workflow_execution_options", message, 10.0)

    async def remove(self) -> None:
        """Terminate and delete the run, so that its workflow id is free."""
        if not self.run_id:
            return
        end = ws.TerminateWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._execution,
            reason="the import was aborted",
        )
        try:
            await self._call("terminate_workflow_execution", end, 10.0)
        except ServiceError as error:
            # The run is already terminated, because an earlier removal was interrupted.
            if error.status != "NOT_FOUND":
                raise
        delete = ws.DeleteWorkflowExecutionRequest(
            namespace=self._scope.namespace, workflow_execution=self._execution
        )
        await self._call("delete_workflow_execution", delete, 10.0)

    async def _version(self) -> Any:
        message = ws.DescribeWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            execution=self._execution,
        )
        data = await self._call("describe_workflow_execution", message, 10.0)
        info = ws.DescribeWorkflowExecutionResponse.FromString(data).workflow_execution_info
        return info.versioning_info.versioning_override.pinned.version

    async def is_pinned_to_import(self) -> bool:
        """Whether the run is pinned to an import, of this process or another."""
        return bool((await self._version()).deployment_name == DEPLOYMENT)

    async def is_pinned_to_this_process(self) -> bool:
        """Whether the run is pinned to an import of this process."""
        version = await self._version()
        return bool(version.deployment_name == DEPLOYMENT and version.build_id == BUILD)

    async def fetch(self) -> History:
        """Return the run's history on the server."""
        history, token = History(), b""
        while True:
            message = ws.GetWorkflowExecutionHistoryRequest(
                namespace=self._scope.namespace,
                execution=self._execution,
                next_page_token=token,
            )
            data = await self._call("get_workflow_execution_history", message, 10.0)
            answer = ws.GetWorkflowExecutionHistoryResponse.FromString(data)
            history.events.extend(answer.history.events)
            token = answer.next_page_token
            if not token:
                return history


def _queue(name: str) -> TaskQueue:
    return TaskQueue(name=name, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL)


async def _ignore_errors(poll: Coroutine[Any, Any, bytes]) -> None:
    with contextlib.suppress(ServiceError):
        await poll
