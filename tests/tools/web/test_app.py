"""The pages and forms of the web UI, with an HTTP client."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import bulk, bulk_form, http_client, site_of
from tests.tools.web.pages import run_page, schedule_page, workflow_page
from tests.waiting import until

from hourglass import Client, Worker, workflow
from hourglass._tools.timeline.spans import Kind, Outcome, Span, Story
from hourglass._tools.web import actions
from hourglass._tools.web.waterfall import waterfall
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleRange,
    ScheduleSpec,
)
from hourglass.errors import WorkflowFailedError
from hourglass.replay import History


def _start_purchase(client: Client, name: str = "ada") -> str:
    """Start a purchase that waits for shipping. Return the path of its page."""
    handle = client.start_workflow(flows.Purchase.run, flows.Order(name), id=f"buy-{name}")
    handle.execute_update(flows.Purchase.note, "seen")
    return f"/workflows/buy-{name}/{handle.describe().run_id}"


def test_workflow_list_filters_by_status_and_shows_counts(web: httpx.Client, client: Client) -> None:
    _start_purchase(client)
    with pytest.raises(WorkflowFailedError):
        client.execute_workflow("fails", "bob", id="bad-bob")
    text = web.get("/workflows").text
    assert "buy-ada" in text
    assert "bad-bob" in text
    assert re.search(r"failed</span> 1</a>", text)
    filtered = web.get("/workflows?status=FAILED").text
    assert "buy-ada" not in filtered
    assert "bad-bob" in filtered


def test_workflow_list_marks_and_filters_parked_runs(web: httpx.Client, client: Client) -> None:
    _start_purchase(client)
    handle = client.start_workflow(flows.broken, id="bug")
    until(lambda: handle.describe().reported_problems)
    text = web.get("/workflows").text
    assert text.count('<span class="status s-parked">running, parked</span>') == 1
    assert '<td class="state"><span class="status s-running">running</span></td>' in text
    filtered = web.get("/workflows", params={"query": "TemporalReportedProblems IS NOT NULL"}).text
    assert "buy-ada" not in filtered
    assert "bug" in filtered
    handle.terminate()
    assert "running, parked" not in web.get("/workflows").text


def test_stalled_runs_show_the_same_problem_in_list_counts_and_page(
    web: httpx.Client, client: Client
) -> None:
    _start_purchase(client)
    client.start_workflow("declined", "ada", id="failing")
    client.start_workflow(flows.broken, id="bug")
    client.start_workflow("quick", "x", id="alone", task_queue="nobody")
    kinds = (("failing", "activity fails"), ("bug", "parked"), ("alone", "no worker"))
    for workflow_id, words in kinds:
        badge = f'<span class="status s-parked">running, {words}</span>'
        until(lambda badge=badge: badge in web.get("/workflows").text, f"the list never shows {words}")
        assert badge in web.get(f"/workflows/{workflow_id}").text
        counts = web.get("/workflows/problems").text
        assert re.search(rf">{words}</span> 1</a>", counts)
        filtered = web.get("/workflows", params={"problem": words.replace(" ", "-")}).text
        assert re.findall(r'aria-label="select (?!all on)([a-z-]+)"', filtered) == [workflow_id]
    assert "problem=activity-fails" in web.get("/workflows/problems").text
    assert web.get("/workflows", params={"problem": "nonsense"}).text.count('aria-label="select ') == 5
    page = bulk(web, {"action": "terminate", "all": "1", "problem": "activity-fails"})
    assert "1 of 1" in _wait_for_operation(web, page.url.path)
    assert "activity fails" not in web.get("/workflows/problems").text


def test_bulk_action_needs_confirmation_of_its_number(web: httpx.Client, client: Client) -> None:
    """It affects no more workflows than the form showed."""
    for number in range(22):
        client.start_workflow("stuck", "x", id=f"s-{number}")
    runs = [run_page(each.id, each.run_id) for each in client.list_workflows()]
    one = web.post("/bulk", data={"action": "terminate", "run": runs[:1]}).text
    assert "<h1>Terminate the selected workflow?</h1>" in one
    three = web.post("/bulk", data={"action": "cancel", "run": runs[:3]}).text
    assert "<h1>Cancel the 3 selected workflows?</h1>" in three
    assert 'name="typed"' not in three
    all_runs = web.post("/bulk", data={"action": "cancel", "run": runs})
    assert "<h1>Cancel the 22 selected workflows?</h1>" in all_runs.text
    assert 'name="typed"' in all_runs.text
    question = web.post(
        "/bulk",
        data={"action": "terminate", "all": "1", "type": "stuck", "reason": "over", "status": "RUNNING"},
    ).text
    assert "<h1>Terminate all 22 workflows that match the search?</h1>" in question
    assert "ExecutionStatus IN (&#39;Running&#39;) AND WorkflowType = &#39;stuck&#39;" in question
    form = bulk_form(question)
    for typed in ({}, {"typed": "21"}, {"typed": "all"}):
        response = web.post("/bulk", data={**form, **typed})
        assert response.status_code == 400
        assert "no action was performed" in response.text
    shown_less = web.post("/bulk", data={**form, "expected": "3", "typed": "3"})
    assert "more workflows match now: 22" in shown_less.text
    assert int(client.count_workflows("ExecutionStatus = 'Running'")) == 22
    client.start_workflow("stuck", "x", id="later")
    page = web.post("/bulk", data={**form, "typed": "22"})
    assert "22 of 22" in _wait_for_operation(web, page.url.path)
    assert [each.id for each in client.list_workflows("ExecutionStatus = 'Running'")] == ["later"]
    client.get_workflow_handle("later").terminate()
    assert (
        "no open workflow matches the search" in web.post("/bulk", data={"action": "cancel", "all": "1"}).text
    )


def test_times_without_scripts_are_in_utc(web: httpx.Client, client: Client) -> None:
    """A script converts them to the browser's zone; see `test_browser.py`."""
    path = _start_purchase(client)
    for text in (web.get("/workflows").text, web.get(path).text, web.get(f"{path}/history").text):
        times = re.findall(r"<time [^>]*>([^<]*)</time>", text)
        assert times
        assert all(each.endswith((" UTC", "Z")) for each in times)


