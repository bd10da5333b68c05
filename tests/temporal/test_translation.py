"""Every event, command, payload and failure is translated to and from Core's messages as the examples show."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Header
from temporalio.api.common.v1 import Payload as PayloadMessage
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.bridge.proto import ActivityHeartbeat, ActivityTaskCompletion
from temporalio.bridge.proto.activity_task import ActivityTask as TaskMessage
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from tests.specs import made

from hourglass._contract import handle as hd
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._evaluator.specs import RetryRule, StartSpec
from hourglass._temporal import activations, failures, handle, protos, specs
from hourglass.converter import Failure, Payload

from . import examples as ex


def read_activation(message: Any) -> ev.Activation:
    return activations.activation_from_proto(message.SerializeToString())


def unsupported_run(message: Any) -> str | None:
    """Return the run id of an activation that cannot be read, or None if it can be."""
    try:
        read_activation(message)
    except activations.UnsupportedEvent as error:
        return error.run_id if error.run_id in str(error) else ""
    return None


def completion(of: cmd.Succeeded | cmd.TaskFailed) -> Any:
    """Return Core's message for a completion by a worker of `own-queue` in `own-namespace`."""
    data = activations.completion_to_proto(of, activations.CommandDefaults("own-queue", "own-namespace"))
    return WorkflowActivationCompletion.FromString(data)


def payload_message(payload: Payload) -> Any:
    message = PayloadMessage()
    protos.put_payload(message, payload)
    return message


def failure_message(failure: Failure) -> Any:
    message = FailureMessage()
    failures.put_failure(message, failure)
    return message


def duration_message(seconds: float) -> Duration:
    message = Duration()
    protos.put_seconds(message, seconds)
    return message


def read_duration(message: Duration) -> tuple[float, int]:
    """Return a duration in seconds and in nanoseconds."""
    return protos.seconds_from(message), protos.nanos_from(message)


def read_activity(message: Any, queue: str = "") -> hd.ActivityItem | None:
    return handle.activity_item_from_proto(message.SerializeToString(), queue)


def activity_completion(result: hd.ActivityResult) -> Any:
    return ActivityTaskCompletion.FromString(handle.activity_result_to_proto(result))


def heartbeat(token: bytes, details: tuple[Payload, ...]) -> Any:
    return ActivityHeartbeat.FromString(handle.heartbeat_to_proto(token, details))


def _ids(pairs: Any) -> list[str]:
    return [f"{type(value).__name__}-{at}" for at, (value, _) in enumerate(pairs)]


@pytest.mark.parametrize(("event", "fields"), ex.EVENTS, ids=_ids(ex.EVENTS))
def test_core_job_is_translated_to_an_event(event: ev.Event, fields: dict[str, Any]) -> None:
    message = WorkflowActivation(run_id="r", jobs=[ex.job(fields)])
    assert read_activation(message).events == (event,)


@pytest.mark.parametrize(("command", "fields"), ex.COMMANDS, ids=_ids(ex.COMMANDS))
def test_command_is_translated_to_a_core_message(command: cmd.Command, fields: dict[str, Any]) -> None:
    assert list(completion(cmd.Succeeded("r", (command,))).successful.commands) == [ex.command(fields)]


def test_every_event_and_command_has_an_example() -> None:
    assert {type(event) for event, _ in ex.EVENTS} == set(ev.EVENTS)
    assert {type(command) for command, _ in ex.COMMANDS} == set(cmd.COMMANDS)


def test_every_job_and_command_of_core_is_translated() -> None:
    jobs = {field.name for field in WorkflowActivationJob.DESCRIPTOR.oneofs_by_name["variant"].fields}
    assert jobs == {name for name in activations._JOBS if name}
    kinds = {field.name for field in WorkflowCommand.DESCRIPTOR.oneofs_by_name["variant"].fields}
    shown = {ex.command(fields).WhichOneof("variant") for _, fields in ex.COMMANDS}
    assert kinds == shown
    assert set(activations._COMMANDS) == set(cmd.COMMANDS)


