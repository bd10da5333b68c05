"""`Lock`, `Semaphore`, `Event` and `Queue`: fair, and nothing is lost when a waiter is cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import ChannelEmptyError, UsageError

from .acts import work
from .conftest import Drive
from .driver import brief


def test_lock_is_fair(drive: Drive) -> None:
    """Those who wait get it in the order in which they came."""

    @workflow.defn
    def run() -> list[str]:
        lock, said = workflow.Lock(), []

        def one(name: str) -> None:
            with lock:
                work(name)
                said.append(name)

        workflow.gather(*[workflow.spawn(one, name) for name in "abc"])
        return [*said, str(lock.locked())]

    d = drive(run)
    assert brief(d.begin()) == ["work(a)"]
    assert brief(d.send(d.done("work"))) == ["work(b)"]
    assert brief(d.send(d.done("work"))) == ["work(c)"]
    d.send(d.done("work"))
    assert d.result == ["a", "b", "c", "False"]


def test_lock_survives_the_cancellation_of_a_waiter(drive: Drive) -> None:
    """A waiter that is cancelled while it waits, or just when it was woken, does not keep the others out."""

    @workflow.defn
    def run() -> list[str]:
        lock, said = workflow.Lock(), []

        def one(name: str) -> None:
            with lock:
                workflow.sleep(1)
                said.append(name)

        tasks = [workflow.spawn(one, name) for name in "abcd"]
        workflow.sleep(0)
        tasks[1].cancel()  # waits
        workflow.wait([tasks[0]])
        tasks[2].cancel()  # was woken by the release
        workflow.wait(tasks)
        return said

    d = drive(run)
    d.begin()
    d.finish()
    assert d.result in (["a", "d"], ["a", "c", "d"])
    assert d.result[-1] == "d"


def test_releasing_an_unheld_lock_is_rejected(drive: Drive) -> None:
    """A usage error, not a silent success."""

    @workflow.defn
    def run() -> str:
        try:
            workflow.Lock().release()
        except UsageError:
            return "refused"
        return ""

    d = drive(run)
    d.begin()
    assert d.result == "refused"


def test_semaphore_limits_concurrency(drive: Drive) -> None:
    """At most its value at a time, in the order of arrival."""

    @workflow.defn
    def run() -> None:
        semaphore = workflow.Semaphore(2)

        def one(name: str) -> None:
            with semaphore:
                work(name)

        workflow.gather(*[workflow.spawn(one, name) for name in "abcd"])

    d = drive(run)
    assert brief(d.begin()) == ["work(a)", "work(b)"]
    assert brief(d.send(d.done(2))) == ["work(c)"]
    assert brief(d.send(d.done(1), d.done(3))) == ["work(d)"]
    d.send(d.done(4))
    assert d.result is None


def test_semaphore_keeps_its_count_when_a_waiter_is_cancelled(drive: Drive) -> None:
    """A slot that was passed to a waiter cancelled in the same turn goes to the next waiter."""

    @workflow.defn
    def run() -> list[str]:
        semaphore, said = workflow.Semaphore(1), []

        def one(name: str) -> None:
            with semaphore:
                said.append(name)
                workflow.sleep(1)

        tasks = [workflow.spawn(one, name) for name in "abc"]
        workflow.wait([tasks[0]])
        tasks[1].cancel()
        workflow.wait(tasks)
        semaphore.acquire()
        return said

    d = drive(run)
    d.begin()
    d.finish()
    assert d.result[-1] == "c"


def test_negative_semaphore_is_rejected() -> None:
    """Negative values are refused."""
    with pytest.raises(UsageError):
        workflow.Semaphore(-1)


def test_event_wakes_all_waiters(drive: Drive) -> None:
    """All waiters continue in order; later tasks do not wait until the event is cleared."""

    @workflow.defn
    def run() -> list[str]:
        event, said = workflow.Event(), []

        def one(name: str) -> None:
            event.wait()
            said.append(name)

        tasks = [workflow.spawn(one, name) for name in "ab"]
        workflow.sleep(1)
        event.set()
        event.set()
        workflow.gather(*tasks)
        event.wait()
        event.clear()
        return [*said, str(event.is_set())]

    d = drive(run)
    d.begin()
    assert d.timers == {1: 1.0}
    d.send(d.fired())
    assert d.result == ["a", "b", "False"]


def test_queue_passes_items_in_order(drive: Drive) -> None:
    """A bounded queue makes the producer wait, an empty one the consumer."""

    @workflow.defn
    def run() -> list[Any]:
        queue: workflow.Queue[int] = workflow.Queue(maxsize=1)
        got: list[Any] = []

        def producer() -> None:
            for number in range(4):
                queue.put(number)
                got.append(f"put {number}")

        workflow.spawn(producer)
        workflow.sleep(1)
        got.append(queue.full())
        got.extend(queue.get() for _ in range(4))
        return [*got, queue.empty(), len(queue)]

    d = drive(run)
    d.begin()
    d.send(d.fired())
    assert [item for item in d.result if isinstance(item, int) and not isinstance(item, bool)][:4] == [
        0,
        1,
        2,
        3,
    ]
    assert d.result[-2:] == [True, 0]
    assert d.result[:2] == ["put 0", True]


def test_queue_nowait_methods_raise(drive: Drive) -> None:
    """`put_nowait` on a full and `get_nowait` on an empty queue raise."""

    @workflow.defn
    def run() -> list[str]:
        queue: workflow.Queue[int] = workflow.Queue(1)
        said = []
        try:
            queue.get_nowait()
        except ChannelEmptyError:
            said.append("empty")
        queue.put_nowait(1)
        try:
            queue.put_nowait(2)
        except UsageError:
            said.append("full")
        return said

    d = drive(run)
    d.begin()
    assert d.result == ["empty", "full"]


def test_cancelled_getter_loses_no_item(drive: Drive) -> None:
    """An item that woke a getter which is cancelled in the same turn goes to the next getter."""

    @workflow.defn
    def run() -> list[Any]:
        queue: workflow.Queue[str] = workflow.Queue()
        got: list[Any] = []

        def one(name: str) -> None:
            got.append([name, queue.get()])

        tasks = [workflow.spawn(one, name) for name in "ab"]
        workflow.sleep(1)
        queue.put_nowait("item")
        tasks[0].cancel()
        workflow.wait(tasks)
        return got

    d = drive(run)
    d.begin()
    d.send(d.fired())
    assert d.result == [["b", "item"]]
