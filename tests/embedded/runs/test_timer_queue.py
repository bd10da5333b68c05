"""Callbacks by time: one timer for all who wait on a loop."""

from __future__ import annotations

import asyncio

from tests.embedded.memory_world import SECOND

from hourglass._embedded.clock import RealClock, TimerQueue


class Clock:
    """A clock that the test sets; it is looked at again in every turn of the loop."""

    longest_wait = 0.0

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now


async def turns(count: int = 10) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_callbacks_run_at_their_time_in_order() -> None:
    """Callbacks run by due time, then in the order of asking; what is not due waits, what is cancelled never runs."""
    clock, seen = Clock(), list[str]()
    timers = TimerQueue(asyncio.get_running_loop(), clock)
    timers.add(20, lambda: seen.append("late"))
    timers.add(10, lambda: seen.append("first"))
    timers.add(10, lambda: seen.append("second"))
    timers.add(5, lambda: seen.append("cancelled"))()
    await turns()
    assert seen == []
    clock.now = 10
    await turns()
    assert seen == ["first", "second"]
    clock.now = 20
    await turns()
    assert seen == ["first", "second", "late"]


async def test_callback_may_schedule_another() -> None:
    """One that asks for a later time does not put off what was to come before; one for now runs in a later turn."""
    clock, seen = Clock(), list[str]()
    timers = TimerQueue(asyncio.get_running_loop(), clock)

    def again() -> None:
        timers.add(50, lambda: seen.append("fifty"))
        timers.add(10, lambda: seen.append("at once"))
        seen.append("again")

    timers.add(10, again)
    timers.add(20, lambda: seen.append("twenty"))
    clock.now = 10
    await turns()
    assert seen == ["again", "at once"]
    clock.now = 20
    await turns()
    assert seen == ["again", "at once", "twenty"]
    clock.now = 50
    await turns()
    assert seen[-1] == "fifty"


async def test_failing_callback_does_not_stop_others() -> None:
    """What a callback raises goes to the loop, and the others run."""
    clock, seen, told = Clock(), list[str](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    timers = TimerQueue(loop, clock)
    timers.add(1, lambda: seen.append(str(1 // 0)))
    timers.add(1, lambda: seen.append("other"))
    clock.now = 1
    await turns()
    assert seen == ["other"]
    assert [type(each) for each in told] == [ZeroDivisionError]


async def test_cancelled_callbacks_are_removed() -> None:
    """However many are cancelled long before their time, few remains are kept, and none of what is alive is lost."""
    clock, seen = Clock(), list[int]()
    timers = TimerQueue(asyncio.get_running_loop(), clock)
    for place in range(10):
        timers.add(100 + place, lambda place=place: seen.append(place))  # type: ignore[misc]
    for _ in range(5000):
        timers.add(1000 * SECOND, lambda: seen.append(-1))()
    assert len(timers._due) < 200
    clock.now = 200
    await turns()
    assert seen == list(range(10))


async def test_clock_jump_wakes_due_callbacks() -> None:
    """A timer that was set before the wall clock jumped keeps nobody waiting who is due after it."""
    wall, monotonic, seen = [10**18], [0], list[str]()
    clock = RealClock(lambda: wall[0], lambda: monotonic[0])
    began = clock.now_ns()
    clock.call_at(began + 10 * SECOND, lambda: seen.append("ten seconds"))
    await turns()
    assert seen == []
    wall[0] += 3600 * SECOND
    monotonic[0] += SECOND
    assert clock.now_ns() >= began + 3600 * SECOND
    clock.call_at(began + 1800 * SECOND, lambda: seen.append("half an hour"))
    await turns()
    assert seen == ["ten seconds", "half an hour"]