@pytest.mark.parametrize(
    "job",
    [
        {"resolve_nexus_operation": {"seq": 1}},
        {"resolve_activity": {"seq": 1}},
        {"resolve_child_workflow_execution": {"seq": 1}},
        {"resolve_child_workflow_execution_start": {"seq": 1}},
        {},
    ],
)
def test_unknown_core_job_is_rejected_with_its_run_id(job: dict[str, Any]) -> None:
    message = WorkflowActivation(run_id="run-1", jobs=[ex.job({"fire_timer": {"seq": 1}}), ex.job(job)])
    assert unsupported_run(message) == "run-1"


def test_core_activation_fields_are_translated() -> None:
    message: Any = WorkflowActivation(
        run_id="r",
        is_replaying=True,
        history_length=9,
        history_size_bytes=2**40,
        continue_as_new_suggested=True,
        available_internal_flags=[1, 1001],
        jobs=[ex.job({"fire_timer": {"seq": 2}}), ex.job({"fire_timer": {"seq": 1}})],
    )
    message.timestamp.FromNanoseconds(1_700_000_000_000_000_009)
    assert read_activation(message) == ev.Activation(
        run_id="r",
        events=(ev.TimerFired(2), ev.TimerFired(1)),
        timestamp_ns=1_700_000_000_000_000_009,
        is_replaying=True,
        history_length=9,
        history_size=2**40,
        continue_as_new_suggested=True,
        flags=(1, 1001),
    )


def test_completion_without_commands_is_translated_as_successful() -> None:
    message = completion(cmd.Succeeded("r"))
    assert (message.run_id, message.WhichOneof("status")) == ("r", "successful")
    flagged = completion(cmd.Succeeded("r", used_flags=(1000, 1001)))
    assert list(flagged.successful.used_internal_flags) == [1000, 1001]


def test_failed_task_is_translated_with_failure_and_cause() -> None:
    failed = cmd.TaskFailed("r", ex.BOOM, cmd.TaskFailureCause.NON_DETERMINISTIC_ERROR)
    message = completion(failed)
    assert message.failed.failure == failure_message(ex.BOOM)
    assert message.failed.force_cause == 24


@pytest.mark.parametrize(("payload", "fields"), ex.PAYLOADS)
def test_payload_is_translated_in_both_directions(payload: Payload, fields: dict[str, Any]) -> None:
    expected = ex.fill(PayloadMessage(), fields)
    assert payload_message(payload) == expected
    assert protos.payload_from(expected) == payload


@pytest.mark.parametrize(("failure", "fields"), ex.FAILURES, ids=lambda value: getattr(value, "message", ""))
def test_failure_is_translated_in_both_directions(failure: Failure, fields: dict[str, Any]) -> None:
    expected = ex.fill(FailureMessage(), fields)
    assert failure_message(failure) == expected
    assert failures.failure_from(expected) == failure


def test_failure_of_an_unknown_kind_is_read_with_its_message() -> None:
    message: Any = ex.fill(FailureMessage(), {"message": "n", "nexus_handler_failure_info": {"type": "t"}})
    assert failures.failure_from(message) == Failure("n")
    late: Any = ex.fill(FailureMessage(), {"message": "n", "timeout_failure_info": {"timeout_type": 99}})
    read = failures.failure_from(late)
    assert read.message == "n"
    assert read.info is not None


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0, 2.5, 1e-9, 86400.0 * 365, 1.999999999])
def test_duration_is_translated_to_the_nanosecond(seconds: float) -> None:
    message = duration_message(seconds)
    assert 0 <= message.nanos < 10**9
    assert read_duration(message) == pytest.approx((seconds, round(seconds * 10**9)), abs=1e-9)


