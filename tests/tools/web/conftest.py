"""A worker on an in-memory engine and its web UI, for HTTP clients and for a real browser."""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.tools.web import flows

from hourglass import Client, Worker
from hourglass._http.access import Credentials
from hourglass._tools.timeline.watching import decoder
from hourglass._tools.web.server import served
from hourglass._tools.web.site import Site

TOKEN = "the-token-of-these-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        yield client


@pytest.fixture
def site(client: Client) -> Iterator[Site]:
    """The web UI with the workflows' code loaded."""
    made = Site(client, target="local:", modules=[flows])
    yield made
    made.close()


@pytest.fixture
def web(site: Site) -> Iterator[httpx.Client]:
    with http_client(site) as web:
        yield web


def site_of(client: Client, target: str = "local:", codec: Any = None, **options: Any) -> Site:
    """Return the web UI of a client, without a server. With a codec it can show decoded values."""
    if codec is not None:
        options["decode"] = decoder(codec)
    return Site(client, target=target, **options)


@contextmanager
def serving(site: Site, token: str = TOKEN) -> Iterator[str]:
    """Serve a web UI on a socket and yield its address."""
    with served(site, port=0, credentials=Credentials.create(token)) as address:
        yield address


@contextmanager
def http_client(site: Site, token: str | None = None) -> Iterator[httpx.Client]:
    """Serve a web UI and yield an HTTP client that sends the headers of its forms. With `token` it is not logged in."""
    with (
        serving(site, token or TOKEN) as address,
        httpx.Client(base_url=address, headers={"origin": address}, follow_redirects=True, timeout=60) as web,
    ):
        if token is None:
            web.headers.update(BEARER)
        yield web


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    with serving(site) as address:
        yield address


def bulk_form(text: str) -> dict[str, Any]:
    """Return the fields of the form that confirms a bulk action."""
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text):
        fields.setdefault(name, []).append(html.unescape(value))
    return {**fields, "confirmed": "1"}


def bulk(web: httpx.Client, data: dict[str, Any]) -> httpx.Response:
    """Send a bulk action and confirm it, with the number of workflows if the form asks for it."""
    question = web.post("/bulk", data=data)
    assert question.status_code == 200, question.text
    form = bulk_form(question.text)
    if 'name="typed"' in question.text:
        form["typed"] = form["expected"]
    return web.post("/bulk", data=form)


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A real browser. Its driver runs an event loop in the test's thread, which tests outside this package cannot
    tolerate.
    """
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium, or set CHROMIUM to its path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of the browser. The test fails after a script error or a violation of the content security policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, extra_http_headers=BEARER)
    new_page = context.new_page()
    errors: list[str] = []
    new_page.on("pageerror", lambda error: errors.append(str(error)))
    new_page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield new_page
    context.close()
    # What the server refuses on purpose is logged by the browser as well.
    assert [each for each in errors if "Failed to load resource" not in each] == []
