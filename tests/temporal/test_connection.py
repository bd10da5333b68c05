"""Connecting, and every way in which it goes wrong: a clear error within the deadline, and no secret in sight."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from hourglass._contract.handle import HandleConfig
from hourglass._contract.transport import TLSConfig
from hourglass._temporal.configs import check_target, client_settings
from hourglass._temporal.connection import TemporalConnection
from hourglass._temporal.refusals import connection_refused
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, ServiceError, TargetError
from hourglass.testing import DevServer
from servers import free_port

from . import live


@pytest.fixture
def silent() -> Iterator[str]:
    """A peer that accepts connections and never says a word."""
    with socket.socket() as peer:
        peer.bind(("127.0.0.1", 0))
        peer.listen()
        yield f"127.0.0.1:{peer.getsockname()[1]}"


@pytest.mark.server
async def test_connection_reports_target_and_identity(server: DevServer) -> None:
    """A connection knows its target, namespace and identity."""
    async with live.connected(server.target, identity="me") as connection:
        assert (connection.target, connection.namespace) == (server.target, "default")
        assert connection.identity == "me"
        assert repr(connection) == f"TemporalConnection('{server.target}', namespace='default')"


@pytest.mark.server
async def test_unknown_namespace_is_rejected(server: DevServer) -> None:
    """A namespace that the server does not have is an error at connect, with the command that creates it."""
    with pytest.raises(NamespaceNotFoundError, match="temporal operator namespace create -n nowhere"):
        await live.connect(server.target, namespace="nowhere")


@pytest.mark.server
async def test_handle_that_fails_its_check_is_rejected(server: DevServer) -> None:
    """A handle that fails its check is an error that names the queue, and is freed in the background."""
    async with live.connected(server.target) as connection:
        astray = TemporalConnection(connection._client, server.target, "nowhere", "me")
        with pytest.raises(ServiceError, match=r"task queue 'lost'.*nowhere"):
            await astray.open_handle(HandleConfig(task_queue="lost"))
        await asyncio.gather(*astray._disposals)


@pytest.mark.server
async def test_tls_to_a_plain_server_fails(server: DevServer) -> None:
    """TLS, or an API key, which implies it, to a plain server cannot connect, and the key is not in the message."""
    for options in ({"tls": True}, {"api_key": "sesame-123"}):
        with pytest.raises(ConnectionFailedError, match=server.target) as caught:
            await live.connect(server.target, timeout=5.0, **options)
        assert "sesame" not in str(caught.value)


@pytest.mark.server
async def test_api_key_without_tls(server: DevServer) -> None:
    """`tls=False` sends an API key in the clear, for a proxy on the same machine; metadata goes along."""
    options = {"api_key": "k", "tls": False, "rpc_metadata": {"x-team": "a"}}
    async with live.connected(server.target, **options) as connection:
        await connection.check_namespace()


async def test_unreachable_address_is_reported() -> None:
    """An address where nobody listens is an error that names it and says how to start a server."""
    target = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionFailedError, match="temporal server start-dev") as caught:
        await live.connect(target)
    assert target in str(caught.value)
    assert caught.value.status == "UNAVAILABLE"


async def test_silent_server_times_out(silent: str) -> None:
    """A peer that never answers is given up after the deadline, which Core's own does not do."""
    with pytest.raises(ConnectionFailedError, match=r"no answer within 0\.3 s"):
        await live.connect(silent, timeout=0.3)


async def test_connect_can_be_cancelled(silent: str) -> None:
    """A connect may be cancelled while it waits."""
    connecting = asyncio.create_task(live.connect(silent, timeout=20.0))
    await asyncio.wait([connecting], timeout=0.05)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


@pytest.mark.parametrize(
    "target",
    ["", "localhost", "http://localhost:7233", ":7233", "localhost:", "localhost:x", "h:70000", "::1:7"],
)
async def test_invalid_target_is_rejected(target: str) -> None:
    """A target that is no host and port is refused before anything is sent."""
    with pytest.raises(TargetError, match=r"host|brackets"):
        await live.connect(target)


def test_valid_targets_are_accepted() -> None:
    """Names, addresses and bracketed IPv6 addresses are targets."""
    for target in ("localhost:7233", "10.0.0.1:1", "[::1]:7233", "ns.acct.tmprl.cloud:7233"):
        assert check_target(target) == target


def test_permission_denied_at_connect() -> None:
    """A refusal while connecting says to check key and certificate, and repeats nothing of what was sent."""
    reason = "Failed client connect: `get_system_info` call error after connection: Status { code: Unauthenticated }"
    error = connection_refused(reason, "h:1", "ns")
    assert error.status == "UNAUTHENTICATED"
    assert "Check that the API key" in str(error)
    assert isinstance(
        connection_refused("Failed client connect: dns error", "h:1", "ns"), ConnectionFailedError
    )


def test_repr_shows_no_secret() -> None:
    """Neither the TLS configuration nor what Core is given shows a key in its `repr`."""
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


def test_incomplete_client_certificate_is_rejected() -> None:
    """A certificate without its key, or the reverse, is refused where it is written."""
    with pytest.raises(TargetError, match="both"):
        TLSConfig(client_cert=b"x")
    with pytest.raises(TargetError, match="both"):
        TLSConfig(client_private_key=b"x")


async def test_invalid_certificate_is_rejected() -> None:
    """Bytes that are no certificate are an error at connect, and the bytes are not repeated."""
    tls = TLSConfig(server_root_ca_cert=b"no-certificate-at-all")
    with pytest.raises((ConnectionFailedError, TargetError)) as caught:
        await live.connect(f"127.0.0.1:{free_port()}", tls=tls, timeout=5.0)
    assert "no-certificate" not in str(caught.value)
