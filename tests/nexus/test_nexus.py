"""Nexus operations on a real server: called from workflows, served by workers; rejected by the embedded engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from temporalio.nexus import WorkflowHandle

from hourglass import activity, interceptors, nexus, workflow
from hourglass.client import Client, WorkflowStatus
from hourglass.converter import Payload
from hourglass.errors import (
    ApplicationError,
    DefinitionError,
    NexusOperationError,
    ServiceError,
    UsageError,
    WorkflowFailedError,
)
from hourglass.metrics import Registry, prometheus_text
from hourglass.replay import Replayer
from hourglass.testing import DevServer
from hourglass.worker import PollerBehaviorSimpleMaximum, Worker

LIMIT = 60
payments = nexus.Service("payments")


@dataclass
class Charge:
    order: str
    cents: int


@payments.operation
def charge(request: Charge) -> str:
    info = nexus.info()
    assert nexus.in_operation()
    return (
        f"{request.order}: {request.cents} by {info.service}.{info.operation} for {info.headers.get('who')}"
    )


@payments.operation(name="quick")
async def double(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


@payments.operation
def starts_workflow() -> str:
    handle = nexus.client().start_workflow("quiet", id=f"pay-{nexus.info().request_id}", task_queue="none")
    return handle.id


@payments.operation
def fails(reason: str) -> str:
    match reason:
        case "for good":
            raise nexus.OperationError("no money")
        case "cancelled":
            raise nexus.OperationError("gave up", canceled=True)
        case "not there":
            raise nexus.HandlerError("no such account", type="NOT_FOUND", retryable=False)
        case _:
            raise ApplicationError("broken", non_retryable=True)


release_waiting = threading.Event()


@payments.operation
def waits() -> str:
    release_waiting.wait(LIMIT)
    return "late"


@activity.defn
def pack(order: str) -> str:
    return f"packed {order}"


@workflow.defn
def delivery(order: str) -> str:
    return f"delivered {order}"


@workflow.defn
def endless(order: str) -> str:
    workflow.sleep(3600)
    return order


@payments.operation
def deliver(order: str) -> nexus.OperationHandle[str]:
    nexus.logger.info("delivers")
    nexus.metric_meter().create_counter("deliveries").add(1)
    assert not nexus.is_worker_shutdown()
    assert not nexus.wait_for_worker_shutdown_sync(0)
    return nexus.start_workflow(delivery, order, id=f"delivery-{nexus.info().request_id}")


@payments.operation(name="packs")
async def packed(order: str) -> nexus.OperationHandle[str]:
    handle: nexus.OperationHandle[str] = await asyncio.to_thread(
        nexus.start_activity, pack, order, start_to_close_timeout=LIMIT
    )
    return handle


@payments.operation
def runs_endless(order: str) -> nexus.OperationHandle[str]:
    return nexus.start_workflow(endless, order, id=order)


@payments.operation
def runs_endless_with_own_cancel(order: str) -> nexus.OperationHandle[str]:
    return nexus.start_workflow(endless, order, id=order)


@runs_endless_with_own_cancel.on_cancel
async def terminate_on_cancel(handle: nexus.OperationHandle[Any]) -> None:
    found = nexus.client().get_workflow_handle(handle.workflow_id)
    await asyncio.to_thread(found.terminate, "as its operation was cancelled")


@workflow.defn
def calls_long_operations(endpoint: str) -> list[Any]:
    client = workflow.create_nexus_client(payments, endpoint=endpoint)
    handle = client.start_operation(deliver, "o-1", start_to_close_timeout=LIMIT)
    token = handle.operation_token or ""
    found = nexus.OperationHandle.from_token(token)
    return [
        handle.result(),
        found.workflow_id[:9],
        found.token == token,
        client.execute_operation(packed, "o-2"),
    ]


@workflow.defn
def cancels_operation(endpoint: str, operation: str, order: str) -> str:
    client = workflow.create_nexus_client("payments", endpoint=endpoint)
    handle = client.start_operation(operation, order, result_type=str)
    handle.cancel()
    try:
        return handle.result()
    except NexusOperationError as error:
        return type(error.cause).__name__


@workflow.defn
def calls_short_operations(endpoint: str) -> list[Any]:
    client = workflow.create_nexus_client(payments, endpoint=endpoint)
    first = client.execute_operation(charge, Charge("o-1", 500), headers={"Who": "ann"}, summary="pay")
    handle = client.start_operation("quick", 21, result_type=int, schedule_to_close_timeout=LIMIT)
    return [first, handle.result(), handle.operation_token, client.execute_operation(starts_workflow)[:4]]


@workflow.defn
def calls_failing_operation(endpoint: str, operation: str, reason: str) -> list[str]:
    client = workflow.create_nexus_client("payments", endpoint=endpoint)
    try:
        client.execute_operation(operation, reason)
    except NexusOperationError as error:
        cause = error.cause
        return [type(cause).__name__, str(cause), error.service, error.operation]
    return []


@workflow.defn
def calls_with_timeout(endpoint: str) -> str:
    client = workflow.create_nexus_client(payments, endpoint=endpoint)
    try:
        client.execute_operation(waits, schedule_to_close_timeout=0.5)
    except NexusOperationError as error:
        return type(error.cause).__name__
    return "no"


ALL = [
    calls_short_operations,
    calls_failing_operation,
    calls_with_timeout,
    calls_long_operations,
    cancels_operation,
    delivery,
    endless,
]


@pytest.fixture(scope="module")
def endpoint(quick_server: DevServer) -> Iterator[str]:
    """An endpoint of the server that leads to the task queue of the same name."""
    name = f"payments-{uuid4().hex[:8]}"
    with Client.connect(quick_server.target) as client:
        client.create_nexus_endpoint(name, task_queue=name, description="for tests")
        yield name
        client.delete_nexus_endpoint(name)
        with pytest.raises(ServiceError, match=r"Nexus endpoint .* does not exist"):
            client.delete_nexus_endpoint(name)


class ReversingCodec:
    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [
            Payload(each.data[::-1], "binary/turned", {"was": each.encoding.encode()}) for each in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(each.encoding != "binary/turned" for each in payloads):
            raise ValueError("not ours")
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


@pytest.mark.server
@pytest.mark.parametrize("codec", [None, ReversingCodec()], ids=["plain", "codec"])
def test_workflow_calls_nexus_operations_by_function_and_by_name(
    quick_server: DevServer, endpoint: str, codec: Any
) -> None:
    """A worker with services and no workflows serves the calls. The calling runs are executed again from their
    history.
    """
    with (
        Client.connect(quick_server.target, codec=codec) as client,
        Worker(client, endpoint, nexus_services=[payments]),
        Worker(client, f"{endpoint}-callers", workflows=ALL, max_cached_workflows=0),
    ):
        queue = f"{endpoint}-callers"
        result = client.execute_workflow(calls_short_operations, endpoint, task_queue=queue)
        assert result == ["o-1: 500 by payments.charge for ann", 42, None, "pay-"]
        for reason, expected in (
            ("for good", ["ApplicationError", "no money"]),
            ("cancelled", ["CancelledError", "gave up"]),
        ):
            result = client.execute_workflow(
                calls_failing_operation, endpoint, "fails", reason, task_queue=queue
            )
            assert result == [*expected, "payments", "fails"]


@pytest.mark.server
def test_nexus_operation_errors_and_timeouts_are_raised_in_the_caller(
    quick_server: DevServer, endpoint: str
) -> None:
    """The worker shuts down although the timed-out operation still runs."""
    with Client.connect(quick_server.target) as client:
        server = Worker(client, endpoint, nexus_services=[payments], graceful_shutdown_timeout=1)
        queue = f"{endpoint}-callers"
        with server, Worker(client, queue, workflows=ALL):
            for operation, reason, text in (
                ("fails", "not there", "no such account"),
                ("fails", "at all", "the operation raised ApplicationError"),
                ("no such", "x", "unknown Nexus operation 'no such'"),
                ("quick", "text", "int"),
            ):
                result = client.execute_workflow(
                    calls_failing_operation, endpoint, operation, reason, task_queue=queue
                )
                assert text in result[1], result
            assert client.execute_workflow(calls_with_timeout, endpoint, task_queue=queue) == "TimedOutError"
            release_waiting.set()


class RecordingInterceptor(interceptors.Interceptor):
    """Records operations, and adds a header to calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def intercept_workflow(self, next: Any) -> Any:
        return _Inbound(next)

    def intercept_nexus_operation(
        self, next: interceptors.NexusOperationInboundInterceptor
    ) -> interceptors.NexusOperationInboundInterceptor:
        return _Operations(next, self.calls)


