"""The follower of a progress stream, with a scripted engine: its requests and its handling of failed answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from hourglass._contract.workflows import GetHistory, HistoryPage, QueryAnswer, QueryWorkflow
from hourglass.client import _waiting
from hourglass.client._operations import Reference
from hourglass.converter import default_converter
from hourglass.errors import QueryFailedError, ServiceError, UsageError
from hourglass.progress import _following
from hourglass.progress._following import Follower, read_position

TASK = b'{"eventType":"EVENT_TYPE_WORKFLOW_TASK_COMPLETED"}'
OTHER = b'{"eventType":"EVENT_TYPE_ACTIVITY_TASK_STARTED"}'
END = (
    b'{"eventType":"EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED","workflowExecutionCompletedEventAttributes":{}}'
)


class ScriptedSession:
    """A session that returns prepared history pages and query answers in order."""

    converter = default_converter

    def __init__(self, pages: Sequence[Any], answers: Sequence[Any]) -> None:
        self.pages = list(pages)
        self.answers = list(answers)
        self.requests: list[Any] = []

    async def call(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(request, GetHistory):
            answer = self.pages.pop(0)
        else:
            assert isinstance(request, QueryWorkflow)
            answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)

    @property
    def offsets(self) -> list[int]:
        """The first offset of each query."""
        return [
            default_converter.decode(each.arguments[0], int)
            for each in self.requests
            if isinstance(each, QueryWorkflow)
        ]


def history_page(*events: bytes, more: bool = True) -> HistoryPage:
    return HistoryPage(events, b"token" if more else b"")


def query_answer(first: int, published: int, *items: str) -> QueryAnswer:
    return QueryAnswer((default_converter.encode([first, published, list(items)]),))


def read_to_end(
    script: ScriptedSession, start: str | int = 0, limit: float | None = None
) -> tuple[list[str], Follower[str]]:
    follower: Follower[str] = Follower("lines", str, Reference("w", "r"), start, limit)
    while not follower.ended:
        operation = follower.more()
        operation.parse(asyncio.run(operation.ask(script)))  # type: ignore[arg-type]
    return list(follower.pending), follower


def test_progress_follower_queries_only_after_completed_workflow_tasks() -> None:
    script = ScriptedSession(
        [
            history_page(TASK),
            history_page(OTHER),
            history_page(),
            history_page(OTHER),
            history_page(TASK),
            history_page(END, more=False),
        ],
        [query_answer(0, 1, "a"), query_answer(1, 2, "b"), query_answer(2, 2)],
    )
    assert read_to_end(script)[0] == ["a", "b"]
    assert script.offsets == [0, 1, 2]


def test_progress_follower_repeats_the_query_while_more_items_exist() -> None:
    """It does not wait for another history event in between."""
    script = ScriptedSession(
        [history_page(TASK), history_page(END, more=False)],
        [query_answer(0, 2, "a"), query_answer(1, 2, "b"), query_answer(2, 2)],
    )
    assert read_to_end(script)[0] == ["a", "b"]
    assert [type(each).__name__ for each in script.requests] == [
        "GetHistory",
        "QueryWorkflow",
        "QueryWorkflow",
        "GetHistory",
        "QueryWorkflow",
    ]


def test_progress_follower_keeps_its_position_after_a_failed_query() -> None:
    script = ScriptedSession(
        [history_page(TASK), history_page(TASK), history_page(END, more=False)],
        [QueryFailedError("parked"), query_answer(5, 6, "f"), query_answer(6, 6)],
    )
    items, follower = read_to_end(script, "r/5")
    assert items == ["f"]
    assert script.offsets == [5, 5, 6]
    assert follower.missed == 0


def test_progress_follower_of_new_items_receives_the_first_item_of_the_run() -> None:
    script = ScriptedSession(
        [history_page(TASK), history_page(TASK), history_page(END, more=False)],
        [QueryFailedError("unknown query"), query_answer(0, 1, "a"), query_answer(1, 1)],
    )
    assert read_to_end(script, _following.NEW_ONES)[0] == ["a"]


def test_progress_follower_raises_if_the_last_query_of_a_closed_run_fails() -> None:
    """Otherwise an incomplete stream would seem complete."""
    script = ScriptedSession(
        [history_page(TASK), history_page(END, more=False)],
        [query_answer(0, 1, "a"), QueryFailedError("code is gone")],
    )
    with pytest.raises(QueryFailedError, match="code is gone"):
        read_to_end(script)


def test_progress_follower_retries_unavailable_and_raises_other_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_waiting, "FIRST_PAUSE", 0.0)
    unavailable = ServiceError("away", status="UNAVAILABLE")
    script = ScriptedSession(
        [unavailable, history_page(TASK), unavailable, history_page(END, more=False)],
        [unavailable, unavailable, query_answer(0, 1, "a"), query_answer(1, 1)],
    )
    assert read_to_end(script)[0] == ["a"]
    with pytest.raises(ServiceError, match="forbidden"):
        read_to_end(ScriptedSession([ServiceError("forbidden", status="PERMISSION_DENIED")], []))


def test_progress_follower_queries_again_after_an_interrupted_answer() -> None:
    script = ScriptedSession(
        [history_page(TASK), history_page(END, more=False)],
        [TimeoutError(), query_answer(0, 1, "a"), query_answer(1, 1)],
    )
    follower: Follower[str] = Follower("lines", str, Reference("w", "r"), 0, None)
    with pytest.raises(TimeoutError):
        asyncio.run(follower.more().ask(script))  # type: ignore[arg-type]
    asyncio.run(follower.more().ask(script))  # type: ignore[arg-type]
    assert not follower.pending  # the answer came, and whoever waited for it was gone
    script.answers.insert(0, query_answer(0, 1, "a"))
    operation = follower.more()
    operation.parse(asyncio.run(operation.ask(script)))  # type: ignore[arg-type]
    assert list(follower.pending) == ["a"]
    assert [type(each).__name__ for each in script.requests] == ["GetHistory", *["QueryWorkflow"] * 3]


def test_progress_follower_counts_dropped_items() -> None:
    script = ScriptedSession(
        [history_page(TASK), history_page(END, more=False)], [query_answer(4, 5, "e"), query_answer(5, 5)]
    )
    items, follower = read_to_end(script, "r/1")
    assert (items, follower.missed) == (["e"], 3)


def test_progress_position_is_parsed_from_run_id_and_offset() -> None:
    assert read_position("run-1/12") == ("run-1", 12)
    for invalid in ("", "12", "run/", "run/-1", "/1", "run/x"):
        with pytest.raises(UsageError):
            read_position(invalid)
