"""Workflows with large runs: many fibers, many signals, or long histories, according to the size `n`."""

from __future__ import annotations

from hourglass import activity, workflow

AT_ONCE = 50
"""Maximum number of pending activities or timers. A server allows 2,000 of each, but it fails a workflow task that buffers more
than a hundred events, and the completion of an activity adds two.
"""

numbers = workflow.Channel("number", int)


@activity.defn(start_to_close_timeout=60)
async def echo(value: int) -> int:
    return value


@workflow.defn
def acting_fibers(n: int) -> int:
    """Spawn `n` fibers with one activity each, `AT_ONCE` activities at a time."""
    places = workflow.Semaphore(AT_ONCE)

    def act(number: int) -> int:
        with places:
            return echo(number)

    return sum(workflow.gather(*[workflow.spawn(act, number) for number in range(n)]))


@workflow.defn
def sleeping_fibers(n: int) -> int:
    """Spawn `n` fibers with one timer each, `AT_ONCE` timers at a time."""
    places = workflow.Semaphore(AT_ONCE)

    def doze(number: int) -> int:
        with places:
            workflow.sleep(0.001)
            return number

    return sum(workflow.gather(*[workflow.spawn(doze, number) for number in range(n)]))


@workflow.defn
def mapped(n: int) -> int:
    """Run `n` activities with `workflow.map`."""
    return sum(workflow.map(echo, range(n), limit=AT_ONCE))


@workflow.defn
def waiting_fibers(n: int) -> int:
    """Spawn `n` fibers that wait for an event, a lock and a queue; one signal starts them all."""
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
    """Spawn `n` fibers that wait for a condition, which one signal makes true."""
    begun = False
    tasks = [workflow.spawn(workflow.wait_condition, lambda: begun) for _ in range(n)]
    total = numbers.receive()
    begun = True
    workflow.gather(*tasks)
    return total + len(tasks)


@workflow.defn
def channel(n: int) -> int:
    """Receive `n` messages from a channel."""
    return sum(numbers.receive() for _ in range(n))


@workflow.defn
class Handler:
    """Workflow that counts the signals received by its handler."""

    def __init__(self) -> None:
        self.count = self.total = 0

    @workflow.run
    def run(self, n: int) -> int:
        """Wait for `n` signals."""
        workflow.wait_condition(lambda: self.count == n)
        return self.total

    @workflow.signal
    def number(self, value: int) -> None:
        self.count += 1
        self.total += value


@workflow.defn
def sequence(n: int) -> int:
    """Run `n` activities sequentially."""
    return sum(echo(number) for number in range(n))


@workflow.defn
def four_ways(n: int) -> int:
    """Run `n` activities in four fibers, sequentially in each."""

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
