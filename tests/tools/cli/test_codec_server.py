"""`hourglass codec-server`: payloads for Temporal's UI, for those who may read them and for no others."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import main
from hourglass.converter import Payload
from hourglass.errors import UsageError

from .codec_serving import TOKEN, limit_requests, served, served_with_link

UI = "http://localhost:8233"


class Backwards:
    """Turns bytes round, and refuses what it did not turn; its methods are awaited."""

    async def encode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        return [
            Payload(each.data[::-1], "binary/turned", {"was": each.encoding.encode()}) for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        if any(each.encoding != "binary/turned" for each in payloads):
            raise ValueError("secret contents")
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


def wire(data: bytes, **metadata: str) -> dict[str, Any]:
    said = {name: base64.b64encode(value.encode()).decode() for name, value in metadata.items()}
    return {"metadata": said, "data": base64.b64encode(data).decode()}


def ask(address: str, body: object, method: str = "POST", **headers: str) -> tuple[int, Any, Any]:
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


def test_codec_server_encodes_and_decodes() -> None:
    """Both ways, in order, below any path; a page with payloads of another origin shows those as they are."""
    with served(Backwards()) as address:
        code, body, headers = ask(f"{address}/decode", {"payloads": [TURNED, PLAIN]}, Origin=UI)
        assert (code, json.loads(body)) == (200, {"payloads": [PLAIN, PLAIN]})
        assert headers["Access-Control-Allow-Origin"] == UI
        assert headers["Cache-Control"] == "no-store"
        code, body, _ = ask(f"{address}/default/encode", {"payloads": [PLAIN]})
        assert (code, json.loads(body)) == (200, {"payloads": [TURNED]})
        assert ask(f"{address}/decode", {"payloads": []})[:2] == (200, b'{"payloads":[]}')


def test_cors_preflight_of_allowed_origins() -> None:
    """The origins that were named may ask, and no other; also without a token, which browsers do not send then."""
    with served(Backwards()) as address:
        code, _, headers = ask(f"{address}/decode", b"", "OPTIONS", Origin=UI)
        assert code == 204
        assert headers["Access-Control-Allow-Origin"] == UI
        assert "X-Namespace" in headers["Access-Control-Allow-Headers"]
        code, _, headers = ask(f"{address}/decode", b"", "OPTIONS", Origin="http://evil.example")
        assert code == 403
        assert headers["Access-Control-Allow-Origin"] is None


def test_codec_server_page_for_people() -> None:
    """The address that the command prints, opened in a browser, is no error page of a server."""
    with served(Backwards()) as address:
        code, body, headers = ask(address, b"", "GET")
        assert code == 405
        assert b"POST /decode" in body
        assert headers["Content-Type"].startswith("text/plain")


def test_unauthorized_requests_are_rejected() -> None:
    """Another origin, another host's name (a name that was pointed here), no token or a wrong one: refused, with nothing told."""
    body = {"payloads": [TURNED]}
    with served(Backwards()) as address:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert ask(f"{address}/decode", body, **bearer)[0] == 200
        assert ask(f"{address}/decode", body, Authorization="")[0] == 401
        assert ask(f"{address}/decode", body, Authorization="Bearer wrong")[0] == 401
        assert ask(f"{address}/decode", body, Origin="http://evil.example", **bearer)[0] == 403
        assert ask(f"{address}/decode", body, Host="evil.example:8081", **bearer)[0] == 421
    with served(Backwards(), names=["codec.example"]) as address:
        port = address.rpartition(":")[2]
        assert ask(f"{address}/decode", body, Host=f"codec.example:{port}")[0] == 200
        assert ask(f"{address}/decode", body, Host="codec.example:443")[0] == 200


def test_codec_server_on_loopback_needs_a_token() -> None:
    """Every user of the machine can connect: without a token nothing is decoded, and guesses are limited."""
    body = {"payloads": [TURNED]}
    with served(Backwards(), token=None) as address:
        assert ask(f"{address}/decode", body, Authorization="")[0] == 401
        codes = [ask(f"{address}/decode", body)[0] for _ in range(12)]
        assert codes == [401] * 10 + [429] * 2