def test_activity_task_is_translated_with_all_its_fields() -> None:
    fields = {
        "task_token": b"t",
        "start": {
            "workflow_namespace": "ns",
            "workflow_type": "W",
            "workflow_execution": {"workflow_id": "w", "run_id": "r"},
            "activity_id": "7",
            "activity_type": "charge",
            "header_fields": {"h": {"data": b"1", "metadata": {"encoding": b"json/plain"}}},
            "input": [{"data": b"1", "metadata": {"encoding": b"json/plain"}}],
            "heartbeat_details": [{"metadata": {"encoding": b"binary/null"}}],
            "scheduled_time": {"seconds": 1},
            "current_attempt_scheduled_time": {"seconds": 2},
            "started_time": {"seconds": 3},
            "attempt": 4,
            "schedule_to_close_timeout": {"seconds": 5},
            "start_to_close_timeout": {"seconds": 6},
            "heartbeat_timeout": {"seconds": 7},
            "retry_policy": {"initial_interval": {"seconds": 1}, "backoff_coefficient": 2.0},
            "priority": {"priority_key": 1},
            "is_local": True,
        },
    }
    assert read_activity(ex.fill(TaskMessage(), fields), "q") == made(
        hd.ActivityTask,
        token=b"t",
        activity_id="7",
        activity_type="charge",
        arguments=(ex.ONE,),
        attempt=4,
        is_local=True,
        namespace="ns",
        task_queue="q",
        workflow_id="w",
        run_id="r",
        workflow_type="W",
        headers={"h": ex.ONE},
        heartbeat_details=(ex.NULL,),
        scheduled_time_ns=10**9,
        current_attempt_scheduled_time_ns=2 * 10**9,
        started_time_ns=3 * 10**9,
        schedule_to_close_timeout=5.0,
        start_to_close_timeout=6.0,
        heartbeat_timeout=7.0,
        retry_policy=RetryRule(),
        priority_key=1,
    )


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "NOT_FOUND"),
        (1, "CANCELLED"),
        (2, "TIMED_OUT"),
        (3, "WORKER_SHUTDOWN"),
        (4, "PAUSED"),
        (5, "RESET"),
        (9, "9"),
    ],
)
def test_activity_cancellation_is_translated_with_its_reason(number: int, name: str) -> None:
    message = ex.fill(TaskMessage(), {"task_token": b"t", "cancel": {"reason": number}})
    assert read_activity(message) == hd.ActivityCancel(b"t", name)


def test_unknown_activity_item_is_translated_to_none() -> None:
    assert read_activity(TaskMessage(task_token=b"t")) is None


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (hd.ActivityOk(b"t", ex.ONE), "completed"),
        (hd.ActivityOk(b"t"), "completed"),
        (hd.AttemptFailed(b"t", ex.BOOM), "failed"),
        (hd.AttemptCancelled(b"t", ex.BOOM), "cancelled"),
        (hd.ActivityDeferred(b"t"), "will_complete_async"),
    ],
)
def test_activity_results_are_translated(result: hd.ActivityResult, kind: str) -> None:
    message = activity_completion(result)
    assert message.task_token == b"t"
    assert message.result.WhichOneof("status") == kind
    if isinstance(result, (hd.AttemptFailed, hd.AttemptCancelled)):
        assert failures.failure_from(getattr(message.result, kind).failure) == result.failure
    if isinstance(result, hd.ActivityOk):
        assert message.result.completed.HasField("result") == (result.result is not None)


def test_heartbeat_is_translated_with_its_details_in_order() -> None:
    message = heartbeat(b"t", (ex.ONE, ex.NULL))
    assert message.task_token == b"t"
    assert [protos.payload_from(detail) for detail in message.details] == [ex.ONE, ex.NULL]


def test_payload_maps_are_sorted_by_name_whatever_their_insertion_order() -> None:
    names = [f"name-{number:02}" for number in range(40)]
    for seed in range(5):
        header = Header()
        shuffled = random.Random(seed).sample(names, len(names))
        protos.put_payload_map(header.fields, {name: Payload(b"1", "json/plain") for name in shuffled})
        assert list(protos.payload_map_from(header.fields)) == names


def test_retry_policy_without_values_is_written_and_read_back() -> None:
    """Whether there is a policy decides whether a workflow is retried."""
    rule = RetryRule(initial_interval=0.0, backoff_coefficient=0.0)
    message: Any = StartWorkflowExecutionRequest()
    specs.START.put(message, StartSpec(retry_policy=rule))
    assert message.HasField("retry_policy")
    assert specs.START.get(message).retry_policy == rule
