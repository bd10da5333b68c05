"""Translation of workflow tasks: from Core's activations to ours, and from our completions to Core's. Pure. The
tables at the end of each part name the function for each kind of job and of command.

A job of an unknown kind is rejected by name, because evaluating a workflow without one of its events would be
worse. Commands are sent in the order of issue. Core itself moves the terminal command to the end, and old
histories rely on that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from temporalio.api.enums.v1 import SuggestContinueAsNewReason
from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator.commands import Command, Completion, Succeeded
from hourglass._evaluator.events import Activation, AnyEvent
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass._temporal import specs
from hourglass._temporal.failures import failure_from, put_failure
from hourglass._temporal.protos import (
    nanos_from,
    payload_from,
    payload_map_from,
    payloads_from,
    put_nanos,
    put_payload,
    put_payload_map,
    put_payloads,
    put_seconds,
    seconds_from,
)
from hourglass._temporal.specs import STARTED, local_bytes, remote_bytes
from hourglass.converter import Failure
from hourglass.errors import HourglassError


class UnsupportedEvent(HourglassError):
    """The error for a job of an unknown kind. The workflow task fails until a newer release of Hourglass
    executes it.
    """

    def __init__(self, run_id: str, kind: str) -> None:
        super().__init__(f"this release of Hourglass does not support the event {kind!r} of run {run_id}")
        self.run_id = run_id


class _Unknown(Exception):
    """The internal error for a kind that the tables do not contain. The caller converts it to
    `UnsupportedEvent`, which names the run.
    """


def activation_from_proto(data: bytes) -> Activation:
    """Decode an activation. Raise `UnsupportedEvent` if it contains a job of an unknown kind."""
    message: Any = WorkflowActivation.FromString(data)
    events = []
    try:
        for job in message.jobs:
            kind = job.WhichOneof("variant")
            read = _JOBS.get(kind)
            if read is None:
                raise _Unknown(kind)
            events.append(read(getattr(job, kind)))
    except _Unknown as error:
        raise UnsupportedEvent(message.run_id, str(error)) from None
    run_id = message.run_id
    # Use a single string object for both ids, because both are kept as long as the run, and there may be many
    # runs.
    if events and type(events[0]) is ev.RunStarted and events[0].first_execution_run_id == run_id:
        run_id = events[0].first_execution_run_id
    return Activation(
        run_id=run_id,
        events=tuple(events),
        timestamp_ns=nanos_from(message.timestamp),
        is_replaying=message.is_replaying,
        history_length=message.history_length,
        history_size=message.history_size_bytes,
        continue_as_new_suggested=message.continue_as_new_suggested,
        continue_as_new_reasons=_reasons(reasons)
        if (reasons := message.suggest_continue_as_new_reasons)
        else (),
        flags=_flags(tuple(message.available_internal_flags)),
        deployment_version=(
            _version(message.deployment_version_for_current_task)
            if message.HasField("deployment_version_for_current_task")
            else None
        ),
        target_version_changed=message.target_worker_deployment_version_changed,
    )


def _version(version: Any) -> WorkerDeploymentVersion | None:
    """Return the version of the worker that completed the task; None if it has only a build id."""
    return version_of(version.deployment_name, version.build_id) if version.deployment_name else None


@lru_cache(maxsize=256)
def _flags(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return the same object for equal flags, because a run compares the flags with those of the previous
    activation by identity.
    """
    return numbers


@lru_cache(maxsize=256)
def version_of(deployment_name: str, build_id: str) -> WorkerDeploymentVersion:
    """Return a version. All activations with this version share the object, to save memory, because activations
    are kept as long as their runs.
    """
    return WorkerDeploymentVersion(deployment_name, build_id)


def _reasons(numbers: Any) -> tuple[str, ...]:
    """Return the reasons for continuing as new, as Temporal's names without their common prefix."""
    return tuple([_SUGGESTED.get(number, str(number)) for number in numbers])


_SUGGESTED: dict[int, str] = {
    number: name.removeprefix("SUGGEST_CONTINUE_AS_NEW_REASON_")
    for name, number in SuggestContinueAsNewReason.items()
}


