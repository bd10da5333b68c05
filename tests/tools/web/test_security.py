"""Access control of the web UI: host names, origins, tokens, cookies, limits and the content security policy."""

from __future__ import annotations

import contextlib
import os
import socket
from contextlib import ExitStack

import httpx
import pytest
from tests.tools.web.conftest import bulk, http_client

from hourglass import Client
from hourglass._http.access import (
    COOKIE_LIFETIME,
    Access,
    AccessDecision,
    Credentials,
    GuessLimit,
    read_token,
)
from hourglass._http.limits import most_connections
from hourglass._http.names import OwnNames
from hourglass._http.server import HttpRequest
from hourglass._tools.web.security import LARGEST_FORM, LARGEST_LOGIN, RequestGuard
from hourglass._tools.web.server import served
from hourglass.errors import UsageError

HOST = "127.0.0.1:8300"
TOKEN = "a-token-that-is-long-enough"
BEARER = f"Bearer {TOKEN}"


async def _nothing(*_: object) -> None:
    raise AssertionError("not asked")


def _guard(*names: str, access: Access | None = None) -> RequestGuard:
    checked = access or Access(Credentials.create(TOKEN), 8300)
    return RequestGuard(_nothing, names=OwnNames("127.0.0.1", 8300, names), access=checked)


def _refusal(
    method: str = "GET", path: str = "/workflows", *names: str, token: str = BEARER, **headers: str
) -> int | None:
    sent = {"host": HOST, "authorization": token} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    rejection = _guard(*names).rejection(method, path, sent, "192.0.2.1")
    return None if rejection is None else rejection.status


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8300",
        "127.0.0.1",
        "127.0.0.1:8301",
        f"{HOST}.evil.example",
        f"evil@{HOST}",
        "localhost.",
        "0",
    ],
)
def test_web_ui_rejects_unknown_host_names(host: str) -> None:
    """DNS rebinding: a page lets its own name point to this host."""
    assert _refusal(host=host) == 421
    assert _refusal("POST", host=host, origin=f"http://{host}") == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{HOST}.evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://evil.example", "sec_fetch_site": "same-origin"},
    ],
)
def test_web_ui_rejects_posts_from_other_origins(headers: dict[str, str]) -> None:
    assert _refusal("POST", "/bulk", **headers) == 403
    assert _refusal("DELETE", "/bulk", **headers) == 403


@pytest.mark.parametrize("headers", [{"origin": f"http://{HOST}"}, {"sec_fetch_site": "same-origin"}, {}])
def test_web_ui_accepts_posts_of_its_own_pages_and_of_programs(headers: dict[str, str]) -> None:
    assert _refusal("POST", "/bulk", **headers) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "unknown-to-us"])
