"""Tests of `TimerQueue`, which runs the callbacks of one event loop by one timer."""

from __future__ import annotations

import asyncio

from tests.embedded.memory_world import SECOND

from hourglass._embedded.clock import RealClock, TimerQueue


class Clock:
    """A clock set by the test; the queue reads it in every iteration of the loop."""

    longest_wait = 0.0

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now


async def run_loop(count: int = 10) -> None:
    """Run `count` iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_callbacks_run_in_order_of_their_due_times() -> None:
    """Equal times keep the order of `add`; cancelled callbacks never run."""
    clock, calls = Clock(), list[str]()
    timers = TimerQueue(asyncio.get_running_loop(), clock)
    timers.add(20, lambda: calls.append("late"))
    timers.add(10, lambda: calls.append("first"))
    timers.add(10, lambda: calls.append("second"))
    timers.add(5, lambda: calls.append("cancelled"))()
    await run_loop()
    assert calls == []
    clock.now = 10
    await run_loop()
    assert calls == ["first", "second"]
    clock.now = 20
    await run_loop()
    assert calls == ["first", "second", "late"]


async def test_callback_can_add_further_callbacks() -> None:
    """A later one does not delay those already due, one due now runs in a later iteration."""
    clock, calls = Clock(), list[str]()
    timers = TimerQueue(asyncio.get_running_loop(), clock)

    def again() -> None:
        timers.add(50, lambda: calls.append("fifty"))
        timers.add(10, lambda: calls.append("at once"))
        calls.append("again")

    timers.add(10, again)
    timers.add(20, lambda: calls.append("twenty"))
    clock.now = 10
    await run_loop()
    assert calls == ["again", "at once"]
    clock.now = 20
    await run_loop()
    assert calls == ["again", "at once", "twenty"]
    clock.now = 50
    await run_loop()
    assert calls[-1] == "fifty"


async def test_exception_in_a_callback_does_not_stop_other_callbacks() -> None:
    clock, calls, errors = Clock(), list[str](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    timers = TimerQueue(loop, clock)
    timers.add(1, lambda: calls.append(str(1 // 0)))
    timers.add(1, lambda: calls.append("other"))
    clock.now = 1
    await run_loop()
    assert calls == ["other"]
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_cancelled_callbacks_are_removed_from_the_queue() -> None:
    clock, calls = Clock(), list[int]()
    timers = TimerQueue(asyncio.get_running_loop(), clock)
    for place in range(10):
        timers.add(100 + place, lambda place=place: calls.append(place))  # type: ignore[misc]
    for _ in range(5000):
        timers.add(1000 * SECOND, lambda: calls.append(-1))()
    assert len(timers._due) < 200
    clock.now = 200
    await run_loop()
    assert calls == list(range(10))


async def test_forward_clock_jump_runs_due_callbacks() -> None:
    wall, monotonic, calls = [10**18], [0], list[str]()
    clock = RealClock(lambda: wall[0], lambda: monotonic[0])
    began = clock.now_ns()
    clock.call_at(began + 10 * SECOND, lambda: calls.append("ten seconds"))
    await run_loop()
    assert calls == []
    wall[0] += 3600 * SECOND
    monotonic[0] += SECOND
    assert clock.now_ns() >= began + 3600 * SECOND
    clock.call_at(began + 1800 * SECOND, lambda: calls.append("half an hour"))
    await run_loop()
    assert calls == ["ten seconds", "half an hour"]
