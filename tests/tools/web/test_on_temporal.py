"""The main pages and forms of the web UI with a real Temporal server, whose lists lag behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import bulk, http_client, site_of
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
    with http_client(site_of(client, client.target, modules=[flows])) as web:
        yield web


@pytest.fixture
def suffix() -> str:
    """A unique part of ids."""
    return uuid4().hex[:8]


def _start_purchase(client: Client, suffix: str) -> str:
    """Start a purchase that waits for shipping. Return the path of its page."""
    handle = client.start_workflow(
        flows.Purchase.run, flows.Order("ada"), id=f"buy-{suffix}", task_queue=QUEUE
    )
    handle.execute_update(flows.Purchase.note, "seen")
    return run_page(handle.id, handle.describe().run_id)


def _wait_for_list(web: httpx.Client, prefix: str, number: int) -> str:
    """Return the list of ids with this prefix, once it has this number of rows."""

    def listed() -> str:
        text = web.get("/workflows", params={"id": prefix}).text
        return text if text.count('aria-label="select ') - 1 == number else ""  # one box selects all

    return until(listed, f"the list never shows {number} runs")


def test_web_ui_on_a_server_lists_and_charts_runs(web: httpx.Client, client: Client, suffix: str) -> None:
    _start_purchase(client, suffix)
    text = _wait_for_list(web, f"buy-{suffix}", 1)
    assert re.search(r"running</span> 1</a>", text)
    chart = web.get("/workflows/chart", params={"id": f"buy-{suffix}"}).text
    assert "1 started" in chart


def test_run_page_on_a_server_shows_forms_time_travel_and_history(
    web: httpx.Client, client: Client, suffix: str
) -> None:
    path = _start_purchase(client, suffix)
    assert "charge" in web.get(path).text
    assert "condition" in web.get(f"{path}/why").text
    assert ">1</pre>" in web.post(f"{path}/query", data={"name": "note_count"}).text
    assert ">2</pre>" in web.post(f"{path}/update", data={"name": "note", "argument": '"hello"'}).text
    assert "signal ship was sent" in web.post(f"{path}/signal", data={"name": "ship"}).text
    assert client.get_workflow_handle(f"buy-{suffix}").result() == "ada paid 1"
    assert "schedule activity charge" in web.get(f"{path}/moments", params={"at": "0"}).text
    assert "&#39;ada paid 1&#39;" in web.get(f"{path}/moments", params={"at": "2"}).text
    assert "ada paid 1" in web.get(f"{path}/history").text
    assert History.from_json(web.get(f"{path}/history.json").text).workflow_type == "Purchase"


def test_reset_form_on_a_server_links_old_and_new_run(web: httpx.Client, client: Client, suffix: str) -> None:
    path = _start_purchase(client, suffix)
    text = web.get(f"{path}/reset", params={"event": "5"}).text
    assert "<b>charge</b>" in text
    event = re.search(r'name="event_id" value="(\d+)"', text)
    assert event is not None
    fresh = web.post(f"{path}/reset", data={"event_id": event[1], "without_updates": "1"}).url.path
    assert fresh != path
    until(lambda: path in web.get(fresh).text, "the new run never leads to the old one")
    until(lambda: fresh in web.get(path).text, "the old run never leads to the new one")


def test_run_pages_on_a_server_link_chain_child_and_parent(
    web: httpx.Client, client: Client, suffix: str
) -> None:
    client.execute_workflow("endless", 2, id=f"chain-{suffix}", task_queue=QUEUE)
    until(
        lambda: "3 runs of this workflow id" in web.get(f"/workflows/chain-{suffix}").text, "never three runs"
    )
    client.execute_workflow("family", suffix, id=f"parent-{suffix}", task_queue=QUEUE)
    assert f'href="/workflows/child-of-{suffix}"' in web.get(f"/workflows/parent-{suffix}").text
    assert f"/workflows/parent-{suffix}" in web.get(f"/workflows/child-of-{suffix}").text


def test_bulk_terminate_on_a_server_affects_all_matches(
    web: httpx.Client, client: Client, suffix: str
) -> None:
    for number in range(3):
        client.start_workflow("stuck", "x", id=f"s-{suffix}-{number}", task_queue=QUEUE)
    _wait_for_list(web, f"s-{suffix}", 3)
    page = bulk(web, {"action": "terminate", "all": "1", "id": f"s-{suffix}"})
    until(lambda: "done</p>" in web.get(page.url.path).text, "the bulk action never ends")
    text = web.get(page.url.path).text
    assert "3 of 3" in text


def test_web_ui_on_a_server_marks_failing_and_unserved_runs(
    web: httpx.Client, client: Client, suffix: str
) -> None:
    """A server does not report failing activities, so open runs are described."""
    client.start_workflow("declined", "ada", id=f"p-{suffix}-failing", task_queue=QUEUE)
    client.start_workflow("quick", "x", id=f"p-{suffix}-alone", task_queue=f"nobody-{suffix}")
    _wait_for_list(web, f"p-{suffix}", 2)
    for id_suffix, words in (("failing", "activity fails"), ("alone", "no worker")):
        badge = f'<span class="status s-parked">running, {words}</span>'
        until(lambda badge=badge: badge in web.get(f"/workflows?id=p-{suffix}").text, f"never {words}")
        assert re.search(rf">{words}</span> 1</a>", web.get(f"/workflows/problems?id=p-{suffix}").text)
        only = web.get(f"/workflows?id=p-{suffix}&problem={words.replace(' ', '-')}").text
        assert re.findall(r'aria-label="select (?!all on)([^"]+)"', only) == [f"p-{suffix}-{id_suffix}"]
        assert badge in web.get(f"/workflows/p-{suffix}-{id_suffix}").text
    for id_suffix in ("failing", "alone"):
        client.get_workflow_handle(f"p-{suffix}-{id_suffix}").terminate()


def test_start_and_cancel_forms_work_on_a_server(web: httpx.Client, client: Client, suffix: str) -> None:
    started = web.post(
        "/start",
        data={"type": "Purchase", "id": f"p-{suffix}", "queue": QUEUE, "argument": '{"name": "eve"}'},
    )
    path = started.url.path
    assert path.startswith(f"/workflows/p-{suffix}/")
    assert "cancellation was requested" in web.post(f"{path}/cancel", data={"reason": "enough"}).text


def test_schedule_page_on_a_server_pauses_triggers_and_deletes(
    web: httpx.Client, client: Client, suffix: str
) -> None:
    client.create_schedule(
        f"s-{suffix}",
        Schedule(
            action=ScheduleActionStartWorkflow("quick", "ada", id=f"of-{suffix}", task_queue=QUEUE),
            spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=3600)]),
        ),
    )
    path = schedule_page(f"s-{suffix}")
    assert "Upcoming runs" in web.get(path).text
    web.post(f"{path}/pause", data={"note": "holidays"})
    assert "holidays" in web.get(path).text
    assert "banner good" in web.post(f"{path}/trigger").text
    web.post(f"{path}/delete")
    assert web.get(path).status_code == 404


def test_workers_page_on_a_server_shows_queue_of_a_run(
    web: httpx.Client, client: Client, suffix: str
) -> None:
    path = _start_purchase(client, suffix)
    while QUEUE not in (text := web.get("/workers").text):
        pass
    assert "workflow tasks" in text
    assert web.get("/limits").status_code == 200
    assert web.get(path).status_code == 200


def test_unknown_run_on_a_server_returns_a_404_page(web: httpx.Client) -> None:
    assert web.get("/workflows/nothing").status_code == 404
    assert web.get("/workflows", params={"query": "Status is great"}).status_code == 200
