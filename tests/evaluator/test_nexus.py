"""Calls of Nexus operations: start, result and failures."""

from __future__ import annotations

import contextlib
from typing import Any

from hourglass import workflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as ev
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import NexusOperationError

from .conftest import Drive
from .driver import encode

FAILURE = Failure("no such service", ApplicationFailure(type="NotFound"))


@workflow.defn
def call_operation() -> list[Any]:
    """Return the token of an operation, and its result or the cause of its failure."""
    client = workflow.create_nexus_client("payments", endpoint="bank")
    try:
        handle = client.start_operation("charge", 5, result_type=int)
    except NexusOperationError as error:
        return ["not started", str(error.cause)]
    try:
        return [handle.operation_token, handle.result()]
    except NexusOperationError as error:
        return [handle.operation_token, str(error.cause)]


def test_nexus_operation_returns_its_token_and_result(drive: Drive) -> None:
    d = drive(call_operation)
    (command,) = d.begin()
    assert isinstance(command, c.ScheduleNexusOperation)
    assert (command.endpoint, command.service, command.operation) == ("bank", "payments", "charge")
    assert command.argument == encode(5)
    assert d.send(ev.NexusStarted(command.seq, "token-1")) == ()
    d.send(ev.NexusCompleted(command.seq, encode(10)))
    assert d.result == ["token-1", 10]


def test_synchronous_nexus_operation_has_no_token(drive: Drive) -> None:
    d = drive(call_operation)
    (command,) = d.begin()
    d.send(ev.NexusStarted(command.seq, ""), ev.NexusCompleted(command.seq, encode(10)))
    assert d.result == [None, 10]


def test_nexus_operation_that_fails_to_start_raises(drive: Drive) -> None:
    d = drive(call_operation)
    (command,) = d.begin()
    d.send(ev.NexusStartFailed(command.seq, FAILURE))
    assert d.result == ["not started", "no such service"]


def test_nexus_operation_that_failed_to_start_is_not_cancelled_with_the_run(drive: Drive) -> None:
    @workflow.defn
    def continues() -> None:
        client = workflow.create_nexus_client("payments", endpoint="bank")
        with contextlib.suppress(NexusOperationError):
            client.start_operation("charge", 5)
        workflow.sleep(60)

    d = drive(continues)
    (command,) = d.begin()
    d.send(ev.NexusStartFailed(command.seq, FAILURE))
    assert [type(command) for command in d.send(ev.CancelRequested())] == [c.CancelTimer, c.CancelRun]


def test_nexus_operation_that_fails_after_its_start_raises_at_result(drive: Drive) -> None:
    d = drive(call_operation)
    (command,) = d.begin()
    d.send(ev.NexusStarted(command.seq, "token-1"))
    d.send(ev.NexusFailed(command.seq, FAILURE))
    assert d.result == ["token-1", "no such service"]