def test_web_ui_rejects_reads_from_other_sites_even_with_a_login(site: str) -> None:
    """A page on another port of this host is of the same site, so its requests carry the cookie."""
    assert _refusal(sec_fetch_site=site) == 403
    assert _refusal(path="/login", sec_fetch_site=site) is None
    for own in ("same-origin", "none"):
        assert _refusal(sec_fetch_site=own) is None
    headers = {
        "host": HOST,
        "sec-fetch-site": site,
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    shown = _guard().rejection("GET", "/workflows", headers, "", "//evil.example/<b>?x=1&y")
    assert shown is not None
    assert 'href="/evil.example/&lt;b&gt;?x=1&amp;y"' in shown.message


@pytest.mark.parametrize(
    "name", ["flows.example:443", "flows.example", "https://flows.example", "https://flows.example/"]
)
@pytest.mark.parametrize("host", ["flows.example", "flows.example:443", "Flows.Example"])
@pytest.mark.parametrize("origin", ["https://flows.example", "https://flows.example:443"])
def test_web_ui_accepts_host_and_origin_with_or_without_port_443(name: str, host: str, origin: str) -> None:
    assert _refusal("POST", "/bulk", name, host=host, origin=origin) is None
    assert _refusal("POST", "/bulk", name, host=host, origin="https://flows.example:8443") == 403
    assert _refusal("POST", "/bulk", name, host="other.example", origin=origin) == 421
    assert OwnNames("127.0.0.1", 8300, [name]).is_secure({"host": host, "origin": origin})


def test_own_host_names_include_their_port_and_all_loopback_names() -> None:
    names = OwnNames("127.0.0.1", 8300, ["flows.example:8443"])
    assert names.is_host("flows.example:8443")
    assert names.is_host("localhost:8300")
    assert names.is_host("[::1]:8300")
    assert not names.is_host("flows.example")
    assert not names.is_host("[::1]:80")
    assert OwnNames("::1", 80).is_host("[::1]")
    assert not names.is_secure({"host": "localhost:8300"})
    assert names.is_secure({"host": "localhost:8300", "x-forwarded-proto": "https"})


def test_web_ui_access_needs_a_valid_token_or_cookie() -> None:
    """Cookies of other programs on this host may be malformed."""
    access = Access(Credentials.create(TOKEN), 8300)
    cookie = access.set_cookie(secure=False).partition(";")[0]
    name, _, value = cookie.partition("=")

    def rejection(path: str = "/workflows", **headers: str) -> int | None:
        found = _guard(access=access).rejection("GET", path, {"host": HOST, **headers}, "192.0.2.1")
        return None if found is None else found.status

    assert rejection() == 401
    assert rejection(authorization=f"{BEARER}x") == 401
    assert rejection(authorization=f"Basic {TOKEN}") == 401
    assert rejection(cookie=f"{name}={TOKEN}") == 401
    assert rejection(cookie=f"{name}=9999999999.x.{'0' * 64}") == 401
    assert rejection(cookie=f"{name}=..") == 401
    assert rejection(cookie="\x00=;;;") == 401
    assert rejection(authorization=BEARER) is None
    for foreign in ("a[b]=1", "=;", '"', "a=b; c", f"{name}=old", "é=ü"):
        assert rejection(cookie=f"{foreign}; {cookie}; d=e") is None, foreign
    assert TOKEN not in value
    assert rejection("/login") is None
    assert rejection("/static/page.css") is None


def test_login_cookies_expire_and_are_valid_for_one_server() -> None:
    now = [1000.0]
    credentials = Credentials.create(TOKEN)
    access = Access(credentials, 8300, clock=lambda: now[0])
    cookie = {"cookie": access.set_cookie(secure=True).partition(";")[0]}
    assert access.check_request(cookie, "") is AccessDecision.ADMITTED
    assert Access(Credentials.create(TOKEN), 8300).check_request(cookie, "") is AccessDecision.DENIED
    assert Access(credentials, 8301, clock=lambda: now[0]).check_request(cookie, "") is AccessDecision.DENIED
    now[0] += COOKIE_LIFETIME
    assert access.check_request(cookie, "") is AccessDecision.DENIED


def test_one_time_link_can_be_redeemed_once_across_processes() -> None:
    """A wrong code does not use it up."""
    parent = Credentials.create()
    first, second = Credentials.from_text(parent.to_text()), Credentials.from_text(parent.to_text())
    assert not first.link.redeem("wrong")
    assert first.link.redeem(parent.link.code)
    assert not first.link.redeem(parent.link.code)
    assert not second.link.redeem(parent.link.code)
    assert second.token == parent.token
    parent.link.close()


def test_credentials_and_request_reprs_hide_secrets() -> None:
    credentials = Credentials.create(TOKEN)
    request = HttpRequest("GET", f"/login?code={credentials.link.code}", {"authorization": BEARER}, "::1")
    shown = f"{credentials!r} {request!r}"
    for secret in (TOKEN, credentials.link.code, repr(credentials.cookie_key)):
        assert secret not in shown


def test_read_token_accepts_long_tokens_and_files(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "token")
    with open(file, "w") as written:
        written.write(f"{TOKEN}\n")
    assert read_token(f"@{file}", "--token") == TOKEN
    assert read_token(TOKEN, "--token") == TOKEN
    assert read_token("", "--token") is None
    for invalid in ("short", f"@{file}.gone", "with spaces in the middle", "non-ascii-é-characters"):
        with pytest.raises(UsageError, match="--token"):
            read_token(invalid, "--token")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/login", {"content-length": str(LARGEST_LOGIN)}, None),
        ("/login", {"content-length": str(LARGEST_LOGIN + 1)}, 413),
        ("/login", {"content-length": "9" * 40}, 413),
        ("/login", {"transfer-encoding": "chunked"}, 411),
        ("/bulk", {"content-length": str(LARGEST_FORM)}, 401),
        ("/bulk", {"content-length": str(LARGEST_FORM), "authorization": BEARER}, None),
        ("/bulk", {"content-length": str(LARGEST_FORM + 1), "authorization": BEARER}, 413),
        ("/bulk", {"transfer-encoding": "chunked", "authorization": BEARER}, 411),
    ],
)
def test_request_bodies_are_limited_before_they_are_read(
    path: str, headers: dict[str, str], status: int | None
) -> None:
    """Without a login, to the size of the login form."""
    rejection = _guard().rejection("POST", path, {"host": HOST, **headers}, "")
    assert (None if rejection is None else rejection.status) == status


