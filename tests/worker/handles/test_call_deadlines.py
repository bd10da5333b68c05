"""`CallDeadlines`: a single timer for all calls in flight."""

from __future__ import annotations

import asyncio

from hourglass._worker.handles.calls import CallDeadlines

from .virtual_loop import settle


async def test_each_overdue_engine_call_is_reported_once_at_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    start_time, overdue = loop.time(), []
    deadlines = CallDeadlines(10.0)

    def late(name: str) -> None:
        overdue.append((name, loop.time() - start_time))

    for number, name in enumerate(("a", "b", "c")):
        await asyncio.sleep(start_time + 2 * number - loop.time())
        deadlines.watch(name, late)
    assert deadlines.forget("b")
    await asyncio.sleep(30)
    assert overdue == [("a", 10.0), ("c", 14.0)]
    assert not deadlines.forget("a")
    assert len(deadlines) == 0


async def test_deadline_callback_may_watch_the_same_call_again() -> None:
    loop = asyncio.get_running_loop()
    start_time, overdue = loop.time(), []
    deadlines = CallDeadlines(5.0)

    def watch_again(what: str) -> None:
        overdue.append(loop.time() - start_time)
        if len(overdue) < 3:
            deadlines.watch(what, watch_again)

    deadlines.watch("x", watch_again)
    await asyncio.sleep(60)
    assert overdue == [5.0, 10.0, 15.0]


async def test_deadlines_of_all_engine_calls_share_one_timer() -> None:
    loop = asyncio.get_running_loop()
    deadlines = CallDeadlines(5.0)
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    for number in range(1000):
        deadlines.watch(number, lambda _: None)
    assert len(loop._scheduled) - before == 1  # type: ignore[attr-defined]


async def test_failing_deadline_callback_does_not_stop_later_callbacks() -> None:
    deadlines, overdue = CallDeadlines(5.0), []

    def fails(_: object) -> None:
        raise ValueError("no")

    deadlines.watch("first", fails)
    deadlines.watch("second", overdue.append)
    await asyncio.sleep(1)
    deadlines.watch("later", overdue.append)
    await asyncio.sleep(5)
    await settle()
    assert overdue == ["second", "later"]
