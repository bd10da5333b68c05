"""A poll line: one kind of poll on one handle. It owns the raw poll, and gives what comes to the receiver that is
attached, in the same turn of the loop; without one it keeps what comes for the next.

Must not know: what items mean (its `Book` does), generations, registrations. Invariants:

- At most one raw poll is out, in a task of its own: no receiver's end cancels it. It is repeated while a receiver is
  attached, or asked for.
- Between an item's arrival and its entry in the book there is no await: what the engine gave out is known.
- An item is in one place: kept, or given to a receiver that did not raise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeAlias, TypeVar

from hourglass._worker.handles.calls import Condition

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

OURS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
"""What an engine does not raise. All else is its failure, also a panic, which is no Exception."""

Receiver: TypeAlias = Callable[[T], object]
"""Dispatches an item, and enters in the book what is at it. It raises where it cannot: then the item is kept."""


class InFlight(Protocol[T_co]):
    """An entry of a book: an item that the engine waits for, and who has it. Its token fences the completion."""

    @property
    def item(self) -> T_co:
        """What the engine gave out."""
        ...

    @property
    def token(self) -> int:
        """Never the same for two entries."""
        ...

    @property
    def is_dispatched(self) -> bool:
        """Whether a receiver has taken it; else its poll line keeps it."""
        ...

    @property
    def is_in_work(self) -> bool:
        """Whether a part of the worker is at it, and answers."""
        ...

    def forgotten(self) -> bool:
        """The engine has forgotten the run with this answer: whether the part that knows the run has been told."""
        ...


class Kept(Generic[T]):
    """The entry of an item that waits in its poll line."""

    __slots__ = ("item", "token")

    is_dispatched = is_in_work = False

    def __init__(self, item: T, token: int) -> None:
        self.item = item
        self.token = token

    def forgotten(self) -> bool:
        """No part of the worker has it."""
        return False


class Book(Protocol[T_contra]):
    """Where a line writes down what is outstanding on its handle."""

    def keep(self, item: T_contra, /) -> None:
        """The engine gave this out, and no receiver has taken it yet."""
        ...

    def poll_ended(self, error: BaseException, /) -> None:
        """The raw poll, or asking for more, raised: there will be no more items."""
        ...


class PollLine(Generic[T]):
    """One kind of poll on one handle.

    `ask` sees to it that the raw poll is out. What it brings goes to the receiver that is attached, at once; what that
    cannot take, and what comes without one, is kept, and `changed` is notified. `receive_from` tells a handle that can give
    its items without a poll's being woken (`Receivers`) where they go.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[T]],
        more: Callable[[], Sequence[T]],
        receive_from: Callable[[Callable[[Sequence[T]], object] | None], object],
        book: Book[T],
        name: str,
        notify: Callable[[], object],
    ) -> None:
        self.changed = Condition()
        self.kept: deque[T] = deque()
        self.call: asyncio.Task[None] | None = None
        self.end: BaseException | None = None
        self.received = 0
        self._poll = poll
        self._more = more
        self._receive_from = receive_from
        self._receiver: Receiver[T] | None = None
        self._book = book
        self._name = name
        self._notify_others = notify

    @property
    def in_flight(self) -> bool:
        """Whether a raw poll is out."""
        return self.call is not None

    @property
    def is_attended(self) -> bool:
        """Whether a raw poll is out, and the process of a receiver waits for what cannot be dispatched at once."""
        return self.call is not None and self.changed.waiting > 0

    def ask(self) -> None:
        """See to it that a raw poll is out, unless polling is over."""
        if self.call is None and self.end is None:
            self.call = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def attach(self, receiver: Receiver[T]) -> None:
        """Give this receiver each item from now on."""
        self._receiver = receiver
        self._receive_from(self._arrived)
        self.ask()

    def detach(self, receiver: Receiver[T] | None = None) -> None:
        """Keep what comes from now on; nothing happens if another receiver than this is attached."""
        if receiver is None or self._receiver is receiver:
            self._receiver = None
            self._receive_from(None)

    def give_kept(self) -> None:
        """Give the receiver what was kept. Raises what it raises; that item, and those behind it, stay."""
        while self.kept and self._receiver is not None:
            self._receiver(self.kept[0])
            self.kept.popleft()

    def cancel(self) -> None:
        """Give up the raw poll: only for a handle that is left behind."""
        if self.call is not None:
            self.call.cancel()

    def _arrived(self, items: Sequence[T]) -> None:
        """Items of the engine's, in order: the receiver's, unless earlier ones are kept."""
        self.received += len(items)
        given, receiver = 0, self._receiver
        if receiver is not None and not self.kept:
            try:
                for item in items:
                    receiver(item)
                    given += 1
                return
            except Exception:
                pass  # the caller of `attach` is woken, and meets the same error
        for item in islice(items, given, None):
            self._book.keep(item)
            self.kept.append(item)
        self._notify()

    async def _run(self) -> None:
        """Poll, and poll on while a receiver is attached: without one the items would pile up here, while the engine counts
        them as given to a worker and gives them to no other.
        """
        while True:
            try:
                self._arrived((await self._poll(),))
                if more := self._more():
                    self._arrived(more)
            except OURS:
                # The loop ends, or the poll was cancelled, which it must not be: the next `ask` polls again.
                self.call = None
                self._notify()
                raise
            except BaseException as error:
                self.call, self.end = None, error
                self.detach()
                self._book.poll_ended(error)
                self._notify()
                return
            if self._receiver is None:
                self.call = None
                self._notify()
                return
            # The engine may have come into this process with this very poll.
            self._receive_from(self._arrived)

    def _notify(self) -> None:
        self.changed.notify_all()
        self._notify_others()
