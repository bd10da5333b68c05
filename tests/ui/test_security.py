"""Who may ask the page, and what its answers allow."""

from __future__ import annotations

import httpx
import pytest
from tests.ui.conftest import asked

from hourglass._ui.security import COOKIE, RequestGuard
from hourglass._ui.server import check_token, hosts_of
from hourglass._ui.site import Site
from hourglass.errors import UsageError

HOST = "127.0.0.1:8300"

TOKEN = "a-token-that-is-long-enough"


async def _nothing(*_: object) -> None:
    raise AssertionError("not asked")


def _refusal(
    method: str = "GET", path: str = "/workflows", token: str | None = None, **headers: str
) -> int | None:
    guard = RequestGuard(_nothing, hosts=frozenset({HOST}), token=token)
    given = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
    found = guard.refusal(method, path, given)
    return None if found is None else found[0]


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
def test_other_names_are_refused(host: str) -> None:
    """A page of the web that lets its own name point here (DNS rebinding) is refused, whatever it asks for."""
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
def test_posts_from_other_origins_are_refused(headers: dict[str, str]) -> None:
    """A form on another page cannot change anything here."""
    assert _refusal("POST", "/bulk", **headers) == 403
    assert _refusal("DELETE", "/bulk", **headers) == 403


@pytest.mark.parametrize("headers", [{"origin": f"http://{HOST}"}, {"sec_fetch_site": "same-origin"}, {}])
def test_posts_of_the_page_itself_are_let_through(headers: dict[str, str]) -> None:
    """Its own forms, and programs, which send neither header."""
    assert _refusal("POST", "/bulk", **headers) is None


def test_with_a_token_nothing_is_told_without_it() -> None:
    """In a header or a cookie; a wrong one is none."""
    assert _refusal(token=TOKEN) == 401
    assert _refusal(token=TOKEN, authorization=f"Bearer {TOKEN}x") == 401
    assert _refusal(token=TOKEN, authorization=f"Basic {TOKEN}") == 401
    assert _refusal(token=TOKEN, cookie=f"{COOKIE}=wrong") == 401
    assert _refusal(token=TOKEN, cookie="\x00=;;;") == 401
    assert _refusal(token=TOKEN, authorization=f"Bearer {TOKEN}") is None
    assert _refusal(token=TOKEN, cookie=f"a=b; {COOKIE}={TOKEN}") is None
    assert _refusal(token=TOKEN, path="/login") is None
    assert _refusal(token=TOKEN, path="/static/page.css") is None
    assert _refusal(token=TOKEN, path="/static/../workflows") is None  # the application finds no such file


def test_beyond_this_machine_a_token_is_needed() -> None:
    """An address that others can reach is refused without one, and with one that can be guessed."""
    with pytest.raises(UsageError, match="--token"):
        check_token("0.0.0.0", None)
    with pytest.raises(UsageError, match="16 characters"):
        check_token("127.0.0.1", "short")
    assert check_token("127.0.0.1", None) is None
    assert check_token("0.0.0.0", TOKEN) == TOKEN


def test_hosts() -> None:
    """The names that a page answers to: all of loopback, or what was named."""
    assert "localhost:8300" in hosts_of("127.0.0.1", 8300)
    assert "[::1]:8300" in hosts_of("127.0.0.1", 8300)
    assert "flows.example:443" in hosts_of("0.0.0.0", 8300, ("flows.example:443",))
    assert "evil.example:8300" not in hosts_of("0.0.0.0", 8300)


def test_a_browser_logs_in_by_a_form(site: Site) -> None:
    """The cookie is for this site alone, and no script can read it; the token is in no address."""
    with asked(site, TOKEN) as web:
        _log_in(web)


def _log_in(web: httpx.Client) -> None:
    refused = web.get("/workflows", headers={"accept": "text/html"}, follow_redirects=False)
    assert (refused.status_code, refused.headers["location"]) == (303, "/login")
    assert web.get("/workflows").status_code == 401
    assert web.post("/login", data={"token": "wrong" * 5}).status_code == 401
    answer = web.post("/login", data={"token": TOKEN}, follow_redirects=False)
    assert answer.headers["location"] == "/workflows"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert web.get("/workflows").status_code == 200


def test_every_answer_says_what_it_allows(site: Site) -> None:
    """No script or style but the page's own files, no frame, no guessing; also of refusals and missing pages."""
    with asked(site) as web:
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


def test_pages_hold_no_inline_script_or_style(site: Site) -> None:
    """What the policy forbids is not there to begin with."""
    with asked(site) as web:
        site.client.start_workflow("stuck", "x", id="one")
        for path in ("/workflows", "/start", "/schedules", "/workers", "/limits", "/workflows/one"):
            text = web.get(path).text
            assert "<script>" not in text
            assert " style=" not in text
            assert " onclick=" not in text


def test_read_only_refuses_what_changes(site: Site) -> None:
    """Each action is refused, and no form offers one."""
    site.read_only = True
    with asked(site) as web:
        site.client.start_workflow("stuck", "x", id="one")
        run = web.get("/workflows/one").url.path
        for path in (
            "/start",
            "/bulk",
            f"{run}/signal",
            f"{run}/cancel",
            f"{run}/terminate",
            f"{run}/reset",
            "/schedules/x/pause",
        ):
            assert web.post(path, data={"name": "x", "type": "quick"}).status_code == 403, path
        assert 'method="post"' not in web.get(run).text
