"""Workflows of any size."""

from __future__ import annotations

from hourglass import activity, workflow

AT_ONCE = 30

numbers = workflow.Channel("number", int)


@activity.defn(start_to_close_timeout=60)
def echo(value: int) -> int:
    return value


@workflow.defn
def acting(n: int) -> int:
    """One activity in each of `n` fibers, with limited concurrency."""
    places = workflow.Semaphore(AT_ONCE)

    def act(number: int) -> int:
        with places:
            return echo(number)

    return sum(workflow.gather(*[workflow.spawn(act, number) for number in range(n)]))


@workflow.defn
def sleeping(n: int) -> int:
    """One sleep in each of `n` fibers, with limited concurrency."""
    places = workflow.Semaphore(AT_ONCE)

    def doze(number: int) -> int:
        with places:
            workflow.sleep(0.05)
            return number

    return sum(workflow.gather(*[workflow.spawn(doze, number) for number in range(n)]))


@workflow.defn
def mapped(n: int) -> int:
    """Activities by `workflow.map`."""
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
    """Fibers that each wait for one message of a channel."""
    return sum(workflow.gather(*[workflow.spawn(numbers.receive) for _ in range(n)]))


@workflow.defn
def impatient(n: int) -> int:
    """Fibers that wait for a message until their timeout."""

    def wait(number: int) -> int:
        try:
            return numbers.receive(timeout=1 + number)
        except TimeoutError:
            return 1

    return sum(workflow.gather(*[workflow.spawn(wait, number) for number in range(n)]))


@workflow.defn
def reader(n: int) -> int:
    """Receive messages from a channel."""
    return sum(numbers.receive() for _ in range(n))


@workflow.defn
class Handler:
    """Counts the signals of its handler."""

    def __init__(self) -> None:
        self.count = 0

    @workflow.run
    def run(self, n: int) -> int:
        workflow.wait_condition(lambda: self.count == n)
        return self.count

    @workflow.signal
    def number(self, value: int) -> None:
        self.count += value


@workflow.defn
def conditions(n: int) -> int:
    """Fibers that wait for a condition that one signal makes true for all."""
    started = False
    tasks = [workflow.spawn(workflow.wait_condition, lambda: started) for _ in range(n)]
    numbers.receive()
    started = True
    workflow.gather(*tasks)
    return len(tasks)


@workflow.defn
def left_alone(n: int) -> int:
    """Fibers that fail unread, then a sequence of activities."""

    def fail() -> None:
        raise ValueError("unread")

    for _ in range(n):
        workflow.spawn(fail)
    return sum(echo(number) for number in range(n))


@workflow.defn
def relay(n: int) -> int:
    """Each fiber spawns its successor, and ends."""
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
