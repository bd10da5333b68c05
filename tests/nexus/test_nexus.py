"""Nexus operations: called from a workflow, served by a worker as plain functions, on a real server; refused on a file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import temporalio.client
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest

from hourglass import nexus, workflow
from hourglass.client import Client
from hourglass.converter import Payload
from hourglass.errors import (
    ApplicationError,
    DefinitionError,
    NexusOperationError,
    UsageError,
    WorkflowFailedError,
)
from hourglass.testing import DevServer
from hourglass.worker import Worker

LIMIT = 60
payments = nexus.Service("payments")


@dataclass
class Charge:
    order: str
    cents: int


@payments.operation
def charge(wanted: Charge) -> str:
    told = nexus.info()
    assert nexus.in_operation()
    return f"{wanted.order}: {wanted.cents} by {told.service}.{told.operation} for {told.headers.get('who')}"


@payments.operation(name="quick")
async def awaited(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


@payments.operation
def started() -> str:
    """Starts a workflow, once for each call."""
    handle = nexus.client().start_workflow("quiet", id=f"pay-{nexus.info().request_id}", task_queue="none")
    return handle.id


@payments.operation
def refuses(why: str) -> str:
    match why:
        case "for good":
            raise nexus.OperationError("no money")
        case "cancelled":
            raise nexus.OperationError("gave up", canceled=True)
        case "not there":
            raise nexus.HandlerError("no such account", type="NOT_FOUND", retryable=False)
        case _:
            raise ApplicationError("broken", non_retryable=True)


held = threading.Event()


@payments.operation
def waits() -> str:
    held.wait(LIMIT)
    return "late"


@workflow.defn
def calls(endpoint: str) -> list[Any]:
    client = workflow.create_nexus_client(payments, endpoint=endpoint)
    first = client.execute_operation(charge, Charge("o-1", 500), headers={"Who": "ann"}, summary="pay")
    handle = client.start_operation("quick", 21, result_type=int, schedule_to_close_timeout=LIMIT)
    return [first, handle.result(), handle.operation_token, client.execute_operation(started)[:4]]


@workflow.defn
def is_refused(endpoint: str, operation: str, why: str) -> list[str]:
    client = workflow.create_nexus_client("payments", endpoint=endpoint)
    try:
        client.execute_operation(operation, why)
    except NexusOperationError as error:
        cause = error.cause
        return [type(cause).__name__, str(cause), error.service, error.operation]
    return []


@workflow.defn
def gives_up(endpoint: str) -> str:
    client = workflow.create_nexus_client(payments, endpoint=endpoint)
    try:
        client.execute_operation(waits, schedule_to_close_timeout=0.5)
    except NexusOperationError as error:
        return type(error.cause).__name__
    return "no"


ALL = [calls, is_refused, gives_up]


async def _endpoint(server: DevServer, name: str, queue: str) -> None:
    client = await temporalio.client.Client.connect(server.target)
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue=queue))
    spec = EndpointSpec(name=name, target=target)
    await client.operator_service.create_nexus_endpoint(CreateNexusEndpointRequest(spec=spec))


@pytest.fixture(scope="module")
def endpoint(quick_server: DevServer) -> str:
    """An endpoint of the server, which leads to the queue of the same name."""
    name = f"payments-{uuid4().hex[:8]}"
    asyncio.run(_endpoint(quick_server, name, name))
    return name


class Backwards:
    """A codec: operations pass it, too."""

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [
            Payload(each.data[::-1], "binary/turned", {"was": each.encoding.encode()}) for each in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(each.encoding != "binary/turned" for each in payloads):
            raise ValueError("not ours")
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


@pytest.mark.server
@pytest.mark.parametrize("codec", [None, Backwards()], ids=["plain", "codec"])
def test_operations_are_called_and_served(quick_server: DevServer, endpoint: str, codec: Any) -> None:
    """A workflow calls plain functions of another worker, by themselves and by name; they know the call, and its headers; a
    worker with services alone serves; runs are executed again to the same end.
    """
    with (
        Client.connect(quick_server.target, codec=codec) as client,
        Worker(client, endpoint, nexus_services=[payments]),
        Worker(client, f"{endpoint}-callers", workflows=ALL, max_cached_workflows=0),
    ):
        queue = f"{endpoint}-callers"
        made = client.execute_workflow(calls, endpoint, task_queue=queue)
        assert made == ["o-1: 500 by payments.charge for ann", 42, None, "pay-"]
        for why, expected in (
            ("for good", ["ApplicationError", "no money"]),
            ("cancelled", ["CancelledError", "gave up"]),
        ):
            got = client.execute_workflow(is_refused, endpoint, "refuses", why, task_queue=queue)
            assert got == [*expected, "payments", "refuses"]


@pytest.mark.server
def test_calls_that_cannot_be_handled(quick_server: DevServer, endpoint: str) -> None:
    """An operation that is not there, an argument that does not fit, and what a handler will not try again are told to the
    caller; what takes too long times out, and its worker ends all the same.
    """
    with Client.connect(quick_server.target) as client:
        server = Worker(client, endpoint, nexus_services=[payments], graceful_shutdown_timeout=1)
        queue = f"{endpoint}-callers"
        with server, Worker(client, queue, workflows=ALL):
            for operation, why, text in (
                ("refuses", "not there", "no such account"),
                ("refuses", "at all", "the operation raised ApplicationError"),
                ("no such", "x", "has no operation 'no such'"),
                ("quick", "text", "int"),
            ):
                got = client.execute_workflow(is_refused, endpoint, operation, why, task_queue=queue)
                assert text in got[1], got
            assert client.execute_workflow(gives_up, endpoint, task_queue=queue) == "TimedOutError"
            held.set()


def test_the_embedded_engine_refuses_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """A worker with services does not start, and a workflow that calls is told, with the way out."""
    with Client.connect("local:") as client:
        with pytest.raises(UsageError, match="the embedded engine has no Nexus"):
            Worker(client, nexus_services=[payments]).start()
        with Worker(client, workflows=ALL):
            run = client.start_workflow(calls, "e", execution_timeout=60)
            while "cannot go on: the embedded engine has no Nexus" not in caplog.text:
                run.describe()
            run.terminate()
            with pytest.raises(WorkflowFailedError):
                run.result()


def test_what_makes_no_sense() -> None:
    """Services and operations that cannot be are refused where they are said."""
    service = nexus.Service("s")
    with pytest.raises(DefinitionError, match="one argument, or none"):
        service.operation(lambda a, b: None)
    with pytest.raises(DefinitionError, match="is a function"):
        service.operation(5)  # type: ignore[call-overload]

    @service.operation
    def once() -> None: ...

    assert once() is None
    with pytest.raises(DefinitionError, match="two operations"):
        service.operation(name="once")(lambda: None)
    for wrong in ("", 5):
        with pytest.raises(UsageError, match="has a name"):
            nexus.Service(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="inside a running Nexus operation"):
        nexus.info()
    with Client.connect("local:") as client:
        for given, why in (
            ([service, nexus.Service("s")], "are called 's'"),
            ([once], "objects of nexus.Service"),
        ):
            with pytest.raises(UsageError, match=why):
                Worker(client, nexus_services=given)
