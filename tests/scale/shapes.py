"""Workflows that can be made as large as one likes."""

from __future__ import annotations

from hourglass import activity, workflow

AT_ONCE = 30

numbers = workflow.Channel("number", int)


@activity.defn(start_to_close_timeout=60)
def echo(value: int) -> int:
    """Gives back what it is given."""
    return value


@workflow.defn
def acting(n: int) -> int:
    """All fibers at once, each with an activity, so many at a time."""
    places = workflow.Semaphore(AT_ONCE)

    def act(number: int) -> int:
        with places:
            return echo(number)

    return sum(workflow.gather(*[workflow.spawn(act, number) for number in range(n)]))


@workflow.defn
def sleeping(n: int) -> int:
    """All fibers at once, each asleep, so many at a time."""
    places = workflow.Semaphore(AT_ONCE)

    def doze(number: int) -> int:
        with places:
            workflow.sleep(0.05)
            return number

    return sum(workflow.gather(*[workflow.spawn(doze, number) for number in range(n)]))


@workflow.defn
def mapped(n: int) -> int:
    """An activity for each, by `workflow.map`."""
    return sum(workflow.map(echo, range(n), limit=AT_ONCE))


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


@workflow.defn
def in_line(n: int) -> int:
    """Fibers that wait for an event, then for a lock, then for each other's numbers."""
    lock, flag, queue, seen = workflow.Lock(), workflow.Event(), workflow.Queue[int](), 0

    def work(number: int) -> None:
        nonlocal seen
        flag.wait()
        with lock:
            workflow.sleep(0)
        queue.put(number)
        seen += queue.get()

    tasks = [workflow.spawn(work, number) for number in range(n)]
    numbers.receive()
    flag.set()
    workflow.gather(*tasks)
    return seen


@workflow.defn
def receivers(n: int) -> int:
    """So many fibers wait for a message of one channel, each for one."""
    return sum(workflow.gather(*[workflow.spawn(numbers.receive) for _ in range(n)]))


@workflow.defn
def impatient(n: int) -> int:
    """So many fibers wait for a message that never comes, and give up."""

    def wait(number: int) -> int:
        try:
            return numbers.receive(timeout=1 + number)
        except TimeoutError:
            return 1

    return sum(workflow.gather(*[workflow.spawn(wait, number) for number in range(n)]))


@workflow.defn
def reader(n: int) -> int:
    """Reads so many messages from a channel."""
    return sum(numbers.receive() for _ in range(n))


@workflow.defn
class Handler:
    """Counts the signals that its handler gets."""

    def __init__(self) -> None:
        self.count = 0

    @workflow.run
    def run(self, n: int) -> int:
        """Wait for all of them."""
        workflow.wait_condition(lambda: self.count == n)
        return self.count

    @workflow.signal
    def number(self, value: int) -> None:
        """One more."""
        self.count += value


@workflow.defn
def conditions(n: int) -> int:
    """So many fibers wait for a condition that one signal makes true for all."""
    begun = False
    tasks = [workflow.spawn(workflow.wait_condition, lambda: begun) for _ in range(n)]
    numbers.receive()
    begun = True
    workflow.gather(*tasks)
    return len(tasks)


@workflow.defn
def left_alone(n: int) -> int:
    """So many fibers fail and nobody looks; then the run goes on for as long."""

    def fail() -> None:
        raise ValueError("nobody looks")

    for _ in range(n):
        workflow.spawn(fail)
    return sum(echo(number) for number in range(n))


@workflow.defn
def relay(n: int) -> int:
    """Each fiber begins its successor, and ends."""
    done = 0

    def leg() -> None:
        nonlocal done
        echo(done)
        done += 1
        if done < n:
            workflow.spawn(leg)

    workflow.spawn(leg)
    workflow.wait_condition(lambda: done == n)
    return done
