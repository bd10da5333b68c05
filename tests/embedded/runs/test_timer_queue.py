"""Tests of `TimerQueue`, which runs the callbacks of one event loop by one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.embedded.memory_world import SECOND, settle

from hourglass._embedded.clock import RealClock, TimerQueue


class Timers:
    """A queue on a clock set by the test, which the queue reads in every iteration of the loop, and a log of callbacks."""

    longest_wait = 0.0

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[str] = []
        self.queue = TimerQueue(asyncio.get_running_loop(), self)

    def now_ns(self) -> int:
        return self.now

    def add(self, due: int, name: str) -> Callable[[], None]:
        return self.queue.add(due, lambda: self.calls.append(name))

    async def at(self, now: int) -> list[str]:
        """Set the clock. Return the callbacks that have run so far."""
        self.now = now
        await settle()
        return self.calls


async def test_callbacks_run_in_order_of_their_due_times() -> None:
    """Equal times keep the order of `add`; cancelled callbacks never run."""
    timers = Timers()
    for due, name in ((20, "late"), (10, "first"), (10, "second")):
        timers.add(due, name)
    timers.add(5, "cancelled")()
    assert await timers.at(0) == []
    assert await timers.at(10) == ["first", "second"]
    assert await timers.at(20) == ["first", "second", "late"]


async def test_callback_can_add_further_callbacks() -> None:
    """A later one does not delay those already due, one due now runs in a later iteration."""
    timers = Timers()

    def again() -> None:
        timers.add(50, "fifty")
        timers.add(10, "at once")
        timers.calls.append("again")

    timers.queue.add(10, again)
    timers.add(20, "twenty")
    assert await timers.at(10) == ["again", "at once"]
    assert await timers.at(20) == ["again", "at once", "twenty"]
    assert (await timers.at(50))[-1] == "fifty"


async def test_exception_in_a_callback_does_not_stop_other_callbacks() -> None:
    timers, errors = Timers(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    timers.queue.add(1, lambda: timers.calls.append(str(1 // 0)))
    timers.add(1, "other")
    assert await timers.at(1) == ["other"]
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_cancelled_callbacks_are_removed_from_the_queue() -> None:
    timers = Timers()
    for place in range(10):
        timers.add(100 + place, str(place))
    for _ in range(5000):
        timers.add(1000 * SECOND, "never")()
    assert len(timers.queue._due) < 200
    assert await timers.at(200) == [str(place) for place in range(10)]


async def test_forward_clock_jump_runs_due_callbacks() -> None:
    wall, monotonic, calls = [10**18], [0], list[str]()
    clock = RealClock(lambda: wall[0], lambda: monotonic[0])
    began = clock.now_ns()
    clock.call_at(began + 10 * SECOND, lambda: calls.append("ten seconds"))
    await settle()
    assert calls == []
    wall[0] += 3600 * SECOND
    monotonic[0] += SECOND
    assert clock.now_ns() >= began + 3600 * SECOND
    clock.call_at(began + 1800 * SECOND, lambda: calls.append("half an hour"))
    await settle()
    assert calls == ["ten seconds", "half an hour"]
