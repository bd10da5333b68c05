"""A poll line: one kind of poll on one handle. It owns the raw poll, keeps what came until its taker acknowledges
that it was dispatched, and hands on what a dead taker left behind.

Must not know: what items mean (its `Book` does), generations, registrations. Invariants:

- At most one raw poll is out, in a task of its own: a waiter that is cancelled does not cancel it. It is out because
  a taker asked; it is not repeated while what it brought is not fetched.
- Between a raw poll's return and the item's entry in the book there is no await: what the engine gave out is
  known.
- An item has one ticket, and is in one place: kept (it has no taker), handed (a living taker has it), or
  acknowledged (gone from here).
- What a dead taker left passes on under a new ticket: the old one is void.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hourglass._bridge.calls import Bell

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

OURS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
"""What an engine does not raise. All else is its failure, also a panic, which is no Exception."""


_AHEAD = 32  # what is kept at most while its taker is on the way


class Owner(Protocol):
    """The worker or task that takes items; its death can be watched."""

    def add_death_callback(self, callback: Callable[[], object], /) -> Callable[[], object]:
        """Call back when it dies (at once if it is dead); returns what takes the callback back."""
        ...


class Book(Protocol[T]):
    """Where a line writes down what is outstanding on its handle."""

    def arrived(self, ticket: Ticket[T], /) -> None:
        """The engine gave this out, or what a dead taker had has a new ticket."""
        ...

    def still_open(self, item: T, /) -> bool:
        """Whether the item still has to be dealt with."""
        ...

    def poll_ended(self, error: BaseException, /) -> None:
        """The raw poll, or asking for more, raised: there will be no more items."""
        ...


class InFlight(Protocol[T_co]):
    """An entry of a book: an item that the engine waits for. Its token fences the completion."""

    @property
    def item(self) -> T_co:
        """What the engine gave out."""
        ...

    @property
    def token(self) -> int:
        """Never the same for two entries."""
        ...

    @property
    def acknowledged(self) -> bool:
        """Whether it is dispatched; else the poll line keeps it, or a taker has it that may die."""
        ...

    @property
    def is_in_work(self) -> bool:
        """Whether a part of the worker is at it, and answers."""
        ...


class Claim(NamedTuple):
    """The right to complete an activation: this token, on this generation of this queue's handle."""

    queue: str
    generation: int
    token: int


class Ticket(Generic[T]):
    """An item that an engine gave out, for this queue, by this generation of its handle; `token` fences its
    completion. `acknowledge` it when it is dispatched: until then it passes on if its taker dies.
    """

    __slots__ = ("_line", "acknowledged", "generation", "item", "queue", "taker", "token")

    def __init__(self, line: PollLine[T], item: T) -> None:
        self._line = line
        self.queue, self.generation = line.address
        self.token = line.next_token()
        self.item = item
        self.taker: Owner | None = None
        self.acknowledged = False

    is_in_work = False

    def __repr__(self) -> str:
        return f"<Ticket {self.queue!r} generation {self.generation} token {self.token}>"

    @property
    def claim(self) -> Claim:
        """The part of the ticket that a completion needs."""
        return Claim(self.queue, self.generation, self.token)

    def acknowledge(self) -> bool:
        """Say that the item is dispatched. False: it has passed on to another taker, and the caller drops it."""
        if self._line.handed.pop(self.token, None) is None:
            return False
        self.acknowledged = True
        return True


