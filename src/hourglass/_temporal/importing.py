"""A history that another run wrote, on a server: a run is begun there and taken through the same workflow tasks again.

A server takes no history as it is (its administrators' `ImportWorkflowExecution` needs replicated namespaces, and Temporal
Cloud has none of it). But it writes the same events again, if the same things happen in the same order: this module plays
the worker, answers each task with the commands that the history records, and brings about what the run heard of: signals,
the ends of activities, timers. No code of the workflow is executed, and no activity.

While that lasts the run must be no other worker's: it is pinned to a version of a deployment that exists for this alone
(`DEPLOYMENT`), and let go when all of it is there and compares as equal. A process that is killed in between leaves a run that no
worker gets; the next import of the same request finds it, removes it, and begins anew. What is pending in the end waits
on its own queue: activities begin at their first attempt, timers fire when they were to.

What cannot be brought about is refused before anything is begun (`import_plan`): children, updates, activities that timed out,
messages to other workflows. Times, and what code made of them and of `workflow.random`, are those of the new run.
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
    named,
    plan,
)
from hourglass.errors import HistoryError, HourglassError, ServiceError

DEPLOYMENT = "hourglass-import"
_BUILD = new_id()
"""The version that this process's imports are pinned to: another's polls get none of their tasks."""

_LONGEST = 60.0
"""Seconds for one thing that was brought about to be seen."""

Call = Callable[[str, Any, float], Coroutine[Any, Any, bytes]]
"""Sends a message by an RPC, within so many seconds; raises `ServiceError`."""


# --- carrying it out --------------------------------------------------------------------------------------------------


async def import_workflow(call: Call, request: ImportWorkflow, scope: CallScope) -> Started:
    """Begin the run on the server, take it to where its history ends, and let it go."""
    try:
        source = read_history(b'{"events":[' + b",".join(request.events) + b"]}")
    except HistoryError as error:
        raise ServiceError(f"the history cannot be read: {error}", status="INVALID_ARGUMENT") from None
    history = History.FromString(source.encoded)
    made = _Import(call, request, scope, history)
    return Started("", False) if request.dry_run else await made.run()


class _Import:
    """One import: the run is begun, taken through its tasks, compared and let go."""

    def __init__(self, call: Call, request: ImportWorkflow, scope: CallScope, history: History) -> None:
        self._call = call
        self._request = request
        self._scope = scope
        self._history = history
        self._tasks = plan(history)
        self._started = history.events[0].workflow_execution_started_event_attributes
        self._queue: str = self._started.task_queue.name
        self._private = f"{DEPLOYMENT}-{_BUILD}"
        ended = [event for task in self._tasks for event in task.told if event.event_type in ENDS]
        self._ended = {_scheduled_id(event) for event in ended}
        self._scheduled = {event.event_id: event for event in history.events if event.event_type == SCHEDULED}
        self._run_id = ""
        self._mapped: dict[int, int] = {}  # ids of events on the server, by those of the source
        self._taken: set[str] = set()  # activities of which we have taken the attempt

    @property
    def _name(self) -> WorkflowExecution:
        return WorkflowExecution(workflow_id=self._request.workflow_id, run_id=self._run_id)

    async def run(self) -> Started:
        """Begin it; one that was begun and left half done is removed first, one that is done is the answer."""
        await self._hold_activities()
        is_new = await self._begin()
        if is_new:
            await self._take_all()
        elif not await self._is_held():
            return Started(self._run_id, False)
        if not self._request.hold:
            await self._let_go()
        return Started(self._run_id, is_new)

    async def _take_all(self) -> None:
        try:
            for place, task in enumerate(self._tasks):
                await self._take(task, self._tasks[place + 1 :])
            await self._compare()
        except BaseException:
            with contextlib.suppress(HourglassError):
                await self._remove()
            raise

    # --- the beginning --------------------------------------------------------------------------------------------------

    async def _begin(self) -> bool:
        """Start the run, pinned to us. False: the same request was carried out before, wholly; its run is let go, or held."""
        data = await self._start()
        self._run_id = ws.StartWorkflowExecutionResponse.FromString(data).run_id
        there = await self._fetch()
        if not any(event.event_type == COMPLETED for event in there.events) and await self._is_ours():
            return True
        if not await self._is_held() or is_equal(there, self._history):
            return False
        # An import that was killed: no process has the version that its run is pinned to.
        await self._remove()
        until = monotonic() + _LONGEST
        while True:  # a server deletes in its own time
            data = await self._start()
            found = ws.StartWorkflowExecutionResponse.FromString(data).run_id
            if found != self._run_id or monotonic() > until:
                self._run_id = found
                return True
            await sleep(0.1)

    async def _start(self) -> bytes:
        message = self._start_message()
        until = monotonic() + _LONGEST
        while True:
            try:
                return await self._call("start_workflow_execution", message, 10.0)
            except ServiceError as error:
                # The server learns of a version by its polls, a moment after the first.
                if "not present" not in str(error) or monotonic() > until:
                    raise
            # It ends before the run begins: else it would take the first task before the run has heard what came before.
            await self._quietly(self._call("poll_workflow_task_queue", self._poll_message(), 3.0))

    def _start_message(self) -> Any:
        begun = self._started
        message = ws.StartWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            workflow_id=self._request.workflow_id,
            workflow_type=begun.workflow_type,
            task_queue=begun.task_queue,
            input=begun.input if begun.HasField("input") else None,
            identity=self._scope.identity,
            request_id=self._request.request_id,
            workflow_execution_timeout=begun.workflow_execution_timeout,
            workflow_run_timeout=begun.workflow_run_timeout,
            workflow_task_timeout=begun.workflow_task_timeout,
            retry_policy=begun.retry_policy if begun.HasField("retry_policy") else None,
            memo=begun.memo if begun.HasField("memo") else None,
            search_attributes=begun.search_attributes if begun.HasField("search_attributes") else None,
            header=begun.header if begun.HasField("header") else None,
            priority=begun.priority if begun.HasField("priority") else None,
        )
        if self._history.events[0].HasField("user_metadata"):
            message.user_metadata.CopyFrom(self._history.events[0].user_metadata)
        pinned: Any = message.versioning_override.pinned
        pinned.behavior = 1  # pinned
        pinned.version.deployment_name, pinned.version.build_id = DEPLOYMENT, _BUILD
        message.versioning_override.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
        message.versioning_override.pinned_version = f"{DEPLOYMENT}.{_BUILD}"
        return message

    async def _hold_activities(self) -> None:
        """Let the queues of pending activities know our version: a server then keeps them back until the run is let go."""
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
            polls.append(self._quietly(self._call("poll_activity_task_queue", message, 3.0)))
        await asyncio.gather(*polls)

    @staticmethod
    async def _quietly(poll: Any) -> None:
        with contextlib.suppress(ServiceError):
            await poll

    # --- one task after the other -----------------------------------------------------------------------------------------

    async def _take(self, task: PlannedTask, later: Sequence[PlannedTask]) -> None:
        for event in task.told:
            await self._bring_about(event)
        if task.completed is None:
            return
        token = await self._next_task()
        commands = [self._command(event, later) for event in task.asked]
        message = ws.RespondWorkflowTaskCompletedRequest(
            namespace=self._scope.namespace,
            task_token=token,
            identity=self._scope.identity,
            commands=commands,
            # A task that the run heard of nothing before: a worker wanted it.
            force_create_new_workflow_task=bool(later)
            and not later[0].told
            and later[0].completed is not None,
            versioning_behavior=VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE,
        )
        said = task.completed.workflow_task_completed_event_attributes
        if said.HasField("sdk_metadata"):
            message.sdk_metadata.CopyFrom(said.sdk_metadata)
        _put_version(message.deployment_options)
        await self._call("respond_workflow_task_completed", message, 10.0)
        await self._learn(task)

    def _poll_message(self) -> Any:
        message = ws.PollWorkflowTaskQueueRequest(
            namespace=self._scope.namespace,
            task_queue=_queue(self._queue),
            identity=self._scope.identity,
        )
        _put_version(message.deployment_options)
        return message

    async def _next_task(self) -> bytes:
        """The token of the run's next task."""
        until = monotonic() + _LONGEST
        while monotonic() < until:
            try:
                data = await self._call("poll_workflow_task_queue", self._poll_message(), 65.0)
                answer = ws.PollWorkflowTaskQueueResponse.FromString(data)
            except ServiceError as error:
                if error.status not in ("DEADLINE_EXCEEDED", "CANCELLED"):
                    raise
                continue
            if answer.workflow_execution.run_id == self._run_id:
                return bytes(answer.task_token)
        raise ServiceError("the server gave no task of the run", status="DEADLINE_EXCEEDED")

    def _command(self, event: HistoryEvent, later: Sequence[PlannedTask]) -> Command:
        """The command that leads to this event."""
        name = COMMANDS[event.event_type]
        said: Any = getattr(event, event.WhichOneof("attributes") or "")
        command = Command(command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"))
        asked: Any = getattr(command, f"{name}_command_attributes")
        asked.SetInParent()
        known = {each.name for each in said.DESCRIPTOR.fields}
        for each in asked.DESCRIPTOR.fields:
            if each.name not in known or each.name == "scheduled_event_id":
                continue
            value = getattr(said, each.name)
            if each.message_type is None:
                setattr(asked, each.name, value)
            elif each.message_type.GetOptions().map_entry:
                for key in value:
                    getattr(asked, each.name)[key].CopyFrom(value[key])
            elif said.HasField(each.name):
                getattr(asked, each.name).CopyFrom(value)
        if event.HasField("user_metadata"):
            command.user_metadata.CopyFrom(event.user_metadata)
        # Those of the author's: others name events, by the numbers that they have in the other history.
        command.event_group_markers.extend(
            each for each in event.event_group_markers if each.HasField("label")
        )
        if event.event_type == SCHEDULED and event.event_id in self._ended:
            # No worker may do it again: it waits where none polls, for the end that it has had.
            asked.task_queue.name, asked.use_workflow_build_id = self._private, False
            asked.retry_policy.maximum_attempts = 1
            for each in ("schedule_to_close", "schedule_to_start", "start_to_close", "heartbeat"):
                getattr(asked, f"{each}_timeout").FromSeconds(3600)
        elif event.event_type == kind_of("ACTIVITY_TASK_CANCEL_REQUESTED"):
            asked.scheduled_event_id = self._mapped.get(said.scheduled_event_id, 0)
        elif event.event_type == TIMER:
            asked.start_to_fire_timeout.FromNanoseconds(self._timer_ns(event, later))
        return command

    def _timer_ns(self, event: HistoryEvent, later: Sequence[PlannedTask]) -> int:
        """How long a timer shall run: as long as it still has to, if it is pending or cancelled; one that fired shall do so
        when its turn comes, which is after all that the run heard of before.
        """
        said = event.timer_started_event_attributes
        before = 0
        for task in later:
            for each in task.told:
                fired = each.timer_fired_event_attributes.timer_id
                if each.event_type == kind_of("TIMER_FIRED") and fired == said.timer_id:
                    return int((0.001 if not before else 0.5 + 0.25 * before) * 1e9)
                before += 1
            before += 1
        due = event.event_time.ToNanoseconds() + said.start_to_fire_timeout.ToNanoseconds()
        return max(due - time_ns(), int((1.0 + 0.25 * before) * 1e9))

    # --- what the run hears of ----------------------------------------------------------------------------------------------

    async def _bring_about(self, event: HistoryEvent) -> None:
        said: Any = getattr(event, event.WhichOneof("attributes") or "")
        if event.event_type == kind_of("WORKFLOW_EXECUTION_SIGNALED"):
            message: Any = ws.SignalWorkflowExecutionRequest(
                namespace=self._scope.namespace,
                workflow_execution=self._name,
                signal_name=said.signal_name,
                input=said.input if said.HasField("input") else None,
                header=said.header if said.HasField("header") else None,
                identity=said.identity,
                request_id=new_id(),
            )
            await self._call("signal_workflow_execution", message, 10.0)
        elif event.event_type == kind_of("WORKFLOW_EXECUTION_CANCEL_REQUESTED"):
            message = ws.RequestCancelWorkflowExecutionRequest(
                namespace=self._scope.namespace,
                workflow_execution=self._name,
                reason=said.cause,
                identity=said.identity,
                request_id=new_id(),
            )
            await self._call("request_cancel_workflow_execution", message, 10.0)
        elif event.event_type in ENDS:
            await self._end_activity(event, said)
        else:
            await self._see(event)

    async def _end_activity(self, event: HistoryEvent, said: Any) -> None:
        scheduled = self._scheduled[said.scheduled_event_id]
        activity_id = scheduled.activity_task_scheduled_event_attributes.activity_id
        message: Any
        if event.event_type == kind_of("ACTIVITY_TASK_COMPLETED"):
            message = ws.RespondActivityTaskCompletedByIdRequest(activity_id=activity_id)
            if said.HasField("result"):
                message.result.CopyFrom(said.result)
            rpc = "respond_activity_task_completed_by_id"
        elif event.event_type == kind_of("ACTIVITY_TASK_FAILED"):
            message = ws.RespondActivityTaskFailedByIdRequest(activity_id=activity_id, failure=said.failure)
            rpc = "respond_activity_task_failed_by_id"
            await self._start_attempt(activity_id)
        else:
            message = ws.RespondActivityTaskCanceledByIdRequest(activity_id=activity_id, details=said.details)
            rpc = "respond_activity_task_canceled_by_id"
            await self._start_attempt(activity_id)
        message.namespace, message.identity = self._scope.namespace, said.identity
        message.workflow_id, message.run_id = self._request.workflow_id, self._run_id
        await self._call(rpc, message, 10.0)

    async def _start_attempt(self, activity_id: str) -> None:
        """Take the attempt of an activity: only one that a worker has can fail."""
        message = ws.PollActivityTaskQueueRequest(
            namespace=self._scope.namespace,
            task_queue=_queue(self._private),
            identity=self._scope.identity,
        )
        until = monotonic() + _LONGEST
        while activity_id not in self._taken and monotonic() < until:
            with contextlib.suppress(ServiceError):
                answer = ws.PollActivityTaskQueueResponse.FromString(
                    await self._call("poll_activity_task_queue", message, 10.0)
                )
                if answer.workflow_execution.run_id == self._run_id:
                    self._taken.add(answer.activity_id)

    async def _see(self, event: HistoryEvent) -> None:
        """Wait until a timer has fired."""
        wanted, until = named(event), monotonic() + _LONGEST
        while monotonic() < until:
            if any(named(each) == wanted for each in (await self._fetch()).events):
                return
            await sleep(0.05)
        raise ServiceError("a timer did not fire in time", status="DEADLINE_EXCEEDED")

    # --- the end ------------------------------------------------------------------------------------------------------------

    async def _learn(self, task: PlannedTask) -> None:
        """Which ids the server gave the activities of a task; asked for only where one is cancelled later."""
        asked = [event for event in task.asked if event.event_type == SCHEDULED]
        cancels = any(
            event.event_type == kind_of("ACTIVITY_TASK_CANCEL_REQUESTED")
            for each in self._tasks
            for event in each.asked
        )
        if not asked or not cancels:
            return
        ids = {
            event.activity_task_scheduled_event_attributes.activity_id: event.event_id
            for event in (await self._fetch()).events
            if event.event_type == SCHEDULED
        }
        for event in asked:
            self._mapped[event.event_id] = ids[event.activity_task_scheduled_event_attributes.activity_id]

    async def _compare(self) -> None:
        if not is_equal(await self._fetch(), self._history):
            raise ServiceError(
                "the server's history did not become the same: something else happened to the run meanwhile, "
                "or a timer fired out of its turn. Try again",
                status="ABORTED",
            )

    async def _let_go(self) -> None:
        """The run is any worker's from now on."""
        message = ws.UpdateWorkflowExecutionOptionsRequest(
            namespace=self._scope.namespace,
            workflow_execution=self._name,
            identity=self._scope.identity,
        )
        message.workflow_execution_options.SetInParent()
        message.update_mask.paths.append("versioning_override")
        await self._call("update_workflow_execution_options", message, 10.0)

    async def _remove(self) -> None:
        """The run is of no use: it goes, and its id is free."""
        if not self._run_id:
            return
        end = ws.TerminateWorkflowExecutionRequest(
            namespace=self._scope.namespace, workflow_execution=self._name, reason="its import was given up"
        )
        try:
            await self._call("terminate_workflow_execution", end, 10.0)
        except ServiceError as error:
            # One that is terminated already: the last removal was killed half-way.
            if error.status != "NOT_FOUND":
                raise
        delete = ws.DeleteWorkflowExecutionRequest(
            namespace=self._scope.namespace, workflow_execution=self._name
        )
        await self._call("delete_workflow_execution", delete, 10.0)

    async def _override(self) -> Any:
        message = ws.DescribeWorkflowExecutionRequest(
            namespace=self._scope.namespace,
            execution=self._name,
        )
        data = await self._call("describe_workflow_execution", message, 10.0)
        info = ws.DescribeWorkflowExecutionResponse.FromString(data).workflow_execution_info
        return info.versioning_info.versioning_override.pinned.version

    async def _is_held(self) -> bool:
        return bool((await self._override()).deployment_name == DEPLOYMENT)

    async def _is_ours(self) -> bool:
        version = await self._override()
        return bool(version.deployment_name == DEPLOYMENT and version.build_id == _BUILD)

    async def _fetch(self) -> History:
        history, token = History(), b""
        while True:
            message = ws.GetWorkflowExecutionHistoryRequest(
                namespace=self._scope.namespace,
                execution=self._name,
                next_page_token=token,
            )
            data = await self._call("get_workflow_execution_history", message, 10.0)
            answer = ws.GetWorkflowExecutionHistoryResponse.FromString(data)
            history.events.extend(answer.history.events)
            token = answer.next_page_token
            if not token:
                return history


def _scheduled_id(event: HistoryEvent) -> int:
    said: Any = getattr(event, event.WhichOneof("attributes") or "")
    return int(said.scheduled_event_id)


def _queue(name: str) -> TaskQueue:
    return TaskQueue(name=name, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL)


def _put_version(options: Any) -> None:
    options.deployment_name, options.build_id = DEPLOYMENT, _BUILD
    options.worker_versioning_mode = 2  # versioned
