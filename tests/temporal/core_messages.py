"""Conversions between Core's protobuf messages and our events, commands, results and failures."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Payload as PayloadMessage
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.bridge.proto import ActivityHeartbeat, ActivityTaskCompletion
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from hourglass._contract import handle as hd
from hourglass._evaluator import commands as cmd
from hourglass._evaluator import events as ev
from hourglass._temporal import activations, failures, handle, histories, protos
from hourglass.converter import Failure, Payload


def read_activation(message: Any) -> ev.Activation:
    return activations.activation_from_proto(message.SerializeToString())


def unsupported_run(message: Any) -> str | None:
    """Return the run id of an activation that cannot be read, or None if it can be."""
    try:
        read_activation(message)
    except activations.UnsupportedEvent as error:
        return error.run_id if error.run_id in str(error) else ""
    return None


def known_jobs() -> set[str]:
    return {name for name in activations._JOBS if name}


def known_commands() -> set[type]:
    return set(activations._COMMANDS)


def completion(of: cmd.Succeeded | cmd.TaskFailed) -> Any:
    """Return Core's message for a completion by a worker of `own-queue` in `own-namespace`."""
    data = activations.completion_to_proto(of, activations.CommandDefaults("own-queue", "own-namespace"))
    return WorkflowActivationCompletion.FromString(data)


def payload_message(payload: Payload) -> Any:
    message = PayloadMessage()
    protos.put_payload(message, payload)
    return message


def read_payload(message: Any) -> Payload:
    return protos.payload_from(message)


def failure_message(failure: Failure) -> Any:
    message = FailureMessage()
    failures.put_failure(message, failure)
    return message


def read_failure(message: Any) -> Failure:
    return failures.failure_from(message)


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


def history_message(source: str | bytes) -> bytes:
    """Encode a JSON history as Core's message."""
    return histories.read_history(source).encoded
