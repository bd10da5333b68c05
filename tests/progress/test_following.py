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


class Script:
    """A session that returns prepared history pages and query answers in order."""

    converter = default_converter

    def __init__(self, pages: Sequence[Any], answers: Sequence[Any]) -> None:
        self.pages = list(pages)
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def call(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, GetHistory):
            said = self.pages.pop(0)
        else:
            assert isinstance(request, QueryWorkflow)
            said = self.answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def within(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)

    @property
    def offsets(self) -> list[int]:
        """The first offset of each query."""
        return [
            default_converter.decode(each.arguments[0], int)
            for each in self.asked
            if isinstance(each, QueryWorkflow)
        ]


def page(*events: bytes, more: bool = True) -> HistoryPage:
    return HistoryPage(events, b"token" if more else b"")


def batch(first: int, published: int, *items: str) -> QueryAnswer:
    return QueryAnswer((default_converter.encode([first, published, list(items)]),))


def read(script: Script, begin: str | int = 0, limit: float | None = None) -> tuple[list[str], Follower[str]]:
    follower: Follower[str] = Follower("lines", str, Reference("w", "r"), begin, limit)
    while not follower.ended:
        operation = follower.more()
        operation.parse(asyncio.run(operation.ask(script)))  # type: ignore[arg-type]
    return list(follower.pending), follower


def test_follower_queries_after_completed_tasks_only() -> None:
    script = Script(
        [page(TASK), page(OTHER), page(), page(OTHER), page(TASK), page(END, more=False)],
        [batch(0, 1, "a"), batch(1, 2, "b"), batch(2, 2)],
    )
    assert read(script)[0] == ["a", "b"]
    assert script.offsets == [0, 1, 2]


def test_partial_answer_is_followed_by_another_query_at_once() -> None:
    """It does not wait for another history event in between."""
    script = Script([page(TASK), page(END, more=False)], [batch(0, 2, "a"), batch(1, 2, "b"), batch(2, 2)])
    assert read(script)[0] == ["a", "b"]
    assert [type(each).__name__ for each in script.asked] == [
        "GetHistory",
        "QueryWorkflow",
        "QueryWorkflow",
        "GetHistory",
        "QueryWorkflow",
    ]


def test_failed_query_keeps_the_position() -> None:
    script = Script(
        [page(TASK), page(TASK), page(END, more=False)],
        [QueryFailedError("parked"), batch(5, 6, "f"), batch(6, 6)],
    )
    items, follower = read(script, "r/5")
    assert items == ["f"]
    assert script.offsets == [5, 5, 6]
    assert follower.missed == 0


def test_new_items_include_all_if_none_were_published() -> None:
    script = Script(
        [page(TASK), page(TASK), page(END, more=False)],
        [QueryFailedError("there is no handler"), batch(0, 1, "a"), batch(1, 1)],
    )
    assert read(script, _following.NEW_ONES)[0] == ["a"]


def test_closed_run_without_its_last_items_raises() -> None:
    """Otherwise an incomplete stream would seem complete."""
    script = Script([page(TASK), page(END, more=False)], [batch(0, 1, "a"), QueryFailedError("code is gone")])
    with pytest.raises(QueryFailedError, match="code is gone"):
        read(script)


def test_follower_waits_through_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waiting, "FIRST_PAUSE", 0.0)
    away = ServiceError("away", status="UNAVAILABLE")
    script = Script(
        [away, page(TASK), away, page(END, more=False)], [away, away, batch(0, 1, "a"), batch(1, 1)]
    )
    assert read(script)[0] == ["a"]
    with pytest.raises(ServiceError, match="forbidden"):
        read(Script([ServiceError("forbidden", status="PERMISSION_DENIED")], []))


def test_interrupted_wait_loses_nothing() -> None:
    script = Script([page(TASK), page(END, more=False)], [TimeoutError(), batch(0, 1, "a"), batch(1, 1)])
    follower: Follower[str] = Follower("lines", str, Reference("w", "r"), 0, None)
    with pytest.raises(TimeoutError):
        asyncio.run(follower.more().ask(script))  # type: ignore[arg-type]
    asyncio.run(follower.more().ask(script))  # type: ignore[arg-type]
    assert not follower.pending  # the answer came, and whoever waited for it was gone
    script.answers.insert(0, batch(0, 1, "a"))
    again = follower.more()
    again.parse(asyncio.run(again.ask(script)))  # type: ignore[arg-type]
    assert list(follower.pending) == ["a"]
    assert [type(each).__name__ for each in script.asked] == ["GetHistory", *["QueryWorkflow"] * 3]


def test_dropped_items_are_counted() -> None:
    script = Script([page(TASK), page(END, more=False)], [batch(4, 5, "e"), batch(5, 5)])
    items, follower = read(script, "r/1")
    assert (items, follower.missed) == (["e"], 3)


def test_position_round_trips_as_text() -> None:
    assert read_position("run-1/12") == ("run-1", 12)
    for wrong in ("", "12", "run/", "run/-1", "/1", "run/x"):
        with pytest.raises(UsageError):
            read_position(wrong)