def test_one_time_link_lets_a_browser_decode() -> None:
    """Temporal's UI sends the cookie if it includes credentials; it is set once."""
    with served_with_link(Backwards()) as served_at:
        address = served_at.address
        assert ask(served_at.wrong_link, b"", "GET")[0] == 403
        status, _, headers = ask(served_at.link, b"", "GET")
        assert status == 200
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert served_at.token not in cookie
        assert ask(served_at.link, b"", "GET")[0] == 403
        sent = {"Authorization": "", "Cookie": f"a[b]=1; {cookie.partition(';')[0]}"}
        assert ask(f"{address}/decode", {"payloads": [TURNED]}, Origin=UI, **sent)[0] == 200
        assert ask(f"{address}/decode", {"payloads": [TURNED]}, Origin="http://localhost:9", **sent)[0] == 403


def test_cookie_is_found_among_several_cookie_headers() -> None:
    """A proxy may split the cookies of a browser into one header each."""
    with served_with_link(Backwards()) as served_at:
        address = served_at.address
        cookie = ask(served_at.link, b"", "GET")[2]["Set-Cookie"].partition(";")[0]
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


def test_codec_server_survives_half_open_requests() -> None:
    """Connections beyond the limit replace those that have sent nothing."""
    with served(Backwards()) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        for _ in range(300):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            peer.sendall(b"POST /decode HTTP/1.1\r\nHost: ")
        assert ask(f"{address}/decode", {"payloads": [TURNED]})[0] == 200


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
def test_malformed_requests_are_rejected(path: str, body: object, code: int) -> None:
    """What is no request is refused, and the next one is answered."""
    with served(Backwards()) as address:
        assert ask(f"{address}/{path}", body)[0] == code
        assert ask(f"{address}/decode", {"payloads": [TURNED]})[0] == 200


def test_codec_error_is_not_revealed() -> None:
    """Where it can read nothing the answer says that it raised, and not what."""
    with served(Backwards()) as address:
        code, body, _ = ask(f"{address}/decode", {"payloads": [PLAIN]})
        assert code == 400
        assert b"secret" not in body
        assert b"Backwards.decode raised ValueError" in body
        assert ask(f"{address}/decode", {"payloads": [PLAIN, PLAIN]})[0] == 400


def test_oversized_request_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than it would hold is refused before it is read."""
    limit_requests(monkeypatch, 10)
    with served(Backwards()) as address:
        assert ask(f"{address}/decode", {"payloads": [TURNED]})[0] == 413


def test_unsafe_settings_are_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Origins by name; a port that is taken says so."""
    monkeypatch.setitem(sys.modules, "turning", SimpleNamespace(codec=Backwards()))
    for wrong in ("*", "https://*.example", "temporal.example", "https://temporal.example/path"):
        assert main(["codec-server", "--codec", "turning:codec", "--origin", wrong]) == 2
        assert "an origin must be a URL" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="cannot listen on"), served(Backwards(), port=port):
            pass


class Breaks:
    """Raises what is no `Exception`, or returns what is no payload."""

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
        Breaks(SystemExit("secret contents")),
        Breaks(KeyboardInterrupt("secret contents")),
        Breaks(RecursionError("secret contents")),
        Breaks(asyncio.CancelledError("secret contents")),
        Breaks(returned=5),
        Breaks(returned=["secret contents"]),
        Breaks(returned=[Payload(b"", "\udc80")]),
        Breaks(returned=[Payload(b"", "x", {"\udc80": b"secret contents"})]),
    ],
)
def test_codec_that_breaks_does_not_stop_the_server(
    codec: Breaks, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The request gets an error without contents, nothing is printed, and the next request is answered."""
    with served(codec) as address:
        for _ in range(3):
            code, body, _ = ask(f"{address}/decode", {"payloads": [PLAIN]})
            assert code in (400, 500)
            assert b"secret" not in body
    assert "secret" not in caplog.text
    assert capfd.readouterr() == ("", "")
