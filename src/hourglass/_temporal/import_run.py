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

from hourglass._contract.ids import new_id
from hourglass._temporal.calls import LONG_POLL, ORDINARY, CallScope, Rpc
from hourglass._temporal.import_plan import BUILD, DEPLOYMENT, kind_of, put_version
from hourglass.errors import ServiceError

STEP_TIMEOUT = 60.0
"""Seconds to wait for one effect to become visible on the server."""

Call = Callable[[Rpc], Coroutine[Any, Any, Any]]
"""A function that sends a message and returns the server's answer. It raises `ServiceError` on failure."""

_POLL_TIMEOUT = 3.0
"""Seconds of a poll that only announces the version of this process to the server."""


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

    async def _send(self, message: Any, timeout: float = ORDINARY) -> Any:
        """Send a message in the connection's namespace, and return the server's answer."""
        message.namespace = self._scope.namespace
        return await self._call(Rpc(message, timeout=timeout))

    async def _poll(self, message: Any, task_queue: str, timeout: float) -> Any:
        """Poll a task queue once, and return the server's answer."""
        message.namespace, message.identity = self._scope
        message.task_queue.name = task_queue
        message.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
        return await self._call(Rpc(message, timeout=timeout, retry=False))

    async def _poll_for_tasks(self, timeout: float) -> Any:
        """Poll for a workflow task, with the version of this process."""
        message = ws.PollWorkflowTaskQueueRequest()
        put_version(message.deployment_options)
        return await self._poll(message, self._task_queue, timeout)

    async def start(self, message: Any) -> str:
        """Start the run, or find the run that this request has started before. Return its run id."""
        deadline = monotonic() + STEP_TIMEOUT
        while True:
            try:
                return str((await self._send(message)).run_id)
            except ServiceError as error:
                # The server learns of a version from polls, some time after the first poll.
                if "not present" not in str(error) or monotonic() > deadline:
                    raise
            # The poll must end before the run starts: otherwise it would receive the first task before the run's first
            # inputs.
            await _ignore_errors(self._poll_for_tasks(_POLL_TIMEOUT))

    async def withhold_activities(self, task_queues: Iterable[str]) -> None:
        """Poll these task queues for activities with the version of this import. The server then withholds the
        run's activity tasks until the release.
        """
        polls = []
        for task_queue in sorted(task_queues):
            message = ws.PollActivityTaskQueueRequest()
            put_version(message.deployment_options)
            polls.append(_ignore_errors(self._poll(message, task_queue, _POLL_TIMEOUT)))
        await asyncio.gather(*polls)

    async def next_task(self) -> bytes:
        """Receive the run's next workflow task and return its token."""
        deadline = monotonic() + STEP_TIMEOUT
        while monotonic() < deadline:
            try:
                answer = await self._poll_for_tasks(LONG_POLL)
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
        await self._send(message)

    async def signal(self, attributes: Any) -> None:
        """Send a recorded signal."""
        message = ws.SignalWorkflowExecutionRequest(
            workflow_execution=self._execution,
            signal_name=attributes.signal_name,
            input=attributes.input if attributes.HasField("input") else None,
            header=attributes.header if attributes.HasField("header") else None,
            identity=attributes.identity,
            request_id=new_id(),
        )
        await self._send(message)

    async def request_cancel(self, attributes: Any) -> None:
        """Request the cancellation of the run, as recorded."""
        message = ws.RequestCancelWorkflowExecutionRequest(
            workflow_execution=self._execution,
            reason=attributes.cause,
            identity=attributes.identity,
            request_id=new_id(),
        )
        await self._send(message)

    async def end_activity(self, event: HistoryEvent, activity_id: str, task_queue: str) -> None:
        """End an activity that waits on a task queue, with its recorded result or failure."""
        attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
        message: Any
        if event.event_type == kind_of("ACTIVITY_TASK_COMPLETED"):
            message = ws.RespondActivityTaskCompletedByIdRequest()
            if attributes.HasField("result"):
                message.result.CopyFrom(attributes.result)
        else:
            if event.event_type == kind_of("ACTIVITY_TASK_FAILED"):
                message = ws.RespondActivityTaskFailedByIdRequest(failure=attributes.failure)
            else:
                message = ws.RespondActivityTaskCanceledByIdRequest(details=attributes.details)
            await self._start_attempt(activity_id, task_queue)
        message.workflow_id, message.run_id, message.activity_id = self._workflow_id, self.run_id, activity_id
        message.identity = attributes.identity
        await self._send(message)

    async def _start_attempt(self, activity_id: str, task_queue: str) -> None:
        """Receive the attempt of an activity, because only a started attempt can fail."""
        deadline = monotonic() + STEP_TIMEOUT
        while activity_id not in self._started_attempts and monotonic() < deadline:
            with contextlib.suppress(ServiceError):
                answer = await self._poll(ws.PollActivityTaskQueueRequest(), task_queue, ORDINARY)
                if answer.workflow_execution.run_id == self.run_id:
                    self._started_attempts.add(answer.activity_id)

    async def release(self) -> None:
        """Make the run available to all workers."""
        message = ws.UpdateWorkflowExecutionOptionsRequest(
            workflow_execution=self._execution, identity=self._scope.identity
        )
        message.workflow_execution_options.SetInParent()
        message.update_mask.paths.append("versioning_override")
        await self._send(message)

    async def remove(self) -> None:
        """Terminate and delete the run, so that its workflow id is free."""
        if not self.run_id:
            return
        end = ws.TerminateWorkflowExecutionRequest(
            workflow_execution=self._execution, reason="the import was aborted"
        )
        try:
            await self._send(end)
        except ServiceError as error:
            # The run is already terminated, because an earlier removal was interrupted.
            if error.status != "NOT_FOUND":
                raise
        await self._send(ws.DeleteWorkflowExecutionRequest(workflow_execution=self._execution))

    async def _version(self) -> Any:
        answer = await self._send(ws.DescribeWorkflowExecutionRequest(execution=self._execution))
        return answer.workflow_execution_info.versioning_info.versioning_override.pinned.version

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
            answer = await self._send(
                ws.GetWorkflowExecutionHistoryRequest(execution=self._execution, next_page_token=token)
            )
            history.events.extend(answer.history.events)
            token = answer.next_page_token
            if not token:
                return history


async def _ignore_errors(poll: Coroutine[Any, Any, Any]) -> None:
    with contextlib.suppress(ServiceError):
        await poll