def test_login_form_sets_a_strict_http_only_cookie(site: object) -> None:
    with http_client(site, TOKEN) as web:
        refused = web.get("/workflows", headers={"accept": "text/html"}, follow_redirects=False)
        assert (refused.status_code, refused.headers["location"]) == (303, "/login")
        assert web.get("/workflows").status_code == 401
        assert "local:" not in web.get("/login").text  # what is served here is no stranger's business
        assert web.post("/login", data={"token": "wrong" * 5}).status_code == 401
        answer = web.post("/login", data={"token": TOKEN}, follow_redirects=False)
        assert answer.headers["location"] == "/workflows"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"hourglass_{web.base_url.port}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        assert TOKEN not in cookie
        assert web.get("/workflows").status_code == 200


def test_one_time_link_logs_in_once_with_a_secure_cookie_behind_tls(site: object) -> None:
    credentials = Credentials.create()
    with served(site, port=0, credentials=credentials) as address, httpx.Client(base_url=address) as web:
        link = f"/login?code={credentials.link.code}"
        assert "set-cookie" not in web.head(link).headers
        answer = web.get(link, headers={"x-forwarded-proto": "https"})
        assert answer.status_code == 200
        assert answer.headers["refresh"] == "0;url=/workflows"
        assert "; Secure" in answer.headers["set-cookie"]
        second = httpx.get(address + link)
        assert second.status_code == 403
        assert "set-cookie" not in second.headers


def test_web_ui_shutdown_closes_connections_with_unsent_data(site: object) -> None:
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with served(site, port=0) as address:
            host, port = address.removeprefix("http://").split(":")
            peer.connect((host, int(port)))
            peer.settimeout(1)
            request = f"GET /login HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
            with contextlib.suppress(TimeoutError):
                while True:  # until the server reads no more, because its responses are not read
                    peer.send(request * 1000)
        peer.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            while peer.recv(65536):
                pass


def test_web_ui_blocks_a_peer_after_ten_wrong_tokens(site: object) -> None:
    """The header with the client's address has no influence; cookies remain valid."""
    with http_client(site, TOKEN) as web:
        web.post("/login", data={"token": TOKEN})
        stranger = httpx.Client(base_url=web.base_url, headers={"origin": str(web.base_url).rstrip("/")})
        with stranger:
            codes = [
                stranger.post(
                    "/login",
                    data={"token": f"guess-{number:020}"},
                    headers={"x-forwarded-for": f"10.0.0.{number}"},
                ).status_code
                for number in range(12)
            ]
            assert codes == [401] * 10 + [429] * 2
            assert stranger.post("/login", data={"token": TOKEN}).status_code == 429
            assert stranger.get("/workflows", headers={"authorization": BEARER}).status_code == 429
        assert web.get("/workflows").status_code == 200


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("127.0.0.1", "127.8.7.6", True),
        ("127.0.0.1", "::1", True),
        ("::ffff:127.0.0.9", "127.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "10.0.0.2", False),
    ],
)
def test_guess_limit_is_shared_by_addresses_of_one_peer(first: str, second: str, same: bool) -> None:
    """A local user has all of 127.0.0.0/8; the owner of an IPv6 address has a whole network."""
    limit = GuessLimit()
    for _ in range(10):
        limit.count(first)
    assert limit.is_reached(first)
    assert limit.is_reached(second) is same


