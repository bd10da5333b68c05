"""An example of every job that Core sends and its event, and of every command and its message."""

from __future__ import annotations

from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from tests.specs import made

from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator.specs import RetryRule
from hourglass.client import IdReusePolicy
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    Payload,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.errors import RetryState, TimeoutType
from hourglass.workflow import ActivityCancellationType, ChildCancellationType, ParentClosePolicy

ONE = Payload(b"1")
NULL = Payload(b"", "binary/null")
MARKED = Payload(b"\x00\xff", "binary/plain", {"type": b"Keyword"})
RULE = RetryRule(1.5, 2.0, 60.0, 3, ("Fatal",))

PAYLOADS: tuple[tuple[Payload, dict[str, Any]], ...] = (
    (ONE, {"data": b"1", "metadata": {"encoding": b"json/plain"}}),
    (NULL, {"metadata": {"encoding": b"binary/null"}}),
    (MARKED, {"data": b"\x00\xff", "metadata": {"encoding": b"binary/plain", "type": b"Keyword"}}),
    (Payload(b"x", ""), {"data": b"x"}),
    (Payload(b"x", "", {"a": b"b"}), {"data": b"x", "metadata": {"a": b"b"}}),
    (Payload(b"x", "odd/\udcff"), {"data": b"x", "metadata": {"encoding": b"odd/\xff"}}),
)

_ONE = PAYLOADS[0][1]
_MARKED = PAYLOADS[2][1]
_RULE = {
    "initial_interval": {"seconds": 1, "nanos": 500_000_000},
    "backoff_coefficient": 2.0,
    "maximum_interval": {"seconds": 60},
    "maximum_attempts": 3,
    "non_retryable_error_types": ["Fatal"],
}

BOOM = Failure("boom", ApplicationFailure("Boom", True, (ONE,), 2.5, 1), None, "line 1", "Hourglass")
_BOOM: dict[str, Any] = {
    "message": "boom",
    "stack_trace": "line 1",
    "source": "Hourglass",
    "application_failure_info": {
        "type": "Boom",
        "non_retryable": True,
        "details": {"payloads": [_ONE]},
        "next_retry_delay": {"seconds": 2, "nanos": 500_000_000},
        "category": 1,
    },
}

FAILURES: tuple[tuple[Failure, dict[str, Any]], ...] = (
    (BOOM, _BOOM),
    (
        Failure("late", TimeoutFailure(TimeoutType.HEARTBEAT, (ONE,))),
        {
            "message": "late",
            "timeout_failure_info": {"timeout_type": 4, "last_heartbeat_details": {"payloads": [_ONE]}},
        },
    ),
    (
        Failure("no", CanceledFailure((ONE,))),
        {"message": "no", "canceled_failure_info": {"details": {"payloads": [_ONE]}}},
    ),
    (Failure("end", TerminatedFailure()), {"message": "end", "terminated_failure_info": {}}),
    (Failure("srv", ServerFailure(True)), {"message": "srv", "server_failure_info": {"non_retryable": True}}),
    (
        Failure("reset", ResetFailure((ONE,))),
        {"message": "reset", "reset_workflow_failure_info": {"last_heartbeat_details": {"payloads": [_ONE]}}},
    ),
    (
        Failure(
            "act",
            ActivityFailure("charge", "7", "me", 5, 6, RetryState.MAXIMUM_ATTEMPTS_REACHED),
            BOOM,
            encoded_attributes=ONE,
        ),
        {
            "message": "act",
            "cause": _BOOM,
            "encoded_attributes": _ONE,
            "activity_failure_info": {
                "activity_type": {"name": "charge"},
                "activity_id": "7",
                "identity": "me",
                "scheduled_event_id": 5,
                "started_event_id": 6,
                "retry_state": 4,
            },
        },
    ),
    (
        Failure(
            "child",
            ChildWorkflowFailure("ns", "w", "r", "Child", 5, 6, RetryState.NON_RETRYABLE_FAILURE),
            BOOM,
        ),
        {
            "message": "child",
            "cause": _BOOM,
            "child_workflow_execution_failure_info": {
                "namespace": "ns",
                "workflow_execution": {"workflow_id": "w", "run_id": "r"},
                "workflow_type": {"name": "Child"},
                "initiated_event_id": 5,
                "started_event_id": 6,
                "retry_state": 2,
            },
        },
    ),
    (Failure("bare"), {"message": "bare"}),
)

