"""Import of a history into a Temporal server: a new run is taken through the same workflow tasks again.

A server accepts no history as it is (the administrative `ImportWorkflowExecution` needs replicated namespaces, and
Temporal Cloud does not offer it). But it writes the same events again if the same things happen in the same order. This
module plays the worker: it answers each task with the commands that the history records, and reproduces the run's
inputs (signals, results of activities, timers). No workflow code and no activity runs.

Meanwhile no worker may receive the run's tasks: the run is pinned to a deployment version that exists only for the
import (`DEPLOYMENT`). It is released when its history is complete and compares as equal. If the process is killed
before that, no worker receives the run; the next import with the same request finds it, removes it, and starts again.
Pending work then waits on its own task queue: activities start at their first attempt, timers fire at their original
time.

Histories that cannot be reproduced are rejected before anything is started (`import_plan`): children, updates,
activities that timed out, messages to other workflows. Times, and everything that code derived from them and from
`workflow.random`, are those of the new run.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import sleep
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic, time_ns
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import CommandType, TaskQueueKind, VersioningBehavior
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import ImportWorkflow, Started
from hourglass._temporal.calls import CallScope
from hourglass._temporal.histories import read_history
from hourglass._temporal.import_plan import (
    COMMANDS,
    COMPLETED,
    ENDS,
    SCHEDULED,
    TIMER,
    PlannedTask,
    is_equal,
    kind_of,
    plan,
    subject_of,
)
from hourglass.errors import HistoryError, HourglassError, ServiceError

DEPLOYMENT = "hourglass-import"
_BUILD = new_id()
"""The build id to which this process pins its imports: polls of other processes receive none of their tasks."""

_STEP_TIMEOUT = 60.0
"""Seconds to wait for one effect to become visible on the server."""

Call = Callable[[str, Any, float], Coroutine[Any, Any, bytes]]
"""Sends a message by an RPC, with a timeout in seconds. Raises `ServiceError`."""


async def import_workflow(call: Call, request: ImportWorkflow, scope: CallScope) -> Started:
    """Start the run on the server, take it to the end of its history, and release it to the workers."""
    try:
        source = read_history(b'{"events":[' + b",".join(request.events) + b"]}")
    except HistoryError as error:
        raise ServiceError(f"the history cannot be read: {error}", status="INVALID_ARGUMENT") from None
    history = History.FromString(source.encoded)
    operation = _Import(call, request, scope, history)
    return Started("", False) if request.dry_run else await operation.run()


class _Import:
    """One import: the run is started, taken through its tasks, compared and released."""

    def __init__(self, call: Call, request: ImportWorkflow, scope: CallScope, history: History) -> None:
        self._call = call
        self._request = request
        self._scope = scope
        self._history = history
        self._tasks = plan(history)
        self._started = history.events[0].workflow_execution_started_event_attributes
        self._queue: str = self._started.task_queue.name
        self._private_queue = f"{DEPLOYMENT}-{_BUILD}"
        end_events = [event for task in self._tasks for event in task.inputs if event.event_type in ENDS]
        self._ended = {_scheduled_id(event) for event in end_events}
        self._scheduled = {event.event_id: event for event in history.events if event.event_type == SCHEDULED}
        self._run_id = ""
        self._server_ids: dict[int, int] = {}  # event ids on the server, by event ids of the source
        self._started_attempts: set[str] = set()  # ids of activities whose attempt this import has received

    @property
    def _execution(self) -> WorkflowExecution:
        return WorkflowExecution(workflow_id=self._request.workflow_id, run_id=self._run_id)

    async def run(self) -> Started:
        """Carry out the import. Remove an incomplete earlier one first; return an already complete one as it is."""
        await self._withhold_activities()
        is_new = await self._start_or_find()
        if is_new:
            await self._replay_tasks()
        elif not await self._is_pinned_to_import():
            return Started(self._run_id, False)
        if not self._request.hold:
            await self._release()
        return Started(self._run_id, is_new)

    async def _replay_tasks(self) -> None:
        try:
            for index, task in enumerate(self._tasks):
                await self._replay_task(task, self._tasks[index + 1 :])
            await self._compare()
        except BaseException:
            with contextlib.suppress(HourglassError):
                await self._remove()
            raise

    async def _start_or_find(self) -> bool:
        """Start the run, pinned to this process. Return False if an earlier attempt of the same request was complete."""
        data = await self._start()
        self._run_id = ws.StartWorkflowExecutionResponse.FromString(data).run_id
        imported = await self._fetch()
        if (
            not any(event.event_type == COMPLETED for event in imported.events)
            and await self._is_pinned_to_this_process()
        ):
            return True
        if not await self._is_pinned_to_import() or is_equal(imported, self._history):
            return False
        # An import that was killed: no process polls for the version that its run is pinned to.
        await self._remove()
        deadline = monotonic() + _STEP_TIMEOUT
        while True:  # the server deletes asynchronously
            data = await self._start()
            new_run_id = ws.StartWorkflowExecutionResponse.FromString(data).run_id
            if new_run_id != self._run_id or monotonic() > deadline:
                self._run_id = new_run_id
                return True
            await sleep(0.1)

    async def _start(self) -> bytes:
        message = self._start_message()
        deadline = monotonic() + _STEP_TIMEOUT
        while True:
            try:
                return await self._call("start_workflow_execution", message, 10.0)
            except ServiceError as error:
                # The server learns of a version from polls, a moment after the first.
                if "not present" not in str(error) or monotonic() > deadline:
                    raise
            # The poll must end before the run starts: otherwise it would receive the first task before the run's first
            # inputs.
            await self._ignore_errors(self._call("poll_workflow_task_queue", self._poll_message(), 3.0))

    def _start_message(self) -> Any:
        started = self._started
        message = ws.StartWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            workflow_id=self._request.workflow_id,
            workflow_type=started.workflow_type,
            task_queue=started.task_queue,
            input=started.input if started.HasField("input") else None,
            identity=self._scope.identity,
            request_id=self._request.request_id,
            workflow_execution_timeout=started.workflow_execution_timeout,
            workflow_run_timeout=started.workflow_run_timeout,
            workflow_task_timeout=started.workflow_task_timeout,
            retry_policy=started.retry_policy if started.HasField("retry_policy") else None,
            memo=started.memo if started.HasField("memo") else None,
            search_attributes=started.search_attributes if started.HasField("search_attributes") else None,
            header=started.header if started.HasField("header") else None,
            priority=started.priority if started.HasField("priority") else None,
        )
        if self._history.events[0].HasField("user_metadata"):
            message.user_metadata.CopyFrom(self._history.events[0].user_metadata)
        pinned: Any = message.versioning_override.pinned
        pinned.behavior = 1  # PINNED_OVERRIDE_BEHAVIOR_PINNED
        pinned.version.deployment_name, pinned.version.build_id = DEPLOYMENT, _BUILD
        message.versioning_override.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
        message.versioning_override.pinned_version = f"{DEPLOYMENT}.{_BUILD}"
        return message

    async def _withhold_activities(self) -> None:
        """Poll the task queues of pending activities with our version: the server then withholds their tasks until the
        release."""
        pending = [event for key, event in self._scheduled.items() if key not in self._ended]
        queues = {event.activity_task_scheduled_event_attributes.task_queue.name for event in pending}
        polls = []
        for queue in sorted(queues):
            message = ws.PollActivityTaskQueueRequest(
                namespace=self._scope.namespace,
                task_queue=_queue(queue),
                identity=self._scope.identity,
            )
            _put_version(message.deployment_options)
            polls.append(self._ignore_errors(self._call("poll_activity_task_queue", message, 3.0)))
        await asyncio.gather(*polls)

    @staticmethod
    async def _ignore_errors(poll: Any) -> None:
        with contextlib.suppress(ServiceError):
            await poll

    async def _replay_task(self, task: PlannedTask, later: Sequence[PlannedTask]) -> None:
        for event in task.inputs:
            await self._reproduce(event)
        if task.completed is None:
            return
        token = await self._next_task()
        commands = [self._command(event, later) for event in task.issued]
        message = ws.RespondWorkflowTaskCompletedRequest(
            namespace=self._scope.namespace,
            task_token=token,
            identity=self._scope.identity,
            commands=commands,
            # Without inputs before the next task, the original worker requested it.
            force_create_new_workflow_task=bool(later)
            and not later[0].inputs
            and later[0].completed is not None,
            versioning_behavior=VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE,
        )
        attributes = task.completed.workflow_task_completed_event_attributes
        if attributes.HasField("sdk_metadata"):
            message.sdk_metadata.CopyFrom(attributes.sdk_metadata)
        _put_version(message.deployment_options)
        await self._call("respond_workflow_task_completed", message, 10.0)
        await self._map_event_ids(task)

    def _poll_message(self) -> Any:
        message = ws.PollWorkflowTaskQueueRequest(
            namespace=self._scope.namespace,
            task_queue=_queue(self._queue),
            identity=self._scope.identity,
        )
        _put_version(message.deployment_options)
        return message

    async def _next_task(self) -> bytes:
        """Receive the run's next workflow task and return its token."""
        deadline = monotonic() + _STEP_TIMEOUT
        while monotonic() < deadline:
            try:
                data = await self._call("poll_workflow_task_queue", self._poll_message(), 65.0)
                answer = ws.PollWorkflowTaskQueueResponse.FromString(data)
            except ServiceError as error:
                if error.status not in ("DEADLINE_EXCEEDED", "CANCELLED"):
                    raise
                continue
            if answer.workflow_execution.run_id == self._run_id:
                return bytes(answer.task_token)
        raise ServiceError(
            "the server did not offer the run's next workflow task in time", status="DEADLINE_EXCEEDED"
        )

    def _command(self, event: HistoryEvent, later: Sequence[PlannedTask]) -> Command:
        """Return the command that leads to this event."""
        name = COMMANDS[event.event_type]
        event_fields: Any = getattr(event, event.WhichOneof("attributes") or "")
        command = Command(command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"))
        command_fields: Any = getattr(command, f"{name}_command_attributes")
        command_fields.SetInParent()
        event_field_names = {field.name for field in event_fields.DESCRIPTOR.fields}
        for field in command_fields.DESCRIPTOR.fields:
            if field.name not in event_field_names or field.name == "scheduled_event_id":
                continue
            value = getattr(event_fields, field.name)
            if field.message_type is None:
                setattr(command_fields, field.name, value)
            elif field.message_type.GetOptions().map_entry:
                for key in value:
                    getattr(command_fields, field.name)[key].CopyFrom(value[key])
            elif event_fields.HasField(field.name):
                getattr(command_fields, field.name).CopyFrom(value)
        if event.HasField("user_metadata"):
            command.user_metadata.CopyFrom(event.user_metadata)
        # Only the author's groups: others refer to events by the ids of the source history.
        command.event_group_markers.extend(
            marker for marker in event.event_group_markers if marker.HasField("label")
        )
        if event.event_type == SCHEDULED and event.event_id in self._ended:
            # No worker may execute it again: it waits on a queue without workers until its recorded result is
            # delivered.
            command_fields.task_queue.name, command_fields.use_workflow_build_id = self._private_queue, False
            command_fields.retry_policy.maximum_attempts = 1
            for timeout in ("schedule_to_close", "schedule_to_start", "start_to_close", "heartbeat"):
                getattr(command_fields, f"{timeout}_timeout").FromSeconds(3600)
        elif event.event_type == kind_of("ACTIVITY_TASK_CANCEL_REQUESTED"):
            command_fields.scheduled_event_id = self._server_ids.get(event_fields.scheduled_event_id, 0)
        elif event.event_type == TIMER:
            command_fields.start_to_fire_timeout.FromNanoseconds(self._timer_ns(event, later))
        return command

    def _timer_ns(self, event: HistoryEvent, later: Sequence[PlannedTask]) -> int:
        """Return the duration of a timer.

        A pending or cancelled timer gets its remaining time. A timer that fired gets a short time that grows with the
        number of inputs before it, so that it fires in its turn.
        """
        timer = event.timer_started_event_attributes
        before = 0
        for task in later:
            for earlier in task.inputs:
                fired_id = earlier.timer_fired_event_attributes.timer_id
                if earlier.event_type == kind_of("TIMER_FIRED") and fired_id == timer.timer_id:
                    return int((0.001 if not before else 0.5 + 0.25 * before) * 1e9)
                before += 1
            before += 1
        due = event.event_time.ToNanoseconds() + timer.start_to_fire_timeout.ToNanoseconds()
        return max(due - time_ns(), int((1.0 + 0.25 * before) * 1e9))

    async def _reproduce(self, event: HistoryEvent) -> None:
        attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
        if event.event_type == kind_of("WORKFLOW_EXECUTION_SIGNALED"):
            message: Any = ws.SignalWorkflowExecutionRequest(
                namespace=self._scope.namespace,
                workflow_execution=self._execution,
                signal_name=attributes.signal_name,
                input=attributes.input if attributes.HasField("input") else None,
                header=attributes.header if attributes.HasField("header") else None,
                identity=attributes.identity,
                request_id=new_id(),
            )
            await self._call("signal_workflow_execution", message, 10.0)
        elif event.event_type == kind_of("WORKFLOW_EXECUTION_CANCEL_REQUESTED"):
            message = ws.RequestCancelWorkflowExecutionRequest(
                namespace=self._scope.namespace,
                workflow_execution=self._execution,
                reason=attributes.cause,
                identity=attributes.identity,
                request_id=new_id(),
            )
            await self._call("request_cancel_workflow_execution", message, 10.0)
        elif event.event_type in ENDS:
            await self._end_activity(event, attributes)
        else:
            await self._wait_until_fired(event)

    async def _end_activity(self, event: HistoryEvent, attributes: Any) -> None:
        scheduled = self._scheduled[attributes.scheduled_event_id]
        activity_id = scheduled.activity_task_scheduled_event_attributes.activity_id
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
            await self._start_attempt(activity_id)
        else:
            message = ws.RespondActivityTaskCanceledByIdRequest(
                activity_id=activity_id, details=attributes.details
            )
            rpc = "respond_activity_task_canceled_by_id"
            await self._start_attempt(activity_id)
        message.namespace, message.identity = self._scope.namespace, attributes.identity
        message.workflow_id, message.run_id = self._request.workflow_id, self._run_id
        await self._call(rpc, message, 10.0)

    async def _start_attempt(self, activity_id: str) -> None:
        """Receive the attempt of an activity: only a started attempt can fail."""
        message = ws.PollActivityTaskQueueRequest(
            namespace=self._scope.namespace,
            task_queue=_queue(self._private_queue),
            identity=self._scope.identity,
        )
        deadline = monotonic() + _STEP_TIMEOUT
        while activity_id not in self._started_attempts and monotonic() < deadline:
            with contextlib.suppress(ServiceError):
                answer = ws.PollActivityTaskQueueResponse.FromString(
                    await self._call("poll_activity_task_queue", message, 10.0)
                )
                if answer.workflow_execution.run_id == self._run_id:
                    self._started_attempts.add(answer.activity_id)

    async def _wait_until_fired(self, event: HistoryEvent) -> None:
        """Wait until the server has recorded that this timer fired."""
        timer, deadline = subject_of(event), monotonic() + _STEP_TIMEOUT
        while monotonic() < deadline:
            if any(subject_of(recorded) == timer for recorded in (await self._fetch()).events):
                return
            await sleep(0.05)
        raise ServiceError("a timer did not fire in time", status="DEADLINE_EXCEEDED")

    async def _map_event_ids(self, task: PlannedTask) -> None:
        """Store the event ids that the server assigned to a task's activities, if the history cancels any activity."""
        scheduled = [event for event in task.issued if event.event_type == SCHEDULED]
        cancels = any(
            event.event_type == kind_of("ACTIVITY_TASK_CANCEL_REQUESTED")
            for planned in self._tasks
            for event in planned.issued
        )
        if not scheduled or not cancels:
            return
        ids = {
            event.activity_task_scheduled_event_attributes.activity_id: event.event_id
            for event in (await self._fetch()).events
            if event.event_type == SCHEDULED
        }
        for event in scheduled:
            self._server_ids[event.event_id] = ids[event.activity_task_scheduled_event_attributes.activity_id]

    async def _compare(self) -> None:
        if not is_equal(await self._fetch(), self._history):
            raise ServiceError(
                "the server's history differs from the source: something else happened to the run meanwhile, "
                "or a timer fired out of order. Try again",
                status="ABORTED",
            )

    async def _release(self) -> None:
        """Make the run available to all workers."""
        message = ws.UpdateWorkflowExecutionOptionsRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._execution,
            identity=self._scope.identity,
        )
        message.workflow_execution_options.SetInParent()
        message.update_mask.paths.append("versioning_override")
        await self._call("update_workflow_execution_options", message, 10.0)

    async def _remove(self) -> None:
        """Terminate and delete the run, so that its workflow id is free."""
        if not self._run_id:
            return
        end = ws.TerminateWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._execution,
            reason="its import was abandoned",
        )
        try:
            await self._call("terminate_workflow_execution", end, 10.0)
        except ServiceError as error:
            # It is already terminated: an earlier removal was interrupted.
            if error.status != "NOT_FOUND":
                raise
        delete = ws.DeleteWorkflowExecutionRequest(
            namespace=self._scope.namespace, workflow_execution=self._execution
        )
        await self._call("delete_workflow_execution", delete, 10.0)

    async def _override(self) -> Any:
        message = ws.DescribeWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            execution=self._execution,
        )
        data = await self._call("describe_workflow_execution", message, 10.0)
        info = ws.DescribeWorkflowExecutionResponse.FromString(data).workflow_execution_info
        return info.versioning_info.versioning_override.pinned.version

    async def _is_pinned_to_import(self) -> bool:
        return bool((await self._override()).deployment_name == DEPLOYMENT)

    async def _is_pinned_to_this_process(self) -> bool:
        version = await self._override()
        return bool(version.deployment_name == DEPLOYMENT and version.build_id == _BUILD)

    async def _fetch(self) -> History:
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


def _scheduled_id(event: HistoryEvent) -> int:
    attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
    return int(attributes.scheduled_event_id)


def _queue(name: str) -> TaskQueue:
    return TaskQueue(name=name, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL)


def _put_version(options: Any) -> None:
    options.deployment_name, options.build_id = DEPLOYMENT, _BUILD
    options.worker_versioning_mode = 2  # versioned
