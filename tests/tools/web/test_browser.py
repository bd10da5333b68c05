"""The web UI in a real browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import BEARER
from tests.tools.web.pages import run_page

from hourglass import Client


def _purchase(client: Client, name: str) -> None:
    handle = client.start_workflow(flows.Purchase.run, flows.Order(name), id=f"buy-{name}")
    handle.execute_update(flows.Purchase.note, "seen")


def test_workflow_list_updates_without_a_reload(page: Any, address: str, client: Client) -> None:
    page.goto(f"{address}/workflows")
    page.wait_for_selector("text=No workflow yet")
    page.evaluate("window.same = true")
    _purchase(client, "ada")
    page.wait_for_selector("td.id >> text=buy-ada")
    page.wait_for_selector("td .s-running")
    client.get_workflow_handle("buy-ada").signal("ship")
    page.wait_for_selector("td .s-completed")
    assert page.evaluate("window.same")


def test_run_page_updates_timeline_and_status_live(page: Any, address: str, client: Client) -> None:
    _purchase(client, "ada")
    page.goto(f"{address}/workflows/buy-ada")
    page.wait_for_selector(".head .s-running")
    client.get_workflow_handle("buy-ada").signal("ship")
    page.wait_for_selector(".head .s-completed")
    page.wait_for_selector("li.k-signal >> text=ship")


def test_workers_page_updates_backlog_without_a_reload(page: Any, address: str, client: Client) -> None:
    client.start_workflow("stuck", "x", id="one", task_queue="lonely")
    page.goto(f"{address}/workers")
    page.evaluate("window.same = true")
    page.wait_for_selector("table.queue td.n.bad >> text=1")
    client.start_workflow("stuck", "x", id="two", task_queue="lonely")
    page.wait_for_selector("table.queue td.n.bad >> text=2")
    assert page.evaluate("window.same")


def test_selection_and_input_survive_live_updates(page: Any, address: str, client: Client) -> None:
    _purchase(client, "ada")
    page.goto(f"{address}/workflows")
    page.check('input[aria-label="select buy-ada"]')
    page.fill('input[name="reason"]', "because")
    _purchase(client, "bob")
    page.wait_for_selector("td.id >> text=buy-bob")
    assert page.is_checked('input[aria-label="select buy-ada"]')
    assert page.input_value('input[name="reason"]') == "because"
    assert page.inner_text("[data-chosen]") == "1 selected"


def test_signal_form_sends_a_signal(page: Any, address: str, client: Client) -> None:
    _purchase(client, "ada")
    page.goto(f"{address}/workflows/buy-ada")
    page.fill('form[action$="/signal"] input[name="name"]', "ship")
    page.click('form[action$="/signal"] button')
    page.wait_for_selector("text=signal ship was sent")
    assert client.get_workflow_handle("buy-ada").result() == "ada paid 1"


def test_bulk_action_runs_only_after_its_confirmation(page: Any, address: str, client: Client) -> None:
    for name in ("ada", "bob"):
        _purchase(client, name)
    page.goto(f"{address}/workflows")
    page.check("[data-all]")
    page.click('button[value="terminate"]')
    page.wait_for_selector("h1 >> text=Terminate the 2 selected workflows?")
    page.click("text=Go back")
    assert client.get_workflow_handle("buy-ada").describe().status.name == "RUNNING"
    page.check("[data-all]")
    page.click('button[value="terminate"]')
    page.click("button >> text=Terminate 2 workflows")
    page.wait_for_selector("text=2 of 2")
    page.wait_for_selector("text=done")
    assert client.get_workflow_handle("buy-ada").describe().status.name == "TERMINATED"


def test_bulk_action_above_20_runs_requires_typing_the_number(
    page: Any, address: str, client: Client
) -> None:
    for number in range(21):
        client.start_workflow("stuck", "x", id=f"s-{number}")
    page.goto(f"{address}/workflows?type=stuck")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (UTC|[+-]\d\d:\d\d)", page.inner_text("td.began >> nth=0")
    )
    page.check('input[name="all"]')
    page.click('button[value="cancel"]')
    page.wait_for_selector("h1 >> text=Cancel all 21 workflows that match the search?")
    assert "WorkflowType = 'stuck'" in page.inner_text("dl")
    page.fill('input[name="typed"]', "20")
    page.click("button >> text=Cancel 21 workflows")
    page.wait_for_selector("text=type the number 21 to confirm: 20 was typed, so no action was performed")
    assert int(client.count_workflows("ExecutionStatus = 'Running'")) == 21
    page.fill('input[name="typed"]', "21")
    page.click("button >> text=Cancel 21 workflows")
    page.wait_for_selector("text=21 of 21")


def test_time_travel_moves_by_slider_and_arrow_keys(page: Any, address: str, client: Client) -> None:
    _purchase(client, "ada")
    client.get_workflow_handle("buy-ada").signal("ship")
    client.get_workflow_handle("buy-ada").result()
    page.goto(f"{address}/workflows/buy-ada")
    page.click("text=Time travel")
    page.goto(f"{page.url}?at=0")
    assert "schedule activity charge" in page.inner_text("#moment")
    assert "order.name" in page.inner_text(".source .here")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**at=1")
    page.wait_for_selector("#moment")
    page.focus(".slider input")
    with page.expect_navigation():
        page.keyboard.press("End")
    assert "completed" in page.inner_text(".at")


def test_keyboard_shortcuts_search_select_and_open_a_run(page: Any, address: str, client: Client) -> None:
    for name in ("ada", "bob"):
        _purchase(client, name)
    page.goto(f"{address}/workflows")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "id"
    page.keyboard.type("buy-a")
    page.keyboard.press("Enter")
    page.wait_for_url("**id=buy-a**")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/workflows/buy-ada/**")


def test_tab_key_completes_filter_field_names(page: Any, address: str, client: Client) -> None:
    page.goto(f"{address}/workflows")
    page.focus('input[name="query"]')
    page.keyboard.type("executionst")
    page.keyboard.press("Tab")
    assert page.input_value('input[name="query"]') == "ExecutionStatus"


def test_dragging_over_the_timeline_zooms_into_a_period(page: Any, address: str, client: Client) -> None:
    _purchase(client, "ada")
    client.get_workflow_handle("buy-ada").terminate()
    page.goto(f"{address}/workflows/buy-ada")
    page.wait_for_selector(".diagnosis")
    box = page.locator(".waterfall li svg").first.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 8, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=**")
    page.click("text=Show all")
    page.wait_for_selector(".axis text")
    assert "from=" not in page.url


@pytest.mark.parametrize("width", [360, 768, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_narrow_and_wide_windows_in_both_colour_schemes(
    browser: Any, address: str, client: Client, width: int, scheme: str
) -> None:
    _purchase(client, "ada")
    run_id = client.get_workflow_handle("buy-ada").describe().run_id
    context = browser.new_context(
        extra_http_headers=BEARER, viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    page = context.new_page()
    for path in (
        "/workflows",
        "/workflows/buy-ada",
        f"{run_page('buy-ada', run_id)}/history",
        f"{run_page('buy-ada', run_id)}/moments",
        "/schedules",
        "/workers",
        "/limits",
        "/start?type=Purchase",
    ):
        page.goto(address + path)
        page.wait_for_selector("h1")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        if path == "/workflows":
            # In one go: a live list may exchange its rows at any time.
            assert page.evaluate("document.querySelector('td.id a').getBoundingClientRect().height") < 40
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(255, 255, 255)") is (scheme == "light")
    context.close()


def test_pages_work_without_javascript(browser: Any, address: str, client: Client) -> None:
    _purchase(client, "ada")
    context = browser.new_context(extra_http_headers=BEARER, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/workflows")
    page.click("td.id >> text=buy-ada")
    page.click("li.k-activity a")
    assert "ada paid 1" in page.inner_text("#detail")
    page.click("nav.tabs >> text=History")
    assert "ACTIVITY_TASK_COMPLETED" in page.inner_text("table")
    context.close()


def test_message_form_shows_fields_of_the_chosen_message_without_a_reload(
    page: Any, address: str, client: Client
) -> None:
    _purchase(client, "ada")
    page.goto(f"{address}/workflows/buy-ada")
    page.wait_for_selector('#update a[data-message="note"]')
    # A page of an engine that did not answer in time loads itself again; a click before its script has run follows the link.
    page.wait_for_function("document.readyState === 'complete'")
    page.click('#update a[data-message="note"]')
    assert page.input_value('#update input[name="name"]') == "note"
    assert page.locator("#update .arguments label").count() == 1
    assert page.get_attribute("#update .arguments textarea", "placeholder") == '"text"'
    page.fill("#update .arguments textarea", "hello")
    page.click("#update button")
    assert page.inner_text("pre.answer") == "2"
    page.go_back()
    page.fill('#update input[name="name"]', "unknown")
    assert page.locator("#update .arguments label").count() == 2


def test_open_page_does_not_leak_nodes_or_listeners_after_updates(
    page: Any, address: str, client: Client
) -> None:
    _purchase(client, "ada")
    page.goto(f"{address}/workflows/buy-ada")
    page.wait_for_selector(".diagnosis")
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.enable")

    def dom_counters() -> tuple[int, int]:
        session.send("HeapProfiler.collectGarbage")
        found = session.send("Memory.getDOMCounters")
        return int(found["nodes"]), int(found["jsEventListeners"])

    refresh_15_times = "async () => { for (let n = 0; n < 15; n++) await refresh(location.href); }"

    def counters_after_refreshes() -> tuple[int, int]:
        page.evaluate(refresh_15_times)
        return dom_counters()

    counters_after_refreshes()  # what a page has only once something was shown again
    nodes, listeners = counters_after_refreshes()
    later = [counters_after_refreshes() for _ in range(3)]
    # A fetch that is on its way has nodes for a moment: what stays is the least.
    assert min(each[0] for each in later) < nodes * 1.2
    assert min(each[1] for each in later) <= listeners
