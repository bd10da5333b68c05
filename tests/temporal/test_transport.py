"""How a connection is made and what it sends, seen by a proxy between client and server."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import (
    AsyncClient,
    Client,
    DnsLoadBalancingConfig,
    GrpcCompression,
    HttpConnectProxyConfig,
    KeepAliveConfig,
    RetryConfig,
    TLSConfig,
)
from hourglass.errors import ConnectionFailedError, ServiceError, TargetError, UsageError
from hourglass.testing import DevServer
from hourglass.worker import Worker

pytestmark = pytest.mark.server

HUFFMAN = {char: code for code, char in enumerate("012aceiost")}
"""The characters that HPACK writes with five bits, so that eight of them are five bytes."""


def on_the_wire(key: str) -> bytes:
    """An API key as HTTP/2 carries it: what stands before it in its header is five bytes, too."""
    bits = "".join(f"{HUFFMAN[char]:05b}" for char in key)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


class Proxy:
    """An HTTP proxy that keeps what clients said to it, and through it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.sent = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1)
        self.requests.append(head.decode())
        host, _, port = head.split()[1].decode().rpartition(":")
        server = socket.create_connection((host, int(port)))
        self._open += [client, server]
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=self._copy, args=(server, client, None), daemon=True).start()
        self._copy(client, server, self.sent)

    def _copy(self, source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        try:
            while data := source.recv(65536):
                if kept is not None:
                    kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        """End it, and what goes through it."""
        for each in self._open:
            each.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy on this machine."""
    made = Proxy()
    yield made
    made.close()


@workflow.defn
def length(text: str) -> int:
    """How long a text is."""
    return len(text)


def test_proxy_and_changed_api_key(quick_server: DevServer, proxy: Proxy) -> None:
    """A client goes through a proxy with its password, and a key that is changed is the one that is sent from then on, by
    its worker, too.
    """
    first, second = "a0c1e2i0", "o1s2t0a1"
    with Client.connect(
        quick_server.target,
        api_key=first,
        tls=False,
        http_connect_proxy_config=HttpConnectProxyConfig(proxy.address, ("me", "secret")),
    ) as client:
        assert client.api_key == first
        client.count_workflows()
        assert proxy.requests[0].startswith(f"CONNECT {quick_server.target} ")
        assert base64.b64encode(b"me:secret").decode() in proxy.requests[0]
        assert on_the_wire(first) in proxy.sent
        assert on_the_wire(second) not in proxy.sent
        client.api_key = second
        assert client.api_key == second
        client.count_workflows()
        assert on_the_wire(second) in proxy.sent
        with Worker(client, "transport", workflows=[length]):
            proxy.sent.clear()
            assert client.execute_workflow(length, "abc", task_queue="transport") == 3
        assert on_the_wire(first) not in proxy.sent
        with pytest.raises(TargetError, match="API key"):
            client.api_key = "with a space"
        assert client.api_key == second


def test_grpc_compression(quick_server: DevServer, proxy: Proxy) -> None:
    """With gzip a long argument is a short message."""
    sizes = []
    for compression in GrpcCompression:
        with Client.connect(
            quick_server.target,
            http_connect_proxy_config=HttpConnectProxyConfig(proxy.address),
            grpc_compression=compression,
        ) as client:
            proxy.sent.clear()
            client.start_workflow(length, "a" * 200_000, task_queue="nobody").terminate()
            sizes.append(len(proxy.sent))
    assert sizes[0] > 200_000 > 20_000 > sizes[1]


def test_rpc_metadata_is_sent(quick_server: DevServer) -> None:
    """A server reads the headers of a client, and of single calls: one that excludes its version is refused."""
    excluding = {"client-name": "temporal-go", "supported-server-versions": "<1.0.0"}
    with Client.connect(quick_server.target) as client:
        other = client.with_rpc_metadata(excluding)
        assert other.rpc_metadata == excluding
        assert client.rpc_metadata == {}
        with pytest.raises(ServiceError) as refused:
            other.get_workflow_handle("none").signal("s")
        assert refused.value.status == "FAILED_PRECONDITION"
        calls: list[Callable[[], object]] = [
            lambda: client.start_workflow("none", rpc_metadata=excluding),
            lambda: client.get_workflow_handle("none").signal("s", rpc_metadata=excluding),
            lambda: client.get_workflow_handle("none").describe(rpc_metadata=excluding),
            lambda: client.get_workflow_handle("none").execute_update("u", rpc_metadata=excluding),
            lambda: client.get_activity_handle(workflow_id="none", activity_id="1").heartbeat(
                rpc_metadata=excluding
            ),
            lambda: client.start_activity("none", rpc_metadata=excluding),
            lambda: client.get_schedule_handle("none").describe(rpc_metadata=excluding),
            lambda: list(client.list_workflows(rpc_metadata=excluding)),
        ]
        for call in calls:
            with pytest.raises(ServiceError) as refused:
                call()
            assert refused.value.status == "FAILED_PRECONDITION"
        with pytest.raises(TargetError, match="rpc_metadata"):
            client.count_workflows(rpc_metadata={"x": "a\nb"})
        client.count_workflows()
        client.rpc_metadata = excluding
        with pytest.raises(ServiceError):
            client.count_workflows()
        client.rpc_metadata = {}
        client.count_workflows()
        with pytest.raises(TargetError, match="rpc_metadata"):
            client.with_rpc_metadata({"x": "a\nb"})


def test_lazy_client_connects_with_its_first_call(quick_server: DevServer) -> None:
    """It connects with its first call, and says then what is wrong; a worker, too, opens it."""
    with Client.connect(
        "127.0.0.1:9", lazy=True, timeout=5, retry_config=RetryConfig(max_retries=1)
    ) as client:
        assert client.target == "127.0.0.1:9"
        with pytest.raises(ConnectionFailedError):
            client.count_workflows()
    with Client.connect(quick_server.target, lazy=True) as client, Worker(client, "lazy", workflows=[length]):
        assert client.execute_workflow(length, "abcd", task_queue="lazy") == 4


def test_raw_service_calls(quick_server: DevServer) -> None:
    """Every RPC of a server can be called, blocking or awaited; a refusal is a `ServiceError`."""
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.api.testservice.v1 import LockTimeSkippingRequest
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
    from temporalio.bridge.proto.health.v1 import HealthCheckRequest

    with Client.connect(quick_server.target) as client:
        info = client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=10)
        assert info.capabilities.signal_and_query_header
        found = client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace="default")
        )
        assert "CustomIntField" in found.custom_attributes
        health = HealthCheckRequest(service="temporal.api.workflowservice.v1.WorkflowService")
        assert client.health_service.check(health).status == 1
        with pytest.raises(ServiceError, match="describe_namespace was rejected") as refused:
            client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="nowhere"))
        assert refused.value.status == "NOT_FOUND"
        with pytest.raises(AttributeError):
            client.workflow_service.no_such_rpc
        with pytest.raises(ServiceError, match="UNIMPLEMENTED"):
            client.test_service.lock_time_skipping(LockTimeSkippingRequest())

    async def awaited() -> Any:
        async with await AsyncClient.connect(quick_server.target) as client:
            return await client.workflow_service.get_system_info(GetSystemInfoRequest())

    assert asyncio.run(awaited()).server_version == info.server_version


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RetryConfig(max_retries=-1),
        lambda: RetryConfig(multiplier=0.5),
        lambda: RetryConfig(randomization_factor=2),
        lambda: RetryConfig(max_elapsed_time_millis=0),
        lambda: KeepAliveConfig(interval_millis=0),
        lambda: KeepAliveConfig(timeout_millis=True),
        lambda: HttpConnectProxyConfig("nowhere"),
        lambda: HttpConnectProxyConfig("h:1", ("me",)),  # type: ignore[arg-type]
        lambda: DnsLoadBalancingConfig(-1),
        lambda: TLSConfig(verification_server_name="x"),
        lambda: Client.connect("h:1", grpc_compression="gzip"),  # type: ignore[arg-type]
        lambda: Client.connect("h:1", retry_config=KeepAliveConfig()),  # type: ignore[arg-type]
        lambda: Client.connect(
            "h:1",
            http_connect_proxy_config=HttpConnectProxyConfig("h:1"),
            dns_load_balancing_config=DnsLoadBalancingConfig(),
        ),
    ],
)
def test_invalid_transport_settings_are_rejected(wrong: Any) -> None:
    """What Core would take for something else is refused where it is written."""
    with pytest.raises(TargetError):
        wrong()


def test_proxy_password_is_not_shown() -> None:
    """A proxy's password is in no repr."""
    assert "secret" not in repr(HttpConnectProxyConfig("h:1", ("me", "secret")))


def test_transport_options_are_rejected_by_embedded_engines() -> None:
    """Keys and raw services are a server's, and said to be; headers of a call are read by no engine here."""
    with Client.connect("local:", lazy=True) as client:
        with pytest.raises(UsageError, match="only Temporal servers"):
            client.api_key = "k"
        with pytest.raises(UsageError, match="only Temporal servers"):
            client.rpc_metadata = {"a": "b"}
        with pytest.raises(UsageError, match="only Temporal servers have them"):
            client.workflow_service
        assert client.with_rpc_metadata({"a": "b"}).count_workflows().count == 0
