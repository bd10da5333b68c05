"""The page while the worker is busy, while the disk is full and while the server is away: it answers, and says which it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.durability.test_full_disk import Steps, disk_full, step, store_of
from tests.tools.web.conftest import BEARER, asked, serving, site_of

from hourglass import Client, Worker, workflow
from hourglass._tools.diagnosis import asking
from hourglass.testing import DevServer, dev_server

_entered, _go_on = threading.Event(), threading.Event()


@workflow.defn
def busy() -> str:
    """Blocks its thread, as code does that waits for something outside."""
    _entered.set()
    _go_on.wait()
    return "done"


def test_pages_while_the_worker_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages do not wait for code that does not answer; why it stands is said."""
    monkeypatch.setattr(asking, "PATIENCE", 0.2)
    monkeypatch.setenv("HOURGLASS_VERIFY", "off")
    _entered.clear()
    _go_on.clear()
    with Client.connect("local:") as client, Worker(client, workflows=[busy]):
        try:
            handle = client.start_workflow(busy, id="busy")
            assert _entered.wait(30)
            path = f"/workflows/busy/{handle.describe().run_id}"
            with asked(site_of(client)) as web:
                assert ">busy<" in web.get("/workflows").text
                assert web.get(path).status_code == 200
                assert web.get(f"{path}/history").status_code == 200
                assert "is being executed by a worker" in web.get(f"{path}/why").text
        finally:
            _go_on.set()
        assert handle.result(timeout=30) == "done"


class _Full:
    """A file whose disk is full, with a signal that waits for room."""

    def __init__(self, path: Path, client: Client) -> None:
        self.path, self.client = path, client
        self.handle = client.start_workflow(Steps.run, id="steps")

    def __enter__(self) -> _Full:
        self._room = disk_full(store_of(self.path))
        self._room.__enter__()
        self._pool = ThreadPoolExecutor(1)
        self._told = self._pool.submit(self.handle.signal, Steps.go, "x" * 100_000)
        while not store_of(self.path).held:
            pass
        return self

    def end(self) -> None:
        """There is room again."""
        self._room.__exit__(None, None, None)
        self._told.result(30)
        assert self.handle.result(timeout=30) == 2

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[_Full]:
    path = tmp_path / "steps.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[Steps], activities=[step]):
        yield _Full(path, client)


_NO_ROOM = "its disk has no space left"


def test_pages_while_the_disk_is_full(full: _Full) -> None:
    """What is written is shown, with what is the matter; what would be written is refused with the reason."""
    with asked(site_of(full.client)) as web, full:
        path = f"/workflows/steps/{full.handle.describe().run_id}"
        while _NO_ROOM not in (listed := web.get("/workflows").text):
            pass
        assert ">steps<" in listed
        assert _NO_ROOM in web.get(path).text
        refused = web.post("/start", data={"type": "Steps", "id": "other"})
        assert refused.status_code == 400
        assert "no space left" in refused.text
        assert web.get("/health").status_code == 503
        full.end()
        while _NO_ROOM in web.get("/workflows").text:
            pass
        assert web.get("/health").json() == {"ok": True}


def test_open_page_shows_a_full_disk(page: Any, full: _Full) -> None:
    """The banner comes and goes without a reload."""
    with serving(site_of(full.client)) as address:
        page.goto(f"{address}/workflows")
        page.wait_for_selector("#trouble", state="hidden")
        with full:
            page.wait_for_selector(f"#trouble >> text={_NO_ROOM}")
            full.end()
        page.wait_for_selector("#trouble", state="hidden")
        page.wait_for_selector("td .s-completed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DevServer]:
    with dev_server(db_filename=str(tmp_path / "server.db")) as running:
        yield running


@pytest.mark.server
def test_pages_while_the_server_is_unavailable(browser: Any, page: Any, server: DevServer) -> None:
    """An open page says so and continues when it is back; one that is opened meanwhile says so at once, and appears then."""
    with Client.connect(server.target) as client:
        handle = client.start_workflow("purchase", id="waits")
        with serving(site_of(client, server.target)) as address:
            path = f"/workflows/waits/{handle.describe().run_id}"
            page.goto(address + path)
            page.wait_for_selector(".head .status >> text=running, no worker")
            server.kill()
            page.wait_for_selector("#trouble >> text=does not respond")
            other = browser.new_page(extra_http_headers=BEARER)
            other.goto(f"{address}/workflows")
            other.wait_for_selector("h1 >> text=Unavailable")
            refused = httpx.post(
                f"{address}{path}/signal",
                data={"name": "ship"},
                headers={"origin": address, **BEARER},
                timeout=30,
            )
            assert refused.status_code == 503
            assert "no action was performed" in refused.text
            server.start()
            page.wait_for_selector("#trouble", state="hidden")
            other.wait_for_selector("td.id >> text=waits")
            other.close()
            client.get_workflow_handle("waits").terminate()
            page.wait_for_selector(".head .s-terminated")