class _Inbound(interceptors.WorkflowInboundInterceptor):
    def init(self, outbound: interceptors.WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(interceptors.WorkflowOutboundInterceptor):
    def start_nexus_operation(self, input: interceptors.StartNexusOperationInput) -> Any:
        input.nexus_headers["who"] = "watcher"
        return super().start_nexus_operation(input)


class _Operations(interceptors.NexusOperationInboundInterceptor):
    def __init__(self, next: interceptors.NexusOperationInboundInterceptor, seen: list[str]) -> None:
        super().__init__(next)
        self._calls = seen

    def execute_nexus_operation_start(self, input: interceptors.ExecuteNexusOperationStartInput) -> Any:
        self._calls.append(f"{input.operation.name} for {input.headers.get('who')}")
        return super().execute_nexus_operation_start(input)

    async def execute_async_nexus_operation_start(
        self, input: interceptors.ExecuteNexusOperationStartInput
    ) -> Any:
        self._calls.append(f"async {input.operation.name} for {input.headers.get('who')}")
        return await super().execute_async_nexus_operation_start(input)

    def execute_nexus_operation_cancel(self, input: interceptors.ExecuteNexusOperationCancelInput) -> None:
        self._calls.append(f"cancel {input.operation.name} {input.handle.workflow_id}")
        super().execute_nexus_operation_cancel(input)

    async def execute_async_nexus_operation_cancel(
        self, input: interceptors.ExecuteNexusOperationCancelInput
    ) -> None:
        self._calls.append(f"async cancel {input.operation.name}")
        await super().execute_async_nexus_operation_cancel(input)


@pytest.mark.server
@pytest.mark.parametrize("codec", [None, ReversingCodec()], ids=["plain", "codec"])
def test_nexus_operation_runs_a_workflow_or_activity_and_cancels_it(
    quick_server: DevServer, endpoint: str, codec: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="hourglass.nexus")
    interceptor, registry = RecordingInterceptor(), Registry()
    with (
        Client.connect(quick_server.target, codec=codec, interceptors=[interceptor]) as client,
        ThreadPoolExecutor(4) as own,
        Worker(
            client,
            endpoint,
            nexus_services=[payments],
            workflows=ALL,
            activities=[pack],
            metrics=registry,
            nexus_task_executor=own,
            nexus_task_poller_behavior=PollerBehaviorSimpleMaximum(2),
        ),
    ):
        run = client.start_workflow(calls_long_operations, endpoint, task_queue=endpoint)
        assert run.result() == ["delivered o-1", "delivery-", True, "packed o-2"]
        histories = [run.history()]
        first, second = f"{endpoint}-1-{codec is None}", f"{endpoint}-2-{codec is None}"
        for operation, order in (("runs_endless", first), ("runs_endless_with_own_cancel", second)):
            run = client.start_workflow(cancels_operation, endpoint, operation, order, task_queue=endpoint)
            assert run.result() == ("CancelledError" if operation == "runs_endless" else "TerminatedError")
            histories.append(run.history())
        assert client.get_workflow_handle(first).describe().status is WorkflowStatus.CANCELED
        assert client.get_workflow_handle(second).describe().status is WorkflowStatus.TERMINATED
        with Replayer(workflows=ALL, codec=codec, interceptors=[interceptor]) as replayer:
            for history in histories:
                replayer.replay(history)
    assert {
        "deliver for watcher",
        "async packs for watcher",
        f"cancel runs_endless {first}",
        "async cancel runs_endless_with_own_cancel",
    } <= set(interceptor.calls)
    assert "delivers (operation payments.deliver)" in caplog.text
    assert 'nexus_operation="deliver"' in prometheus_text(registry.collect())


@pytest.mark.server
def test_replay_detects_a_changed_nexus_operation_or_argument(quick_server: DevServer, endpoint: str) -> None:
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, endpoint, nexus_services=[payments], workflows=[first_call]),
    ):
        run = client.start_workflow(first_call, endpoint, task_queue=endpoint)
        run.result()
        history = run.history()

    for operation, argument in (("quick", 5), ("slow", 4)):

        @workflow.defn(name="first_call")
        def changed(endpoint: str, operation: str = operation, argument: int = argument) -> int:
            client = workflow.create_nexus_client("payments", endpoint=endpoint)
            return client.execute_operation(operation, argument, result_type=int)  # type: ignore[no-any-return]

        with Replayer(workflows=[changed]) as replayer:
            error = replayer.try_replay(history).error
        assert error is not None
        assert "Nexus operation" in str(error)