def test_invalid_filter_is_kept_and_reported_on_the_list_page(web: httpx.Client) -> None:
    answer = web.get("/workflows", params={"query": "Status is great"})
    assert answer.status_code == 200
    assert "Status is great" in answer.text
    assert 'class="banner bad"' in answer.text


@pytest.mark.parametrize("address", ["/live?since=yesterday", "/live?until=0001-01-01T00:00%2B23:59"])
def test_live_events_of_a_malformed_search_report_the_error(web: httpx.Client, address: str) -> None:
    with web.stream("GET", address) as answer:
        assert next(answer.iter_text()).startswith("event: trouble")


@pytest.mark.parametrize(
    "period",
    [
        {"until": "0001-01-01"},
        {"until": "9999-12-31T23:59:59.999999"},
        {"since": "0001-01-01", "until": "9999-12-31T23:59:59.999999"},
        {"since": "2026-02-01", "until": "2026-01-01"},
        {"since": "9999-12-31"},
    ],
)
def test_chart_of_extreme_or_inverted_periods_is_shown(web: httpx.Client, period: dict[str, str]) -> None:
    answer = web.get("/workflows/chart", params=period)
    assert answer.status_code == 200
    assert "Internal error" not in answer.text


def test_chart_without_start_covers_the_day_before_its_end(web: httpx.Client, client: Client) -> None:
    _start_purchase(client)
    now = datetime.now(UTC)
    for end, expected in (
        (now + timedelta(hours=20), "1 started"),
        (now - timedelta(hours=20), "No workflow started"),
    ):
        answer = web.get("/workflows/chart", params={"until": f"{end:%Y-%m-%d %H:%M}"})
        assert expected in answer.text


