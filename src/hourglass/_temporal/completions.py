"""Our completions as Core's: frozen data in, bytes out. Pure; one small function per kind of command.

Commands go out in the order of issue: Core itself moves the terminal one last, and old histories rely on
that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from hourglass._engine import commands as cmd
from hourglass._engine.commands import Command, Completion, Succeeded
from hourglass._temporal import specs
from hourglass._temporal.payloads import (
    put_failure,
    put_nanos,
    put_payload,
    put_payload_map,
    put_payloads,
)
from hourglass._temporal.specs import local_bytes, remote_bytes


class Own(msgspec.Struct, frozen=True):
    """The handle's own task queue and namespace: what a command means that names none; and whether it has a version."""

    task_queue: str
    namespace: str
    versioned: bool = False


def completion_to_proto(completion: Completion, own: Own) -> bytes:
    """Write a completion."""
    message: Any = WorkflowActivationCompletion(run_id=completion.run_id)
    if isinstance(completion, Succeeded):
        success = message.successful
        success.SetInParent()
        add = success.commands.add
        for command in completion.commands:
            _COMMANDS[type(command)](add(), command, own)
        if completion.used_flags:
            success.used_internal_flags.extend(completion.used_flags)
        # What a worker without a version says of versions a server refuses, again and again.
        if own.versioned:
            success.versioning_behavior = int(completion.versioning_behavior)
    else:
        put_failure(message.failed.failure, completion.failure)
        message.failed.force_cause = int(completion.cause)
    data: bytes = message.SerializeToString()
    return data


def _start_timer(out: Any, command: cmd.StartTimer, own: Own) -> None:
    timer = out.start_timer
    timer.seq = command.seq
    put_nanos(timer.start_to_fire_timeout, command.duration_ns)
    if command.summary is not None:
        put_payload(out.user_metadata.summary, command.summary)


def _cancel_timer(out: Any, command: cmd.CancelTimer, own: Own) -> None:
    out.cancel_timer.seq = command.seq


def _schedule_activity(out: Any, command: cmd.ScheduleActivity, own: Own) -> None:
    out.schedule_activity.MergeFromString(remote_bytes(command.spec, own.task_queue))
    _put_call(out, out.schedule_activity, command)


def _schedule_local_activity(out: Any, command: cmd.ScheduleLocalActivity, own: Own) -> None:
    activity = out.schedule_local_activity
    activity.MergeFromString(local_bytes(command.spec))
    _put_call(out, activity, command)
    if command.attempt:
        activity.attempt = command.attempt
    if command.original_schedule_time_ns:
        put_nanos(activity.original_schedule_time, command.original_schedule_time_ns)


def _put_call(out: Any, activity: Any, command: cmd.ScheduleActivity | cmd.ScheduleLocalActivity) -> None:
    activity.seq = command.seq
    activity.activity_id = command.activity_id
    activity.activity_type = command.activity_type
    put_payloads(activity.arguments, command.arguments)
    if command.headers:
        put_payload_map(activity.headers, command.headers)
    if command.summary is not None:
        put_payload(out.user_metadata.summary, command.summary)


def _cancel_activity(out: Any, command: cmd.RequestCancelActivity, own: Own) -> None:
    out.request_cancel_activity.seq = command.seq


def _cancel_local_activity(out: Any, command: cmd.RequestCancelLocalActivity, own: Own) -> None:
    out.request_cancel_local_activity.seq = command.seq


def _start_child(out: Any, command: cmd.StartChildWorkflow, own: Own) -> None:
    child = out.start_child_workflow_execution
    child.seq = command.seq
    child.namespace = command.namespace or own.namespace
    child.workflow_id = command.workflow_id
    child.workflow_type = command.workflow_type
    child.task_queue = own.task_queue
    put_payloads(child.input, command.arguments)
    put_payload_map(child.headers, command.headers)
    specs.CHILD_START.put(child, command.spec)
    specs.CHILD.put(child, command.child)
    specs.NOTES.put(out, command.spec)


def _cancel_child(out: Any, command: cmd.CancelChildWorkflow, own: Own) -> None:
    out.cancel_child_workflow_execution.child_workflow_seq = command.seq
    out.cancel_child_workflow_execution.reason = command.reason


def _signal_external(out: Any, command: cmd.SignalExternalWorkflow, own: Own) -> None:
    signal = out.signal_external_workflow_execution
    signal.seq = command.seq
    if command.is_child:
        signal.child_workflow_id = command.workflow_id
    else:
        _put_execution(signal.workflow_execution, command, own)
    signal.signal_name = command.signal_name
    put_payloads(signal.args, command.arguments)
    put_payload_map(signal.headers, command.headers)


