"""The HTTP endpoints `/live`, `/ready` and `/status` of a worker."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack

import pytest

from hourglass import Client, Worker, workflow
from hourglass.errors import UsageError
from hourglass.metrics import Registry

from .test_shape import COMPLETE_TREE
from .world import ACTIVITIES, HOLDER, WORKFLOWS, stage, steps, waits


@pytest.fixture
def client():
    with Client.connect("local:") as client:
        yield client


def worker(client, **options) -> Worker:
    defaults = {"status_address": "127.0.0.1:0", "workflows": WORKFLOWS, "activities": ACTIVITIES, **options}
    return Worker(client, **defaults)


def fetch(working: Worker, path: str, method: str = "GET") -> tuple[int, bytes]:
    assert working.status_address is not None
    connection = http.client.HTTPConnection(working.status_address, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def raw_response(working: Worker, request: bytes) -> bytes:
    assert working.status_address is not None
    host, _, port = working.status_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        peer.sendall(request)
        answer = b""
        while more := peer.recv(65536):
            answer += more
        return answer


def test_healthy_worker_is_alive_and_ready(client):
    with worker(client) as working:
        assert client.execute_workflow(steps, 1, id="w") == 4
        assert fetch(working, "/live") == (200, b'{\n "alive": true\n}')
        assert fetch(working, "/ready?from=probe")[0] == 200
        code, body = fetch(working, "/status")
        report = json.loads(body)
        assert code == 200
        assert (report["state"], report["alive"], report["ready"]) == ("running", True, True)
        assert report["tree"] == COMPLETE_TREE
        assert report["restarts"] == 0
        queue = report["queues"]["default"]
        assert (queue["polling"], queue["generation"], queue["parked"]) == (True, 1, 0)
        assert [lane["name"] for lane in queue["lanes"]] == ["hourglass-lane-1"]


def test_worker_without_a_handle_is_alive_but_not_ready(client):
    with worker(client) as working:
        connect, failing = working._app._connect, [True]

        async def sometimes():
            if failing[0]:
                raise ConnectionError("no way")
            return await connect()

        working._app._connect = sometimes
        working._app.use_fresh_connections()
        working.tree.kill(HOLDER)
        while fetch(working, "/ready")[0] != 503:
            time.sleep(0)
        assert fetch(working, "/live")[0] == 200
        assert json.loads(fetch(working, "/status")[1])["queues"]["default"]["polling"] is False
        failing[0] = False
        while fetch(working, "/ready")[0] != 200:
            time.sleep(0)
        report = json.loads(fetch(working, "/status")[1])
        assert report["restarts"] > 0
        assert f"restarting {HOLDER}" in report["recent"]


def test_worker_with_a_paused_handle_is_not_ready(client):
    from hourglass._worker.tree.status import status_report

    with worker(client) as working:
        (record,) = working._app.tables.records.values()
        record.activities._is_paused = True  # `pause` may be called on the worker's thread only
        try:
            report = status_report(working._app, "running")
        finally:
            record.activities._is_paused = False
        assert report["queues"]["default"]["polling"] is False
        assert report["ready"] is False


@workflow.defn
def returns_a_secret(secret: str) -> str:
    return f"{secret} {waits(1)}"


def test_status_contains_no_workflow_ids_or_payloads(client):
    with worker(client, workflows=[returns_a_secret]) as working:
        handle = client.start_workflow(returns_a_secret, "sesame", id="order-of-bob")
        while not stage.attempts:
            time.sleep(0)
        body = fetch(working, "/status")[1]
        assert json.loads(body)["attempts"] == 1
        for secret in ("sesame", "order-of-bob", handle.run_id, "returns_a_secret"):
            assert secret.encode() not in body
        stage.go.set()
        handle.result(timeout=60)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /live HTTP/1.1\r\n\r\n", 405),
        (b"GET /live\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\xff\xfe\x00 what is this\r\n\r\n", 400),
    ],
)
def test_malformed_http_requests_are_rejected(client, request_, code):
    with worker(client) as working:
        assert raw_response(working, request_).split()[1] == str(code).encode()
        assert fetch(working, "/live")[0] == 200


def test_oversized_http_request_is_rejected(client):
    with worker(client) as working:
        try:
            assert raw_response(working, b"GET /" + b"x" * 100_000).startswith(b"HTTP/1.1 431 ")
        except ConnectionError:
            pass  # the server closed the connection before the request ended
        assert fetch(working, "/live")[0] == 200


def test_response_to_a_head_request_has_no_body(client):
    with worker(client) as working:
        answer = raw_response(working, b"HEAD /live HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n")


def test_failing_status_report_responds_500_without_the_message(client, monkeypatch, caplog):
    with worker(client) as working:

        def broken():
            raise RuntimeError("sesame")

        monkeypatch.setattr(working._status, "_report", broken)
        code, body = fetch(working, "/status")
        assert (code, json.loads(body)) == (500, {"error": "RuntimeError"})
    assert "the status could not be reported" in caplog.text


def test_worker_does_not_start_if_its_status_port_is_in_use(client):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"cannot listen on {address}"):
            worker(client, status_address=address).start()
    with worker(client):
        assert client.execute_workflow(steps, 1, id="w") == 4


@pytest.mark.parametrize("address", [":0", "0", "127.0.0.1:0"])
def test_status_endpoint_listens_on_loopback_by_default(client, address):
    with worker(client, status_address=address) as working:
        assert working.status_address is not None
        assert working.status_address.startswith("127.0.0.1:")
        assert fetch(working, "/live")[0] == 200


@pytest.mark.parametrize(
    "address", ["", "localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", "::²"]
)
def test_invalid_status_addresses_are_rejected(client, address):
    with pytest.raises(UsageError, match=r"must be host:port, such as 127\.0\.0\.1:8080"):
        worker(client, status_address=address)


def test_status_endpoint_is_off_by_default_and_closes_with_the_worker(client):
    with worker(client, status_address=None) as working:
        assert working.status_address is None
    with worker(client) as working:
        address = working.status_address
        assert address is not None
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10)


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8080", 200),
        ("worker.localhost", 200),
        ("proxy.internal:80", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_loopback_status_endpoint_rejects_unknown_host_names(client, monkeypatch, host, code):
    """A web page could reach the port through a host name of its own (DNS rebinding)."""
    monkeypatch.setenv("HOURGLASS_STATUS_HOSTS", "proxy.internal, other.internal")
    with worker(client) as working:
        answer = raw_response(working, f"GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {code} ".encode())
        assert (b"queues" in answer) is (code == 200)
        twice = raw_response(
            working, f"GET /live HTTP/1.1\r\nHost: localhost\r\nhost: {host}\r\n\r\n".encode()
        )
        assert twice.startswith(b"HTTP/1.1 400 ")


def test_http_1_0_request_without_a_host_is_accepted(client):
    with worker(client) as working:
        assert raw_response(working, b"GET /live HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_status_endpoint_on_all_interfaces_accepts_every_host_name(client):
    with worker(client, status_address="0.0.0.0:0") as working:
        port = working.status_address.rpartition(":")[2]
        with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as peer:
            peer.sendall(b"GET /live HTTP/1.1\r\nHost: worker-7.example\r\n\r\n")
            assert peer.recv(65536).startswith(b"HTTP/1.1 200 ")


TOKEN = "a-token-for-the-status-endpoint"


def request_with_token(working: Worker, path: str, token: str) -> tuple[int, bytes]:
    answer = raw_response(working, f"GET {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return int(answer.split()[1]), answer


@pytest.mark.parametrize("in_file", [False, True])
def test_status_and_metrics_require_the_token(client, monkeypatch, tmp_path, in_file):
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HOURGLASS_STATUS_TOKEN", f"@{secret}" if in_file else TOKEN)
    with worker(client, metrics=Registry()) as working:
        assert fetch(working, "/live") == (200, b'{\n "alive": true\n}')
        assert fetch(working, "/ready") == (200, b'{\n "ready": true\n}')
        for path in ("/status", "/metrics"):
            code, body = fetch(working, path)
            assert code == 401
            assert b"default" not in body
            assert request_with_token(working, path, TOKEN)[0] == 200
            assert request_with_token(working, path, "wrong" * 5)[0] == 401


def test_only_live_and_ready_respond_if_no_token_is_set(client, monkeypatch):
    monkeypatch.delenv("HOURGLASS_STATUS_TOKEN")
    with worker(client, metrics=Registry()) as working:
        monkeypatch.setattr(
            working._status, "_report", lambda: {"alive": True, "ready": False, "reasons": ["secret queue"]}
        )
        assert fetch(working, "/ready") == (503, b'{\n "ready": false\n}')
        assert fetch(working, "/status")[0] == 401
        assert fetch(working, "/metrics")[0] == 401


def test_short_or_missing_status_token_is_rejected(client, monkeypatch):
    for value in ("short", "@/no/such/file"):
        monkeypatch.setenv("HOURGLASS_STATUS_TOKEN", value)
        with pytest.raises(UsageError, match="HOURGLASS_STATUS_TOKEN"):
            worker(client)


def test_status_endpoint_limits_wrong_tokens(client, monkeypatch):
    monkeypatch.setenv("HOURGLASS_STATUS_TOKEN", TOKEN)
    with worker(client) as working:
        codes = [
            request_with_token(working, "/status", f"guess-number-{number:08}")[0] for number in range(12)
        ]
        assert codes == [401] * 10 + [429] * 2
        assert request_with_token(working, "/status", TOKEN)[0] == 429
        assert fetch(working, "/live")[0] == 200


def test_idle_connections_to_the_status_endpoint_are_limited(client):
    with worker(client) as working, ExitStack() as stack:
        host, _, port = working.status_address.rpartition(":")
        for _ in range(300):
            peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            peer.sendall(b"GET /live HTTP/1.1\r\nX: ")
        assert fetch(working, "/live")[0] == 200
        assert len(working._status._server._gate) <= 128