@workflow.defn
def first_call(endpoint: str) -> int:
    client = workflow.create_nexus_client(payments, endpoint=endpoint)
    return client.execute_operation(double, 4)


def test_nexus_operation_tokens_match_temporalio() -> None:
    handle: nexus.OperationHandle[str] = nexus.OperationHandle(namespace="default", workflow_id="w-1")
    assert handle.token == "eyJ0IjoxLCJucyI6ImRlZmF1bHQiLCJ3aWQiOiJ3LTEifQ"
    assert WorkflowHandle.from_token(handle.token).workflow_id == "w-1"
    theirs = WorkflowHandle[str](namespace="other", workflow_id="w-2").to_token()
    assert nexus.OperationHandle.from_token(theirs) == nexus.OperationHandle(
        namespace="other", workflow_id="w-2"
    )
    for invalid in ("", "%", "e30", "WzFd", "eyJ0Ijo5fQ", "eyJ0IjoxfQ", "eyJ0IjoxLCJ3aWQiOjV9"):
        with pytest.raises(UsageError, match="token"):
            nexus.OperationHandle.from_token(invalid)


def test_embedded_engine_rejects_nexus(caplog: pytest.LogCaptureFixture) -> None:
    with Client.connect("local:") as client:
        with pytest.raises(UsageError, match="the embedded engine does not support Nexus"):
            Worker(client, nexus_services=[payments]).start()
        callback = nexus.NexusCallback(url="http://localhost/", headers={"secret": "x"})
        assert "secret" not in repr(callback)
        with pytest.raises(ServiceError, match="the embedded engine does not support Nexus"):
            client.start_workflow(delivery, "o", callbacks=[callback])
        with pytest.raises(ServiceError, match="the embedded engine does not support Nexus"):
            client.start_activity(pack, "o", callbacks=[callback])
        with pytest.raises(ServiceError, match="the embedded engine does not support Nexus"):
            client.create_nexus_endpoint("e", task_queue="q")
        with pytest.raises(UsageError, match="task_queue must be a non-empty str"):
            client.create_nexus_endpoint("e", task_queue="")
        with pytest.raises(UsageError, match="cannot be started with a signal"):
            client.start_workflow(delivery, "o", callbacks=[callback], start_signal="s")
        with Worker(client, workflows=ALL):
            run = client.start_workflow(calls_short_operations, "e", execution_timeout=60)
            while "cannot continue: the embedded engine does not support Nexus" not in caplog.text:
                run.describe()
            run.terminate()
            with pytest.raises(WorkflowFailedError):
                run.result()


def test_invalid_nexus_services_are_rejected() -> None:
    service = nexus.Service("s")
    with pytest.raises(DefinitionError, match="at most one argument"):
        service.operation(lambda a, b: None)
    with pytest.raises(DefinitionError, match="must be callable, not int"):
        service.operation(5)  # type: ignore[call-overload]

    @service.operation
    def once() -> None: ...

    assert once() is None
    with pytest.raises(DefinitionError, match="two operations"):
        service.operation(name="once")(lambda: None)
    for invalid in ("", 5):
        with pytest.raises(UsageError, match="must be a non-empty str"):
            nexus.Service(invalid)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="must be callable, not int"):
        once.on_cancel(5)  # type: ignore[arg-type]
    for call in (
        nexus.info,
        nexus.client,
        nexus.is_worker_shutdown,
        nexus.metric_meter,
        lambda: runs_endless("o"),
    ):
        with pytest.raises(UsageError, match="inside a running Nexus operation"):
            call()
    with Client.connect("local:") as client:
        for services, reason in (
            ([service, nexus.Service("s")], "have the name 's'"),
            ([once], "nexus.Service objects"),
        ):
            with pytest.raises(UsageError, match=reason):
                Worker(client, nexus_services=services)
