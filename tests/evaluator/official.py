"""temporalio's workflow instance, which receives the same activations as ours.

Only this file of the tests depends on how `temporalio` drives a workflow. The class is private there, so the tests hold for
the pinned version.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import temporalio.api.common.v1
import temporalio.common
import temporalio.converter
import temporalio.worker._workflow_instance as instance
import temporalio.workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob

from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator.events import Activation, AnyEvent
from hourglass._temporal.failures import put_failure
from hourglass._temporal.protos import (
    payload_from,
    put_nanos,
    put_payload,
    put_payloads,
    put_seconds,
    seconds_from,
)
from hourglass.converter import default_converter

from .driver import decode

LOGGERS = ("temporalio", "temporalio.worker._workflow_instance", "asyncio")

# temporalio's name of each command, and our name for comparisons.
NAMES = {
    "start_timer": "timer",
    "cancel_timer": "cancel timer",
    "schedule_activity": "activity",
    "schedule_local_activity": "local activity",
    "request_cancel_activity": "cancel activity",
    "request_cancel_local_activity": "cancel local activity",
    "start_child_workflow_execution": "child",
    "cancel_child_workflow_execution": "cancel child",
    "signal_external_workflow_execution": "signal",
    "cancel_signal_workflow": "cancel signal",
    "request_cancel_external_workflow_execution": "cancel external",
    "complete_workflow_execution": "complete",
    "fail_workflow_execution": "fail",
    "cancel_workflow_execution": "cancelled",
    "continue_as_new_workflow_execution": "continue",
    "set_patch_marker": "patch",
    "update_response": "update",
}
Brief = tuple[Any, ...]
_EVICTION_ATTEMPTS = 50


class CountingTask(asyncio.Task[Any]):
    """A task that counts all requests to cancel it."""

    cancel_requests = 0

    def cancel(self, msg: Any = None) -> bool:
        if not self.done():
            self.cancel_requests += 1
        return super().cancel(msg)


class Official:
    """One run of a `temporalio` workflow."""

    def __init__(self, workflow: Any, seed: int, *, counting: bool = True) -> None:
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._counting = counting
        self._details = _details(workflow, seed)
        self._instance = asyncio.run(self._create())

    async def _create(self) -> Any:
        created: Any = instance.UnsandboxedWorkflowRunner().create_instance(self._details)

        def create_task(coroutine: Any, *, name: str | None = None, context: Any = None) -> CountingTask:
            task = CountingTask(coroutine, loop=created, context=context)
            created._register_task(task, name=name)
            return task

        if self._counting:
            created.create_task = create_task
        return created

    def activate(self, activation: Activation) -> list[Brief]:
        """Return the commands of one activation in brief; a failed task is one command of that name."""
        completion = self.complete(activation)
        if completion.HasField("failed"):
            return [("task failed", completion.failed.failure.message)]
        return [_brief(command) for command in completion.successful.commands]

    def complete(self, activation: Activation) -> Any:
        """Return the completion of one activation."""
        return self._instance.activate(_activation(activation))

    def evict(self) -> None:
        """End the tasks of the run.

        Where temporalio has reset the count of cancellation requests, a timeout block mistakes the end for its own and the task
        waits again; then the eviction is repeated.
        """
        message = WorkflowActivation(run_id="run-1")
        message.jobs.add().remove_from_cache.SetInParent()
        for attempt in range(1, _EVICTION_ATTEMPTS + 1):
            try:
                self._instance.activate(message)
                return
            except RuntimeError:
                if attempt == _EVICTION_ATTEMPTS:
                    raise


def _details(workflow: Any, seed: int) -> instance.WorkflowInstanceDetails:
    definition = temporalio.workflow._Definition.must_from_class(workflow)
    start = datetime(2023, 11, 14, tzinfo=UTC)
    info = temporalio.workflow.Info(
        attempt=1,
        continued_run_id=None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id="run-1",
        headers={},
        namespace="default",
        original_execution_run_id="run-1",
        parent=None,
        root=None,
        priority=temporalio.common.Priority.default,
        raw_memo={},
        retry_policy=None,
        run_id="run-1",
        run_timeout=None,
        search_attributes={},
        start_time=start,
        task_queue="default",
        task_timeout=timedelta(seconds=10),
        typed_search_attributes=temporalio.common.TypedSearchAttributes(
            []
        ),  # the constructor changes its list
        workflow_id="workflow-1",
        workflow_start_time=start,
        workflow_type=definition.name or "",
    )
    converter = temporalio.converter.DataConverter.default
    return instance.WorkflowInstanceDetails(
        payload_converter_factory=converter._new_payload_converter,
        failure_converter_class=converter.failure_converter_class,
        interceptor_classes=[],
        defn=definition,
        info=info,
        randomness_seed=seed,
        extern_functions={"__temporal_assert_local_activity_valid": lambda _: None},
        disable_eager_activity_execution=False,
        worker_level_failure_exception_types=[],
        patch_activation_callback=None,
        last_completion_result=temporalio.api.common.v1.Payloads(),
        last_failure=None,
    )


def _activation(activation: Activation) -> WorkflowActivation:
    message = WorkflowActivation(
        run_id=activation.run_id,
        is_replaying=activation.is_replaying,
        history_length=activation.history_length,
        available_internal_flags=activation.flags,
    )
    put_nanos(message.timestamp, activation.timestamp_ns)
    for event in activation.events:
        _put(message.jobs.add(), event)
    return message


def _put(job: WorkflowActivationJob, event: AnyEvent) -> None:
    match event:
        case ev.RunStarted():
            start = job.initialize_workflow
            start.workflow_type, start.workflow_id = event.workflow_type, event.workflow_id
            start.randomness_seed = event.seed
            put_payloads(start.arguments, event.arguments)
        case ev.TimerFired():
            job.fire_timer.seq = event.seq
        case ev.SignalReceived():
            job.signal_workflow.signal_name = event.name
            put_payloads(job.signal_workflow.input, event.arguments)
        case ev.CancelRequested():
            job.cancel_workflow.reason = event.reason
        case ev.PatchNoticed():
            job.notify_has_patch.patch_id = event.patch_id
        case ev.SeedChanged():
            job.update_random_seed.randomness_seed = event.seed
        case ev.UpdateReceived():
            job.do_update.id, job.do_update.name = event.id, event.name
            job.do_update.protocol_instance_id = event.protocol_instance_id
            job.do_update.run_validator = event.run_validator
            put_payloads(job.do_update.input, event.arguments)
        case ev.ExternalSignalResolved():
            job.resolve_signal_external_workflow.seq = event.seq
            if event.failure is not None:
                put_failure(job.resolve_signal_external_workflow.failure, event.failure)
        case ev.ExternalCancelResolved():
            job.resolve_request_cancel_external_workflow.seq = event.seq
            if event.failure is not None:
                put_failure(job.resolve_request_cancel_external_workflow.failure, event.failure)
        case _:
            _put_activity(job, event) if hasattr(event, "is_local") else _put_child(job, event)


def _put_activity(job: WorkflowActivationJob, event: AnyEvent) -> None:
    resolved = job.resolve_activity
    match event:
        case ev.ActivityCompleted():
            resolved.result.completed.SetInParent()
            if event.result is not None:
                put_payload(resolved.result.completed.result, event.result)
        case ev.ActivityFailed():
            put_failure(resolved.result.failed.failure, event.failure)
        case ev.ActivityCancelled():
            put_failure(resolved.result.cancelled.failure, event.failure)
        case ev.ActivityBackedOff():
            resolved.result.backoff.attempt = event.attempt
            put_seconds(resolved.result.backoff.backoff_duration, event.backoff)
            put_nanos(resolved.result.backoff.original_schedule_time, event.original_schedule_time_ns)
        case _:
            raise AssertionError(event)
    resolved.seq, resolved.is_local = event.seq, event.is_local


def _put_child(job: WorkflowActivationJob, event: AnyEvent) -> None:
    match event:
        case ev.ChildStarted():
            job.resolve_child_workflow_execution_start.seq = event.seq
            job.resolve_child_workflow_execution_start.succeeded.run_id = event.run_id
        case ev.ChildStartFailed():
            start = job.resolve_child_workflow_execution_start
            start.seq = event.seq
            start.failed.workflow_id, start.failed.workflow_type = event.workflow_id, event.workflow_type
            start.failed.cause = 1  # type: ignore[assignment]
        case ev.ChildStartCancelled():
            job.resolve_child_workflow_execution_start.seq = event.seq
            put_failure(job.resolve_child_workflow_execution_start.cancelled.failure, event.failure)
        case ev.ChildCompleted():
            result = job.resolve_child_workflow_execution
            result.seq = event.seq
            result.result.completed.SetInParent()
            if event.result is not None:
                put_payload(result.result.completed.result, event.result)
        case ev.ChildFailed():
            job.resolve_child_workflow_execution.seq = event.seq
            put_failure(job.resolve_child_workflow_execution.result.failed.failure, event.failure)
        case ev.ChildCancelled():
            job.resolve_child_workflow_execution.seq = event.seq
            put_failure(job.resolve_child_workflow_execution.result.cancelled.failure, event.failure)
        case _:
            raise AssertionError(event)


def _brief(command: Any) -> Brief:
    kind = command.WhichOneof("variant")
    body = getattr(command, kind)
    match kind:
        case "start_timer":
            return NAMES[kind], body.seq, seconds_from(body.start_to_fire_timeout)
        case "schedule_activity" | "schedule_local_activity":
            return NAMES[kind], body.seq, _values(body.arguments), getattr(body, "attempt", 0)
        case "start_child_workflow_execution":
            return NAMES[kind], body.seq, body.workflow_id
        case "cancel_child_workflow_execution":
            return NAMES[kind], body.child_workflow_seq
        case "complete_workflow_execution":
            return NAMES[kind], _values([body.result])
        case "set_patch_marker":
            return NAMES[kind], body.patch_id, body.deprecated
        case "update_response":
            answer = body.WhichOneof("response")
            result = _values([body.completed]) if answer == "completed" else []
            return NAMES[kind], body.protocol_instance_id, answer, result
        case _:
            return NAMES[kind], getattr(body, "seq", None)


def _values(messages: Any) -> list[Any]:
    return [default_converter.decode(payload_from(message)) for message in messages]


def brief_of_ours(commands: Any) -> list[Brief]:
    """Describe our commands in the same form."""
    return [_ours(command) for command in commands]


# Our name of each command of which only the sequence number is compared.
_OURS: dict[type[cmd.Command], str] = {
    cmd.CancelTimer: "cancel timer",
    cmd.RequestCancelActivity: "cancel activity",
    cmd.RequestCancelLocalActivity: "cancel local activity",
    cmd.CancelChildWorkflow: "cancel child",
    cmd.SignalExternalWorkflow: "signal",
    cmd.CancelSignalExternal: "cancel signal",
    cmd.RequestCancelExternal: "cancel external",
    cmd.FailRun: "fail",
    cmd.CancelRun: "cancelled",
    cmd.ContinueAsNew: "continue",
}


def _ours(command: Any) -> Brief:
    match command:
        case cmd.StartTimer():
            return "timer", command.seq, command.duration_ns / 1e9
        case cmd.ScheduleActivity():
            return "activity", command.seq, [decode(p) for p in command.arguments], 0
        case cmd.ScheduleLocalActivity():
            return "local activity", command.seq, [decode(p) for p in command.arguments], command.attempt
        case cmd.StartChildWorkflow():
            return "child", command.seq, command.workflow_id
        case cmd.CompleteRun():
            return "complete", [decode(command.result)]
        case cmd.SetPatchMarker():
            return "patch", command.patch_id, command.deprecated
        case cmd.AcceptUpdate():
            return "update", command.protocol_instance_id, "accepted", []
        case cmd.RejectUpdate():
            return "update", command.protocol_instance_id, "rejected", []
        case cmd.CompleteUpdate():
            return "update", command.protocol_instance_id, "completed", [decode(command.result)]
        case _:
            return _OURS[type(command)], getattr(command, "seq", None)
