"""Calls that begin at once, and one timer for all that take too long."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._worker.handles.calls import CallDeadlines, begin

from .virtual_loop import run, settle


def test_what_ends_at_once_needs_no_task() -> None:
    """It has run when `begin` returns."""

    async def body() -> None:
        ran: list[str] = []

        async def call() -> None:
            ran.append("all")

        assert begin(call()) is None
        assert ran == ["all"]

    run(body)


def test_what_it_raises_at_once_is_raised() -> None:
    """There is no task that could keep the error."""

    async def call() -> None:
        raise ValueError("no")

    async def body() -> None:
        with pytest.raises(ValueError, match="no"):
            begin(call())

    run(body)


def test_what_waits_goes_on_in_a_task() -> None:
    """Each wait, an error that comes of one, and the result pass through."""

    async def body() -> None:
        first, second = asyncio.Event(), asyncio.get_running_loop().create_future()
        log: list[str] = []

        async def call() -> str:
            log.append("begun")
            await first.wait()
            try:
                await second
            except KeyError:
                log.append("caught")
            await asyncio.sleep(3)
            return "done"

        task = begin(call())
        assert log == ["begun"]
        assert task is not None
        first.set()
        await settle()
        second.set_exception(KeyError())
        assert await task == "done"
        assert log == ["begun", "caught"]

    run(body)


def test_a_future_that_is_done_before_the_task_begins_is_not_lost() -> None:
    """Between the first wait and the task's first turn the loop may go round."""

    async def body() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def call() -> int:
            return await future

        task = begin(call())
        future.set_result(7)
        assert task is not None
        assert await task == 7

    run(body)


def test_a_cancellation_reaches_the_call() -> None:
    """Where it waits, as in any task."""

    async def body() -> None:
        log: list[str] = []

        async def call() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                log.append("cancelled")
                raise

        task = begin(call())
        assert task is not None
        await settle()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert log == ["cancelled"]

    run(body)


def test_patience_tells_of_what_is_late_when_it_is_late() -> None:
    """Each at its own time, in order, once; what was forgotten in time is not told of."""

    async def body() -> None:
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

    run(body)


def test_patience_can_begin_anew_when_it_calls() -> None:
    """A beat that repeats watches again from its own callback."""

    async def body() -> None:
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

    run(body)


def test_thousands_watched_are_one_timer() -> None:
    """What comes and goes leaves nothing on the loop but that."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        patience = CallDeadlines(5.0)
        before = len(loop._scheduled)  # type: ignore[attr-defined]
        for number in range(1000):
            patience.watch(number, lambda _: None)
        assert len(loop._scheduled) - before == 1  # type: ignore[attr-defined]

    run(body)


def test_what_cannot_be_told_keeps_nothing_back() -> None:
    """One that raises is logged, and the others are told of all the same, also those that fall due later."""

    async def body() -> None:
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

    run(body)
