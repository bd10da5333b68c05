"""The web UI while a worker is busy, the disk is full, or the server is unavailable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.durability.test_full_disk import Steps, full_disk, step, store_of
from tests.tools.web.conftest import BEARER, http_client, serving, site_of

from hourglass import Client, Worker, workflow
from hourglass._tools.diagnosis import asking
from hourglass.testing import DevServer, dev_server

_entered, _release = threading.Event(), threading.Event()


@workflow.defn
def blocks_its_thread() -> str:
    _entered.set()
    _release.wait()
    return "done"


def test_web_ui_answers_while_a_worker_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE", 0.2)
    monkeypatch.setenv("HOURGLASS_VERIFY", "off")
    _entered.clear()
    _release.clear()
    with Client.connect("local:") as client, Worker(client, workflows=[blocks_its_thread]):
        try:
            handle = client.start_workflow(blocks_its_thread, id="busy")
            assert _entered.wait(30)
            path = f"/workflows/busy/{handle.describe().run_id}"
            with http_client(site_of(client)) as web:
                assert ">busy<" in web.get("/workflows").text
                assert web.get(path).status_code == 200
                assert web.get(f"{path}/history").status_code == 200
                assert "is being executed by a worker" in web.get(f"{path}/why").text
        finally:
            _release.set()
        assert handle.result(timeout=30) == "done"


class _FullDisk:
    """A file on a full disk, with a signal that waits for free space."""

    def __init__(self, path: Path, client: Client) -> None:
        self.path, self.client = path, client
        self.handle = client.start_workflow(Steps.run, id="steps")

    def __enter__(self) -> _FullDisk:
        self._room = full_disk(store_of(self.path))
        self._room.__enter__()
        self._pool = ThreadPoolExecutor(1)
        self._told = self._pool.submit(self.handle.signal, Steps.go, "x" * 100_000)
        while not store_of(self.path).held:
            pass
        return self

    def end(self) -> None:
        """Free the space, and wait until the signal is stored."""
        self._room.__exit__(None, None, None)
        self._told.result(30)
        assert self.handle.result(timeout=30) == 2

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False)


@pytest.fixture
def file_on_full_disk(tmp_path: Path) -> Iterator[_FullDisk]:
    path = tmp_path / "steps.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[Steps], activities=[step]):
        yield _FullDisk(path, client)


_NO_ROOM = "its disk has no space left"


def test_web_ui_shows_data_and_rejects_writes_while_the_disk_is_full(file_on_full_disk: _FullDisk) -> None:
    with http_client(site_of(file_on_full_disk.client)) as web, file_on_full_disk:
        path = f"/workflows/steps/{file_on_full_disk.handle.describe().run_id}"
        while _NO_ROOM not in (listed := web.get("/workflows").text):
            pass
        assert ">steps<" in listed
        assert _NO_ROOM in web.get(path).text
        response = web.post("/start", data={"type": "Steps", "id": "other"})
        assert response.status_code == 400
        assert "no space left" in response.text
        assert web.get("/health").status_code == 503
        file_on_full_disk.end()
        while _NO_ROOM in web.get("/workflows").text:
            pass
        assert web.get("/health").json() == {"ok": True}


def test_open_page_shows_and_removes_the_full_disk_banner(page: Any, file_on_full_disk: _FullDisk) -> None:
    with serving(site_of(file_on_full_disk.client)) as address:
        page.goto(f"{address}/workflows")
        page.wait_for_selector("#trouble", state="hidden")
        with file_on_full_disk:
            page.wait_for_selector(f"#trouble >> text={_NO_ROOM}")
            file_on_full_disk.end()
        page.wait_for_selector("#trouble", state="hidden")
        page.wait_for_selector("td .s-completed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DevServer]:
    with dev_server(db_filename=str(tmp_path / "server.db")) as running:
        yield running


@pytest.mark.server
def test_open_pages_recover_after_the_server_was_unavailable(
    browser: Any, page: Any, server: DevServer
) -> None:
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
            response = httpx.post(
                f"{address}{path}/signal",
                data={"name": "ship"},
                headers={"origin": address, **BEARER},
                timeout=30,
            )
            assert response.status_code == 503
            assert "no action was performed" in response.text
            server.start()
            page.wait_for_selector("#trouble", state="hidden")
            other.wait_for_selector("td.id >> text=waits")
            other.close()
            client.get_workflow_handle("waits").terminate()
            page.wait_for_selector(".head .s-terminated")