def _share(text: str, original: str) -> str:
    """Return `original` if `text` is equal to it. This keeps a single string object in memory for the life of the
    run.
    """
    return original if text == original else text


def _started(job: Any) -> AnyEvent:
    workflow_id = job.workflow_id
    first_run_id = job.first_execution_run_id
    return ev.RunStarted(
        workflow_type=sys.intern(job.workflow_type),
        workflow_id=workflow_id,
        arguments=payloads_from(job.arguments),
        headers=payload_map_from(job.headers),
        spec=STARTED.get(job),
        seed=job.randomness_seed,
        attempt=job.attempt,
        identity=sys.intern(job.identity),
        parent_namespace=job.parent_workflow_info.namespace,
        parent_workflow_id=job.parent_workflow_info.workflow_id,
        parent_run_id=job.parent_workflow_info.run_id,
        root_workflow_id=_share(job.root_workflow.workflow_id, workflow_id),
        root_run_id=_share(job.root_workflow.run_id, first_run_id),
        continued_run_id=job.continued_from_execution_run_id,
        first_execution_run_id=first_run_id,
        original_execution_run_id=_share(job.original_execution_run_id, first_run_id),
        last_completion_result=payloads_from(job.last_completion_result.payloads),
        last_failure=failure_from(job.continued_failure) if job.HasField("continued_failure") else None,
        start_time_ns=nanos_from(job.start_time),
    )


def _activity(job: Any) -> AnyEvent:
    result = job.result
    kind = result.WhichOneof("status")
    match kind:
        case "completed":
            done = result.completed
            return ev.ActivityCompleted(
                job.seq, payload_from(done.result) if done.HasField("result") else None, job.is_local
            )
        case "failed":
            return ev.ActivityFailed(job.seq, failure_from(result.failed.failure), job.is_local)
        case "cancelled":
            return ev.ActivityCancelled(job.seq, failure_from(result.cancelled.failure), job.is_local)
        case "backoff":
            pause = result.backoff
            return ev.ActivityBackedOff(
                job.seq,
                pause.attempt,
                seconds_from(pause.backoff_duration),
                nanos_from(pause.original_schedule_time),
                job.is_local,
            )
        case _:
            raise _Unknown(f"resolve_activity.{kind}")


def _child_start(job: Any) -> AnyEvent:
    kind = job.WhichOneof("status")
    match kind:
        case "succeeded":
            return ev.ChildStarted(job.seq, job.succeeded.run_id)
        case "failed":
            failed = job.failed
            # 1 is "already exists", 2 "no such namespace", 3 "invalid versioning override".
            return ev.ChildStartFailed(
                job.seq, failed.workflow_id, failed.workflow_type, failed.cause == 1, failed.cause == 3
            )
        case "cancelled":
            return ev.ChildStartCancelled(job.seq, failure_from(job.cancelled.failure))
        case _:
            raise _Unknown(f"resolve_child_workflow_execution_start.{kind}")


def _child(job: Any) -> AnyEvent:
    result = job.result
    kind = result.WhichOneof("status")
    match kind:
        case "completed":
            done = result.completed
            return ev.ChildCompleted(job.seq, payload_from(done.result) if done.HasField("result") else None)
        case "failed":
            return ev.ChildFailed(job.seq, failure_from(result.failed.failure))
        case "cancelled":
            return ev.ChildCancelled(job.seq, failure_from(result.cancelled.failure))
        case _:
            raise _Unknown(f"resolve_child_workflow_execution.{kind}")


def _nexus_start(job: Any) -> AnyEvent:
    if job.WhichOneof("status") == "failed":
        return ev.NexusStartFailed(job.seq, failure_from(job.failed))
    return ev.NexusStarted(job.seq, job.operation_token)


def _nexus(job: Any) -> AnyEvent:
    kind = job.result.WhichOneof("status")
    if kind == "completed":
        return ev.NexusCompleted(job.seq, payload_from(job.result.completed))
    if kind not in ("failed", "cancelled", "timed_out"):
        raise _Unknown(f"resolve_nexus_operation.{kind}")
    return ev.NexusFailed(job.seq, failure_from(getattr(job.result, kind)))


def _failure_of(job: Any) -> Failure | None:
    return failure_from(job.failure) if job.HasField("failure") else None


