"""The main pages and forms of the web UI with a real Temporal server, whose lists lag behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import asked, bulk, site_of
from tests.tools.web.pages import run_page, schedule_page
from tests.waiting import until

from hourglass import Client, Worker
from hourglass.client import Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec
from hourglass.replay import History
from hourglass.testing import DevServer

pytestmark = pytest.mark.server

QUEUE = f"page-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def client(quick_server: DevServer) -> Iterator[Client]:
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, QUEUE, workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        yield client


@pytest.fixture(scope="module")
def web(client: Client) -> Iterator[httpx.Client]:
    with asked(site_of(client, client.target, modules=[flows])) as web:
        yield web


@pytest.fixture
def name() -> str:
    """A unique part of ids."""
    return uuid4().hex[:8]


def _purchase(client: Client, name: str) -> str:
    """Start a purchase that waits for shipping. Return the path of its page."""
    handle = client.start_workflow(flows.Purchase.run, flows.Order("ada"), id=f"buy-{name}", task_queue=QUEUE)
    handle.execute_update(flows.Purchase.note, "seen")
    return run_page(handle.id, handle.describe().run_id)


def _listed(web: httpx.Client, prefix: str, number: int) -> str:
    """Return the list of ids with this prefix, once it has this number of rows."""

    def listed() -> str:
        text = web.get("/workflows", params={"id": prefix}).text
        return text if text.count('aria-label="select ') - 1 == number else ""  # one box selects all

    return until(listed, f"the list never shows {number} runs")


def test_list_and_chart_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    _purchase(client, name)
    text = _listed(web, f"buy-{name}", 1)
    assert re.search(r"running</span> 1</a>", text)
    chart = web.get("/workflows/chart", params={"id": f"buy-{name}"}).text
    assert "1 started" in chart


def test_run_page_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    path = _purchase(client, name)
    assert "charge" in web.get(path).text
    assert "condition" in web.get(f"{path}/why").text
    assert ">1</pre>" in web.post(f"{path}/query", data={"name": "note_count"}).text
    assert ">2</pre>" in web.post(f"{path}/update", data={"name": "note", "argument": '"hello"'}).text
    assert "signal ship was sent" in web.post(f"{path}/signal", data={"name": "ship"}).text
    assert client.get_workflow_handle(f"buy-{name}").result() == "ada paid 1"
    assert "schedule activity charge" in web.get(f"{path}/moments", params={"at": "0"}).text
    assert "&#39;ada paid 1&#39;" in web.get(f"{path}/moments", params={"at": "2"}).text
    assert "ada paid 1" in web.get(f"{path}/history").text
    assert History.from_json(web.get(f"{path}/history.json").text).workflow_type == "Purchase"


def test_reset_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    path = _purchase(client, name)
    text = web.get(f"{path}/reset", params={"event": "5"}).text
    assert "<b>charge</b>" in text
    event = re.search(r'name="event_id" value="(\d+)"', text)
    assert event is not None
    fresh = web.post(f"{path}/reset", data={"event_id": event[1], "without_updates": "1"}).url.path
    assert fresh != path
    until(lambda: path in web.get(fresh).text, "the new run never leads to the old one")
    until(lambda: fresh in web.get(path).text, "the old run never leads to the new one")


def test_chain_and_children_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    client.execute_workflow("endless", 2, id=f"chain-{name}", task_queue=QUEUE)
    until(
        lambda: "3 runs of this workflow id" in web.get(f"/workflows/chain-{name}").text, "never three runs"
    )
    client.execute_workflow("family", name, id=f"parent-{name}", task_queue=QUEUE)
    assert f'href="/workflows/child-of-{name}"' in web.get(f"/workflows/parent-{name}").text
    assert f"/workflows/parent-{name}" in web.get(f"/workflows/child-of-{name}").text


def test_bulk_action_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    for number in range(3):
        client.start_workflow("stuck", "x", id=f"s-{name}-{number}", task_queue=QUEUE)
    _listed(web, f"s-{name}", 3)
    page = bulk(web, {"action": "terminate", "all": "1", "id": f"s-{name}"})
    until(lambda: "done</p>" in web.get(page.url.path).text, "the bulk action never ends")
    text = web.get(page.url.path).text
    assert "3 of 3" in text


def test_stalled_runs_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    """A server does not report failing activities, so open runs are described."""
    client.start_workflow("declined", "ada", id=f"p-{name}-failing", task_queue=QUEUE)
    client.start_workflow("quick", "x", id=f"p-{name}-alone", task_queue=f"nobody-{name}")
    _listed(web, f"p-{name}", 2)
    for end, words in (("failing", "activity fails"), ("alone", "no worker")):
        badge = f'<span class="status s-parked">running, {words}</span>'
        until(lambda badge=badge: badge in web.get(f"/workflows?id=p-{name}").text, f"never {words}")
        assert re.search(rf">{words}</span> 1</a>", web.get(f"/workflows/problems?id=p-{name}").text)
        only = web.get(f"/workflows?id=p-{name}&problem={words.replace(' ', '-')}").text
        assert re.findall(r'aria-label="select (?!all on)([^"]+)"', only) == [f"p-{name}-{end}"]
        assert badge in web.get(f"/workflows/p-{name}-{end}").text
    for end in ("failing", "alone"):
        client.get_workflow_handle(f"p-{name}-{end}").terminate()


def test_start_and_cancel_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    started = web.post(
        "/start",
        data={"type": "Purchase", "id": f"p-{name}", "queue": QUEUE, "argument": '{"name": "eve"}'},
    )
    path = started.url.path
    assert path.startswith(f"/workflows/p-{name}/")
    assert "cancellation was requested" in web.post(f"{path}/cancel", data={"reason": "enough"}).text


def test_schedule_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    client.create_schedule(
        f"s-{name}",
        Schedule(
            action=ScheduleActionStartWorkflow("quick", "ada", id=f"of-{name}", task_queue=QUEUE),
            spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=3600)]),
        ),
    )
    path = schedule_page(f"s-{name}")
    assert "Upcoming runs" in web.get(path).text
    web.post(f"{path}/pause", data={"note": "holidays"})
    assert "holidays" in web.get(path).text
    assert "banner good" in web.post(f"{path}/trigger").text
    web.post(f"{path}/delete")
    assert web.get(path).status_code == 404


def test_workers_page_on_a_server(web: httpx.Client, client: Client, name: str) -> None:
    path = _purchase(client, name)
    while QUEUE not in (text := web.get("/workers").text):
        pass
    assert "workflow tasks" in text
    assert web.get("/limits").status_code == 200
    assert web.get(path).status_code == 200


def test_missing_run_on_a_server(web: httpx.Client) -> None:
    assert web.get("/workflows/nothing").status_code == 404
    assert web.get("/workflows", params={"query": "Status is great"}).status_code == 200
