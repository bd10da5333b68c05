"""Histories, memos and handles as a client sees them, and repeated signals."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import HistoryEventFilter
from hourglass.errors import UsageError, WorkflowNotFoundError

from .scenario import scenario
from .world import LIMIT, World

WORDS: workflow.Channel[str] = workflow.Channel("words")


@workflow.defn
def receives_words(count: int) -> list[str]:
    return [WORDS.receive() for _ in range(count)]


@scenario("loose")
def signals_with_same_request_id_are_delivered_once(world: World) -> None:
    handle = world.start(receives_words, 4)
    for word, request_id in (("a", "r-1"), ("b", "r-1"), ("c", "r-2"), ("d", None), ("d", None)):
        handle.signal(WORDS, word, request_id=request_id)
    assert handle.result(timeout=LIMIT) == ["a", "c", "d", "d"]
    with pytest.raises(UsageError, match="request_id"):
        handle.signal(WORDS, "e", request_id=5)  # type: ignore[arg-type]


@scenario("loose")
def history_events_streams_new_events_until_close(world: World) -> None:
    handle = world.start(receives_words, 2)
    seen: list[dict[str, Any]] = []
    signalled, closed = threading.Event(), threading.Event()
    last: list[dict[str, Any]] = []

    def follow() -> None:
        for event in handle.history_events(wait_new_event=True, page_size=2):
            seen.append(event)
            if event["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED":
                signalled.set()
        closed.set()

    def wait_for_last() -> None:
        last.extend(handle.history_events(wait_new_event=True, event_filter=HistoryEventFilter.CLOSE_EVENT))

    threads = [threading.Thread(target=thread) for thread in (follow, wait_for_last)]
    for thread in threads:
        thread.start()
    handle.signal(WORDS, "a")
    assert signalled.wait(60)
    assert not closed.is_set()
    handle.signal(WORDS, "b")
    assert handle.result(timeout=LIMIT) == ["a", "b"]
    for thread in threads:
        thread.join(60)
    assert closed.is_set()
    all_events = handle.history().events
    assert [event["eventId"] for event in seen] == [event["eventId"] for event in all_events]
    assert [event["eventId"] for event in last] == [all_events[-1]["eventId"]]
    assert [event["eventId"] for event in handle.history_events(page_size=3)] == [
        event["eventId"] for event in all_events
    ]
    (close_event,) = handle.history_events(event_filter=HistoryEventFilter.CLOSE_EVENT)
    assert close_event["eventId"] == all_events[-1]["eventId"]
    page = handle.history_page(page_size=3)
    remaining_ids = [event["eventId"] for event in handle.history_events(page_token=page.next_page_token)]
    assert remaining_ids == [event["eventId"] for event in all_events[len(page.events) :]]


@scenario("loose")
def memo_value_decodes_one_key_to_a_type(world: World) -> None:
    handle = world.start(receives_words, 0, memo={"pair": (1, 2), "text": "x"}, request_eager_start=True)
    assert handle.result(timeout=LIMIT) == []
    seen = handle.describe()
    assert seen.memo_value("pair", type=tuple[int, int]) == (1, 2)
    assert seen.memo_value("text") == "x"
    assert seen.memo_value("none", 5) == 5
    with pytest.raises(KeyError, match="none"):
        seen.memo_value("none")
    assert seen.raw_info.workflow_id == seen.raw_description.summary.workflow_id == handle.id
    assert seen.raw_info.memo["text"].data == b'"x"'


@scenario("loose")
def handle_with_first_execution_run_id_ignores_later_chains(world: World) -> None:
    first = world.start(receives_words, 0)
    first.result(timeout=LIMIT)
    again = world.start(receives_words, 1, id=first.id)
    stale = world.client.get_workflow_handle(first.id, first_execution_run_id=first.first_execution_run_id)
    assert stale.first_execution_run_id == first.run_id
    with pytest.raises(WorkflowNotFoundError):
        stale.terminate()
    current = world.client.get_workflow_handle(again.id, first_execution_run_id=again.first_execution_run_id)
    current.signal(WORDS, "x")
    assert again.result(timeout=LIMIT) == ["x"]
