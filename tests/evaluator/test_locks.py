"""`Lock`, `Semaphore`, `Event` and `Queue`: fairness, and cancelled waiters."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import ChannelEmptyError, UsageError

from .activities import work
from .conftest import Drive
from .driver import brief, error_in_workflow


def test_lock_is_acquired_in_the_order_of_waiting(drive: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        lock, log = workflow.Lock(), []

        def task(name: str) -> None:
            with lock:
                work(name)
                log.append(name)

        workflow.gather(*[workflow.spawn(task, name) for name in "abc"])
        return [*log, str(lock.locked())]

    d = drive(run)
    assert brief(d.begin()) == ["work(a)"]
    assert brief(d.send(d.done("work"))) == ["work(b)"]
    assert brief(d.send(d.done("work"))) == ["work(c)"]
    d.send(d.done("work"))
    assert d.result == ["a", "b", "c", "False"]


def test_cancelled_waiter_does_not_keep_the_lock(begin_run: Drive) -> None:
    """One waiter is cancelled while it waits, another just after it was woken."""

    @workflow.defn
    def run() -> list[str]:
        lock, log = workflow.Lock(), []

        def task(name: str) -> None:
            with lock:
                workflow.sleep(1)
                log.append(name)

        tasks = [workflow.spawn(task, name) for name in "abcd"]
        workflow.sleep(0)
        tasks[1].cancel()  # while it waits
        workflow.wait([tasks[0]])
        tasks[2].cancel()  # after the release has woken it
        workflow.wait(tasks)
        return log

    d = begin_run(run)
    d.finish()
    assert d.result in (["a", "d"], ["a", "c", "d"])
    assert d.result[-1] == "d"


def test_releasing_an_unheld_lock_is_rejected() -> None:
    assert isinstance(error_in_workflow(lambda: workflow.Lock().release()), UsageError)


def test_cancelled_waiter_passes_its_semaphore_slot_to_the_next(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        semaphore, log = workflow.Semaphore(1), []

        def task(name: str) -> None:
            with semaphore:
                log.append(name)
                workflow.sleep(1)

        tasks = [workflow.spawn(task, name) for name in "abc"]
        workflow.wait([tasks[0]])
        tasks[1].cancel()
        workflow.wait(tasks)
        semaphore.acquire()
        return log

    d = begin_run(run)
    d.finish()
    assert d.result[-1] == "c"


def test_semaphore_rejects_a_negative_value() -> None:
    with pytest.raises(UsageError):
        workflow.Semaphore(-1)


def test_event_wakes_all_waiters_in_order(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        event, log = workflow.Event(), []

        def task(name: str) -> None:
            event.wait()
            log.append(name)

        tasks = [workflow.spawn(task, name) for name in "ab"]
        workflow.sleep(1)
        event.set()
        event.set()
        workflow.gather(*tasks)
        event.wait()
        event.clear()
        return [*log, str(event.is_set())]

    d = begin_run(run)
    assert d.timers == {1: 1.0}
    d.send(d.fired())
    assert d.result == ["a", "b", "False"]


def test_bounded_queue_passes_items_in_order(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        queue: workflow.Queue[int] = workflow.Queue(maxsize=1)
        received: list[Any] = []

        def producer() -> None:
            for number in range(4):
                queue.put(number)
                received.append(f"put {number}")

        workflow.spawn(producer)
        workflow.sleep(1)
        received.append(queue.full())
        received.extend(queue.get() for _ in range(4))
        return [*received, queue.empty(), len(queue)]

    d = begin_run(run)
    d.send(d.fired())
    assert [item for item in d.result if isinstance(item, int) and not isinstance(item, bool)][:4] == [
        0,
        1,
        2,
        3,
    ]
    assert d.result[-2:] == [True, 0]
    assert d.result[:2] == ["put 0", True]


def test_queue_nowait_methods_raise_when_empty_or_full(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        queue: workflow.Queue[int] = workflow.Queue(1)
        log = []
        try:
            queue.get_nowait()
        except ChannelEmptyError:
            log.append("empty")
        queue.put_nowait(1)
        try:
            queue.put_nowait(2)
        except UsageError:
            log.append("full")
        return log

    d = begin_run(run)
    assert d.result == ["empty", "full"]


def test_item_of_a_cancelled_queue_getter_goes_to_the_next(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        queue: workflow.Queue[str] = workflow.Queue()
        received: list[Any] = []

        def task(name: str) -> None:
            received.append([name, queue.get()])

        tasks = [workflow.spawn(task, name) for name in "ab"]
        workflow.sleep(1)
        queue.put_nowait("item")
        tasks[0].cancel()
        workflow.wait(tasks)
        return received

    d = begin_run(run)
    d.send(d.fired())
    assert d.result == [["b", "item"]]
