"""`hourglass codec-server`: decoding for Temporal's UI, for authorized requests only."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import main
from hourglass.converter import Payload
from hourglass.errors import UsageError

from .codec_serving import TOKEN, limit_requests, serve_codec, serve_codec_with_link

UI = "http://localhost:8233"


class ReversingCodec:
    """A codec with asynchronous methods that reverses data, and raises for payloads that it has not encoded."""

    async def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [
            Payload(each.data[::-1], "binary/turned", {"was": each.encoding.encode()}) for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(each.encoding != "binary/turned" for each in payloads):
            raise ValueError("secret contents")
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


def wire(data: bytes, **metadata: str) -> dict[str, Any]:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in metadata.items()}
    return {"metadata": encoded, "data": base64.b64encode(data).decode()}


def send(address: str, body: object, method: str = "POST", **headers: str) -> tuple[int, Any, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {
        "Content-Type": "application/json",
        "X-Namespace": "default",
        "Authorization": f"Bearer {TOKEN}",
        **headers,
    }
    request = urllib.request.Request(
        address, data=data if method == "POST" else None, headers=sent, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


PLAIN = wire(b'"hello"', encoding="json/plain")
TURNED = wire(b'"olleh"', encoding="binary/turned", was="json/plain")


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a codec server."""
    with serve_codec(ReversingCodec()) as served:
        yield served


def test_codec_server_encodes_and_decodes_payloads_in_order(address: str) -> None:
    code, body, headers = send(f"{address}/decode", {"payloads": [TURNED, PLAIN]}, Origin=UI)
    assert (code, json.loads(body)) == (200, {"payloads": [PLAIN, PLAIN]})
    assert headers["Access-Control-Allow-Origin"] == UI
    assert headers["Cache-Control"] == "no-store"
    code, body, _ = send(f"{address}/default/encode", {"payloads": [PLAIN]})
    assert (code, json.loads(body)) == (200, {"payloads": [TURNED]})
    assert send(f"{address}/decode", {"payloads": []})[:2] == (200, b'{"payloads":[]}')


def test_codec_server_answers_preflight_of_allowed_origins_only(address: str) -> None:
    """Browsers send preflight requests without a token."""
    code, _, headers = send(f"{address}/decode", b"", "OPTIONS", Origin=UI)
    assert code == 204
    assert headers["Access-Control-Allow-Origin"] == UI
    assert "X-Namespace" in headers["Access-Control-Allow-Headers"]
    code, _, headers = send(f"{address}/decode", b"", "OPTIONS", Origin="http://evil.example")
    assert code == 403
    assert headers["Access-Control-Allow-Origin"] is None


def test_codec_server_root_explains_its_use_to_browsers(address: str) -> None:
    code, body, headers = send(address, b"", "GET")
    assert code == 405
    assert b"POST /decode" in body
    assert headers["Content-Type"].startswith("text/plain")


def test_codec_server_rejects_wrong_origin_host_or_token() -> None:
    body = {"payloads": [TURNED]}
    with serve_codec(ReversingCodec()) as address:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert send(f"{address}/decode", body, **bearer)[0] == 200
        assert send(f"{address}/decode", body, Authorization="")[0] == 401
        assert send(f"{address}/decode", body, Authorization="Bearer wrong")[0] == 401
        assert send(f"{address}/decode", body, Origin="http://evil.example", **bearer)[0] == 403
        assert send(f"{address}/decode", body, Host="evil.example:8081", **bearer)[0] == 421
    with serve_codec(ReversingCodec(), names=["codec.example"]) as address:
        port = address.rpartition(":")[2]
        assert send(f"{address}/decode", body, Host=f"codec.example:{port}")[0] == 200
        assert send(f"{address}/decode", body, Host="codec.example:443")[0] == 200


def test_codec_server_on_loopback_needs_a_token_and_limits_guesses() -> None:
    """Every user of the machine can connect to loopback."""
    body = {"payloads": [TURNED]}
    with serve_codec(ReversingCodec(), token=None) as address:
        assert send(f"{address}/decode", body, Authorization="")[0] == 401
        codes = [send(f"{address}/decode", body)[0] for _ in range(12)]
        assert codes == [401] * 10 + [429] * 2


