"""What a client sees of runs, and how it names them: events as they are written, memos by key, signals that are sent twice."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import HistoryEventFilter
from hourglass.errors import UsageError, WorkflowNotFoundError

from .scenario import scenario
from .world import World

LIMIT = 30

WORDS: workflow.Channel[str] = workflow.Channel("words")


@workflow.defn
def listens(count: int) -> list[str]:
    """So many words."""
    return [WORDS.receive() for _ in range(count)]


@scenario("loose")
def a_signal_that_is_sent_twice(world: World) -> None:
    """The same request id is the same signal; without one each call is a signal of its own."""
    handle = world.start(listens, 4)
    for word, request_id in (("a", "r-1"), ("b", "r-1"), ("c", "r-2"), ("d", None), ("d", None)):
        handle.signal(WORDS, word, request_id=request_id)
    assert handle.result(timeout=LIMIT) == ["a", "c", "d", "d"]
    with pytest.raises(UsageError, match="request_id"):
        handle.signal(WORDS, "e", request_id=5)  # type: ignore[arg-type]


@scenario("loose")
def events_as_they_are_written(world: World) -> None:
    """A stream of events goes on with each that is written and ends with the run; the last one can be waited for alone."""
    handle = world.start(listens, 2)
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

    threads = [threading.Thread(target=each) for each in (follow, wait_for_last)]
    for each in threads:
        each.start()
    handle.signal(WORDS, "a")
    assert signalled.wait(60)
    assert not closed.is_set()
    handle.signal(WORDS, "b")
    assert handle.result(timeout=LIMIT) == ["a", "b"]
    for each in threads:
        each.join(60)
    assert closed.is_set()
    whole = handle.history().events
    assert [event["eventId"] for event in seen] == [event["eventId"] for event in whole]
    assert [event["eventId"] for event in last] == [whole[-1]["eventId"]]
    assert [event["eventId"] for event in handle.history_events(page_size=3)] == [
        event["eventId"] for event in whole
    ]
    (only,) = handle.history_events(event_filter=HistoryEventFilter.CLOSE_EVENT)
    assert only["eventId"] == whole[-1]["eventId"]
    page = handle.history_page(page_size=3)
    rest = [event["eventId"] for event in handle.history_events(page_token=page.next_page_token)]
    assert rest == [event["eventId"] for event in whole[len(page.events) :]]


@scenario("loose")
def memos_by_key(world: World) -> None:
    """A memo's value by its key, as a type; and what the engine told, not decoded."""
    handle = world.start(listens, 0, memo={"pair": (1, 2), "text": "x"}, request_eager_start=True)
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
def only_the_chain_that_was_meant(world: World) -> None:
    """A handle that names the first run of a chain ends no other workflow of the same id."""
    first = world.start(listens, 0)
    first.result(timeout=LIMIT)
    again = world.start(listens, 1, id=first.id)
    stale = world.client.get_workflow_handle(first.id, first_execution_run_id=first.first_execution_run_id)
    assert stale.first_execution_run_id == first.run_id
    with pytest.raises(WorkflowNotFoundError):
        stale.terminate()
    meant = world.client.get_workflow_handle(again.id, first_execution_run_id=again.first_execution_run_id)
    meant.signal(WORDS, "x")
    assert again.result(timeout=LIMIT) == ["x"]
