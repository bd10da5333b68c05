"""Workflows that are large in one run: many fibers, many signals, long histories. `n` is how large."""

from __future__ import annotations

from hourglass import activity, workflow

AT_ONCE = 50
"""Activities and timers pending at a time. A server allows 2,000 of a kind; but it fails a workflow task during which more than
a hundred events came, and an activity's end is two.
"""

numbers = workflow.Channel("number", int)


@activity.defn(start_to_close_timeout=60)
async def echo(value: int) -> int:
    """The smallest activity."""
    return value


@workflow.defn
def acting_fibers(n: int) -> int:
    """All fibers at once, each with an activity, so many of them at a time."""
    places = workflow.Semaphore(AT_ONCE)

    def act(number: int) -> int:
        with places:
            return echo(number)

    return sum(workflow.gather(*[workflow.spawn(act, number) for number in range(n)]))


@workflow.defn
def sleeping_fibers(n: int) -> int:
    """All fibers at once, each asleep for a moment, so many of them at a time."""
    places = workflow.Semaphore(AT_ONCE)

    def doze(number: int) -> int:
        with places:
            workflow.sleep(0.001)
            return number

    return sum(workflow.gather(*[workflow.spawn(doze, number) for number in range(n)]))


@workflow.defn
def mapped(n: int) -> int:
    """An activity for each, by `workflow.map`."""
    return sum(workflow.map(echo, range(n), limit=AT_ONCE))


@workflow.defn
def waiting_fibers(n: int) -> int:
    """Fibers that wait for each other in every way but one: for a lock, an event, a queue, a channel's message."""
    lock, flag, queue, seen = workflow.Lock(), workflow.Event(), workflow.Queue[int](), 0

    def work(number: int) -> None:
        nonlocal seen
        flag.wait()
        with lock:
            workflow.sleep(0)
        queue.put(number)
        seen += queue.get()

    tasks = [workflow.spawn(work, number) for number in range(n)]
    total = numbers.receive()
    flag.set()
    workflow.gather(*tasks)
    return seen + total


@workflow.defn
def conditions(n: int) -> int:
    """So many fibers that each wait for a condition, which one signal makes true for all."""
    begun = False
    tasks = [workflow.spawn(workflow.wait_condition, lambda: begun) for _ in range(n)]
    total = numbers.receive()
    begun = True
    workflow.gather(*tasks)
    return total + len(tasks)


@workflow.defn
def channel(n: int) -> int:
    """Reads so many messages from a channel."""
    return sum(numbers.receive() for _ in range(n))


@workflow.defn
class Handler:
    """Counts the signals that its handler gets."""

    def __init__(self) -> None:
        self.count = self.total = 0

    @workflow.run
    def run(self, n: int) -> int:
        """Wait for all of them."""
        workflow.wait_condition(lambda: self.count == n)
        return self.total

    @workflow.signal
    def number(self, value: int) -> None:
        """One more."""
        self.count += 1
        self.total += value


@workflow.defn
def sequence(n: int) -> int:
    """One activity after the other."""
    return sum(echo(number) for number in range(n))


@workflow.defn
def four_ways(n: int) -> int:
    """One activity after the other, in four fibers."""

    def way(first: int) -> int:
        return sum(echo(number) for number in range(first, n, 4))

    return sum(workflow.gather(*[workflow.spawn(way, first) for first in range(4)]))


WORKFLOWS = (
    acting_fibers,
    sleeping_fibers,
    mapped,
    waiting_fibers,
    conditions,
    channel,
    Handler,
    sequence,
    four_ways,
)
