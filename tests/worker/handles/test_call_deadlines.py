"""`CallDeadlines`: a single timer for all calls in flight."""

from __future__ import annotations

import asyncio

from hourglass._worker.handles.calls import CallDeadlines

from .virtual_loop import settle


async def test_each_overdue_engine_call_is_reported_once_at_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    begun, told = loop.time(), []
    patience = CallDeadlines(10.0)

    def late(name: str) -> None:
        told.append((name, loop.time() - begun))

    for number, name in enumerate(("a", "b", "c")):
        await asyncio.sleep(begun + 2 * number - loop.time())
        patience.watch(name, late)
    assert patience.forget("b")
    await asyncio.sleep(30)
    assert told == [("a", 10.0), ("c", 14.0)]
    assert not patience.forget("a")
    assert len(patience) == 0


async def test_deadline_callback_may_watch_the_same_call_again() -> None:
    loop = asyncio.get_running_loop()
    begun, told = loop.time(), []
    patience = CallDeadlines(5.0)

    def beat(what: str) -> None:
        told.append(loop.time() - begun)
        if len(told) < 3:
            patience.watch(what, beat)

    patience.watch("x", beat)
    await asyncio.sleep(60)
    assert told == [5.0, 10.0, 15.0]


async def test_deadlines_of_all_engine_calls_share_one_timer() -> None:
    loop = asyncio.get_running_loop()
    patience = CallDeadlines(5.0)
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    for number in range(1000):
        patience.watch(number, lambda _: None)
    assert len(loop._scheduled) - before == 1  # type: ignore[attr-defined]


async def test_failing_deadline_callback_does_not_stop_later_callbacks() -> None:
    patience, told = CallDeadlines(5.0), []

    def harm(_: object) -> None:
        raise ValueError("no")

    patience.watch("first", harm)
    patience.watch("second", told.append)
    await asyncio.sleep(1)
    patience.watch("later", told.append)
    await asyncio.sleep(5)
    await settle()
    assert told == ["second", "later"]