def _signal(job: Any) -> AnyEvent:
    return ev.SignalReceived(
        job.signal_name, payloads_from(job.input), job.identity, payload_map_from(job.headers)
    )


def _update(job: Any) -> AnyEvent:
    return ev.UpdateReceived(
        id=job.id,
        protocol_instance_id=job.protocol_instance_id,
        name=job.name,
        arguments=payloads_from(job.input),
        headers=payload_map_from(job.headers),
        run_validator=job.run_validator,
    )


def _query(job: Any) -> AnyEvent:
    return ev.QueryReceived(
        job.query_id, job.query_type, payloads_from(job.arguments), payload_map_from(job.headers)
    )


_REASONS: dict[int, str] = {number: name for name, number in RemoveFromCache.EvictionReason.items()}


def _evicted(job: Any) -> AnyEvent:
    return ev.RunEvicted(_REASONS.get(job.reason, str(job.reason)), _plain_message(job.message))


_QUOTED_MESSAGE = re.compile(r'Failure \{ message: "((?:[^"\\]|\\.)*)"')


def _plain_message(text: str) -> str:
    """Return the message inside a failure that Core formatted as Rust debug output; any other string unchanged."""
    match = _QUOTED_MESSAGE.search(text)
    return text if match is None else re.sub(r"\\(.)", r"\1", match[1])


_JOBS: dict[str | None, Callable[[Any], AnyEvent]] = {
    "initialize_workflow": _started,
    "fire_timer": lambda job: ev.TimerFired(job.seq),
    "resolve_activity": _activity,
    "resolve_child_workflow_execution_start": _child_start,
    "resolve_child_workflow_execution": _child,
    "resolve_nexus_operation_start": _nexus_start,
    "resolve_nexus_operation": _nexus,
    "resolve_signal_external_workflow": lambda job: ev.ExternalSignalResolved(job.seq, _failure_of(job)),
    "resolve_request_cancel_external_workflow": lambda job: ev.ExternalCancelResolved(
        job.seq, _failure_of(job)
    ),
    "signal_workflow": _signal,
    "do_update": _update,
    "query_workflow": _query,
    "cancel_workflow": lambda job: ev.CancelRequested(job.reason),
    "notify_has_patch": lambda job: ev.PatchNoticed(job.patch_id),
    "update_random_seed": lambda job: ev.SeedChanged(job.randomness_seed),
    "remove_from_cache": _evicted,
}


class CommandDefaults(msgspec.Struct, frozen=True):
    """The handle's task queue and namespace, for commands that do not set them, and whether the handle's worker
    has a version.
    """

    task_queue: str
    namespace: str
    versioned: bool = False


def completion_to_proto(completion: Completion, defaults: CommandDefaults) -> bytes:
    """Encode a completion."""
    message: Any = WorkflowActivationCompletion(run_id=completion.run_id)
    if isinstance(completion, Succeeded):
        success = message.successful
        success.SetInParent()
        add = success.commands.add
        for command in completion.commands:
            message_command = add()
            _COMMANDS[type(command)](message_command, command, defaults)
            if command.event_groups:
                _put_groups(message_command.event_group_markers, command.event_groups)
        if completion.used_flags:
            success.used_internal_flags.extend(completion.used_flags)
        # A server rejects a completion with a versioning behavior from a worker without a version, and the task
        # would be retried forever.
        if defaults.versioned:
            success.versioning_behavior = int(completion.versioning_behavior)
    else:
        put_failure(message.failed.failure, completion.failure)
        message.failed.force_cause = int(completion.cause)
    data: bytes = message.SerializeToString()
    return data


def _put_groups(markers: Any, groups: tuple[cmd.EventGroupMarker, ...]) -> None:
    for group in groups:
        label = markers.add().label
        label.id = group.id
        if group.label is not None:
            put_payload(label.label, group.label)


def _start_timer(message: Any, command: cmd.StartTimer, defaults: CommandDefaults) -> None:
    timer = message.start_timer
    timer.seq = command.seq
    put_nanos(timer.start_to_fire_timeout, command.duration_ns)
    if command.summary is not None:
        put_payload(message.user_metadata.summary, command.summary)