def test_web_ui_answers_despite_300_half_open_requests(site: object) -> None:
    """Connections above the limit replace those that have sent no request."""
    with http_client(site, TOKEN) as web, ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(300):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", web.base_url.port), timeout=10))
            peer.sendall(b"GET /workflows HTTP/1.1\r\nHost: ")
        assert web.get("/workflows", headers={"authorization": BEARER}).status_code == 200
        if before:  # our own 300 ends are in this process, too
            assert len(os.listdir("/proc/self/fd")) - before - 300 < 200


def test_web_ui_answers_despite_peers_that_do_not_read(site: object) -> None:
    """Connections of such peers can be replaced, even while they send more requests."""
    with http_client(site, TOKEN) as web, ExitStack() as stack:
        port = web.base_url.port
        request = f"GET /static/page.css HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        peers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            for _ in range(most_connections())
        ]
        for _ in range(5):
            for peer in peers:
                peer.setblocking(False)
                with contextlib.suppress(OSError):  # it is full, or was replaced
                    while True:
                        peer.send(request * 100)
            assert web.get("/workflows", headers={"authorization": BEARER}).status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "GET", "POST"])
@pytest.mark.parametrize("in_one_packet", [True, False])
def test_malformed_chunked_bodies_log_nothing(
    site: object, caplog: pytest.LogCaptureFixture, method: str, in_one_packet: bool
) -> None:
    with http_client(site, TOKEN) as web:
        port = web.base_url.port
        head = f"{method} /login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
            peer.sendall(head + b"no chunk\r\n" if in_one_packet else head)
            assert peer.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 411")
            with contextlib.suppress(OSError):  # the server may have closed the connection already
                peer.sendall(b"no chunk\r\n")
                while peer.recv(4096):
                    pass
        assert web.get("/login").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_bulk_action_excludes_internal_limit_workflows(client: Client, site: object) -> None:
    client.start_workflow("stuck", "x", id="shown")
    client.start_workflow("hourglass.slots", id="keeper", task_queue="nobody")
    with http_client(site, TOKEN) as web:
        web.headers["authorization"] = BEARER
        bulk(web, {"action": "terminate", "all": "1"})
        while client.get_workflow_handle("shown").describe().status.name != "TERMINATED":
            pass
        operation = web.get("/operations/1").text
        assert "1 workflow" in operation
        assert client.get_workflow_handle("keeper").describe().status.name == "RUNNING"


def test_every_response_has_a_content_security_policy(site: object) -> None:
    with http_client(site) as web:
        for answer in (
            web.get("/workflows"),
            web.get("/nothing"),
            web.get("/", headers={"host": "evil.example"}),
        ):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"


def test_pages_contain_no_inline_script_or_style(site: object) -> None:
    with http_client(site) as web:
        site.client.start_workflow("stuck", "x", id="one")
        for path in ("/workflows", "/start", "/schedules", "/workers", "/limits", "/workflows/one"):
            text = web.get(path).text
            assert "<script>" not in text
            assert " style=" not in text
            assert " onclick=" not in text


def test_read_only_web_ui_rejects_actions_and_shows_no_forms(site: object) -> None:
    site.read_only = True
    with http_client(site) as web:
        site.client.start_workflow("stuck", "x", id="one")
        run = web.get("/workflows/one").url.path
        for path in (
            "/start",
            "/bulk",
            "/operations/1/stop",
            f"{run}/signal",
            f"{run}/query",
            f"{run}/update",
            f"{run}/cancel",
            f"{run}/terminate",
            f"{run}/reset",
            "/schedules",
            "/schedules/x/pause",
        ):
            assert web.post(path, data={"name": "x", "type": "quick"}).status_code == 403, path
        assert 'method="post"' not in web.get(run).text