def test_codec_server_one_time_link_sets_a_cookie_for_decoding() -> None:
    with serve_codec_with_link(ReversingCodec()) as links:
        address = links.address
        assert send(links.wrong_link, b"", "GET")[0] == 403
        status, _, headers = send(links.link, b"", "GET")
        assert status == 200
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert links.token not in cookie
        assert send(links.link, b"", "GET")[0] == 403
        sent = {"Authorization": "", "Cookie": f"a[b]=1; {cookie.partition(';')[0]}"}
        assert send(f"{address}/decode", {"payloads": [TURNED]}, Origin=UI, **sent)[0] == 200
        assert (
            send(f"{address}/decode", {"payloads": [TURNED]}, Origin="http://localhost:9", **sent)[0] == 403
        )


def test_codec_server_accepts_cookie_split_over_several_headers() -> None:
    """A proxy may split the cookies."""
    with serve_codec_with_link(ReversingCodec()) as links:
        address = links.address
        cookie = send(links.link, b"", "GET")[2]["Set-Cookie"].partition(";")[0]
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
        body = json.dumps({"payloads": [TURNED]}).encode()
        connection.putrequest("POST", "/decode")
        for name, value in (
            ("Content-Length", str(len(body))),
            ("Cookie", "a[b]=1"),
            ("Cookie", cookie),
            ("Cookie", "c=d"),
        ):
            connection.putheader(name, value)
        connection.endheaders(body)
        assert connection.getresponse().status == 200
        connection.close()


def test_codec_server_answers_despite_300_half_open_requests() -> None:
    with serve_codec(ReversingCodec()) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        for _ in range(300):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            peer.sendall(b"POST /decode HTTP/1.1\r\nHost: ")
        assert send(f"{address}/decode", {"payloads": [TURNED]})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("decode", b"garbage", 400),
        ("decode", b'{"payloads": 5}', 400),
        ("decode", b"{}", 400),
        ("decode", {"payloads": [{"data": "no base64!"}]}, 400),
        ("other", {"payloads": []}, 404),
    ],
)
def test_codec_server_rejects_malformed_requests_and_continues(
    path: str, body: object, code: int, address: str
) -> None:
    assert send(f"{address}/{path}", body)[0] == code
    assert send(f"{address}/decode", {"payloads": [TURNED]})[0] == 200


def test_codec_server_does_not_reveal_the_message_of_a_codec_error(address: str) -> None:
    code, body, _ = send(f"{address}/decode", {"payloads": [PLAIN]})
    assert code == 400
    assert b"secret" not in body
    assert b"ReversingCodec.decode raised ValueError" in body
    assert send(f"{address}/decode", {"payloads": [PLAIN, PLAIN]})[0] == 400


def test_codec_server_rejects_oversized_requests(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    limit_requests(monkeypatch, 10)
    assert send(f"{address}/decode", {"payloads": [TURNED]})[0] == 413


def test_codec_server_rejects_wildcard_origins_and_a_used_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "turning", SimpleNamespace(codec=ReversingCodec()))
    for origin in ("*", "https://*.example", "temporal.example", "https://temporal.example/path"):
        assert main(["codec-server", "--codec", "turning:codec", "--origin", origin]) == 2
        assert "an origin must be a URL" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="cannot listen on"), serve_codec(ReversingCodec(), port=port):
            pass


class BrokenCodec:
    """Raises an exception, possibly a BaseException, or returns invalid payloads."""

    def __init__(self, raised: BaseException | None = None, returned: Any = None) -> None:
        self.raised = raised
        self.returned = returned

    def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if self.raised is not None:
            raise self.raised
        result: Sequence[Payload] = self.returned
        return result

    decode = encode


@pytest.mark.parametrize(
    "codec",
    [
        BrokenCodec(SystemExit("secret contents")),
        BrokenCodec(KeyboardInterrupt("secret contents")),
        BrokenCodec(RecursionError("secret contents")),
        BrokenCodec(asyncio.CancelledError("secret contents")),
        BrokenCodec(returned=5),
        BrokenCodec(returned=["secret contents"]),
        BrokenCodec(returned=[Payload(b"", "\udc80")]),
        BrokenCodec(returned=[Payload(b"", "x", {"\udc80": b"secret contents"})]),
    ],
)
def test_codec_server_survives_exceptions_and_invalid_results_of_a_codec(
    codec: BrokenCodec, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve_codec(codec) as address:
        for _ in range(3):
            code, body, _ = send(f"{address}/decode", {"payloads": [PLAIN]})
            assert code in (400, 500)
            assert b"secret" not in body
    assert "secret" not in caplog.text
    assert capfd.readouterr() == ("", "")