class PollLine(Generic[T]):
    """One kind of poll on one handle.

    `ask` sees to it that the raw poll is out. What it brings goes to the receiver that is attached, at once; without one
    `bell` rings, and `take` hands it out. `receive_from` tells an engine in this process where its items go.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[T]],
        more: Callable[[], Sequence[T]],
        receive_from: Callable[[Callable[[Sequence[T]], object] | None], object],
        book: Book[T],
        address: tuple[str, int],
        next_token: Callable[[], int],
        now_ns: Callable[[], int],
        changed: Callable[[], object],
    ) -> None:
        self.address = address
        self.next_token = next_token
        self.bell = Bell()
        self.kept: deque[Ticket[T]] = deque()
        self.handed: dict[int, Ticket[T]] = {}
        self.call: asyncio.Task[None] | None = None
        self.end: BaseException | None = None
        self.received = 0
        self.issued_ns = 0
        self.returned_ns = 0
        self._poll = poll
        self._more = more
        self._receive_from = receive_from
        self._receiver: Callable[[T], object] | None = None
        self._book = book
        self._now_ns = now_ns
        self._changed = changed
        self._watched: dict[Owner, Callable[[], object]] = {}
        self._is_fetched = False  # a taker was woken for what is kept, and has not come yet

    @property
    def in_flight(self) -> bool:
        """Whether a raw poll is out."""
        return self.call is not None

    @property
    def is_attended(self) -> bool:
        """Whether a raw poll is out, and a taker waits for what it brings."""
        return self.call is not None and self.bell.waiting > 0

    @property
    def in_hand(self) -> int:
        """How many items takers have and have not acknowledged."""
        return len(self.handed)

    def ask(self) -> None:
        """See to it that a raw poll is out, unless polling is over."""
        if self.call is None and self.end is None:
            self.issued_ns = self._now_ns()
            self.call = asyncio.get_running_loop().create_task(
                self._run(), name=f"poll of {self.address[0]} generation {self.address[1]}"
            )

    def attach(self, receiver: Callable[[T], object]) -> None:
        """Give this receiver each item from now on. One that it raises for is kept, with those behind it, and `bell` rings."""
        self._receiver = receiver
        self._receive_from(self._arrived)
        self.ask()

    def detach(self, receiver: Callable[[T], object] | None = None) -> None:
        """Keep what comes from now on; nothing happens if it is not this receiver that is attached."""
        if receiver is None or self._receiver is receiver:
            self._receiver = None
            self._receive_from(None)

    def give_kept(self) -> None:
        """Give the receiver what was kept. Raises what it raises; that item, and those behind it, stay."""
        while self.kept and self._receiver is not None:
            self._receiver(self.kept[0].item)
            self.kept.popleft()

    def _arrived(self, items: Sequence[T]) -> None:
        """Items of the engine's, in order: the receiver's, unless earlier ones are kept."""
        self.received += len(items)
        receiver = self._receiver
        if receiver is None or self.kept:
            self._keep(items)
            return
        for place, item in enumerate(items):
            try:
                receiver(item)
            except Exception:
                self._keep(items[place:])  # the caller of `attach` is woken, and meets the same error
                self._ring()
                return

    async def _run(self) -> None:
        """Poll, and poll on while takers fetch what was brought: a burst costs one task and one wake-up."""
        while True:
            try:
                item = await self._poll()
                self.returned_ns = self._now_ns()
                self._arrived((item,))
                self._arrived(self._more())
            except OURS:
                # The loop ends, or the poll was cancelled, which it must not be: the next `ask` polls again.
                self.call = None
                self._ring()
                raise
            except BaseException as error:
                self.call, self.end, self.returned_ns = None, error, self._now_ns()
                self.detach()
                self._book.poll_ended(error)
                self._watch_no_more()
                self._ring()
                return
            if self._receiver is not None:
                self._receive_from(
                    self._arrived
                )  # the engine may have come into this process with this very poll
                self.issued_ns = self.returned_ns
                continue
            # Poll on only for a taker that waits or is on its way: without one the items would pile up here, while
            # the engine counts them as given to a worker and gives them to no other.
            self._is_fetched = self._is_fetched or self.bell.waiting > 0
            if not self._is_fetched or len(self.kept) >= _AHEAD:
                self.call = None
                self._ring()
                return
            self._ring()
            self.issued_ns = self.returned_ns

    def _keep(self, items: Sequence[T]) -> None:
        for item in items:
            ticket = Ticket(self, item)
            self._book.arrived(ticket)
            self.kept.append(ticket)

    def take(self, taker: Owner | None = None) -> Ticket[T]:
        """The first item that is kept (the caller has seen one), for `taker`, by default the current task."""
        if taker is None:
            taker = _TaskOwner.current()
        return self._hand([self.kept.popleft()], taker)[0]

    def take_all(self, taker: Owner) -> list[Ticket[T]]:
        """Everything that is kept."""
        tickets = list(self.kept)
        self.kept.clear()
        return self._hand(tickets, taker)

    def _hand(self, tickets: list[Ticket[T]], taker: Owner | None) -> list[Ticket[T]]:
        self._is_fetched = False
        for ticket in tickets:
            ticket.taker = taker
            self.handed[ticket.token] = ticket
        if taker is not None and taker not in self._watched:
            self._watch(taker)
        return tickets

    def _watch(self, taker: Owner) -> None:
        self._watched[taker] = _nothing  # first: one that is dead already calls back at once
        unwatch = taker.add_death_callback(lambda: self._taker_died(taker))
        if taker in self._watched:
            self._watched[taker] = unwatch

    def _watch_no_more(self) -> None:
        """Polling is over: stop watching takers that have nothing in hand."""
        busy = {ticket.taker for ticket in self.handed.values()}
        for taker in self._watched.keys() - busy:
            self._watched.pop(taker)()

    def _taker_died(self, taker: Owner) -> None:
        self._watched.pop(taker, None)
        left = [ticket for ticket in self.handed.values() if ticket.taker == taker]
        for ticket in reversed(
            left
        ):  # reversed and put in front: what was handed out first is handed out first again
            del self.handed[ticket.token]
            if self._book.still_open(ticket.item):
                renewed = Ticket(self, ticket.item)
                self._book.arrived(renewed)
                self.kept.appendleft(renewed)
        if left:
            self._ring()

    def _ring(self) -> None:
        self.bell.ring()
        self._changed()

    def cancel(self) -> None:
        """Give up the raw poll: only for a handle that is left behind."""
        if self.call is not None:
            self.call.cancel()


@dataclass(frozen=True, slots=True)
class _TaskOwner:
    """A task of asyncio as a taker."""

    task: asyncio.Task[Any]

    @staticmethod
    def current() -> _TaskOwner | None:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        return None if task is None else _TaskOwner(task)

    def add_death_callback(self, callback: Callable[[], object], /) -> Callable[[], object]:
        def done(_: asyncio.Future[Any]) -> None:
            callback()

        self.task.add_done_callback(done)
        return lambda: self.task.remove_done_callback(done)


def _nothing() -> None:
    return None
