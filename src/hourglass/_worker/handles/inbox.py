"""An inbox: the items of one kind from one handle. Each item is passed to the attached receiver in the iteration of the
event loop in which the item arrives. Without a receiver the item is kept for the next receiver.

Must not know: the meaning of items (the record's book does), generations, registrations. Invariants:

- Between an item's arrival and its entry in the book there is no await, so no delivered item is ever unknown.
- An item is in one place: kept, or passed to a receiver that did not raise.
- Without a receiver the handle is paused. Otherwise items would pile up here, while the engine counts them as received
  and offers them to no other worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeAlias, TypeVar

from hourglass._contract.handle import Handle, WorkKind
from hourglass._worker.handles.calls import Condition

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

OURS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that no engine raises. Any other exception is a failure of the engine, including a Rust panic, which is
not an `Exception`.
"""

Receiver: TypeAlias = Callable[[T], object]
"""A function that dispatches an item, and enters the item's job in the book. If the function raises, the item is kept."""


class InFlight(Protocol[T_co]):
    """An entry of a book: an item whose completion the engine waits for, and the job that works on it. Its token fences the
    completion.
    """

    @property
    def item(self) -> T_co:
        """The item as the engine delivered it."""
        ...

    @property
    def token(self) -> int:
        """A number that is unique among all entries."""
        ...

    @property
    def is_dispatched(self) -> bool:
        """Whether a receiver has accepted the item. Otherwise the inbox keeps the item."""
        ...

    @property
    def is_in_work(self) -> bool:
        """Whether a part of the worker is working on the item and will complete it."""
        ...

    def forgotten(self) -> bool:
        """Handle the engine's answer that it no longer knows the run. Return whether the job has dropped the run."""
        ...


class Kept(Generic[T]):
    """The entry of an item that waits in its inbox."""

    __slots__ = ("item", "token")

    is_dispatched = is_in_work = False

    def __init__(self, item: T, token: int) -> None:
        self.item = item
        self.token = token

    def forgotten(self) -> bool:
        """Return False: no part of the worker has the run."""
        return False


class Inbox(Generic[T]):
    """The items of one kind from one handle.

    `keep` enters an item in the record's book. `notify` wakes the drain of the handle.
    """

    def __init__(
        self, handle: Handle, kind: WorkKind, keep: Callable[[T], object], notify: Callable[[], object]
    ) -> None:
        self.kind = kind
        self.changed = Condition()
        """Notified when an item is kept, the handle ends, or the receiver is detached."""
        self.undelivered: deque[T] = deque()
        self.end: BaseException | None = None
        """The error with which the handle stopped delivering items; None before."""
        self.received = 0
        self._handle = handle
        self._keep = keep
        self._notify_record = notify
        self._receiver: Receiver[T] | None = None
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Whether the handle receives new work of this kind."""
        return not self._is_paused and self.end is None

    @property
    def is_attended(self) -> bool:
        """Whether the handle receives new work of this kind and a poll loop waits for the items that cannot be
        dispatched immediately.
        """
        return self.is_open and self.changed.waiting > 0

    def attach(self, receiver: Receiver[T]) -> None:
        """Pass each item to this receiver from now on."""
        self._receiver = receiver
        if self._is_paused and self.end is None:
            self._is_paused = False
            self._handle.resume(self.kind)

    def detach(self, receiver: Receiver[T] | None = None) -> None:
        """Detach the receiver, and keep items from now on. Does nothing if a receiver other than `receiver` is
        attached.
        """
        if receiver is not None and self._receiver is not receiver:
            return
        self._receiver = None
        if self.is_open:
            self._is_paused = True
            self._handle.pause(self.kind)

    def pass_kept(self) -> None:
        """Pass the kept items to the receiver. If the receiver raises, the current item and all later items stay, and
        the exception propagates.
        """
        while self.undelivered and self._receiver is not None:
            self._receiver(self.undelivered[0])
            self.undelivered.popleft()

    def receive(self, items: Sequence[T]) -> None:
        """Accept items from the handle, in order. The items go to the receiver, unless earlier items are still kept."""
        self.received += len(items)
        passed, receiver = 0, self._receiver
        if receiver is not None and not self.undelivered:
            try:
                for item in items:
                    receiver(item)
                    passed += 1
                return
            except Exception:
                pass  # the poll loop is woken, and gets the same error
        for item in islice(items, passed, None):
            self._keep(item)
            self.undelivered.append(item)
        self._notify()

    def finish(self, why: BaseException) -> None:
        """Record that the handle delivers no more items."""
        self.end = why
        self._receiver = None
        self._notify()

    def _notify(self) -> None:
        self.changed.notify_all()
        self._notify_record()