def _schedule_activity(message: Any, command: cmd.ScheduleActivity, defaults: CommandDefaults) -> None:
    message.schedule_activity.MergeFromString(remote_bytes(command.spec, defaults.task_queue))
    _put_call(message, message.schedule_activity, command)


def _schedule_local_activity(
    message: Any, command: cmd.ScheduleLocalActivity, defaults: CommandDefaults
) -> None:
    activity = message.schedule_local_activity
    activity.MergeFromString(local_bytes(command.spec))
    _put_call(message, activity, command)
    if command.attempt:
        activity.attempt = command.attempt
    if command.original_schedule_time_ns:
        put_nanos(activity.original_schedule_time, command.original_schedule_time_ns)


def _put_call(message: Any, activity: Any, command: cmd.ScheduleActivity | cmd.ScheduleLocalActivity) -> None:
    activity.seq = command.seq
    activity.activity_id = command.activity_id
    activity.activity_type = command.activity_type
    put_payloads(activity.arguments, command.arguments)
    if command.headers:
        put_payload_map(activity.headers, command.headers)
    if command.summary is not None:
        put_payload(message.user_metadata.summary, command.summary)


def _start_child(message: Any, command: cmd.StartChildWorkflow, defaults: CommandDefaults) -> None:
    child = message.start_child_workflow_execution
    child.seq = command.seq
    child.namespace = command.namespace or defaults.namespace
    child.workflow_id = command.workflow_id
    child.workflow_type = command.workflow_type
    child.task_queue = defaults.task_queue
    put_payloads(child.input, command.arguments)
    put_payload_map(child.headers, command.headers)
    specs.CHILD_START.put(child, command.spec)
    specs.CHILD.put(child, command.child)
    specs.NOTES.put(message, command.spec)


def _schedule_nexus(message: Any, command: cmd.ScheduleNexusOperation, defaults: CommandDefaults) -> None:
    call = message.schedule_nexus_operation
    call.seq = command.seq
    call.endpoint = command.endpoint
    call.service = command.service
    call.operation = command.operation
    put_payload(call.input, command.argument)
    call.nexus_header.update(command.headers)
    call.cancellation_type = command.cancellation_type
    for name in ("schedule_to_close_timeout", "schedule_to_start_timeout", "start_to_close_timeout"):
        if (seconds := getattr(command, name)) is not None:
            put_seconds(getattr(call, name), seconds)
    if command.summary is not None:
        put_payload(message.user_metadata.summary, command.summary)


def _signal_external(message: Any, command: cmd.SignalExternalWorkflow, defaults: CommandDefaults) -> None:
    signal = message.signal_external_workflow_execution
    signal.seq = command.seq
    if command.is_child:
        signal.child_workflow_id = command.workflow_id
    else:
        _put_execution(signal.workflow_execution, command, defaults)
    signal.signal_name = command.signal_name
    put_payloads(signal.args, command.arguments)
    put_payload_map(signal.headers, command.headers)


def _put_execution(
    execution: Any, command: cmd.SignalExternalWorkflow | cmd.RequestCancelExternal, defaults: CommandDefaults
) -> None:
    execution.namespace = command.namespace or defaults.namespace
    execution.workflow_id = command.workflow_id
    execution.run_id = command.run_id


def _cancel_external(message: Any, command: cmd.RequestCancelExternal, defaults: CommandDefaults) -> None:
    cancel = message.request_cancel_external_workflow_execution
    cancel.seq = command.seq
    cancel.reason = command.reason
    _put_execution(cancel.workflow_execution, command, defaults)


def _upsert_search_attributes(
    message: Any, command: cmd.UpsertSearchAttributes, defaults: CommandDefaults
) -> None:
    upsert = message.upsert_workflow_search_attributes
    upsert.SetInParent()
    put_payload_map(upsert.search_attributes.indexed_fields, command.search_attributes)


def _upsert_memo(message: Any, command: cmd.UpsertMemo, defaults: CommandDefaults) -> None:
    change = message.modify_workflow_properties
    change.SetInParent()
    put_payload_map(change.upserted_memo.fields, command.memo)


