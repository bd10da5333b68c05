"""One timer for all calls that take too long."""

from __future__ import annotations

import asyncio

from hourglass._worker.handles.calls import CallDeadlines

from .virtual_loop import settle


async def test_patience_tells_of_what_is_late_when_it_is_late() -> None:
    """Each at its own time, in order, once; what was forgotten in time is not told of."""
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


async def test_patience_can_begin_anew_when_it_calls() -> None:
    """A beat that repeats watches again from its own callback."""
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


async def test_thousands_watched_are_one_timer() -> None:
    """What comes and goes leaves nothing on the loop but that."""
    loop = asyncio.get_running_loop()
    patience = CallDeadlines(5.0)
    before = len(loop._scheduled)  # type: ignore[attr-defined]
    for number in range(1000):
        patience.watch(number, lambda _: None)
    assert len(loop._scheduled) - before == 1  # type: ignore[attr-defined]


async def test_what_cannot_be_told_keeps_nothing_back() -> None:
    """One that raises is logged, and the others are told of all the same, also those that fall due later."""
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