_CHILD = "resolve_child_workflow_execution"

STARTED = made(
    ev.RunStarted,
    workflow_type="Checkout",
    workflow_id="order-1",
    arguments=(ONE, NULL),
    seed=2**64 - 1,
    attempt=2,
    headers={"h": MARKED},
    identity="me",
    parent_namespace="pns",
    parent_workflow_id="pw",
    parent_run_id="pr",
    root_workflow_id="rw",
    root_run_id="rr",
    execution_timeout=3.0,
    run_timeout=2.0,
    task_timeout=10.0,
    retry_policy=RULE,
    cron_schedule="* * * * *",
    continued_run_id="before",
    first_execution_run_id="first",
    last_completion_result=(ONE,),
    last_failure=BOOM,
    memo={"m": ONE},
    search_attributes={"s": MARKED},
    start_time_ns=1_700_000_000_000_000_001,
    priority_key=3,
)


def _seq7(kind: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a job or command with the sequence number 7."""
    return {kind: {"seq": 7, **fields}}


EVENTS: tuple[tuple[ev.Event, dict[str, Any]], ...] = (
    (
        STARTED,
        {
            "initialize_workflow": {
                "workflow_type": "Checkout",
                "workflow_id": "order-1",
                "arguments": [_ONE, PAYLOADS[1][1]],
                "randomness_seed": 2**64 - 1,
                "attempt": 2,
                "headers": {"h": _MARKED},
                "identity": "me",
                "parent_workflow_info": {"namespace": "pns", "workflow_id": "pw", "run_id": "pr"},
                "root_workflow": {"workflow_id": "rw", "run_id": "rr"},
                "workflow_execution_timeout": {"seconds": 3},
                "workflow_run_timeout": {"seconds": 2},
                "workflow_task_timeout": {"seconds": 10},
                "retry_policy": _RULE,
                "cron_schedule": "* * * * *",
                "continued_from_execution_run_id": "before",
                "first_execution_run_id": "first",
                "last_completion_result": {"payloads": [_ONE]},
                "continued_failure": _BOOM,
                "memo": {"fields": {"m": _ONE}},
                "search_attributes": {"indexed_fields": {"s": _MARKED}},
                "start_time": {"seconds": 1_700_000_000, "nanos": 1},
                "priority": {"priority_key": 3},
            }
        },
    ),
    (
        ev.RunStarted(workflow_type="T", workflow_id="w", attempt=1),
        {"initialize_workflow": {"workflow_type": "T", "workflow_id": "w", "attempt": 1}},
    ),
    (ev.TimerFired(7), _seq7("fire_timer")),
    (ev.ActivityCompleted(7, ONE), _seq7("resolve_activity", result={"completed": {"result": _ONE}})),
    (ev.ActivityCompleted(7, None, True), _seq7("resolve_activity", result={"completed": {}}, is_local=True)),
    (ev.ActivityFailed(7, BOOM), _seq7("resolve_activity", result={"failed": {"failure": _BOOM}})),
    (ev.ActivityCancelled(7, BOOM), _seq7("resolve_activity", result={"cancelled": {"failure": _BOOM}})),
    (
        ev.ActivityBackedOff(7, 4, 90.5, 5_000_000_001, True),
        _seq7(
            "resolve_activity",
            is_local=True,
            result={
                "backoff": {
                    "attempt": 4,
                    "backoff_duration": {"seconds": 90, "nanos": 500_000_000},
                    "original_schedule_time": {"seconds": 5, "nanos": 1},
                }
            },
        ),
    ),
    (ev.NexusStarted(7, "token"), _seq7("resolve_nexus_operation_start", operation_token="token")),
    (ev.NexusStarted(7), _seq7("resolve_nexus_operation_start", started_sync=True)),
    (ev.NexusStartFailed(7, Failure("no")), _seq7("resolve_nexus_operation_start", failed={"message": "no"})),
    (ev.NexusCompleted(7, ONE), _seq7("resolve_nexus_operation", result={"completed": _ONE})),
    (
        ev.NexusFailed(7, Failure("no")),
        _seq7("resolve_nexus_operation", result={"timed_out": {"message": "no"}}),
    ),
    (ev.ChildStarted(7, "r"), _seq7(f"{_CHILD}_start", succeeded={"run_id": "r"})),
    (
        ev.ChildStartFailed(7, "w", "T", True),
        _seq7(f"{_CHILD}_start", failed={"workflow_id": "w", "workflow_type": "T", "cause": 1}),
    ),
    (
        ev.ChildStartFailed(7, "w", "T", False),
        _seq7(f"{_CHILD}_start", failed={"workflow_id": "w", "workflow_type": "T", "cause": 2}),
    ),
    (ev.ChildStartCancelled(7, BOOM), _seq7(f"{_CHILD}_start", cancelled={"failure": _BOOM})),
    (ev.ChildCompleted(7, ONE), _seq7(_CHILD, result={"completed": {"result": _ONE}})),
    (ev.ChildCompleted(7, None), _seq7(_CHILD, result={"completed": {}})),
    (ev.ChildFailed(7, BOOM), _seq7(_CHILD, result={"failed": {"failure": _BOOM}})),
    (ev.ChildCancelled(7, BOOM), _seq7(_CHILD, result={"cancelled": {"failure": _BOOM}})),
    (ev.ExternalSignalResolved(7), _seq7("resolve_signal_external_workflow")),
    (ev.ExternalSignalResolved(7, BOOM), _seq7("resolve_signal_external_workflow", failure=_BOOM)),
    (ev.ExternalCancelResolved(7), _seq7("resolve_request_cancel_external_workflow")),
    (ev.ExternalCancelResolved(7, BOOM), _seq7("resolve_request_cancel_external_workflow", failure=_BOOM)),
    (
        ev.SignalReceived("go", (ONE,), "me", {"h": ONE}),
        {"signal_workflow": {"signal_name": "go", "input": [_ONE], "identity": "me", "headers": {"h": _ONE}}},
    ),
    (
        ev.UpdateReceived(id="u", protocol_instance_id="p", name="set", arguments=(ONE,), headers={"h": ONE}),
        {
            "do_update": {
                "id": "u",
                "protocol_instance_id": "p",
                "name": "set",
                "input": [_ONE],
                "headers": {"h": _ONE},
                "run_validator": True,
            }
        },
    ),
    (
        ev.QueryReceived("q", "state", (ONE,), {"h": ONE}),
        {
            "query_workflow": {
                "query_id": "q",
                "query_type": "state",
                "arguments": [_ONE],
                "headers": {"h": _ONE},
            }
        },
    ),
    (ev.CancelRequested("enough"), {"cancel_workflow": {"reason": "enough"}}),
    (ev.PatchNoticed("v2"), {"notify_has_patch": {"patch_id": "v2"}}),
    (ev.SeedChanged(9), {"update_random_seed": {"randomness_seed": 9}}),
    (ev.RunEvicted("NONDETERMINISM", "differs"), {"remove_from_cache": {"reason": 3, "message": "differs"}}),
)

COMMANDS: tuple[tuple[cmd.Command, dict[str, Any]], ...] = (
    (
        cmd.StartTimer(7, 2_500_000_000, ONE),
        {
            "start_timer": {"seq": 7, "start_to_fire_timeout": {"seconds": 2, "nanos": 500_000_000}},
            "user_metadata": {"summary": _ONE},
        },
    ),
    (cmd.StartTimer(7, 0), _seq7("start_timer", start_to_fire_timeout={})),
    (cmd.CancelTimer(7), _seq7("cancel_timer")),
    (
        made(
            cmd.ScheduleActivity, seq=7, activity_id="7", activity_type="charge", start_to_close_timeout=30.0
        ),
        _seq7(
            "schedule_activity",
            activity_id="7",
            activity_type="charge",
            task_queue="own-queue",
            start_to_close_timeout={"seconds": 30},
        ),
    ),
    (
        made(
            cmd.ScheduleActivity,
            seq=7,
            activity_id="a",
            activity_type="charge",
            arguments=(ONE, MARKED),
            task_queue="elsewhere",
            schedule_to_close_timeout=1.0,
            schedule_to_start_timeout=2.0,
            start_to_close_timeout=3.0,
            heartbeat_timeout=4.0,
            retry_policy=RULE,
            cancellation_type=ActivityCancellationType.ABANDON,
            headers={"h": ONE},
            summary=ONE,
            priority_key=2,
            disable_eager_execution=True,
        ),
        {
            "schedule_activity": {
                "seq": 7,
                "activity_id": "a",
                "activity_type": "charge",
                "arguments": [_ONE, _MARKED],
                "task_queue": "elsewhere",
                "schedule_to_close_timeout": {"seconds": 1},
                "schedule_to_start_timeout": {"seconds": 2},
                "start_to_close_timeout": {"seconds": 3},
                "heartbeat_timeout": {"seconds": 4},
                "retry_policy": _RULE,
                "cancellation_type": 2,
                "headers": {"h": _ONE},
                "priority": {"priority_key": 2},
                "do_not_eagerly_execute": True,
            },
            "user_metadata": {"summary": _ONE},
        },
    ),
    (
        made(
            cmd.ScheduleLocalActivity,
            seq=7,
            activity_id="7",
            activity_type="look",
            arguments=(ONE,),
            attempt=3,
            original_schedule_time_ns=5_000_000_001,
            schedule_to_close_timeout=1.0,
            schedule_to_start_timeout=2.0,
            start_to_close_timeout=3.0,
            local_retry_threshold=60.0,
            retry_policy=RULE,
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            headers={"h": ONE},
            summary=ONE,
        ),
        {
            "schedule_local_activity": {
                "seq": 7,
                "activity_id": "7",
                "activity_type": "look",
                "arguments": [_ONE],
                "attempt": 3,
                "original_schedule_time": {"seconds": 5, "nanos": 1},
                "schedule_to_close_timeout": {"seconds": 1},
                "schedule_to_start_timeout": {"seconds": 2},
                "start_to_close_timeout": {"seconds": 3},
                "local_retry_threshold": {"seconds": 60},
                "retry_policy": _RULE,
                "cancellation_type": 1,
                "headers": {"h": _ONE},
            },
            "user_metadata": {"summary": _ONE},
        },
    ),
    (cmd.RequestCancelActivity(7), _seq7("request_cancel_activity")),
    (cmd.RequestCancelLocalActivity(7), _seq7("request_cancel_local_activity")),
    (
        made(
            cmd.StartChildWorkflow,
            seq=7,
            workflow_id="w",
            workflow_type="Child",
            arguments=(ONE,),
            execution_timeout=3.0,
            run_timeout=2.0,
            task_timeout=1.0,
            parent_close_policy=ParentClosePolicy.ABANDON,
            id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE,
            retry_policy=RULE,
            cron_schedule="@daily",
            cancellation_type=ChildCancellationType.TRY_CANCEL,
            headers={"h": ONE},
            memo={"m": ONE},
            search_attributes={"s": MARKED},
            static_summary=ONE,
            static_details=MARKED,
            priority_key=2,
        ),
        {
            "start_child_workflow_execution": {
                "seq": 7,
                "namespace": "own-namespace",
                "workflow_id": "w",
                "workflow_type": "Child",
                "task_queue": "own-queue",
                "input": [_ONE],
                "workflow_execution_timeout": {"seconds": 3},
                "workflow_run_timeout": {"seconds": 2},
                "workflow_task_timeout": {"seconds": 1},
                "parent_close_policy": 2,
                "workflow_id_reuse_policy": 3,
                "retry_policy": _RULE,
                "cron_schedule": "@daily",
                "cancellation_type": 1,
                "headers": {"h": _ONE},
                "memo": {"m": _ONE},
                "search_attributes": {"indexed_fields": {"s": _MARKED}},
                "priority": {"priority_key": 2},
            },
            "user_metadata": {"summary": _ONE, "details": _MARKED},
        },
    ),
    (
        cmd.CancelChildWorkflow(7, "enough"),
        {"cancel_child_workflow_execution": {"child_workflow_seq": 7, "reason": "enough"}},
    ),
    (
        cmd.SignalExternalWorkflow(
            seq=7, workflow_id="w", signal_name="go", run_id="r", arguments=(ONE,), headers={"h": ONE}
        ),
        _seq7(
            "signal_external_workflow_execution",
            workflow_execution={"namespace": "own-namespace", "workflow_id": "w", "run_id": "r"},
            signal_name="go",
            args=[_ONE],
            headers={"h": _ONE},
        ),
    ),
    (
        cmd.SignalExternalWorkflow(seq=7, workflow_id="w", signal_name="go", is_child=True),
        _seq7("signal_external_workflow_execution", child_workflow_id="w", signal_name="go"),
    ),
    (
        cmd.ScheduleNexusOperation(
            seq=7,
            endpoint="e",
            service="s",
            operation="o",
            argument=ONE,
            headers={"h": "v"},
            schedule_to_close_timeout=3.0,
            cancellation_type=2,
            summary=ONE,
        ),
        {
            "schedule_nexus_operation": {
                "seq": 7,
                "endpoint": "e",
                "service": "s",
                "operation": "o",
                "input": _ONE,
                "nexus_header": {"h": "v"},
                "schedule_to_close_timeout": {"seconds": 3},
                "cancellation_type": 2,
            },
            "user_metadata": {"summary": _ONE},
        },
    ),
    (cmd.CancelNexusOperation(7), _seq7("request_cancel_nexus_operation")),
    (cmd.CancelSignalExternal(7), _seq7("cancel_signal_workflow")),
    (
        cmd.RequestCancelExternal(seq=7, workflow_id="w", run_id="r", namespace="far", reason="enough"),
        _seq7(
            "request_cancel_external_workflow_execution",
            workflow_execution={"namespace": "far", "workflow_id": "w", "run_id": "r"},
            reason="enough",
        ),
    ),
    (cmd.SetPatchMarker("v2", True), {"set_patch_marker": {"patch_id": "v2", "deprecated": True}}),
    (
        cmd.UpsertSearchAttributes({"s": MARKED}),
        {"upsert_workflow_search_attributes": {"search_attributes": {"indexed_fields": {"s": _MARKED}}}},
    ),
    (cmd.UpsertMemo({"m": ONE}), {"modify_workflow_properties": {"upserted_memo": {"fields": {"m": _ONE}}}}),
    (cmd.AcceptUpdate("p"), {"update_response": {"protocol_instance_id": "p", "accepted": {}}}),
    (cmd.RejectUpdate("p", BOOM), {"update_response": {"protocol_instance_id": "p", "rejected": _BOOM}}),
    (cmd.CompleteUpdate("p", ONE), {"update_response": {"protocol_instance_id": "p", "completed": _ONE}}),
    (cmd.AnswerQuery("q", ONE), {"respond_to_query": {"query_id": "q", "succeeded": {"response": _ONE}}}),
    (cmd.AnswerQuery("q"), {"respond_to_query": {"query_id": "q", "succeeded": {}}}),
    (cmd.AnswerQuery("q", failure=BOOM), {"respond_to_query": {"query_id": "q", "failed": _BOOM}}),
    (cmd.CompleteRun(ONE), {"complete_workflow_execution": {"result": _ONE}}),
    (cmd.FailRun(BOOM), {"fail_workflow_execution": {"failure": _BOOM}}),
    (cmd.CancelRun(), {"cancel_workflow_execution": {}}),
    (cmd.ContinueAsNew(), {"continue_as_new_workflow_execution": {}}),
    (
        made(
            cmd.ContinueAsNew,
            workflow_type="Next",
            task_queue="elsewhere",
            arguments=(ONE,),
            run_timeout=2.0,
            task_timeout=1.0,
            retry_policy=RULE,
            memo={"m": ONE},
            search_attributes={"s": MARKED},
            headers={"h": ONE},
        ),
        {
            "continue_as_new_workflow_execution": {
                "workflow_type": "Next",
                "task_queue": "elsewhere",
                "arguments": [_ONE],
                "workflow_run_timeout": {"seconds": 2},
                "workflow_task_timeout": {"seconds": 1},
                "retry_policy": _RULE,
                "memo": {"m": _ONE},
                "search_attributes": {"indexed_fields": {"s": _MARKED}},
                "headers": {"h": _ONE},
            }
        },
    ),
)


def fill(message: Any, fields: dict[str, Any]) -> Any:
    """Write plain values into a message, field by field, so that an empty message counts as set."""
    message.SetInParent()
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        target = getattr(message, name) if field.message_type is not None else None
        if target is None:
            if isinstance(value, list):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        elif field.message_type.GetOptions().map_entry:
            for key, item in value.items():
                if isinstance(item, dict):
                    fill(target[key], item)
                else:
                    target[key] = item
        elif isinstance(value, list):
            for item in value:
                fill(target.add(), item)
        else:
            fill(target, value)
    return message


def job(fields: dict[str, Any]) -> WorkflowActivationJob:
    message: WorkflowActivationJob = fill(WorkflowActivationJob(), fields)
    return message


def command(fields: dict[str, Any]) -> WorkflowCommand:
    message: WorkflowCommand = fill(WorkflowCommand(), fields)
    return message