def _accept_update(message: Any, command: cmd.AcceptUpdate, defaults: CommandDefaults) -> None:
    message.update_response.protocol_instance_id = command.protocol_instance_id
    message.update_response.accepted.SetInParent()


def _reject_update(message: Any, command: cmd.RejectUpdate, defaults: CommandDefaults) -> None:
    message.update_response.protocol_instance_id = command.protocol_instance_id
    put_failure(message.update_response.rejected, command.failure)


def _complete_update(message: Any, command: cmd.CompleteUpdate, defaults: CommandDefaults) -> None:
    message.update_response.protocol_instance_id = command.protocol_instance_id
    put_payload(message.update_response.completed, command.result)


def _answer_query(message: Any, command: cmd.AnswerQuery, defaults: CommandDefaults) -> None:
    answer = message.respond_to_query
    answer.query_id = command.query_id
    if command.failure is not None:
        put_failure(answer.failed, command.failure)
        return
    answer.succeeded.SetInParent()
    if command.result is not None:
        put_payload(answer.succeeded.response, command.result)


def _continue_as_new(message: Any, command: cmd.ContinueAsNew, defaults: CommandDefaults) -> None:
    # An empty type or task queue means the current one, to Hourglass and to Core, so both are sent empty.
    next_run = message.continue_as_new_workflow_execution
    next_run.SetInParent()
    next_run.workflow_type = command.workflow_type
    put_payloads(next_run.arguments, command.arguments)
    put_payload_map(next_run.headers, command.headers)
    specs.CONTINUED.put(next_run, command.spec)
    if command.versioning and defaults.versioned:
        next_run.initial_versioning_behavior = int(command.versioning)
    if command.backoff:
        put_seconds(next_run.backoff_start_interval, command.backoff)


def _copy(variant: str, *fields: str, **renamed: str) -> Callable[[Any, Any, CommandDefaults], None]:
    """Return a function that copies fields of a command to a message. `renamed` maps names in the message to names in the
    command.
    """
    pairs = tuple({**dict(zip(fields, fields, strict=True)), **renamed}.items())

    def put(message: Any, command: Command, defaults: CommandDefaults) -> None:
        target = getattr(message, variant)
        for name, field in pairs:
            setattr(target, name, getattr(command, field))

    return put


_COMMANDS: dict[type[Command], Callable[[Any, Any, CommandDefaults], None]] = {
    cmd.StartTimer: _start_timer,
    cmd.CancelTimer: _copy("cancel_timer", "seq"),
    cmd.ScheduleActivity: _schedule_activity,
    cmd.ScheduleLocalActivity: _schedule_local_activity,
    cmd.RequestCancelActivity: _copy("request_cancel_activity", "seq"),
    cmd.RequestCancelLocalActivity: _copy("request_cancel_local_activity", "seq"),
    cmd.StartChildWorkflow: _start_child,
    cmd.CancelChildWorkflow: _copy("cancel_child_workflow_execution", "reason", child_workflow_seq="seq"),
    cmd.ScheduleNexusOperation: _schedule_nexus,
    cmd.CancelNexusOperation: _copy("request_cancel_nexus_operation", "seq"),
    cmd.SignalExternalWorkflow: _signal_external,
    cmd.CancelSignalExternal: _copy("cancel_signal_workflow", "seq"),
    cmd.RequestCancelExternal: _cancel_external,
    cmd.SetPatchMarker: _copy("set_patch_marker", "patch_id", "deprecated"),
    cmd.UpsertSearchAttributes: _upsert_search_attributes,
    cmd.UpsertMemo: _upsert_memo,
    cmd.AcceptUpdate: _accept_update,
    cmd.RejectUpdate: _reject_update,
    cmd.CompleteUpdate: _complete_update,
    cmd.AnswerQuery: _answer_query,
    cmd.CompleteRun: lambda message, command, _: put_payload(
        message.complete_workflow_execution.result, command.result
    ),
    cmd.FailRun: lambda message, command, _: put_failure(
        message.fail_workflow_execution.failure, command.failure
    ),
    cmd.CancelRun: lambda message, command, _: message.cancel_workflow_execution.SetInParent(),
    cmd.ContinueAsNew: _continue_as_new,
}