def test_paged_workflow_list_contains_every_run_once(web: httpx.Client, client: Client) -> None:
    for number in range(120):
        client.start_workflow("stuck", "x", id=f"many-{number}")
    seen: list[str] = []
    path = "/workflows"
    while True:
        text = web.get(path).text
        seen += re.findall(r'aria-label="select (many-\d+)"', text)
        found = re.search(r'rel="next" href="([^"]+)"', text)
        if found is None:
            break
        path = found[1].replace("&amp;", "&")
    assert len(seen) == 120
    assert len(set(seen)) == 120


def test_run_page_shows_timeline_step_values_and_wait_reason(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    text = web.get(path).text
    assert "charge" in text
    key = re.search(r'<li class="k-activity[^"]*" id="s([^"]+)"', text)
    assert key is not None
    chosen = web.get(path, params={"span": key[1]}).text
    assert "ada paid 1" in chosen
    assert "condition" in web.get(f"{path}/why").text


def test_run_page_shows_failure_type_and_message(web: httpx.Client, client: Client) -> None:
    with pytest.raises(WorkflowFailedError):
        client.execute_workflow("fails", "bob", id="bad")
    text = web.get("/workflows/bad").text
    assert "SoldOut" in text
    assert "sold out: bob" in text


def test_run_page_shows_the_traceback_of_a_failed_activity(web: httpx.Client, client: Client) -> None:
    path = web.get(workflow_page(client.start_workflow("stuck", "eve", id="s").id)).url.path
    while "traceback" not in (text := web.get(f"{path}/why").text):
        pass
    assert "the bank refuses eve" in text
    assert re.search(r"in refuse\n +raise ValueError", text)  # with its lines


def test_workers_page_shows_tree_counts_and_health_of_a_local_worker(site: Any, client: Client) -> None:
    with Worker(client, task_queue="other", workflows=flows.WORKFLOWS) as worker:
        site.workers = lambda: (worker,)
        with http_client(site) as web:
            text = web.get("/workers").text
    assert "WorkflowPollLoop" in text
    assert "cached workflows" in text
    assert ">ready<" in text


def test_workers_page_shows_backlog_of_a_file_without_a_worker(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'orders.db'}"
    with Client.connect(target) as client:
        for number in range(3):
            client.start_workflow("quick", "x", id=f"waits-{number}")
        with http_client(site_of(client, target)) as web:
            text = web.get("/workers").text
    assert re.search(r'<td>workflow tasks</td><td class="n bad">3</td>', text)
    assert "no pollers" in text


def test_workers_page_names_process_owner_and_tasks_in_progress(web: httpx.Client) -> None:
    assert f"process {os.getpid()} (runs the engine), 0 in progress" in web.get("/workers").text


def test_workers_page_counts_backlog_of_a_queue_without_pollers(web: httpx.Client, client: Client) -> None:
    for number in range(3):
        client.start_workflow("stuck", "x", id=f"lonely-{number}", task_queue="lonely")
    text = web.get("/workers").text
    queue = text[text.index(">lonely<") :]
    assert re.search(r'workflow tasks</td><td class="n bad">3</td>', queue)
    assert "no pollers" in queue


def test_run_page_shows_unhandled_and_undelivered_signals(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    client.get_workflow_handle("buy-ada").signal("shipp")
    assert re.search(r"shipp</span></b>: 1 received, but not handled", web.get(f"{path}/unread").text)
    handle = client.start_workflow("stuck", "x", id="lonely", task_queue="lonely")
    handle.signal("hello")
    lonely = f"/workflows/lonely/{handle.describe().run_id}"
    text = web.get(lonely).text
    assert re.search(r"<td>signal</td><td class=\"mono\">hello</td><td>waits for a worker</td>", text)
    assert web.get(f"{lonely}/unread").text.strip() == ""  # there is no worker to ask


@workflow.defn
def sleeps() -> None:
    workflow.sleep(86_400)


def test_run_page_shows_remaining_time_of_an_open_timer(web: httpx.Client, client: Client) -> None:
    with Worker(client, "sleepers", workflows=[sleeps]):
        handle = client.start_workflow(sleeps, id="sleeper", task_queue="sleepers")
        until(lambda: handle.describe().history_length >= 5)
        text = web.get(f"/workflows/sleeper/{handle.describe().run_id}").text
        assert re.search(r"<td>fires in (1 d|24 h|23 h)[^<]*</td>", text)
        handle.terminate()


def test_signal_query_and_update_forms_send_and_show_answers(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    assert ">1</pre>" in web.post(f"{path}/query", data={"name": "note_count"}).text
    assert ">2</pre>" in web.post(f"{path}/update", data={"name": "note", "argument": '"hello"'}).text
    response = web.post(f"{path}/signal", data={"name": "ship"})
    assert "signal ship was sent" in response.text
    assert client.get_workflow_handle("buy-ada").result() == "ada paid 1"


def test_update_form_without_a_worker_returns_an_error_after_its_timeout(
    web: httpx.Client, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise pending forms would occupy all threads of the web UI."""
    monkeypatch.setattr(actions, "UPDATE_TIMEOUT", 0.3)
    run = client.start_workflow("stuck", "x", id="unserved", task_queue="nobody")
    response = web.post(f"/workflows/unserved/{run.run_id}/update", data={"name": "note"}, timeout=20)
    assert response.status_code == 400
    assert "did not reach the requested stage within 0.3 s" in response.text


def test_run_page_reports_rejected_updates_and_invalid_arguments(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    assert "unknown update" in web.post(f"{path}/update", data={"name": "nothing"}).text
    response = web.post(f"{path}/signal", data={"name": "ship", "argument": "{oops"})
    assert "not valid JSON" in response.text
    assert "oops" not in str(response.url)  # what was typed is in no address
    assert "is missing" in web.post(f"{path}/signal", data={"name": ""}).text


def test_cancel_and_terminate_forms_send_their_reason(web: httpx.Client, client: Client) -> None:
    one, other = _start_purchase(client, "one"), _start_purchase(client, "other")
    web.post(f"{one}/cancel", data={"reason": "enough"})
    web.post(f"{other}/terminate", data={"reason": "enough"})
    assert "enough" in web.get(other).text
    assert client.get_workflow_handle("buy-other").describe().status.name == "TERMINATED"


def test_reset_page_lists_repeated_steps_and_starts_a_new_run(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    text = web.get(f"{path}/reset", params={"event": "5"}).text
    assert "<b>charge</b>" in text
    event = re.search(r'name="event_id" value="(\d+)"', text)
    assert event is not None
    answer = web.post(f"{path}/reset", data={"event_id": event[1], "reason": "again"})
    assert str(answer.url.path).startswith("/workflows/buy-ada/")
    assert str(answer.url.path) != path


def test_start_form_has_typed_fields_and_reports_invalid_json(web: httpx.Client, client: Client) -> None:
    form = web.get("/start", params={"type": "Purchase"}).text
    assert "order" in form
    assert "&#34;name&#34;: &#34;text&#34;" in form
    response = web.post("/start", data={"type": "Purchase", "id": "p", "argument": "{"})
    assert response.status_code == 400
    assert "not valid JSON" in response.text
    started = web.post("/start", data={"type": "Purchase", "id": "p", "argument": '{"name": "eve"}'})
    assert started.url.path.startswith("/workflows/p/")


def _wait_for_operation(web: httpx.Client, path: str) -> str:
    """Wait until an operation is done. Return the text of its page."""
    while "done</p>" not in (text := web.get(path).text):
        pass
    return text


def test_bulk_action_on_selected_runs_reports_failures(web: httpx.Client, client: Client) -> None:
    for number in range(3):
        client.start_workflow("stuck", "x", id=f"s-{number}")
    runs = [
        run_page(f"s-{number}", client.get_workflow_handle(f"s-{number}").describe().run_id)
        for number in range(3)
    ]
    client.get_workflow_handle("s-1").terminate()
    page = bulk(web, {"action": "signal", "name": "ship", "run": runs})
    number = str(page.url.path).rsplit("/", 1)[1]
    text = _wait_for_operation(web, f"/operations/{number}")
    assert "3 of 3" in text
    assert "1 failed" in text
    assert "s-1" in text


def test_bulk_action_on_all_matches_includes_other_pages(web: httpx.Client, client: Client) -> None:
    for number in range(60):
        client.start_workflow("stuck", "x", id=f"all-{number}")
    page = bulk(web, {"action": "terminate", "all": "1", "id": "all-"})
    text = _wait_for_operation(web, page.url.path)
    assert "60 of 60" in text
    assert int(client.count_workflows("ExecutionStatus = 'Terminated'")) == 60


def test_history_is_shown_and_downloaded_as_replayable_json(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    assert "ACTIVITY_TASK_SCHEDULED" in web.get(f"{path}/history").text
    answer = web.get(f"{path}/history.json")
    assert "attachment" in answer.headers["content-disposition"]
    assert History.from_json(answer.text).workflow_type == "Purchase"
    assert json.loads(answer.text)["events"]


def test_long_history_is_paged_in_both_orders(web: httpx.Client, client: Client) -> None:
    _start_purchase(client)
    handle = client.get_workflow_handle("buy-ada")
    for number in range(140):
        handle.execute_update(flows.Purchase.note, str(number))
    path, total = run_page("buy-ada", handle.describe().run_id), handle.describe().history_length
    assert total > 400
    orders: list[list[int]] = []
    for order in ("oldest", "newest"):
        numbers, at = [], f"{path}/history?order={order}"
        while at:
            text = web.get(at).text
            numbers += [int(each) for each in re.findall(r'<tr id="e(\d+)">', text)]
            found = re.search(r'href="([^"]*page=[^"]*)"', text)
            at = found.group(1).replace("&amp;", "&") if found else ""
        orders.append(numbers)
    assert orders == [list(range(1, total + 1)), list(range(total, 0, -1))]
    assert web.get(f"{path}/history?page=zz").status_code == 400


def test_time_travel_shows_commands_source_and_variables_of_a_step(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    first = web.get(f"{path}/moments", params={"at": "0"}).text
    assert "schedule activity charge" in first
    assert "receipt = charge(order.name, order.amount)" in first
    last = web.get(f"{path}/moments").text
    assert "&#39;ada paid 1&#39;" in last


def test_pages_of_parent_and_child_link_to_each_other(web: httpx.Client, client: Client) -> None:
    client.execute_workflow("family", "ada", id="parent")
    assert 'href="/workflows/child-of-ada"' in web.get("/workflows/parent").text
    child = web.get("/workflows/child-of-ada").text
    assert "/workflows/parent" in child


def test_run_pages_of_a_chain_link_to_each_other(web: httpx.Client, client: Client) -> None:
    handle = client.start_workflow("endless", 2, id="chain")
    handle.result()
    runs = [each.run_id for each in client.list_workflows("WorkflowId = 'chain'")]
    latest = client.get_workflow_handle("chain").describe().run_id
    text = web.get(f"/workflows/chain/{latest}").text
    assert any(f"/workflows/chain/{each}" in text for each in runs if each != latest)


def test_unknown_run_or_operation_returns_a_404_page(web: httpx.Client) -> None:
    answer = web.get("/workflows/nothing")
    assert answer.status_code == 404
    assert "nothing" in answer.text
    assert web.get("/operations/999").status_code == 404


def test_time_travel_without_code_explains_how_to_load_it(
    web: httpx.Client, site: Any, client: Client
) -> None:
    path = _start_purchase(client)
    site.modules = ()
    answer = web.get(f"{path}/moments")
    assert answer.status_code == 400
    assert "hourglass ui app.py" in answer.text


def _schedule(client: Client, name: str) -> None:
    client.create_schedule(
        name,
        Schedule(
            action=ScheduleActionStartWorkflow("quick", "ada", id=f"of-{name}"),
            spec=ScheduleSpec(calendars=[ScheduleCalendarSpec(hour=[ScheduleRange(9)])]),
        ),
    )


def test_schedule_page_shows_calendar_and_manages_the_schedule(web: httpx.Client, client: Client) -> None:
    _schedule(client, "daily/9")
    assert "daily/9" in web.get("/schedules").text
    path = schedule_page("daily/9")
    text = web.get(path).text
    assert text.count(": 1×</title>") > 360
    web.post(f"{path}/pause", data={"note": "holidays"})
    assert "holidays" in web.get(path).text
    web.post(f"{path}/resume")
    web.post(f"{path}/trigger")
    response = web.post(f"{path}/backfill", data={"start": "2026-01-01", "end": "2026-01-03"})
    assert "banner good" in response.text
    assert "not a time" in web.post(f"{path}/backfill", data={"start": "soon", "end": "later"}).text
    web.post(f"{path}/delete")
    assert "daily/9" not in web.get("/schedules").text


def test_bulk_pause_and_backfill_of_selected_schedules_report_failures(
    web: httpx.Client, client: Client
) -> None:
    for number in range(3):
        _schedule(client, f"s{number}")
    page = web.post("/schedules", data={"action": "pause", "run": ["s0", "s1", "gone"]})
    text = _wait_for_operation(web, page.url.path)
    assert "3 of 3" in text
    assert "1 failed" in text
    paused = [each.id for each in client.list_schedules() if each.paused]
    assert sorted(paused) == ["s0", "s1"]
    days = {"start": "2026-01-01", "end": "2026-01-03"}
    page = web.post("/schedules", data={"action": "backfill", "run": ["s1", "s2"], **days})
    assert "2 of 2" in _wait_for_operation(web, page.url.path)
    assert int(client.count_workflows()) >= 2
    assert "not a time" in web.post("/schedules", data={"action": "backfill", "run": ["s1"]}).text
    assert sorted(each.id for each in client.list_schedules()) == ["s0", "s1", "s2"]


def test_limits_page_shows_slot_holders_waiters_and_pending_turns(web: httpx.Client, client: Client) -> None:
    for number in range(2):
        client.start_workflow("printing", id=f"print-{number}")
    client.execute_workflow("mailing", id="mail-0")
    client.start_workflow("mailing", id="mail-1")
    while not re.search(r"Held by.*print-\d.*Waiting.*print-\d", text := web.get("/limits").text, re.DOTALL):
        pass
    assert "hourglass.slots:printer" in text
    while "1 pending turn, the last at <time" not in web.get("/limits").text:
        pass
    assert "hourglass.slots" not in web.get("/workflows").text


def test_timeline_zoom_unfolds_steps_of_a_period() -> None:
    spans = tuple(
        Span(id=number, kind=Kind.ACTIVITY, name="work", start=number * 1000, end=number * 1000 + 500)
        for number in range(1, 1001)
    )
    run = Span(id=0, kind=Kind.RUN, name="Wide", start=0, end=2_000_000)
    story = Story(
        workflow_id="w", run_id="r", workflow_type="Wide", task_queue="default", outcome=Outcome.DONE,
        start=0, end=2_000_000, until=2_000_000, spans=(run, *spans),
    )  # fmt: skip
    overview = waterfall(story)
    assert [(row.span.name, row.span.count) for row in overview.rows] == [("Wide", 1), ("work", 1000)]
    assert [look[0] for look in overview.zooms] == ["Zoom in"]
    part = waterfall(story, start=100_000, end=104_900)
    assert [row.span.id for row in part.rows] == [0, 100, 101, 102, 103, 104]
    assert part.folded == 0
    for response, low, high in part.zooms:
        seen = waterfall(story, start=low, end=high)
        assert (seen.start, seen.end) == (low, high), response


def test_reset_page_distinguishes_effects_compensations_and_failed_steps(
    web: httpx.Client, client: Client
) -> None:
    client.execute_workflow("saga", "ada", id="saga")
    path = web.get("/workflows/saga").url.path
    text = web.get(f"{path}/reset", params={"event": "1"}).text
    effects, _, rest = text.partition("Steps that ran after ship_it failed")
    undone, _, again = rest.partition("Steps that did not succeed")
    assert "<b>charge</b>" in effects
    assert "<b>refund</b>" in undone
    assert "<b>ship_it</b>" in again
    assert "Not safe" not in text
    (shipping,) = re.findall(r'span=(\d+)-\d+"[^>]*title="activity ship_it', web.get(path).text)
    text = web.get(
        f"{path}/reset", params={"event": shipping}
    ).text  # what was charged is kept as done, and paid back
    assert "Not safe: refund may have undone charge" in text
    instead = re.search(r'href="([^"]*)">Reset to before charge', text)
    assert instead is not None
    assert "Not safe" not in web.get(instead.group(1)).text


def test_reset_form_can_exclude_later_signals_and_updates(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    client.get_workflow_handle("buy-ada").signal("ship")
    client.get_workflow_handle("buy-ada").result()
    text = web.get(f"{path}/reset", params={"event": "5"}).text
    assert "1 later signal is also sent" in text
    assert "1 later update is also sent" in text
    event = re.search(r'name="event_id" value="(\d+)"', text)
    assert event is not None
    web.post(f"{path}/reset", data={"event_id": event[1], "without_signals": "1"})
    assert client.get_workflow_handle("buy-ada").query("note_count") == 1
    assert client.get_workflow_handle("buy-ada").describe().status.name == "RUNNING"
    web.post(f"{path}/reset", data={"event_id": event[1]})
    assert client.get_workflow_handle("buy-ada").result() == "ada paid 1"


def test_message_form_has_typed_fields_for_a_linked_message(web: httpx.Client, client: Client) -> None:
    path = _start_purchase(client)
    text = web.get(path, params={"update": "note"}).text
    form = text.partition('id="update"')[2].partition("<template")[0]
    assert 'value="note"' in form
    assert "text <span" in form
    assert "&#34;text&#34;" in form
    assert f"{path}?signal=ship#signal" in text


def test_workflow_list_offers_known_types_and_search_attributes(web: httpx.Client, client: Client) -> None:
    client.start_workflow("elsewhere", id="e", task_queue="other", search_attributes={"Customer": "ada"})
    text = web.get("/workflows").text
    types = text.partition('<datalist id="types">')[2].partition("</datalist>")[0]
    assert 'value="elsewhere"' in types
    assert 'value="Purchase"' in types
    assert 'value="Customer"' in text.partition('<datalist id="fields">')[2].partition("</datalist>")[0]


def test_run_page_lists_all_runs_of_its_workflow_id(web: httpx.Client, client: Client) -> None:
    client.execute_workflow("endless", 2, id="chain")
    runs = [each.run_id for each in client.list_workflows("WorkflowId = 'chain'")]
    assert len(runs) == 3
    for one in runs:
        text = web.get(f"/workflows/chain/{one}").text
        listed = text.partition("3 runs of this workflow id")[2].partition("</details>")[0]
        assert all(each in listed for each in runs)
        assert listed.index("(this run)") > listed.index(one)
