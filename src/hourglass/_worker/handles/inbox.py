"""An inbox: the items of one kind from one handle. Each is passed to the attached receiver in the turn of the loop in
which it arrives. Without a receiver it is kept for the next one.

Must not know: what items mean (the record's book does), generations, registrations. Invariants:

- Between an item's arrival and its entry in the book there is no await, so no delivered item is ever unknown.
- An item is in one place: kept, or passed to a receiver that did not raise.
- Without a receiver the handle is paused: otherwise items would pile up here, while the engine counts them as received
  by a worker and offers them to no other.
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
"""Exceptions that no engine raises. Any other is a failure of the engine, including a panic, which is not an
`Exception`.
"""

Receiver: TypeAlias = Callable[[T], object]
"""Dispatches an item, and enters the job that works on it in the book. If it raises, the item is kept."""


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
        """Unique among all entries."""
        ...

    @property
    def is_dispatched(self) -> bool:
        """Whether a receiver has taken the item; otherwise its inbox keeps it."""
        ...

    @property
    def is_in_work(self) -> bool:
        """Whether a part of the worker is working on the item and will complete it."""
        ...

    def forgotten(self) -> bool:
        """Handle the engine's answer that it no longer knows the run. Return whether the job has passed that on."""
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

    `keep` enters an item in the record's book; `notify` wakes the drain of the handle.
    """

    def __init__(
        self, handle: Handle, kind: WorkKind, keep: Callable[[T], object], notify: Callable[[], object]
    ) -> None:
        self.kind = kind
        self.changed = Condition()
        """Notified when an item is kept, the handle ends, or the receiver is detached."""
        self.kept: deque[T] = deque()
        self.end: BaseException | None = None
        """The reason for which the handle delivers no more; None while it does."""
        self.received = 0
        self._handle = handle
        self._keep = keep
        self._notify_record = notify
        self._receiver: Receiver[T] | None = None
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Whether the handle takes new work of this kind."""
        return not self._is_paused and self.end is None

    @property
    def is_attended(self) -> bool:
        """Whether the handle receives new work of this kind and a poll loop takes the items that cannot be dispatched
        at once.
        """
        return self.is_open and self.changed.waiting > 0

    def attach(self, receiver: Receiver[T]) -> None:
        """Pass each item to this receiver from now on."""
        self._receiver = receiver
        if self._is_paused and self.end is None:
            self._is_paused = False
            self._handle.resume(self.kind)

    def detach(self, receiver: Receiver[T] | None = None) -> None:
        """Keep items from now on. Does nothing if another receiver than this one is attached."""
        if receiver is not None and self._receiver is not receiver:
            return
        self._receiver = None
        if self.is_open:
            self._is_paused = True
            self._handle.pause(self.kind)

    def pass_kept(self) -> None:
        """Pass the kept items to the receiver. Propagate its exception; that item and those behind it stay."""
        while self.kept and self._receiver is not None:
            self._receiver(self.kept[0])
            self.kept.popleft()

    def receive(self, items: Sequence[T]) -> None:
        """Accept items from the handle, in order. They go to the receiver, unless earlier ones are still kept."""
        self.received += len(items)
        passed, receiver = 0, self._receiver
        if receiver is not None and not self.kept:
            try:
                for item in items:
                    receiver(item)
                    passed += 1
                return
            except Exception:
                pass  # the poll loop is woken, and meets the same error
        for item in islice(items, passed, None):
            self._keep(item)
            self.kept.append(item)
        self._notify()

    def finish(self, why: BaseException) -> None:
        """Record that the handle delivers no more items."""
        self.end = why
        self._receiver = None
        self._notify()

    def _notify(self) -> None:
        self.changed.notify_all()
        self._notify_record()
