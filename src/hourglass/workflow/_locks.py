"""`Lock`, `Semaphore`, `Event` and `Queue` for the tasks of one workflow. They are as fair as asyncio's, and wake
waiters in the same order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from hourglass._evaluator.fibers import require_fiber, wait_for
from hourglass._evaluator.scheduler import CANCELLED, PENDING, Future
from hourglass.errors import Cancelled, ChannelEmptyError, UsageError

T = TypeVar("T")

_Waiters: TypeAlias = OrderedDict[Future, None]
"""The waiting tasks in order. There may be thousands, so finding the first task or removing one must not scan the others."""


def _waiter(waiters: _Waiters, action: str) -> Future:
    fiber = require_fiber(action)
    future = Future(fiber.scheduler)
    waiters[future] = None
    return future


def _wake_first(waiters: _Waiters) -> bool:
    """Wake the task that has waited longest, and remove it from the waiters. Return False if no task is waiting."""
    while waiters:
        waiter = next(iter(waiters))
        pending = waiter.state == PENDING
        if pending:
            waiter.resolve()  # raises in a query, where no task may be woken; nothing is removed then
        del waiters[waiter]
        if pending:
            return True
    return False


class Lock:
    """Mutual exclusion between the tasks of one workflow: `with lock: …`."""

    def __init__(self) -> None:
        self._locked = False
        self._waiters: _Waiters = OrderedDict()

    def locked(self) -> bool:
        """Return whether a task holds the lock."""
        return self._locked

    def acquire(self) -> None:
        """Acquire the lock, waiting while another task holds it."""
        if not self._locked and all(waiter.state == CANCELLED for waiter in self._waiters):
            require_fiber("acquiring a lock")
            self._locked = True
            return
        waiter = _waiter(self._waiters, "waiting for a lock")
        try:
            try:
                wait_for(waiter)
            finally:
                del self._waiters[waiter]
        except Cancelled:
            # This task may have been woken, as the only one. Wake the next task, or the others wait forever.
            if not self._locked:
                self._wake_first()
            raise
        self._locked = True

    def release(self) -> None:
        """Release the lock. The task that has waited longest acquires it."""
        if not self._locked:
            raise UsageError("no task holds the lock that was released")
        self._locked = False
        self._wake_first()

    def _wake_first(self) -> None:
        first = next(iter(self._waiters), None)
        if first is not None and first.state == PENDING:
            first.resolve()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Semaphore:
    """A limit on the number of concurrent tasks of one workflow: `with semaphore: …`."""

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise UsageError(f"the initial value of a semaphore must be at least 0, not {value}")
        self._value = value
        self._waiters: _Waiters = OrderedDict()
        self._unwoken: _Waiters = OrderedDict()  # the waiting tasks that have not been woken

    def locked(self) -> bool:
        """Return whether a task would have to wait."""
        return self._value == 0 or any(waiter.state != CANCELLED for waiter in self._waiters)

    def acquire(self) -> None:
        """Acquire a slot, waiting while none is free."""
        if not self.locked():
            require_fiber("acquiring a semaphore")
            self._value -= 1
            return
        waiter = _waiter(self._waiters, "waiting for a semaphore")
        self._unwoken[waiter] = None
        try:
            try:
                wait_for(waiter)
            finally:
                del self._waiters[waiter]
                self._unwoken.pop(waiter, None)
        except Cancelled:
            if waiter.state != CANCELLED:  # the slot was already ours, so pass it on
                self._value += 1
                self._wake_next()
            raise
        if self._value > 0:
            self._wake_next()

    def release(self) -> None:
        """Release a slot."""
        self._value += 1
        self._wake_next()

    def _wake_next(self) -> None:
        if _wake_first(self._unwoken):
            self._value -= 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Event:
    """A flag that tasks can wait for."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: _Waiters = OrderedDict()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag, and wake all waiting tasks."""
        if not self._set:
            self._set = True
            for waiter in self._waiters:
                waiter.release()

    def clear(self) -> None:
        """Clear the flag."""
        self._set = False

    def wait(self) -> None:
        """Wait until the flag is set."""
        if self._set:
            return
        waiter = _waiter(self._waiters, "waiting for an event")
        try:
            wait_for(waiter)
        finally:
            del self._waiters[waiter]


class Queue(Generic[T]):
    """A queue between the tasks of one workflow. A `maxsize` of 0 means no limit."""

    def __init__(self, maxsize: int = 0) -> None:
        self._maxsize = maxsize
        self._items: deque[T] = deque()
        self._getters: _Waiters = OrderedDict()
        self._putters: _Waiters = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        """Return whether the queue is empty."""
        return not self._items

    def full(self) -> bool:
        """Return whether a task would have to wait to add an item."""
        return 0 < self._maxsize <= len(self._items)

    def put(self, item: T) -> None:
        """Add an item, waiting while the queue is full."""
        while self.full():
            self._wait(self._putters, lambda: not self.full())
        self.put_nowait(item)

    def put_nowait(self, item: T) -> None:
        """Add an item, or raise `UsageError` if the queue is full."""
        if self.full():
            raise UsageError("the queue is full")
        self._items.append(item)
        _wake_first(self._getters)

    def get(self) -> T:
        """Remove and return the next item, waiting while the queue is empty."""
        while not self._items:
            self._wait(self._getters, lambda: bool(self._items))
        return self.get_nowait()

    def get_nowait(self) -> T:
        """Remove and return the next item, or raise `ChannelEmptyError` if the queue is empty."""
        if not self._items:
            raise ChannelEmptyError("the queue is empty")
        item = self._items.popleft()
        _wake_first(self._putters)
        return item

    def _wait(self, waiters: _Waiters, ready: Any) -> None:
        waiter = _waiter(waiters, "waiting for a queue")
        try:
            wait_for(waiter)
        except BaseException:
            if waiter in waiters:
                del waiters[waiter]
            elif ready():  # this task was woken but gives up, so it wakes the next one
                _wake_first(waiters)
            raise
