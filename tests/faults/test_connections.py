"""Servers that are missing, are not Temporal, or reject a client; and secrets, which are never shown."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hourglass import workflow
from hourglass.client import Client, TLSConfig
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, ServiceError
from hourglass.testing import DevServer
from hourglass.worker import Worker

KEY = "sk-very-secret-api-key"
PEM = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0LWtleS1tYXRlcmlhbA==\n-----END PRIVATE KEY-----\n"
LONG = 3600
"""A timeout in seconds that no test reaches."""
PEM_TEXT = "c2VjcmV0LWtleS1tYXRlcmlhbA"


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that is not Temporal's; yields its address."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for connection in held:
        connection.close()


def stays_silent(connection: socket.socket) -> None: ...


def speaks_http(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno")


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def test_refused_connection_names_the_address() -> None:
    """The error is raised before the timeout."""
    target = closed_port()
    with pytest.raises(ConnectionFailedError, match=rf"{target}: connection refused"):
        Client.connect(target, timeout=LONG)


def test_unknown_host_is_named() -> None:
    with pytest.raises(ConnectionFailedError, match=r"no-such-host\.invalid:7233"):
        Client.connect("no-such-host.invalid:7233", timeout=2)


@pytest.mark.parametrize("answer", [speaks_http, hangs_up])
def test_server_that_is_not_temporal_is_named(answer: Callable[[socket.socket], None]) -> None:
    """The error is raised before the timeout."""
    with peer(answer) as target, pytest.raises(ServiceError, match=rf"{target}: the server closed"):
        Client.connect(target, timeout=LONG)


def test_silent_server_times_out() -> None:
    with peer(stays_silent) as target, pytest.raises(ServiceError, match=rf"{target}: no answer within 1 s"):
        Client.connect(target, timeout=1)


@pytest.mark.server
def test_unknown_namespace_is_named(quick_server: DevServer) -> None:
    with pytest.raises(NamespaceNotFoundError, match="no namespace 'elsewhere'"):
        Client.connect(quick_server.target, namespace="elsewhere", timeout=5)


@pytest.mark.server
def test_tls_to_a_plain_server_is_reported(quick_server: DevServer) -> None:
    with pytest.raises(ConnectionFailedError, match=quick_server.target):
        Client.connect(quick_server.target, tls=True, timeout=2)


@pytest.mark.parametrize("tls", [True, False, TLSConfig(client_cert=PEM, client_private_key=PEM)])
def test_failed_connection_shows_no_secrets(tls: object, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ServiceError) as caught:
        Client.connect(closed_port(), api_key=KEY, tls=tls, timeout=1)  # type: ignore[arg-type]
    output = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(caught.value) + repr(tls)
    assert KEY not in output
    assert PEM_TEXT not in output


@pytest.mark.server
def test_connected_client_shows_no_secrets(quick_server: DevServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Client.connect(
        quick_server.target, api_key=KEY, tls=False, rpc_metadata={"x-token": KEY}, timeout=5
    ) as client:
        handle = client.get_workflow_handle("never-was")
        with pytest.raises(ServiceError) as caught:
            handle.describe()
        parts = [client, handle, client.connection, client._session, vars(client)]
        output = "".join(map(repr, parts)) + "".join(traceback.format_exception(caught.value)) + caplog.text
    assert KEY not in output


@workflow.defn
def returns_its_id() -> str:
    return workflow.info().workflow_id


@pytest.mark.server
def test_clients_of_two_engines_are_independent(quick_server: DevServer) -> None:
    with (
        Client.connect("local:") as one,
        Client.connect("local:") as two,
        Client.connect(quick_server.target) as three,
    ):
        handles = [client.start_workflow(returns_its_id, id="same-id") for client in (one, two, three)]
        assert len({handle.run_id for handle in handles}) == 3
        with Worker(one, workflows=[returns_its_id]):
            assert handles[0].result(timeout=20) == "same-id"
            for other in handles[1:]:
                assert len(other.history()) == 2, "another engine's run was executed"
            with Worker(two, workflows=[returns_its_id]), Worker(three, workflows=[returns_its_id]):
                assert [handle.result(timeout=20) for handle in handles] == ["same-id"] * 3