def _put_execution(
    execution: Any, command: cmd.SignalExternalWorkflow | cmd.RequestCancelExternal, own: Own
) -> None:
    execution.namespace = command.namespace or own.namespace
    execution.workflow_id = command.workflow_id
    execution.run_id = command.run_id


def _cancel_signal(out: Any, command: cmd.CancelSignalExternal, own: Own) -> None:
    out.cancel_signal_workflow.seq = command.seq


def _cancel_external(out: Any, command: cmd.RequestCancelExternal, own: Own) -> None:
    cancel = out.request_cancel_external_workflow_execution
    cancel.seq = command.seq
    cancel.reason = command.reason
    _put_execution(cancel.workflow_execution, command, own)


def _set_patch(out: Any, command: cmd.SetPatchMarker, own: Own) -> None:
    out.set_patch_marker.patch_id = command.patch_id
    out.set_patch_marker.deprecated = command.deprecated


def _upsert_search_attributes(out: Any, command: cmd.UpsertSearchAttributes, own: Own) -> None:
    upsert = out.upsert_workflow_search_attributes
    upsert.SetInParent()
    put_payload_map(upsert.search_attributes.indexed_fields, command.search_attributes)


def _upsert_memo(out: Any, command: cmd.UpsertMemo, own: Own) -> None:
    change = out.modify_workflow_properties
    change.SetInParent()
    put_payload_map(change.upserted_memo.fields, command.memo)


def _accept_update(out: Any, command: cmd.AcceptUpdate, own: Own) -> None:
    out.update_response.protocol_instance_id = command.protocol_instance_id
    out.update_response.accepted.SetInParent()


def _reject_update(out: Any, command: cmd.RejectUpdate, own: Own) -> None:
    out.update_response.protocol_instance_id = command.protocol_instance_id
    put_failure(out.update_response.rejected, command.failure)


def _complete_update(out: Any, command: cmd.CompleteUpdate, own: Own) -> None:
    out.update_response.protocol_instance_id = command.protocol_instance_id
    put_payload(out.update_response.completed, command.result)


def _answer_query(out: Any, command: cmd.AnswerQuery, own: Own) -> None:
    answer = out.respond_to_query
    answer.query_id = command.query_id
    if command.failure is not None:
        put_failure(answer.failed, command.failure)
        return
    answer.succeeded.SetInParent()
    if command.result is not None:
        put_payload(answer.succeeded.response, command.result)


def _complete_run(out: Any, command: cmd.CompleteRun, own: Own) -> None:
    put_payload(out.complete_workflow_execution.result, command.result)


def _fail_run(out: Any, command: cmd.FailRun, own: Own) -> None:
    put_failure(out.fail_workflow_execution.failure, command.failure)


def _cancel_run(out: Any, command: cmd.CancelRun, own: Own) -> None:
    out.cancel_workflow_execution.SetInParent()


def _continue_as_new(out: Any, command: cmd.ContinueAsNew, own: Own) -> None:
    # An empty type and queue mean the same as now: that is Core's own rule, so they stay empty.
    again = out.continue_as_new_workflow_execution
    again.SetInParent()
    again.workflow_type = command.workflow_type
    put_payloads(again.arguments, command.arguments)
    put_payload_map(again.headers, command.headers)
    specs.CONTINUED.put(again, command.spec)
    if command.versioning and own.versioned:
        again.initial_versioning_behavior = int(command.versioning)


_COMMANDS: dict[type[Command], Callable[[Any, Any, Own], None]] = {
    cmd.StartTimer: _start_timer,
    cmd.CancelTimer: _cancel_timer,
    cmd.ScheduleActivity: _schedule_activity,
    cmd.ScheduleLocalActivity: _schedule_local_activity,
    cmd.RequestCancelActivity: _cancel_activity,
    cmd.RequestCancelLocalActivity: _cancel_local_activity,
    cmd.StartChildWorkflow: _start_child,
    cmd.CancelChildWorkflow: _cancel_child,
    cmd.SignalExternalWorkflow: _signal_external,
    cmd.CancelSignalExternal: _cancel_signal,
    cmd.RequestCancelExternal: _cancel_external,
    cmd.SetPatchMarker: _set_patch,
    cmd.UpsertSearchAttributes: _upsert_search_attributes,
    cmd.UpsertMemo: _upsert_memo,
    cmd.AcceptUpdate: _accept_update,
    cmd.RejectUpdate: _reject_update,
    cmd.CompleteUpdate: _complete_update,
    cmd.AnswerQuery: _answer_query,
    cmd.CompleteRun: _complete_run,
    cmd.FailRun: _fail_run,
    cmd.CancelRun: _cancel_run,
    cmd.ContinueAsNew: _continue_as_new,
}
