"""Connecting to a server: every failure is a clear error within the deadline, without secrets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from hourglass._contract import workflows as wf
from hourglass._contract.handle import HandleConfig
from hourglass._contract.transport import TLSConfig
from hourglass._temporal.configs import check_target, client_settings
from hourglass._temporal.connection import TemporalConnection
from hourglass._temporal.rpc_errors import connection_error, too_late
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, ServiceError, TargetError
from hourglass.testing import DevServer
from servers import free_port

from . import live


@pytest.fixture
def unresponsive_peer() -> Iterator[str]:
    """A peer that accepts connections and never responds."""
    with socket.socket() as peer:
        peer.bind(("127.0.0.1", 0))
        peer.listen()
        yield f"127.0.0.1:{peer.getsockname()[1]}"


@pytest.mark.server
async def test_connection_reports_target_namespace_and_identity(server: DevServer) -> None:
    async with live.connected(server.target, identity="me") as connection:
        assert (connection.target, connection.namespace) == (server.target, "default")
        assert connection.identity == "me"
        assert repr(connection) == f"TemporalConnection('{server.target}', namespace='default')"


@pytest.mark.server
async def test_connecting_to_an_unknown_namespace_fails_with_the_command_that_creates_it(
    server: DevServer,
) -> None:
    with pytest.raises(NamespaceNotFoundError, match="temporal operator namespace create -n nowhere"):
        await live.connect(server.target, namespace="nowhere")


@pytest.mark.server
async def test_handle_that_fails_its_validation_is_rejected_and_freed(server: DevServer) -> None:
    async with live.connected(server.target) as connection:
        astray = TemporalConnection(connection._client, server.target, "nowhere", "me")
        with pytest.raises(ServiceError, match=r"task queue 'lost'.*nowhere"):
            await astray.open_handle(HandleConfig(task_queue="lost"))
        await asyncio.gather(*astray._disposals)


@pytest.mark.server
async def test_connecting_with_tls_to_a_plain_server_fails_without_showing_the_api_key(
    server: DevServer,
) -> None:
    for options in ({"tls": True}, {"api_key": "sesame-123"}):
        with pytest.raises(ConnectionFailedError, match=server.target) as caught:
            await live.connect(server.target, timeout=5.0, **options)
        assert "sesame" not in str(caught.value)


@pytest.mark.server
async def test_api_key_can_be_sent_without_tls(server: DevServer) -> None:
    """For a proxy on the same machine."""
    options = {"api_key": "k", "tls": False, "rpc_metadata": {"x-team": "a"}}
    async with live.connected(server.target, **options) as connection:
        await connection.check_namespace()


async def test_connecting_to_an_unreachable_address_names_the_address_and_suggests_a_dev_server() -> None:
    target = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionFailedError, match="temporal server start-dev") as caught:
        await live.connect(target)
    assert target in str(caught.value)
    assert caught.value.status == "UNAVAILABLE"


async def test_connecting_to_an_unresponsive_server_times_out(unresponsive_peer: str) -> None:
    """Core's own deadline does not apply to such a server."""
    with pytest.raises(ConnectionFailedError, match=r"no answer within 0\.3 s"):
        await live.connect(unresponsive_peer, timeout=0.3)


async def test_connect_can_be_cancelled(unresponsive_peer: str) -> None:
    connecting = asyncio.create_task(live.connect(unresponsive_peer, timeout=20.0))
    await asyncio.wait([connecting], timeout=0.05)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


@pytest.mark.parametrize(
    "target",
    ["", "localhost", "http://localhost:7233", ":7233", "localhost:", "localhost:x", "h:70000", "::1:7"],
)
async def test_invalid_server_target_is_rejected(target: str) -> None:
    with pytest.raises(TargetError, match=r"host|brackets"):
        await live.connect(target)


def test_valid_server_targets_are_accepted() -> None:
    for target in ("localhost:7233", "10.0.0.1:1", "[::1]:7233", "ns.acct.tmprl.cloud:7233"):
        assert check_target(target) == target


def test_unauthenticated_connect_error_suggests_checking_the_api_key() -> None:
    reason = "Failed client connect: `get_system_info` call error after connection: Status { code: Unauthenticated }"
    error = connection_error(reason, "h:1", "ns")
    assert error.status == "UNAUTHENTICATED"
    assert "Check that the API key" in str(error)
    assert isinstance(
        connection_error("Failed client connect: dns error", "h:1", "ns"), ConnectionFailedError
    )


def test_repr_of_tls_and_client_settings_contains_no_secret() -> None:
    tls = TLSConfig(b"ca-secret", "example.com", b"cert-secret", b"key-secret")
    settings = client_settings(
        "h:1",
        version="1",
        identity="me",
        tls=tls,
        api_key="api-secret",
        rpc_metadata={"authorization": "meta-secret"},
        timeout=1.0,
    )
    assert settings.target_url == "https://h:1"  # type: ignore[attr-defined]
    assert settings.tls_config.client_private_key == b"key-secret"  # type: ignore[attr-defined]
    for shown in (repr(tls), str(tls), repr(settings), repr(settings.tls_config)):  # type: ignore[attr-defined]
        assert "secret" not in shown


def test_client_certificate_without_its_key_is_rejected() -> None:
    with pytest.raises(TargetError, match="both"):
        TLSConfig(client_cert=b"x")
    with pytest.raises(TargetError, match="both"):
        TLSConfig(client_private_key=b"x")


async def test_invalid_root_certificate_is_rejected_without_showing_it() -> None:
    tls = TLSConfig(server_root_ca_cert=b"no-certificate-at-all")
    with pytest.raises((ConnectionFailedError, TargetError)) as caught:
        await live.connect(f"127.0.0.1:{free_port()}", tls=tls, timeout=5.0)
    assert "no-certificate" not in str(caught.value)


def test_query_timeout_suggests_checking_for_a_worker() -> None:
    error = too_late(wf.QueryWorkflow(workflow_id="w", query_name="q"), "h:1")
    assert "check that a worker of the workflow's task queue is running" in str(error)
