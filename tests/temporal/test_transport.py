"""How a connection is made and what it sends, observed by a proxy between client and server."""

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


def hpack_encoded(key: str) -> bytes:
    """Encode an API key as HTTP/2 does in its header."""
    bits = "".join(f"{HUFFMAN[char]:05b}" for char in key)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


class RecordingProxy:
    """An HTTP proxy that records the CONNECT requests and the bytes that clients send."""

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
        for sock in self._open:
            sock.close()


@pytest.fixture
def proxy() -> Iterator[RecordingProxy]:
    made = RecordingProxy()
    yield made
    made.close()


@workflow.defn
def length(text: str) -> int:
    return len(text)


def test_client_connects_through_a_proxy_and_sends_a_changed_api_key(
    quick_server: DevServer, proxy: RecordingProxy
) -> None:
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
        assert hpack_encoded(first) in proxy.sent
        assert hpack_encoded(second) not in proxy.sent
        client.api_key = second
        assert client.api_key == second
        client.count_workflows()
        assert hpack_encoded(second) in proxy.sent
        with Worker(client, "transport", workflows=[length]):
            proxy.sent.clear()
            assert client.execute_workflow(length, "abc", task_queue="transport") == 3
        assert hpack_encoded(first) not in proxy.sent
        with pytest.raises(TargetError, match="API key"):
            client.api_key = "with a space"
        assert client.api_key == second


def test_gzip_compression_shortens_messages(quick_server: DevServer, proxy: RecordingProxy) -> None:
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


def test_rpc_metadata_of_clients_and_calls_is_sent(quick_server: DevServer) -> None:
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
    with Client.connect(
        "127.0.0.1:9", lazy=True, timeout=5, retry_config=RetryConfig(max_retries=1)
    ) as client:
        assert client.target == "127.0.0.1:9"
        with pytest.raises(ConnectionFailedError):
            client.count_workflows()
    with Client.connect(quick_server.target, lazy=True) as client, Worker(client, "lazy", workflows=[length]):
        assert client.execute_workflow(length, "abcd", task_queue="lazy") == 4


def test_raw_rpcs_of_all_services_can_be_called(quick_server: DevServer) -> None:
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.api.testservice.v1 import LockTimeSkippingRequest
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
    from temporalio.bridge.proto.health.v1 import HealthCheckRequest

    with Client.connect(quick_server.target) as client:
        info = client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=10)
        assert info.capabilities.signal_and_query_header
        attributes = client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace="default")
        )
        assert "CustomIntField" in attributes.custom_attributes
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
    "create",
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
def test_invalid_transport_settings_are_rejected(create: Any) -> None:
    with pytest.raises(TargetError):
        create()


def test_repr_of_the_proxy_configuration_hides_the_password() -> None:
    assert "secret" not in repr(HttpConnectProxyConfig("h:1", ("me", "secret")))


def test_embedded_engine_rejects_api_keys_and_raw_services() -> None:
    with Client.connect("local:", lazy=True) as client:
        with pytest.raises(UsageError, match="only Temporal servers"):
            client.api_key = "k"
        with pytest.raises(UsageError, match="only Temporal servers"):
            client.rpc_metadata = {"a": "b"}
        with pytest.raises(UsageError, match="only Temporal servers have them"):
            client.workflow_service
        assert client.with_rpc_metadata({"a": "b"}).count_workflows().count == 0
